//! An index from hostnames to values, most specific first. Must not know the values.

use crate::ir::Hostname;
use crate::ir::keyed::KeyedMap;
use crate::ir::sharing::Text;

/// Values by hostname.
#[derive(Clone, Debug)]
pub(super) enum HostIndex<T> {
    /// One hostname, stored inline.
    One(Hostname, T),
    /// Any number of hostnames.
    Many(Box<Hosts<T>>),
}

#[derive(Clone, Debug)]
pub(super) struct Hosts<T> {
    exact: KeyedMap<Text, T>,
    /// By suffix, without `*.`.
    wildcards: KeyedMap<Text, T>,
    /// Length of the longest suffix. It bounds the look-ups for long hosts.
    longest: usize,
    any: Option<T>,
}

impl<T> HostIndex<T> {
    /// Indexes `entries`. The first of equal hostnames counts.
    pub(super) fn new(entries: impl IntoIterator<Item = (Hostname, T)>) -> Self {
        let mut entries = entries.into_iter();
        match (entries.next(), entries.next()) {
            (Some((hostname, value)), None) => Self::One(hostname, value),
            (first, second) => {
                let entries = first.into_iter().chain(second).chain(entries);
                Self::Many(Box::new(Hosts::new(entries)))
            }
        }
    }

    /// Returns a copy in which some hostnames have other values, or none.
    pub(super) fn with(&self, changes: impl IntoIterator<Item = (Hostname, Option<T>)>) -> Self
    where
        T: Clone,
    {
        let mut hosts = match self {
            Self::One(hostname, value) => Hosts::new([(hostname.clone(), value.clone())]),
            Self::Many(hosts) => (**hosts).clone(),
        };
        for (hostname, value) in changes {
            hosts.set(hostname, value);
        }
        hosts.into()
    }

    /// Returns the value of exactly this hostname.
    pub(super) fn get(&self, hostname: &Hostname) -> Option<&T> {
        match (self, hostname) {
            (Self::One(known, value), _) => Some(value).filter(|_| known == hostname),
            (Self::Many(hosts), Hostname::Exact(name)) => hosts.exact.get(name),
            (Self::Many(hosts), Hostname::Wildcard(suffix)) => hosts.wildcards.get(suffix),
            (Self::Many(hosts), Hostname::Any) => hosts.any.as_ref(),
        }
    }

    /// Passes the values whose hostname contains `host` to `accept`, most specific first, until it returns a result.
    #[inline]
    pub(super) fn find<'a, R>(
        &'a self,
        host: &str,
        accept: impl FnMut(&'a T) -> Option<R>,
    ) -> Option<R> {
        match self {
            Self::One(hostname, value) if hostname.contains(host) => Some(value).and_then(accept),
            Self::One(..) => None,
            Self::Many(hosts) => hosts.find(host, accept),
        }
    }

    /// Returns the most specific value for `host`.
    #[inline]
    pub(super) fn most_specific(&self, host: &str) -> Option<&T> {
        self.find(host, Some)
    }

    /// Returns the value for every host.
    pub(super) fn any(&self) -> Option<&T> {
        match self {
            Self::One(Hostname::Any, value) => Some(value),
            Self::One(..) => None,
            Self::Many(hosts) => hosts.any.as_ref(),
        }
    }
}

impl<T> From<Hosts<T>> for HostIndex<T> {
    fn from(mut hosts: Hosts<T>) -> Self {
        hosts.longest = hosts
            .wildcards
            .keys()
            .map(|suffix| suffix.len())
            .max()
            .unwrap_or(0);
        hosts.exact.shrink_to_fit();
        hosts.wildcards.shrink_to_fit();
        let count = hosts.exact.len() + hosts.wildcards.len() + usize::from(hosts.any.is_some());
        if count != 1 {
            return Self::Many(Box::new(hosts));
        }
        let exact = hosts
            .exact
            .drain()
            .map(|(name, value)| (Hostname::Exact(name), value));
        let wildcards = hosts.wildcards.drain();
        let wildcards = wildcards.map(|(suffix, value)| (Hostname::Wildcard(suffix), value));
        let any = hosts.any.take().map(|value| (Hostname::Any, value));
        Self::new(exact.chain(wildcards).chain(any))
    }
}

