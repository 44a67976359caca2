//! HTTP/2 as policies set it. Must not know on which side of the proxy.

use serde::Serialize;

/// Initial flow-control windows of a connection, for what the proxy receives. Each is between 65,535 bytes and what
/// translation permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Http2Windows {
    /// Of each stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<u32>,
    /// Of all streams together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<u32>,
}

impl Http2Windows {
    /// Reports whether nothing is set.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
