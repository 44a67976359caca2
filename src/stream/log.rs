//! The latest changes of a Gateway's objects as encoded lines, for pods that are slightly behind.

use std::collections::VecDeque;

use bytes::Bytes;

/// Maximum bytes of retained changes. A pod that is further behind gets the full state, which is
/// not much larger.
const MAX_BYTES: usize = 256 << 10;

/// Changes up to a revision.
#[derive(Debug, Default)]
pub(super) struct Log {
    revision: u64,
    /// The changes of the last revisions, in order. The last change leads to `revision`.
    changes: VecDeque<Bytes>,
    bytes: usize,
}

impl Log {
    /// Creates a log whose first change leads to the revision after `revision`.
    pub(super) fn after(revision: u64) -> Self {
        Self {
            revision,
            ..Self::default()
        }
    }

    /// Returns the last revision.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Appends the lines that lead to the next revision.
    pub(super) fn push(&mut self, lines: Bytes) {
        self.revision += 1;
        self.bytes += lines.len();
        self.changes.push_back(lines);
        while self.bytes > MAX_BYTES
            && let Some(oldest) = self.changes.pop_front()
        {
            self.bytes -= oldest.len();
        }
    }

    /// Returns the changes from `revision` to the last one; `None` if they are no longer retained
    /// or the revision is unknown.
    pub(super) fn since(&self, revision: u64) -> Option<Vec<Bytes>> {
        let behind = self.revision.checked_sub(revision)?;
        let behind = usize::try_from(behind).ok()?;
        let first = self.changes.len().checked_sub(behind)?;
        Some(self.changes.range(first..).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(changes: u64) -> Log {
        let mut log = Log::default();
        for revision in 1..=changes {
            log.push(revision.to_string().into());
        }
        log
    }

    #[test]
    fn returns_changes_up_to_the_last_revision() {
        let log = log(3);
        assert_eq!(log.revision(), 3);
        assert_eq!(log.since(3).unwrap(), Vec::<Bytes>::new());
        assert_eq!(log.since(1).unwrap(), ["2", "3"]);
        assert_eq!(log.since(0).unwrap().len(), 3);
        assert_eq!(log.since(4), None);
    }

    #[test]
    fn drops_the_oldest_changes_first() {
        let mut log = Log::default();
        for _ in 0..3 {
            log.push(vec![b'x'; MAX_BYTES / 2].into());
        }
        assert!(log.since(0).is_none());
        assert_eq!(log.since(1).unwrap().len(), 2);
        log.push(vec![b'x'; MAX_BYTES + 1].into());
        assert_eq!((log.since(3), log.bytes), (None, 0));
        assert_eq!(log.since(4).unwrap().len(), 0);
    }
}
