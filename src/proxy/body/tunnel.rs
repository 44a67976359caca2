//! The body of a response that opens a tunnel: the connection to the backend, which the connection to the client relays.

use std::time::Duration;

use super::request_body::RequestBody;
use crate::proxy::response::record::Record;
use crate::upstream::{ResponseBody, Upgraded};

/// The backend half of an upgraded connection, before the client half is available.
pub(crate) struct Tunnel {
    pub(in crate::proxy) backend: Upgraded,
    pub(in crate::proxy) record: Box<Record>,
}

impl Tunnel {
    /// Takes over the connection after a 101 response.
    pub(crate) fn new(response: ResponseBody<RequestBody>, record: Box<Record>) -> Option<Self> {
        let backend = response.into_upgraded()?;
        Some(Self { backend, record })
    }

    /// Returns the time after which the tunnel ends if no byte moves.
    pub(in crate::proxy) fn idle_timeout(&self) -> Duration {
        self.record.activity().tunnel_idle_timeout()
    }
}
