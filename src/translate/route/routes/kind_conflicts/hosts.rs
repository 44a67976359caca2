//! Entries by hostname, so that those whose hostnames intersect with one are found without a look at the others. Must not
//! know what the entries are.

use std::collections::BTreeSet;

use crate::ir::Hostname;
use crate::ir::keyed::KeyedMap;

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
        match hostname {
            Hostname::Exact(name) => change(&mut self.exact, name),
            Hostname::Wildcard(suffix) => {
                change(&mut self.wildcards, suffix);
                change(&mut self.below, suffix);
            }
            Hostname::Any => change(&mut self.wildcards, ""),
        }
        for suffix in suffixes(hostname) {
            change(&mut self.below, suffix);
        }
    }

    /// Returns the entries with hostnames that intersect with this one. The number of sets depends only on its labels.
    pub(super) fn intersecting(&self, hostname: &Hostname) -> impl Iterator<Item = &BTreeSet<T>> {
        let own = match hostname {
            Hostname::Exact(name) => self.exact.get(&**name),
            Hostname::Wildcard(suffix) => self.below.get(&**suffix),
            Hostname::Any => self.below.get(""),
        };
        let wider = suffixes(hostname).filter(|_| *hostname != Hostname::Any);
        own.into_iter()
            .chain(wider.filter_map(|suffix| self.wildcards.get(suffix)))
    }
}

/// Returns the suffixes whose wildcards contain a hostname and are wider, the longest first. The last one is empty, for
/// every host.
fn suffixes(hostname: &Hostname) -> impl Iterator<Item = &str> {
    let name = match hostname {
        Hostname::Exact(name) | Hostname::Wildcard(name) => &**name,
        Hostname::Any => "",
    };
    let dots = name.match_indices('.');
    dots.map(|(at, _)| &name[at + 1..])
        .filter(|suffix| !suffix.is_empty())
        .chain([""])
}
