//! Entries by hostname, so that those whose hostnames intersect with one are found without a look at the others. Must not
//! know what the entries are.

use std::collections::BTreeSet;

use crate::ir::keyed::KeyedMap;
use crate::ir::{Hostname, Hosts};

/// Entries by a name, in order.
type ByName<T> = KeyedMap<Box<str>, BTreeSet<T>>;

/// Entries by hostname. An entry may have several hostnames.
pub(super) struct HostIndex<T> {
    /// Those of a name.
    exact: ByName<T>,
    /// Those of the wildcard of a suffix. That of every host has the empty suffix.
    wildcards: ByName<T>,
    /// Those of all names and wildcards below a suffix, including the wildcard of that suffix.
    below: ByName<T>,
}

impl<T> Default for HostIndex<T> {
    fn default() -> Self {
        Self {
            exact: ByName::default(),
            wildcards: ByName::default(),
            below: ByName::default(),
        }
    }
}

impl<T: Ord + Clone> HostIndex<T> {
    /// Adds an entry to a hostname.
    pub(super) fn insert(&mut self, hostname: &Hostname, entry: &T) {
        self.for_each_set(hostname, |names, name| {
            // Most names are known: no allocation for these.
            match names.get_mut(name) {
                Some(entries) => drop(entries.insert(entry.clone())),
                None => drop(names.insert(name.into(), BTreeSet::from([entry.clone()]))),
            }
        });
    }

    /// Removes an entry from a hostname.
    pub(super) fn remove(&mut self, hostname: &Hostname, entry: &T) {
        self.for_each_set(hostname, |names, name| {
            if let Some(entries) = names.get_mut(name) {
                entries.remove(entry);
                if entries.is_empty() {
                    names.remove(name);
                }
            }
        });
    }

    /// Calls `change` for each set that the entries of a hostname are in.
    fn for_each_set(&mut self, hostname: &Hostname, change: impl Fn(&mut ByName<T>, &str)) {
        let hosts = Hosts::of(hostname);
        match hosts {
            Hosts::Exact(name) => change(&mut self.exact, name),
            wildcard => {
                change(&mut self.wildcards, suffix(wildcard));
                change(&mut self.below, suffix(wildcard));
            }
        }
        for wider in hosts.covering().skip(1) {
            change(&mut self.below, suffix(wider));
        }
    }

    /// Returns the entries with hostnames that intersect with this one. The number of sets depends only on its labels.
    pub(super) fn intersecting(&self, hostname: &Hostname) -> impl Iterator<Item = &BTreeSet<T>> {
        let hosts = Hosts::of(hostname);
        let own = match hosts {
            Hosts::Exact(name) => self.exact.get(name),
            wildcard => self.below.get(suffix(wildcard)),
        };
        let wider = hosts.covering().skip(1);
        own.into_iter()
            .chain(wider.filter_map(|wider| self.wildcards.get(suffix(wider))))
    }
}

/// Returns the suffix of a wildcard. That of every host is empty.
fn suffix(wildcard: Hosts<'_>) -> &str {
    match wildcard {
        Hosts::Exact(suffix) | Hosts::Wildcard(suffix) => suffix,
        Hosts::Any => "",
    }
}
