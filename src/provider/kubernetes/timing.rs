//! The timeouts of watches.

use std::time::Duration;

/// Timeouts for the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Duration of a watch in seconds. A connection that died silently is detected 5 s later.
    pub watch: u32,
    /// Timeout of a response, such as one page of a list.
    pub response_timeout: Duration,
    /// Time for which lists are rejected that are older than the served state.
    pub stale_list_timeout: Duration,
    /// Maximum time that a change waits for what it refers to.
    pub fetch_wait: Duration,
    /// Time that a policy which is deleted, or loses targets, stays in force for them: watches of two kinds are seldom further
    /// apart.
    pub removal_wait: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            watch: 45,
            // The API server itself gives up after 60 s.
            response_timeout: Duration::from_secs(65),
            stale_list_timeout: Duration::from_secs(60),
            fetch_wait: Duration::from_secs(2),
            removal_wait: Duration::from_secs(1),
        }
    }
}
