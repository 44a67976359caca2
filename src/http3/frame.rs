//! Frames of HTTP/3 (RFC 9114, 7): their types and headers, and the frames that a server sends.

use bytes::Bytes;

use super::{qpack, varint};

const DATA: u64 = 0x0;
const HEADERS: u64 = 0x1;
const CANCEL_PUSH: u64 = 0x3;
const SETTINGS: u64 = 0x4;
const PUSH_PROMISE: u64 = 0x5;
const GOAWAY: u64 = 0x7;
const MAX_PUSH_ID: u64 = 0xd;

/// Identifiers of settings (RFC 9114, 7.2.4.1, RFC 9204, 5, and RFC 9220, 3).
pub(super) const QPACK_MAX_TABLE_CAPACITY: u64 = 0x1;
pub(super) const MAX_FIELD_SECTION_SIZE: u64 = 0x6;
pub(super) const QPACK_BLOCKED_STREAMS: u64 = 0x7;
pub(super) const ENABLE_CONNECT_PROTOCOL: u64 = 0x8;

/// The type of a control stream (RFC 9114, 6.2.1).
pub(super) const CONTROL_STREAM: u64 = 0x0;

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Data,
    Headers,
    CancelPush,
    Settings,
    PushPromise,
    GoAway,
    MaxPushId,
    /// A type of HTTP/2 that HTTP/3 does not have (RFC 9114, 7.2.8).
    OfHttp2,
    /// A type to be ignored (RFC 9114, 9).
    Unknown,
}

impl Kind {
    fn of(kind: u64) -> Self {
        match kind {
            DATA => Self::Data,
            HEADERS => Self::Headers,
            CANCEL_PUSH => Self::CancelPush,
            SETTINGS => Self::Settings,
            PUSH_PROMISE => Self::PushPromise,
            GOAWAY => Self::GoAway,
            MAX_PUSH_ID => Self::MaxPushId,
            0x2 | 0x6 | 0x8 | 0x9 => Self::OfHttp2,
            _ => Self::Unknown,
        }
    }
}

/// Reads the headers of frames.
#[derive(Debug, Default)]
pub(super) struct HeaderReader {
    integer: varint::Partial,
    kind: Option<u64>,
}

impl HeaderReader {
    /// Takes bytes until a header is complete. Returns the frame's type and the length of its payload. The next call begins
    /// another header then.
    pub(super) fn read(&mut self, input: &mut Bytes) -> Option<(Kind, u64)> {
        let kind = match self.kind {
            Some(kind) => kind,
            None => *self.kind.insert(self.integer.read(input)?),
        };
        let length = self.integer.read(input)?;
        self.kind = None;
        Some((Kind::of(kind), length))
    }

    /// Reports whether a part of a header was read.
    pub(super) fn is_begun(&self) -> bool {
        self.kind.is_some() || self.integer.is_begun()
    }
}

/// Takes at most `left` bytes, and subtracts them from `left`.
pub(super) fn take(input: &mut Bytes, left: &mut u64) -> Bytes {
    let length = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
    *left -= length as u64;
    input.split_to(length)
}

/// Writes the header of a DATA frame, which `length` bytes of content follow.
pub(crate) fn write_data_header(length: usize, output: &mut Vec<u8>) {
    write_header(DATA, length, output);
}

/// Writes the first bytes of the control stream: its type, and SETTINGS without a dynamic table of QPACK and with extended
/// CONNECT (RFC 9220). `max_field_section_size` is the maximum of a request's fields as RFC 9114, 4.2.2 counts them.
pub(crate) fn write_control_stream(max_field_section_size: usize, output: &mut Vec<u8>) {
    let size = (max_field_section_size as u64).min(varint::MAX);
    let mut settings = Vec::new();
    for (id, value) in [
        (QPACK_MAX_TABLE_CAPACITY, 0),
        (MAX_FIELD_SECTION_SIZE, size),
        (QPACK_BLOCKED_STREAMS, 0),
        (ENABLE_CONNECT_PROTOCOL, 1),
    ] {
        varint::write(id, &mut settings);
        varint::write(value, &mut settings);
    }
    varint::write(CONTROL_STREAM, output);
    write_header(SETTINGS, settings.len(), output);
    output.extend_from_slice(&settings);
}

/// Writes a GOAWAY for the control stream: requests of this stream and later ones are not processed (RFC 9114, 5.2).
pub(crate) fn write_goaway(stream: u64, output: &mut Vec<u8>) {
    let mut id = Vec::new();
    varint::write(stream, &mut id);
    write_header(GOAWAY, id.len(), output);
    output.extend_from_slice(&id);
}

/// Writes a HEADERS frame with the lines that `lines` adds.
pub(super) fn write_headers(output: &mut Vec<u8>, lines: impl FnOnce(&mut Vec<u8>)) {
    /// Most sections have a length of two bytes.
    const HEADER: usize = 3;
    let begin = output.len();
    output.extend([0; HEADER]);
    qpack::begin(output);
    lines(output);
    let mut header = Vec::with_capacity(HEADER);
    let length = output.len() - begin - HEADER;
    write_header(HEADERS, length, &mut header);
    output.splice(begin..begin + HEADER, header);
}

fn write_header(kind: u64, length: usize, output: &mut Vec<u8>) {
    varint::write(kind, output);
    varint::write(length as u64, output);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_stream_begins_with_its_type_and_settings() {
        let mut output = Vec::new();
        write_control_stream(65_536, &mut output);
        let settings = [1, 0, 6, 0x80, 1, 0, 0, 7, 0, 8, 1];
        assert_eq!(output, [&[0, 4, 11][..], &settings].concat());
        output.clear();
        write_goaway(400, &mut output);
        assert_eq!(output, [7, 2, 0x41, 0x90]);
    }

    #[test]
    fn lengths_of_headers_have_as_many_bytes_as_they_need() {
        for (lines, header) in [
            (0, &[1, 2][..]),
            (61, &[1, 63]),
            (62, &[1, 0x40, 64]),
            (20_000, &[1, 0x80, 0, 0x4e, 0x22]),
        ] {
            let mut output = b"before".to_vec();
            write_headers(&mut output, |output| output.resize(8 + 3 + lines, 1));
            let expected = [&b"before"[..], header, &[0, 0], &vec![1; lines]].concat();
            assert_eq!(output, expected);
        }
    }

    #[test]
    fn data_headers_precede_content() {
        let mut output = Vec::new();
        write_data_header(100, &mut output);
        assert_eq!(output, [0, 0x40, 100]);
    }
}
