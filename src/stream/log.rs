//! The latest changes of a Gateway's objects as encoded lines, for pods that are slightly behind. Of each object only the
//! last change is retained: a pod that is behind must not get a former version, which may have a key that is revoked.

use std::collections::{HashSet, VecDeque};

use bytes::Bytes;

use crate::ir::ObjectRef;

/// Maximum bytes of retained changes. A pod that is further behind gets the full state, which is
/// not much larger.
const MAX_BYTES: usize = 256 << 10;

/// Changes up to a revision.
#[derive(Debug, Default)]
pub(super) struct Log {
    revision: u64,
    /// The revision after which all changes are retained, apart from those that later ones replace.
    complete_after: u64,
    /// In the order of revisions.
    changes: VecDeque<Change>,
    bytes: usize,
}

/// The last change of an object.
#[derive(Debug)]
struct Change {
    revision: u64,
    object: ObjectRef,
    line: Bytes,
}

impl Log {
    /// Creates a log whose first change leads to the revision after `revision`.
    pub(super) fn after(revision: u64) -> Self {
        Self {
            revision,
            complete_after: revision,
            ..Self::default()
        }
    }

    /// Returns the last revision.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Appends the changes that lead to the next revision, with the line of each.
    pub(super) fn push(&mut self, changes: Vec<(ObjectRef, Bytes)>) {
        self.revision += 1;
        let replaced: HashSet<_> = changes.iter().map(|(object, _)| object).collect();
        self.changes.retain(|change| {
            let is_last = !replaced.contains(&change.object);
            self.bytes -= if is_last { 0 } else { change.line.len() };
            is_last
        });
        self.bytes += changes.iter().map(|(_, line)| line.len()).sum::<usize>();
        let revision = self.revision;
        let changes = changes.into_iter().map(|(object, line)| Change {
            revision,
            object,
            line,
        });
        self.changes.extend(changes);
        while self.bytes > MAX_BYTES
            && let Some(oldest) = self.changes.pop_front()
        {
            self.bytes -= oldest.line.len();
            self.complete_after = oldest.revision;
        }
    }

    /// Returns the changes from `revision` to the last one, which must take effect together; `None`
    /// if they are no longer retained or the revision is unknown.
    pub(super) fn since(&self, revision: u64) -> Option<Vec<Bytes>> {
        if !(self.complete_after..=self.revision).contains(&revision) {
            return None;
        }
        let known = |change: &Change| change.revision <= revision;
        let changes = self.changes.range(self.changes.partition_point(known)..);
        Some(changes.map(|change| change.line.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &str, line: impl Into<Bytes>) -> (ObjectRef, Bytes) {
        (ObjectRef::core("Secret", "ns", name), line.into())
    }

    fn log(changes: u64) -> Log {
        let mut log = Log::default();
        for revision in 1..=changes {
            let text = revision.to_string();
            log.push(vec![change(&text, text.clone())]);
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
        let large = |name: &str, bytes: usize| vec![change(name, vec![b'x'; bytes])];
        for name in ["a", "b", "c"] {
            log.push(large(name, MAX_BYTES / 2));
        }
        assert!(log.since(0).is_none());
        assert_eq!(log.since(1).unwrap().len(), 2);
        log.push(large("d", MAX_BYTES + 1));
        assert_eq!((log.since(3), log.bytes), (None, 0));
        assert_eq!(log.since(4).unwrap().len(), 0);
    }

    #[test]
    fn changes_that_are_dropped_in_part_are_not_returned() {
        let mut log = log(1);
        let both = ["a", "b"].map(|name| change(name, vec![b'x'; MAX_BYTES / 2 + 1]));
        log.push(both.into());
        assert_eq!((log.since(0), log.since(1)), (None, None));
        assert_eq!(log.since(2).unwrap().len(), 0);
    }

    #[test]
    fn retains_only_the_last_change_of_an_object() {
        let mut log = log(1);
        log.push(vec![change("tls", "old key"), change("other", "other")]);
        log.push(vec![change("tls", "new key")]);
        assert_eq!(log.since(0).unwrap(), ["1", "other", "new key"]);
        assert_eq!(log.since(1).unwrap(), ["other", "new key"]);
        assert_eq!(log.since(2).unwrap(), ["new key"]);
        log.push(vec![change("tls", "deleted")]);
        assert_eq!(log.since(1).unwrap(), ["other", "deleted"]);
        assert_eq!(log.bytes, "1otherdeleted".len());
    }
}
