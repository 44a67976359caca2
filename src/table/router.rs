//! The matches of one hostname, indexed by path and sorted by precedence. Must find what a scan of all matches in order
//! of precedence would find.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::matcher::{RequestView, is_plain, mismatch, path_fits};
use super::rule::Rule;
use crate::ir::Precedence;
use crate::ir::route::{Match, PathMatch};

/// One match of a rule, on its way into a [`Router`].
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) precedence: Precedence,
    pub(super) rule: Arc<Rule>,
    pub(super) index: usize,
}

impl Entry {
    fn condition(&self) -> &Match {
        &self.rule.ir.matches[self.index]
    }
}

/// A match in its place.
#[derive(Debug)]
pub(super) struct Candidate {
    rule: Arc<Rule>,
    index: u32,
    /// Whether the path was the only condition; spares a look into the rule.
    plain: bool,
}

impl Candidate {
    #[inline]
    fn fits(&self, request: &RequestView<'_>) -> bool {
        self.plain || mismatch(self.condition(), request).is_none()
    }

    fn condition(&self) -> &Match {
        &self.rule.ir.matches[self.index as usize]
    }
}

impl From<Entry> for Candidate {
    fn from(entry: Entry) -> Self {
        Self {
            plain: is_plain(entry.condition()),
            // No rule has so many matches that this could saturate.
            index: u32::try_from(entry.index).unwrap_or(u32::MAX),
            rule: entry.rule,
        }
    }
}

/// Matches with one path condition, the first to try in front. Nearly always there is one: it costs no look elsewhere.
#[derive(Debug)]
pub(super) enum Bucket {
    One(Candidate),
    Many(Box<[Candidate]>),
}

impl Bucket {
    #[inline]
    fn find(&self, request: &RequestView<'_>) -> Option<&Candidate> {
        match self {
            Self::One(candidate) => Some(candidate).filter(|it| it.fits(request)),
            Self::Many(candidates) => candidates.iter().find(|it| it.fits(request)),
        }
    }
}

impl From<Vec<Candidate>> for Bucket {
    fn from(mut candidates: Vec<Candidate>) -> Self {
        match candidates.pop() {
            Some(only) if candidates.is_empty() => Self::One(only),
            last => {
                candidates.extend(last);
                Self::Many(candidates.into())
            }
        }
    }
}

/// The matches of one hostname.
#[derive(Debug)]
pub(super) enum Router {
    /// Matches of the prefix `/` alone.
    Root(Bucket),
    /// Matches of any path.
    Paths(Box<Paths>),
}

#[derive(Debug)]
pub(super) struct Paths {
    exact: FxHashMap<Arc<str>, Bucket>,
    patterns: Box<[Candidate]>,
    prefixes: FxHashMap<Arc<str>, Bucket>,
    /// The lengths that occur in `prefixes`, longest first.
    lengths: Box<[usize]>,
    /// The prefix `/`.
    root: Bucket,
}

impl Router {
    pub(super) fn new(mut entries: Vec<Entry>) -> Self {
        entries.sort_by(|one, two| one.precedence.cmp(&two.precedence));
        let mut exact: FxHashMap<Arc<str>, Vec<Candidate>> = FxHashMap::default();
        let mut prefixes: FxHashMap<Arc<str>, Vec<Candidate>> = FxHashMap::default();
        let (mut patterns, mut root) = (Vec::new(), Vec::new());
        for entry in entries {
            let bucket = match &entry.condition().path {
                PathMatch::Exact(path) => exact.entry(path.clone()).or_default(),
                PathMatch::Regex(_) => &mut patterns,
                PathMatch::Prefix(prefix) if prefix.is_empty() => &mut root,
                PathMatch::Prefix(prefix) => prefixes.entry(prefix.clone()).or_default(),
            };
            bucket.push(entry.into());
        }
        if exact.is_empty() && patterns.is_empty() && prefixes.is_empty() {
            return Self::Root(root.into());
        }
        let mut lengths: Vec<usize> = prefixes.keys().map(|prefix| prefix.len()).collect();
        lengths.sort_unstable_by(|one, two| two.cmp(one));
        lengths.dedup();
        Self::Paths(Box::new(Paths {
            exact: freeze(exact),
            patterns: patterns.into(),
            prefixes: freeze(prefixes),
            lengths: lengths.into(),
            root: root.into(),
        }))
    }

    /// The rule of the first match that fits.
    #[inline]
    pub(super) fn find(&self, request: &RequestView<'_>) -> Option<&Arc<Rule>> {
        let found = match self {
            Self::Root(bucket) => find_root(bucket, request),
            Self::Paths(paths) => paths.find(request),
        };
        found.map(|candidate| &candidate.rule)
    }
}

impl Paths {
    fn find(&self, request: &RequestView<'_>) -> Option<&Candidate> {
        let exact = self.exact.get(request.path);
        exact
            .and_then(|bucket| bucket.find(request))
            .or_else(|| self.find_pattern(request))
            .or_else(|| self.find_prefix(request))
            .or_else(|| find_root(&self.root, request))
    }

    fn find_pattern(&self, request: &RequestView<'_>) -> Option<&Candidate> {
        // The pattern last: it costs the most.
        self.patterns.iter().find(|candidate| {
            candidate.fits(request) && path_fits(&candidate.condition().path, request.path)
        })
    }

    fn find_prefix(&self, request: &RequestView<'_>) -> Option<&Candidate> {
        let path = request.path;
        self.lengths
            .iter()
            .filter(|length| matches!(path.as_bytes().get(**length), None | Some(b'/')))
            .filter_map(|length| self.prefixes.get(path.get(..*length)?))
            .find_map(|bucket| bucket.find(request))
    }
}

/// Looks among the matches of the prefix `/`, to which everything belongs that is a path at all.
#[inline]
fn find_root<'a>(bucket: &'a Bucket, request: &RequestView<'_>) -> Option<&'a Candidate> {
    matches!(request.path.as_bytes(), [] | [b'/', ..])
        .then(|| bucket.find(request))
        .flatten()
}

fn freeze(buckets: FxHashMap<Arc<str>, Vec<Candidate>>) -> FxHashMap<Arc<str>, Bucket> {
    let buckets = buckets.into_iter();
    let mut frozen: FxHashMap<_, _> = buckets
        .map(|(path, candidates)| (path, candidates.into()))
        .collect();
    frozen.shrink_to_fit();
    frozen
}
