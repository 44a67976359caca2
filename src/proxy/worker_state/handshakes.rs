//! TLS handshakes in progress on one worker. At the limit, a new handshake evicts the oldest:
//! honest clients finish quickly, so the oldest ones are stalled.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use tokio::sync::oneshot;

/// The handshakes of one worker, by age.
pub(crate) struct Handshakes {
    limit: usize,
    next: Cell<u64>,
    in_progress: RefCell<BTreeMap<u64, oneshot::Sender<()>>>,
}

/// Guard of a handshake in progress.
pub(crate) struct Handshake<'a> {
    handshakes: &'a Handshakes,
    key: u64,
    evicted: oneshot::Receiver<()>,
}

impl Handshakes {
    /// Allows at most `limit` concurrent handshakes, at least one.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            next: Cell::new(0),
            in_progress: RefCell::default(),
        }
    }

    /// Starts a handshake and evicts the oldest if there are too many.
    pub(crate) fn begin(&self) -> Handshake<'_> {
        let key = self.next.replace(self.next.get() + 1);
        let (sender, evicted) = oneshot::channel();
        let mut in_progress = self.in_progress.borrow_mut();
        if in_progress.len() >= self.limit {
            in_progress.pop_first();
        }
        in_progress.insert(key, sender);
        Handshake {
            handshakes: self,
            key,
            evicted,
        }
    }
}

impl Handshake<'_> {
    /// Completes on eviction.
    pub(crate) async fn evicted(&mut self) {
        // The sender never sends a value: eviction drops it, which completes the receiver.
        let _ = (&mut self.evicted).await;
    }
}

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        self.handshakes.in_progress.borrow_mut().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn evicts_oldest_handshake_above_the_limit() {
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
