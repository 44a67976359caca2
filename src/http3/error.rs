//! Error codes of HTTP/3 (RFC 9114, 8.1) and QPACK (RFC 9204, 6), and what an error ends.

/// An error code, for resets of streams and for the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Code {
    NoError = 0x100,
    GeneralProtocolError = 0x101,
    InternalError = 0x102,
    StreamCreationError = 0x103,
    ClosedCriticalStream = 0x104,
    FrameUnexpected = 0x105,
    FrameError = 0x106,
    ExcessiveLoad = 0x107,
    IdError = 0x108,
    SettingsError = 0x109,
    MissingSettings = 0x10a,
    RequestRejected = 0x10b,
    RequestCancelled = 0x10c,
    RequestIncomplete = 0x10d,
    MessageError = 0x10e,
    QpackDecompressionFailed = 0x200,
    QpackEncoderStreamError = 0x201,
    QpackDecoderStreamError = 0x202,
}

impl Code {
    /// Returns the code on the wire.
    pub(crate) const fn value(self) -> u64 {
        self as u64
    }
}

/// What a client did wrong, what it ends, and a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    /// Ends the connection.
    Connection(Code, &'static str),
    /// Ends the stream, in both directions.
    Stream(Code, &'static str),
    /// A field section exceeds the limits. To a request head, 431 is the response; the rest of the stream need not be read.
    TooLarge,
}

impl Error {
    /// The error of a malformed message (RFC 9114, 4.1.2).
    pub(super) const fn malformed(description: &'static str) -> Self {
        Self::Stream(Code::MessageError, description)
    }

    /// The error of a frame that is not permitted on its stream or at this place.
    pub(super) const fn unexpected(description: &'static str) -> Self {
        Self::Connection(Code::FrameUnexpected, description)
    }

    /// The error of a frame with a wrong length or layout.
    pub(super) const fn layout(description: &'static str) -> Self {
        Self::Connection(Code::FrameError, description)
    }
}
