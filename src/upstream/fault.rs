//! Why an exchange with a backend failed, in terms that decide whether it may be sent again.

use std::io;

/// Why an exchange failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The backend broke the protocol.
    #[error("{0}")]
    Protocol(&'static str),
    /// The connection ended before the response did.
    #[error("the connection ended before the response did")]
    Truncated,
    /// Reading or writing failed.
    #[error("the connection failed: {0}")]
    Io(io::ErrorKind),
    /// The backend reset the HTTP/2 stream.
    #[error("the backend reset the stream")]
    Reset,
    /// The backend refused the HTTP/2 stream, and did not process the request (RFC 9113, 8.7).
    #[error("the backend refused the stream")]
    Refused,
    /// The backend ended the HTTP/2 connection, and did not process the request (RFC 9113, 6.8).
    #[error("the backend ended the connection before it processed the request")]
    LeftOut,
    /// The request's own body failed: the client went away or broke the protocol.
    #[error("the request body failed")]
    RequestBody,
}
