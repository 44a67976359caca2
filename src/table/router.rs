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

/// Matches with one path condition, the first to try in front.
type Bucket = Box<[Candidate]>;

#[derive(Debug)]
struct Candidate {
    rule: Arc<Rule>,
    index: usize,
    /// Whether the path was the only condition; spares a look into the rule.
    plain: bool,
}

impl Candidate {
    #[inline]
    fn fits(&self, request: &RequestView<'_>) -> bool {
        self.plain || mismatch(self.condition(), request).is_none()
    }

    fn condition(&self) -> &Match {
        &self.rule.ir.matches[self.index]
    }
}

impl From<Entry> for Candidate {
    fn from(entry: Entry) -> Self {
        Self {
            plain: is_plain(entry.condition()),
            rule: entry.rule,
            index: entry.index,
        }
    }
}

/// The matches of one hostname.
#[derive(Debug)]
pub(super) struct Router {
    exact: FxHashMap<Box<str>, Bucket>,
    patterns: Bucket,
    prefixes: FxHashMap<Box<str>, Bucket>,
    /// The lengths that occur in `prefixes`, longest first.
    lengths: Box<[usize]>,
    /// The prefix `/`.
    root: Bucket,
}

impl Router {
    pub(super) fn new(mut entries: Vec<Entry>) -> Self {
        entries.sort_by(|one, two| one.precedence.cmp(&two.precedence));
        let mut exact: FxHashMap<Box<str>, Vec<Candidate>> = FxHashMap::default();
        let mut prefixes: FxHashMap<Box<str>, Vec<Candidate>> = FxHashMap::default();
        let (mut patterns, mut root) = (Vec::new(), Vec::new());
        for entry in entries {
            let bucket = match &entry.condition().path {
                PathMatch::Exact(path) => exact.entry((&**path).into()).or_default(),
                PathMatch::Regex(_) => &mut patterns,
                PathMatch::Prefix(prefix) if prefix.is_empty() => &mut root,
                PathMatch::Prefix(prefix) => prefixes.entry((&**prefix).into()).or_default(),
            };
            bucket.push(entry.into());
        }
        let mut lengths: Vec<usize> = prefixes.keys().map(|prefix| prefix.len()).collect();
        lengths.sort_unstable_by(|one, two| two.cmp(one));
        lengths.dedup();
        Self {
            exact: freeze(exact),
            patterns: patterns.into(),
            prefixes: freeze(prefixes),
            lengths: lengths.into(),
            root: root.into(),
        }
    }

    /// The rule of the first match that fits.
    #[inline]
    pub(super) fn find<'a>(&'a self, request: &RequestView<'_>) -> Option<&'a Arc<Rule>> {
        let first = |bucket: &'a Bucket| bucket.iter().find(|candidate| candidate.fits(request));
        if let Some(candidate) = self.exact.get(request.path).and_then(first) {
            return Some(&candidate.rule);
        }
        if !self.patterns.is_empty()
            && let Some(candidate) = self.find_pattern(request)
        {
            return Some(&candidate.rule);
        }
        if !self.lengths.is_empty()
            && let Some(candidate) = self.find_prefix(request)
        {
            return Some(&candidate.rule);
        }
        if !(request.path.is_empty() || request.path.starts_with('/')) {
            return None;
        }
        first(&self.root).map(|candidate| &candidate.rule)
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
            .find_map(|bucket| bucket.iter().find(|candidate| candidate.fits(request)))
    }
}

fn freeze(buckets: FxHashMap<Box<str>, Vec<Candidate>>) -> FxHashMap<Box<str>, Bucket> {
    let mut frozen: FxHashMap<_, _> = buckets
        .into_iter()
        .map(|(path, bucket)| (path, bucket.into()))
        .collect();
    frozen.shrink_to_fit();
    frozen
}
