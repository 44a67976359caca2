//! What the streams of an HTTP/2 connection share, and how many of them the client cancels.

use std::cell::Cell;
use std::rc::Rc;

use super::request_heads::RequestHeads;
use crate::http2::Bodies;
use crate::proxy::activity::Activity;
use crate::proxy::client::Client;
use crate::runtime::clock::Clock;

/// Burst of cancelled requests per connection: five times the default maximum of 100 concurrent
/// streams.
pub(super) const CANCELLATIONS: u32 = 500;

/// Cancelled requests per second that are always allowed: a client may replace all of its 100
/// streams every second.
const CANCELLATIONS_PER_SECOND: u64 = 100;

/// Connection state shared by its streams.
pub(in crate::proxy) struct Shared {
    pub(in crate::proxy) client: Rc<Client>,
    pub(in crate::proxy) activity: Rc<Activity>,
    pub(in crate::proxy) cancelled: Cancellations,
    pub(in crate::proxy) bodies: Rc<Bodies>,
    pub(super) heads: RequestHeads,
    /// Number of open tunnels.
    pub(super) tunnels: Cell<u32>,
}

impl Shared {
    /// Counts a tunnel, until dropped.
    pub(in crate::proxy) fn open_tunnel(self: &Rc<Self>) -> OpenTunnel {
        self.tunnels.set(self.tunnels.get() + 1);
        OpenTunnel(self.clone())
    }
}

/// An open tunnel. A tunnel has its own idle timeout.
pub(in crate::proxy) struct OpenTunnel(Rc<Shared>);

impl Drop for OpenTunnel {
    fn drop(&mut self) {
        self.0.tunnels.set(self.0.tunnels.get().saturating_sub(1));
    }
}

/// Leaky bucket of requests that the client cancelled; leaks [`CANCELLATIONS_PER_SECOND`].
#[derive(Default)]
pub(in crate::proxy) struct Cancellations {
    level: Cell<u32>,
    /// Clock time up to which the bucket has leaked.
    leaked: Cell<u64>,
}

impl Cancellations {
    /// Counts a cancelled request.
    pub(in crate::proxy) fn count(&self, clock: &Clock) {
        let elapsed = clock.now().saturating_sub(self.leaked.replace(clock.now()));
        let leaked = elapsed.saturating_mul(CANCELLATIONS_PER_SECOND) / 1000;
        let level = u64::from(self.level.get()).saturating_sub(leaked) + 1;
        self.level.set(u32::try_from(level).unwrap_or(u32::MAX));
    }

    /// Returns the number of cancellations above the burst limit.
    pub(super) fn excess(&self) -> u32 {
        self.level.get().saturating_sub(CANCELLATIONS)
    }
}
