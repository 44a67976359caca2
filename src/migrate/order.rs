//! The order in which nginx tries the paths of a host, as minimum lengths of the patterns that they become: the longest pattern
//! of a host is tried first.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde_json::Value;

use super::model::PathKind;
use super::paths::{self, HostMode, Unusable};

/// Maximum length of a pattern that has a place in the order.
const MAX_PLACED: usize = 1000;
/// Minimum length of a pattern that is tried before all those.
const FIRST: usize = MAX_PLACED + 4;

/// A path and its type.
pub(super) type Key = (String, PathKind);

/// A path of a host.
#[derive(Debug)]
pub(super) struct Location {
    /// Number of the paths of the host that ingress-nginx reads before it.
    pub(super) number: usize,
    /// Whether its own Ingress has regular expressions.
    pub(super) is_expression: bool,
}

/// The place of a path among the paths of its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The path that nginx compares.
    path: String,
    /// Length of the pattern; `None` if no pattern is long enough.
    length: Option<usize>,
}

impl Place {
    /// Returns the place of a path that has none among patterns.
    pub(super) fn outside(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            length: Some(0),
        }
    }

    /// Returns the length of the pattern.
    pub(super) fn length(&self) -> Option<usize> {
        self.length
    }

    /// Returns the match of the path.
    ///
    /// # Errors
    /// When the path cannot be a match, or none with its place.
    pub(super) fn matching(&self, kind: PathKind, mode: HostMode) -> Result<Value, Unusable> {
        let length = self.length.unwrap_or(FIRST);
        match paths::matching(&self.path, kind, mode) {
            Ok(matched) if self.length.is_some() => Ok(paths::padded(matched, length)),
            Ok(_) => {
                let path = &self.path;
                let reason = format!("`{path}` is too long, or has too many others behind it");
                let Unusable { closed, reason } = paths::unusable(path, reason);
                let closed = paths::padded(closed, length);
                Err(Unusable { closed, reason })
            }
            Err(Unusable { closed, reason }) => {
                let closed = paths::padded(closed, length);
                Err(Unusable { closed, reason })
            }
        }
    }
}

/// Returns the places of the paths of a host. nginx tries expressions by descending length, and of the same length by descending
/// text; of other paths, the longest decides.
pub(super) fn places(locations: &BTreeMap<Key, Location>, mode: HostMode) -> BTreeMap<Key, Place> {
    let mut ordered: Vec<(&Key, &Location)> = locations.iter().collect();
    // What is tried last comes first.
    ordered.sort_by_key(|&(key, location)| Reverse(rank(key, location, mode)));
    let mut placed: Vec<(String, usize)> = Vec::new();
    let mut places = BTreeMap::new();
    for (key, location) in ordered {
        let path = compared(key, location, locations, mode);
        let Some(own) = paths::length(&path, key.1, mode) else {
            places.insert(key.clone(), Place::outside(&path));
            continue;
        };
        let begin = match mode {
            HostMode::Regex => paths::literal(&path).to_ascii_lowercase(),
            HostMode::Plain | HostMode::Strict => path.clone(),
        };
        let may_overlap =
            |(other, _): &&(String, usize)| other.starts_with(&begin) || begin.starts_with(other);
        let behind = placed.iter().filter(may_overlap);
        let needed = behind.map(|(_, length)| length + 1).max().unwrap_or(0);
        let length = own + paths::padding(own, needed);
        placed.push((begin, length));
        let length = (length <= MAX_PLACED).then_some(length);
        places.insert(key.clone(), Place { path, length });
    }
    places
}

/// Returns what orders the paths of a host: the smallest is tried first.
fn rank<'a>(
    key: &'a Key,
    location: &Location,
    mode: HostMode,
) -> (Reverse<usize>, Reverse<&'a str>, usize, PathKind) {
    let (path, kind) = key;
    // The same expression of two types is twice in nginx, and the first decides. Other paths decide by their types.
    let number = match mode {
        HostMode::Regex => location.number,
        HostMode::Plain | HostMode::Strict => 0,
    };
    (Reverse(path.len()), Reverse(path.as_str()), number, *kind)
}

