//! Which responses are compressed, and how. Must not know encoders.

use std::sync::Arc;

use serde::Serialize;

use super::named::named;

/// Compression of responses.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Compression {
    /// Encodings in order of preference. Empty: no response is compressed.
    pub encodings: Vec<Encoding>,
    /// Media types of responses, in lower case; `text/*` is all types of text.
    pub content_types: Vec<Arc<str>>,
    /// Minimum size of a response whose size is known.
    pub min_size: u64,
    /// Effort.
    pub level: Level,
}

named! {
    /// A content coding (RFC 9110, 8.4.1), in order of preference.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
    pub enum Encoding {
        /// `zstd` (RFC 8878).
        Zstd = "zstd",
        /// `br` (RFC 7932).
        Brotli = "br",
        /// `gzip` (RFC 1952).
        Gzip = "gzip",
    }
}

/// How much time compression takes for how much less to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Level {
    /// Least time.
    Fast,
    /// Between both.
    Default,
    /// Least to send.
    Best,
}
