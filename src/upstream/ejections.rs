//! The endpoints that the failures of one request have ejected.

use std::net::SocketAddr;
use std::time::Instant;

use crate::table::Endpoint;

/// Number of ejections that are kept.
const MAX: usize = 8;

/// The endpoints that the failures of a request have ejected, with the time. Takes memory only if there are some.
#[derive(Default)]
pub(super) struct Ejections(Vec<(SocketAddr, Instant)>);

impl Ejections {
    /// Records that an endpoint is ejected now, if it `is_ejected`.
    pub(super) fn add(&mut self, endpoint: &Endpoint, is_ejected: bool) {
        if is_ejected && self.0.len() < MAX {
            self.0.push((endpoint.address, Instant::now()));
        }
    }

    /// Adds those of a connect.
    pub(super) fn append(&mut self, mut other: Self) {
        if !other.0.is_empty() {
            let free = MAX - self.0.len();
            other.0.truncate(free);
            self.0.append(&mut other.0);
        }
    }

    /// Returns them, in order of time.
    pub(super) fn list(&self) -> &[(SocketAddr, Instant)] {
        &self.0
    }
}