/// Returns the path that nginx compares: one of type Prefix is only for what is below it if another one is for itself.
fn compared(
    key: &Key,
    location: &Location,
    locations: &BTreeMap<Key, Location>,
    mode: HostMode,
) -> String {
    let (path, kind) = key;
    let is_plain = *kind == PathKind::Prefix && !location.is_expression && !path.ends_with('/');
    let has_exact = || locations.contains_key(&(path.clone(), PathKind::Exact));
    match mode == HostMode::Regex && is_plain && has_exact() {
        true => format!("{path}/"),
        false => path.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPECIFIC: PathKind = PathKind::ImplementationSpecific;

    /// Returns the patterns of paths in the order in which they are tried.
    fn tried(paths: &[(&str, PathKind)], mode: HostMode) -> Vec<String> {
        let locations = paths.iter().enumerate().map(|(number, (path, kind))| {
            let location = Location {
                number,
                is_expression: false,
            };
            (((*path).to_owned(), *kind), location)
        });
        let locations: BTreeMap<Key, Location> = locations.collect();
        let places = places(&locations, mode);
        let patterns = places.iter().map(|((_, kind), place)| {
            let matched = place.matching(*kind, mode);
            let matched = matched.unwrap_or_else(|unusable| unusable.closed);
            matched["value"].as_str().unwrap().to_owned()
        });
        let mut patterns: Vec<String> = patterns.collect();
        patterns.sort_by_key(|pattern| Reverse(pattern.len()));
        let lengths: Vec<usize> = patterns.iter().map(String::len).collect();
        assert!(
            lengths.windows(2).all(|pair| pair[0] > pair[1]),
            "{patterns:?}"
        );
        let plain = patterns.iter().map(|pattern| pattern.replace("(?:)", ""));
        plain.collect()
    }

    #[test]
    fn patterns_are_tried_in_the_order_of_nginx() {
        for (paths, expected) in [
            (
                ["/a|/b", "/b/admin"],
                ["(?i)/b/admin.*", "(?i)(?:/a|.*/b).*"],
            ),
            (["/[ab]", "/b/ad"], ["(?i)/b/ad.*", "(?i)/[ab].*"]),
            (["/[ab]", "/A"], ["(?i)/[ab].*", "(?i)/A.*"]),
            (["/(b)?", "/b/x"], ["(?i)/(b)?.*", "(?i)/b/x.*"]),
            (["/Admin", "/admin"], ["(?i)/admin.*", "(?i)/Admin.*"]),
            (["/((?!x).*)", "/y/(.*)"], ["(?i)/.*", "(?i)/y/(.*).*"]),
            (["/(?!x|y)", "/y/admin"], ["(?i)/y/admin.*", "(?i)/.*"]),
        ] {
            let paths = paths.map(|path| (path, SPECIFIC));
            assert_eq!(tried(&paths, HostMode::Regex), expected);
        }
    }

    #[test]
    fn a_prefix_leaves_the_path_itself_to_one_of_type_exact() {
        let (exact, prefix) = (("/a", PathKind::Exact), ("/a", PathKind::Prefix));
        for (paths, expected) in [
            ([prefix, exact], ["(?i)/a/.*", "(?i)/a.*"]),
            ([exact, prefix], ["(?i)/a.*", "(?i)/a/.*"]),
        ] {
            assert_eq!(tried(&paths, HostMode::Regex), expected);
        }
    }

    #[test]
    fn the_longest_of_other_paths_is_tried_first() {
        let paths = [("/a", PathKind::Prefix), ("/a/", SPECIFIC)];
        assert_eq!(tried(&paths, HostMode::Strict), ["/a/(.*)?", "/a(/.*)?"]);
    }

    #[test]
    fn paths_that_have_no_place_close() {
        let key = |number: usize| (format!("/[a-z]{number:03}"), SPECIFIC);
        let locations = (0..300).map(|number| {
            let location = Location {
                number,
                is_expression: true,
            };
            (key(number), location)
        });
        let locations: BTreeMap<Key, Location> = locations.collect();
        let places = places(&locations, HostMode::Regex);
        let is_open = |number: usize| {
            let found = places[&key(number)].matching(SPECIFIC, HostMode::Regex);
            let (is_open, value) = match found {
                Ok(matched) => (true, matched["value"].clone()),
                Err(unusable) => (false, unusable.closed["value"].clone()),
            };
            let length = value.as_str().unwrap().len();
            assert!(length <= paths::MAX_VALUE);
            assert_eq!(is_open, length <= MAX_PLACED);
            is_open
        };
        assert!(is_open(0) && !is_open(299));
    }
}
