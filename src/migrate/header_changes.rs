//! Changes of headers, and what of them a filter has room for.

use std::collections::HashSet;

use serde_json::{Value, json};

/// Maximum number of headers that a filter sets, adds or removes.
const MAX_CHANGES: usize = 16;

/// Changes of the headers of requests or of responses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HeaderChanges {
    pub(super) set: Vec<(String, String)>,
    pub(super) add: Vec<(String, String)>,
    pub(super) remove: Vec<String>,
}

/// What a filter has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Room {
    /// All changes.
    Enough,
    /// Not all. Of requests, each header that is left out is removed.
    Short,
    /// Not even all removals: backends would get the headers of clients.
    Unprotected,
}

impl HeaderChanges {
    pub(super) fn is_empty(&self) -> bool {
        self.set.is_empty() && self.add.is_empty() && self.remove.is_empty()
    }

    /// Sets a header. The last value counts.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.set
            .retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        self.set.push((name.to_owned(), value.to_owned()));
    }

    /// Appends the changes of another one.
    pub(super) fn extend(&mut self, other: Self) {
        for (name, value) in &other.set {
            self.set(name, value);
        }
        self.add.extend(other.add);
        self.remove.extend(other.remove);
    }

    /// Leaves out what a filter of requests has no room for. A header that it cannot set is removed, since backends would
    /// take that of a client for it.
    pub(super) fn fit_requests(&mut self) -> Room {
        self.unite();
        let unset = self.set.iter().skip(MAX_CHANGES);
        self.remove.extend(unset.map(|(name, _)| name.clone()));
        let is_protected = self.remove.len() <= MAX_CHANGES;
        match (is_protected, self.truncate()) {
            (false, _) => Room::Unprotected,
            (true, true) => Room::Short,
            (true, false) => Room::Enough,
        }
    }

    /// Leaves out what a filter of responses has no room for.
    pub(super) fn fit_responses(&mut self) -> Room {
        self.unite();
        match self.truncate() {
            true => Room::Short,
            false => Room::Enough,
        }
    }

    /// Leaves out what a filter has no room for. Returns whether there was something.
    fn truncate(&mut self) -> bool {
        let longest = self.set.len().max(self.add.len()).max(self.remove.len());
        self.set.truncate(MAX_CHANGES);
        self.add.truncate(MAX_CHANGES);
        self.remove.truncate(MAX_CHANGES);
        longest > MAX_CHANGES
    }

    /// Leaves each header one change: to set it is more than to add it, and that is more than to remove it.
    fn unite(&mut self) {
        let mut used = HashSet::new();
        let mut is_new = |name: &str| used.insert(name.to_ascii_lowercase());
        self.set.retain(|(name, _)| is_new(name));
        self.add.retain(|(name, _)| is_new(name));
        self.remove.retain(|name| is_new(name));
    }

    /// Returns the settings of a filter.
    pub(super) fn filter(&self) -> Value {
        let mut united = self.clone();
        united.unite();
        let entries = |list: &[(String, String)]| -> Vec<Value> {
            let entries = list.iter();
            let entries = entries.map(|(name, value)| json!({"name": name, "value": value}));
            entries.collect()
        };
        let mut filter = json!({});
        for (field, list) in [
            ("set", json!(entries(&united.set))),
            ("add", json!(entries(&united.add))),
            ("remove", json!(united.remove)),
        ] {
            if list.as_array().is_some_and(|list| !list.is_empty()) {
                filter[field] = list;
            }
        }
        filter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(set: usize, removed: usize) -> HeaderChanges {
        let set = (0..set).map(|number| (format!("X-Set-{number}"), "a".to_owned()));
        HeaderChanges {
            set: set.collect(),
            add: Vec::new(),
            remove: (0..removed)
                .map(|number| format!("X-Gone-{number}"))
                .collect(),
        }
    }

    #[test]
    fn no_header_of_a_client_passes_a_filter_that_is_full() {
        for (set, removed, expected) in [
            (0, 16, Room::Enough),
            (16, 16, Room::Enough),
            (17, 0, Room::Short),
            (20, 12, Room::Short),
            (0, 17, Room::Unprotected),
            (20, 13, Room::Unprotected),
        ] {
            let mut changes = changes(set, removed);
            assert_eq!(changes.fit_requests(), expected, "{set} {removed}");
            let kept = changes.set.len() + changes.remove.len();
            assert_eq!(kept == set + removed, expected != Room::Unprotected);
            assert!(changes.set.len() <= 16 && changes.remove.len() <= 16);
        }
        assert_eq!(changes(0, 17).fit_responses(), Room::Short);
    }

    #[test]
    fn a_header_has_one_change() {
        let mut changes = changes(1, 0);
        let names = ["x-set-0", "X-Gone", "x-gone"].repeat(10);
        changes.remove = names.into_iter().map(str::to_owned).collect();
        assert_eq!(changes.fit_requests(), Room::Enough);
        let expected = json!({"set": [{"name": "X-Set-0", "value": "a"}], "remove": ["X-Gone"]});
        assert_eq!(changes.filter(), expected);
    }
}
