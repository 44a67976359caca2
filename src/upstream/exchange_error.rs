//! Errors of an exchange with a backend, classified by whether a retry is safe.

use std::io;

/// Why an exchange failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// The backend violated the protocol.
    #[error("{0}")]
    Protocol(&'static str),
    /// The connection closed before the end of the response.
    #[error("the connection ended before the response did")]
    Truncated,
    /// A read or write failed.
    #[error("the connection failed: {0}")]
    Io(io::ErrorKind),
    /// The backend reset the HTTP/2 stream.
    #[error("the backend reset the stream")]
    Reset,
    /// The backend refused the HTTP/2 stream without processing the request (RFC 9113, 8.7).
    #[error("the backend refused the stream")]
    Refused,
    /// The backend sent GOAWAY without processing the request (RFC 9113, 6.8).
    #[error("the backend ended the connection before it processed the request")]
    NotProcessed,
    /// The request body failed: the client disconnected or violated the protocol.
    #[error("the request body failed")]
    RequestBody,
}
