//! The latest changes of a Gateway's objects, for pods that are slightly behind. Of each object only the last change is
//! retained: a pod that is behind must not get a former version, which may have a key that is revoked. A change is encoded
//! when the first pod needs it, so that objects that are large delay only the pods that get them.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;

use super::encode;
use crate::ir::ObjectRef;
use crate::translate::closure::ObjectChange;

/// Maximum number of retained changes. A pod that is further behind gets the full state.
const MAX_CHANGES: usize = 4096;

/// Changes up to a revision.
#[derive(Debug, Default)]
pub(super) struct Log {
    revision: u64,
    /// The revision after which all changes are retained, apart from those that later ones replace.
    complete_after: u64,
    /// In the order of revisions.
    changes: VecDeque<Change>,
}

/// The last change of an object.
#[derive(Debug)]
struct Change {
    revision: u64,
    object: ObjectRef,
    change: ObjectChange,
    /// The line, while a session sends it.
    line: Weak<Line>,
}

/// A change to send, encoded once for all sessions that send it at the same time.
#[derive(Debug)]
pub(super) struct Line {
    change: ObjectChange,
    text: OnceLock<Bytes>,
}

impl Line {
    /// Returns the encoded change.
    pub(super) fn text(&self) -> Bytes {
        let text = self.text.get_or_init(|| encode::change(&self.change));
        text.clone()
    }
}

impl Change {
    fn line(&mut self) -> Arc<Line> {
        self.line.upgrade().unwrap_or_else(|| {
            let line = Arc::new(Line {
                change: self.change.clone(),
                text: OnceLock::new(),
            });
            self.line = Arc::downgrade(&line);
            line
        })
    }
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

    /// Appends the changes that lead to the next revision.
    pub(super) fn push(&mut self, changes: Vec<ObjectChange>) {
        self.revision += 1;
        let revision = self.revision;
        let changes: Vec<_> = changes
            .into_iter()
            .map(|change| Change {
                revision,
                object: change.object(),
                change,
                line: Weak::new(),
            })
            .collect();
        let replaced: HashSet<_> = changes.iter().map(|change| &change.object).collect();
        self.changes
            .retain(|change| !replaced.contains(&change.object));
        self.changes.extend(changes);
        while self.changes.len() > MAX_CHANGES
            && let Some(oldest) = self.changes.pop_front()
        {
            self.complete_after = oldest.revision;
        }
    }

    /// Returns the changes from `revision` to the last one, which must take effect together; `None`
    /// if they are no longer retained or the revision is unknown.
    pub(super) fn since(&mut self, revision: u64) -> Option<Vec<Arc<Line>>> {
        if !(self.complete_after..=self.revision).contains(&revision) {
            return None;
        }
        let known = |change: &Change| change.revision <= revision;
        let first = self.changes.partition_point(known);
        Some(self.changes.range_mut(first..).map(Change::line).collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::Kind;

    fn put(name: &str, value: &str) -> ObjectChange {
        let kind = Kind::find("v1", "ConfigMap").unwrap();
        let object =
            json!({"metadata": {"namespace": "ns", "name": name}, "data": {"value": value}});
        ObjectChange::Put(kind.decode(&object).unwrap())
    }

    fn delete(name: &str) -> ObjectChange {
        ObjectChange::Delete(put(name, "").object())
    }

    fn log(changes: u64) -> Log {
        let mut log = Log::default();
        for revision in 1..=changes {
            log.push(vec![put(&revision.to_string(), "")]);
        }
        log
    }

    /// Returns the changes since a revision.
    fn since(log: &mut Log, revision: u64) -> Option<Vec<ObjectChange>> {
        let lines = log.since(revision)?;
        Some(lines.iter().map(|line| line.change.clone()).collect())
    }

    #[test]
    fn returns_changes_up_to_the_last_revision() {
        let mut log = log(3);
        assert_eq!(log.revision(), 3);
        assert_eq!(since(&mut log, 3).unwrap(), []);
        assert_eq!(since(&mut log, 1).unwrap(), [put("2", ""), put("3", "")]);
        assert_eq!(since(&mut log, 0).unwrap().len(), 3);
        assert_eq!(since(&mut log, 4), None);
    }

    #[test]
    fn drops_the_oldest_changes_first() {
        let mut log = log(1 + MAX_CHANGES as u64);
        assert!(log.since(0).is_none());
        assert_eq!(log.since(1).unwrap().len(), MAX_CHANGES);
    }

    #[test]
    fn changes_that_are_dropped_in_part_are_not_returned() {
        let mut log = log(1);
        log.push(
            (0..=MAX_CHANGES)
                .map(|it| put(&format!("of-2-{it}"), ""))
                .collect(),
        );
        assert!(log.since(0).is_none() && log.since(1).is_none());
        assert_eq!(log.since(2).unwrap().len(), 0);
    }

    #[test]
    fn retains_only_the_last_change_of_an_object() {
        let mut log = log(1);
        log.push(vec![put("tls", "old key"), put("other", "")]);
        log.push(vec![put("tls", "new key")]);
        let last = [put("other", ""), put("tls", "new key")];
        assert_eq!(since(&mut log, 1).unwrap(), last);
        assert_eq!(since(&mut log, 2).unwrap(), last[1..]);
        log.push(vec![delete("tls")]);
        assert_eq!(
            since(&mut log, 1).unwrap(),
            [put("other", ""), delete("tls")]
        );
    }

    #[test]
    fn line_is_shared_while_it_is_sent() {
        let mut log = log(1);
        let line = log.since(0).unwrap().remove(0);
        assert!(line.text().starts_with(b"{\"put\":"));
        assert!(Arc::ptr_eq(&line, &log.since(0).unwrap()[0]));
        let sent = Arc::downgrade(&line);
        drop(line);
        assert!(sent.upgrade().is_none(), "a line outlives its sessions");
    }
}