impl<T> Hosts<T> {
    fn new(entries: impl IntoIterator<Item = (Hostname, T)>) -> Self {
        let mut hosts = Self {
            exact: KeyedMap::default(),
            wildcards: KeyedMap::default(),
            longest: 0,
            any: None,
        };
        for (hostname, value) in entries {
            match hostname {
                Hostname::Exact(name) => {
                    hosts.exact.entry(name).or_insert(value);
                }
                Hostname::Wildcard(suffix) => {
                    hosts.longest = hosts.longest.max(suffix.len());
                    hosts.wildcards.entry(suffix).or_insert(value);
                }
                Hostname::Any => {
                    hosts.any.get_or_insert(value);
                }
            }
        }
        hosts.exact.shrink_to_fit();
        hosts.wildcards.shrink_to_fit();
        hosts
    }

    fn set(&mut self, hostname: Hostname, value: Option<T>) {
        match (hostname, value) {
            (Hostname::Exact(name), Some(value)) => drop(self.exact.insert(name, value)),
            (Hostname::Exact(name), None) => drop(self.exact.remove(&name)),
            (Hostname::Wildcard(suffix), Some(value)) => drop(self.wildcards.insert(suffix, value)),
            (Hostname::Wildcard(suffix), None) => drop(self.wildcards.remove(&suffix)),
            (Hostname::Any, value) => self.any = value,
        }
    }

    #[inline]
    fn find<'a, R>(&'a self, host: &str, mut accept: impl FnMut(&'a T) -> Option<R>) -> Option<R> {
        if let Some(taken) = self.exact.get(host).and_then(&mut accept) {
            return Some(taken);
        }
        if !self.wildcards.is_empty()
            && let Some(taken) = self.find_wildcard(host, &mut accept)
        {
            return Some(taken);
        }
        self.any.as_ref().and_then(accept)
    }

    fn find_wildcard<'a, R>(
        &'a self,
        host: &str,
        accept: &mut impl FnMut(&'a T) -> Option<R>,
    ) -> Option<R> {
        // A wildcard needs at least one character before its dot, so a leading dot is skipped.
        let from = host.len().saturating_sub(self.longest + 1).max(1);
        let tail = host.as_bytes().get(from..)?;
        let dots = tail.iter().enumerate().filter(|(_, byte)| **byte == b'.');
        dots.filter_map(|(at, _)| host.get(from + at + 1..))
            .filter_map(|suffix| self.wildcards.get(suffix))
            .find_map(accept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(names: &[&str]) -> HostIndex<String> {
        HostIndex::new(
            names
                .iter()
                .map(|name| (Hostname::new(name), (*name).to_owned())),
        )
    }

    #[test]
    fn prefers_exact_names_then_longer_wildcards_then_any() {
        let index = index(&["", "*.com", "*.a.com", "x.a.com"]);
        let found = |host| index.most_specific(host).map(String::as_str);
        assert_eq!(found("x.a.com"), Some("x.a.com"));
        assert_eq!(found("y.a.com"), Some("*.a.com"));
        assert_eq!(found("z.y.a.com"), Some("*.a.com"));
        assert_eq!(found("a.com"), Some("*.com"));
        assert_eq!(found("com"), Some(""));
        assert_eq!(found(".a.com"), Some("*.com"));
        assert_eq!(found(".com"), Some(""));
        assert_eq!(found(""), Some(""));
    }

    #[test]
    fn falls_back_to_less_specific_names_until_one_is_accepted() {
        let index = index(&["", "*.com", "*.a.com", "x.a.com"]);
        let mut offered = Vec::new();
        let none: Option<()> = index.find("x.a.com", |value| {
            offered.push(value.as_str());
            None
        });
        assert_eq!(none, None);
        assert_eq!(offered, ["x.a.com", "*.a.com", "*.com", ""]);
    }

    #[test]
    fn splits_hosts_at_character_boundaries() {
        let index = index(&["*.é", "a"]);
        assert_eq!(index.most_specific("éé.é").map(String::as_str), Some("*.é"));
        assert_eq!(index.most_specific("é"), None);
    }

    #[test]
    fn keeps_the_first_of_equal_names() {
        let index = HostIndex::new([(Hostname::Any, 1), (Hostname::Any, 2)]);
        assert_eq!(index.any(), Some(&1));
    }

    #[test]
    fn single_hostname_matches_as_strictly_as_many() {
        assert_eq!(index(&["*.a"]).most_specific("a"), None);
        assert!(index(&["*.a"]).most_specific("b.a").is_some());
        assert!(index(&["*.a"]).any().is_none());
        assert!(index(&[""]).any().is_some());
        assert!(index(&[]).most_specific("a").is_none());
    }
}
