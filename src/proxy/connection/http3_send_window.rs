//! How much of the responses of one connection QUIC may hold until it is acknowledged. The client decides what the network
//! seems to take, and may stop to acknowledge: what is above the first window is memory that the client holds.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::proxy::worker_state::budget::{Held, Share};

/// Bytes of a connection that were written and not acknowledged: at first, and at most.
pub(super) const SEND_WINDOW: u64 = 128 * 1024;
const MAX_SEND_WINDOW: u64 = 4 * 1024 * 1024;

/// The window of a connection.
pub(super) struct SendWindow {
    bytes: Cell<u64>,
    /// What is above the first window.
    held: RefCell<Held>,
}

impl SendWindow {
    /// The first window, which grows with what the client may hold.
    pub(super) fn new(share: &Rc<Share>) -> Self {
        Self {
            bytes: Cell::new(SEND_WINDOW),
            held: RefCell::new(Held::none(share)),
        }
    }

    /// Grows to twice what the network takes. Returns the window; `None` if it is no larger, or if the client holds too much.
    pub(super) fn grow(&self, taken: u64) -> Option<u64> {
        let next = taken.saturating_mul(2).clamp(SEND_WINDOW, MAX_SEND_WINDOW);
        if next <= self.bytes.get() {
            return None;
        }
        let more = usize::try_from(next - SEND_WINDOW).ok()?;
        let is_held = self.held.borrow_mut().resize(more);
        is_held.then(|| {
            self.bytes.set(next);
            next
        })
    }

    /// Becomes the first window again, once nothing is to be acknowledged. Returns the window; `None` if it has not grown.
    pub(super) fn shrink(&self) -> Option<u64> {
        if self.bytes.replace(SEND_WINDOW) == SEND_WINDOW {
            return None;
        }
        // What is smaller is always permitted.
        self.held.borrow_mut().resize(0);
        Some(SEND_WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::proxy::worker_state::budget::Budget;

    /// What a network takes that a window follows to its maximum.
    const FAST: u64 = MAX_SEND_WINDOW;

    #[test]
    fn window_follows_what_the_network_takes() {
        let budget = Budget::of_send_windows(1);
        let share = budget.share(IpAddr::from([192, 0, 2, 1]));
        let window = SendWindow::new(&share);
        for (taken, expected) in [
            (14_720, None),
            (SEND_WINDOW, Some(2 * SEND_WINDOW)),
            (SEND_WINDOW / 2, None),
            (FAST, Some(MAX_SEND_WINDOW)),
            (u64::MAX, None),
        ] {
            assert_eq!(window.grow(taken), expected, "{taken}");
        }
        assert_eq!(budget.held() as u64, MAX_SEND_WINDOW - SEND_WINDOW);
        assert_eq!(window.shrink(), Some(SEND_WINDOW));
        assert_eq!((window.shrink(), budget.held()), (None, 0));
        assert_eq!(window.grow(FAST), Some(MAX_SEND_WINDOW));
        drop(window);
        assert_eq!(budget.held(), 0);
    }

    /// Each client acknowledges until its windows are large, and nothing from then on.
    #[test]
    fn windows_of_a_client_are_bounded_and_leave_half_to_others() {
        const CONNECTIONS: usize = 100;
        for workers in [1, 2, 64] {
            let budget = Budget::of_send_windows(workers);
            let open = |client| {
                let share = budget.share(IpAddr::from([192, 0, 2, client]));
                let window = SendWindow::new(&share);
                let is_grown = window.grow(FAST).is_some();
                (window, is_grown)
            };
            let hostile: Vec<_> = (0..CONNECTIONS).map(|_| open(1)).collect();
            let grown = hostile.iter().filter(|(_, is_grown)| *is_grown).count();
            assert!((1..CONNECTIONS / 8).contains(&grown), "{grown}");
            let (polite, is_grown) = open(2);
            assert!(is_grown, "{workers} workers");
            drop((hostile, polite));
            assert_eq!(budget.held(), 0);
        }
    }
}
