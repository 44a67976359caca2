//! Changes of the watched directories that the provider has not handled yet, in bounded memory. Must not know what they are
//! about.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::task::consume_budget;

use super::change::Change;

/// Number of changes from which on it counts only that there are some. Linux queues as many (`fs.inotify.max_queued_events`)
/// before it reports the same.
const MAX_PENDING: usize = 16 * 1024;

/// Changes in their order, from the thread that observes them to the task that handles them.
#[derive(Default)]
pub(super) struct PendingChanges {
    changes: Mutex<VecDeque<Change>>,
    arrived: Notify,
}

impl PendingChanges {
    /// Adds a change. Unknown files take the place of too many others.
    pub(super) fn push(&self, change: Change) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if changes.len() == MAX_PENDING {
            *changes = VecDeque::from([Change::Unknown]);
        }
        changes.push_back(change);
        drop(changes);
        self.arrived.notify_one();
    }

    /// Waits for the next change and returns it.
    pub(super) async fn next(&self) -> Change {
        loop {
            // While changes come as fast as they are handled, other tasks have their turns.
            consume_budget().await;
            if let Some(change) = self.pop() {
                return change;
            }
            self.arrived.notified().await;
        }
    }

    fn pop(&self) -> Option<Change> {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        changes.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn written(number: usize) -> Change {
        Change::Written(format!("{number}.yaml").into())
    }

    fn number(change: &Change) -> Option<usize> {
        change
            .paths()
            .first()?
            .to_str()?
            .strip_suffix(".yaml")?
            .parse()
            .ok()
    }

    #[tokio::test]
    async fn changes_come_in_their_order() {
        let changes = Arc::<PendingChanges>::default();
        let pushed = changes.clone();
        let observer =
            std::thread::spawn(move || (0..MAX_PENDING).for_each(|at| pushed.push(written(at))));
        for expected in 0..MAX_PENDING {
            assert_eq!(number(&changes.next().await), Some(expected));
        }
        observer.join().expect("no panic");
    }

    #[tokio::test]
    async fn unknown_files_take_the_place_of_too_many_changes() {
        let changes = PendingChanges::default();
        for at in 0..10 * MAX_PENDING {
            changes.push(written(at));
            assert!(changes.changes.lock().expect("no panic").len() <= MAX_PENDING);
        }
        assert!(matches!(changes.next().await, Change::Unknown));
        let mut last = None;
        while let Some(change) = changes.pop() {
            last = number(&change);
        }
        assert_eq!(
            last,
            Some(10 * MAX_PENDING - 1),
            "what comes later is not lost"
        );
    }
}
