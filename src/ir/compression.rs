//! Which responses are compressed, and how. Must not know encoders.

use std::sync::Arc;

use serde::Serialize;

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

/// A content coding (RFC 9110, 8.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Encoding {
    /// `zstd` (RFC 8878).
    Zstd,
    /// `br` (RFC 7932).
    Brotli,
    /// `gzip` (RFC 1952).
    Gzip,
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

impl Encoding {
    /// All encodings, in order of preference.
    pub const ALL: [Self; 3] = [Self::Zstd, Self::Brotli, Self::Gzip];

    /// Returns its name in headers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }
}
