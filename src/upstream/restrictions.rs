//! What an attempt may use: a release, endpoints and connections.

use std::net::IpAddr;
use std::sync::Arc;

use crate::table::Release;

/// Maximum number of endpoints that one request tries to connect to.
pub(super) const MAX_ENDPOINTS: usize = 3;

/// Maximum number of excluded endpoints: the unreachable ones and the one that refused the request.
pub(super) const EXCLUDED: usize = MAX_ENDPOINTS + 1;

/// What an attempt may use.
pub(super) struct Restrictions {
    /// The release of the request, if the backend has releases.
    pub(super) release: Option<Arc<Release>>,
    /// Ids of endpoints that must not be connected to; 0 stands for none.
    pub(super) excluded: [u64; EXCLUDED],
    /// Connections that must not be used.
    pub(super) avoid: Avoid,
    /// Whether the request upgrades its connection.
    pub(super) upgrades: bool,
    /// Whether no other endpoint than the selected one may be used.
    pub(super) is_chosen: bool,
    /// The client whose request it is, an address or a network; `None` for requests of the process.
    pub(super) client: Option<IpAddr>,
}

/// Connections that a request must not use.
#[derive(Clone, Copy, Default)]
pub(super) struct Avoid {
    /// Whether to avoid idle connections: all may be as stale as the one that failed.
    pub(super) idle: bool,
    /// Id of the HTTP/2 connection that refused the request; 0 stands for none.
    pub(super) refused: u64,
}
