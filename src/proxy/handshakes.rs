//! TLS handshakes under way on one worker. When there are too many, the oldest makes room: honest clients finish within
//! moments, so it is the stalled ones that go. Knows nothing of TLS.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use tokio::sync::oneshot;

/// The handshakes of one worker, by age.
pub(crate) struct Handshakes {
    limit: usize,
    next: Cell<u64>,
    under_way: RefCell<BTreeMap<u64, oneshot::Sender<()>>>,
}

/// A handshake's place, given back when dropped.
pub(crate) struct Place<'a> {
    handshakes: &'a Handshakes,
    key: u64,
    evicted: oneshot::Receiver<()>,
}

impl Handshakes {
    /// At most `limit` handshakes at one time, at least one.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            next: Cell::new(0),
            under_way: RefCell::default(),
        }
    }

    /// Takes a place, if need be that of the oldest.
    pub(crate) fn begin(&self) -> Place<'_> {
        let key = self.next.replace(self.next.get() + 1);
        let (sender, evicted) = oneshot::channel();
        let mut under_way = self.under_way.borrow_mut();
        if under_way.len() >= self.limit {
            under_way.pop_first();
        }
        under_way.insert(key, sender);
        Place {
            handshakes: self,
            key,
            evicted,
        }
    }
}

impl Place<'_> {
    /// Waits until the place is needed for another.
    pub(crate) async fn evicted(&mut self) {
        // Nothing is ever sent: what ends the wait is that the sender is gone.
        let _ = (&mut self.evicted).await;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.handshakes.under_way.borrow_mut().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_makes_room() {
        let handshakes = Handshakes::new(2);
        let mut first = handshakes.begin();
        let done = handshakes.begin();
        drop(done);
        let mut second = handshakes.begin();
        let _third = handshakes.begin();
        first.evicted().await;
        let waits = tokio::time::timeout(std::time::Duration::ZERO, second.evicted());
        assert!(waits.await.is_err());
    }
}
