//! The matches of one hostname, indexed by path and sorted by precedence. Must find the same match as a scan of all
//! matches in order of precedence.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::matcher::{RequestView, is_plain, mismatch};
use super::path_map::PathMap;
use super::rule::Rule;
use crate::ir::Precedence;
use crate::ir::route::{Match, PathMatch};
use crate::ir::sharing::Text;

/// One match of a rule.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    rule: Arc<Rule>,
    index: u32,
    /// Whether the path is the only condition. Saves access to the rule.
    plain: bool,
}

impl Candidate {
    /// Returns the matches of a rule.
    pub(super) fn all(rule: &Arc<Rule>) -> impl Iterator<Item = Self> {
        // A rule has at most 64 matches by the schema, so the `u32` range does not end early.
        let matches = rule.ir.matches.iter().zip(0_u32..);
        matches.map(|(condition, index)| Self {
            plain: is_plain(condition),
            index,
            rule: rule.clone(),
        })
    }

    #[inline]
    fn fits(&self, request: &RequestView<'_>) -> bool {
        self.plain || mismatch(self.condition(), request).is_none()
    }

    fn condition(&self) -> &Match {
        &self.rule.ir.matches[self.index as usize]
    }

    fn precedence(&self) -> Precedence {
        self.rule.precedence(self.index as usize)
    }

    /// Returns the identity of the match. The candidate keeps its rule alive, so the address stays unique.
    fn identity(&self) -> Identity {
        (Arc::as_ptr(&self.rule), self.index)
    }

    fn slot(&self) -> Slot {
        let condition = self.condition();
        match &condition.path {
            PathMatch::Exact(path) => Slot::Exact(path.clone()),
            PathMatch::Call(_) => Slot::GrpcPatterns,
            PathMatch::Regex(_) => Slot::Patterns,
            PathMatch::Prefix(prefix) if prefix.is_empty() => Slot::Root,
            PathMatch::Prefix(prefix) => Slot::Prefix(prefix.clone()),
        }
    }
}

/// Where a match is stored. Candidates of one slot are in order of precedence. Slots are searched in order of
/// [`crate::ir::precedence::PathRank`], longer prefixes first, and patterns of gRPC among the prefixes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Slot {
    Exact(Text),
    Patterns,
    Prefix(Text),
    GrpcPatterns,
    /// The prefix `/`.
    Root,
}

/// Matches with the same path condition, in order of precedence. Nearly always there is one, stored inline.
#[derive(Clone, Debug, Default)]
pub(super) enum Bucket {
    #[default]
    Empty,
    One(Candidate),
    /// Behind one pointer, so that a bucket is as small as a candidate.
    Many(Arc<Vec<Candidate>>),
}

impl Bucket {
    fn candidates(&self) -> &[Candidate] {
        match self {
            Self::Empty => &[],
            Self::One(candidate) => std::slice::from_ref(candidate),
            Self::Many(candidates) => candidates,
        }
    }

    #[inline]
    fn find(&self, request: &RequestView<'_>) -> Option<&Candidate> {
        match self {
            Self::Empty => None,
            Self::One(candidate) => Some(candidate).filter(|it| it.fits(request)),
            Self::Many(candidates) => candidates.iter().find(|it| it.fits(request)),
        }
    }
}

impl From<Vec<Candidate>> for Bucket {
    fn from(mut candidates: Vec<Candidate>) -> Self {
        match candidates.pop() {
            None => Self::Empty,
            Some(only) if candidates.is_empty() => Self::One(only),
            last => {
                candidates.extend(last);
                Self::Many(Arc::new(candidates))
            }
        }
    }
}

/// The matches of one hostname. Clones share them.
#[derive(Clone, Debug)]
pub(super) enum Router {
    /// Matches of the prefix `/` alone.
    Root(Bucket),
    /// Matches of any path.
    Paths(Arc<Paths>),
    /// Matches of routes with priorities, the greatest first. Few hostnames have them.
    Priorities(Arc<[(i16, Self)]>),
}

/// Matches to remove and matches to add.
type Changes = (Vec<Candidate>, Vec<Candidate>);

#[derive(Clone, Debug, Default)]
pub(super) struct Paths {
    exact: PathMap<Bucket>,
    patterns: Arc<[Candidate]>,
    prefixes: PathMap<Bucket>,
    /// The lengths that occur in `prefixes`, longest first.
    lengths: Box<[usize]>,
    grpc_patterns: Arc<[Candidate]>,
    /// The prefix `/`.
    root: Bucket,
}

/// The routers that are made for one table. Listeners that get the same routes, such as those for HTTP and HTTPS of one
/// team, share theirs.
#[derive(Default)]
pub(super) struct MadeRouters(FxHashMap<Origin, Router>);

/// What a router is made from. All of it lives while a table is built, so that pointers identify it.
#[derive(PartialEq, Eq, Hash)]
struct Origin {
    known: Option<*const Paths>,
    gone: Box<[Identity]>,
    new: Box<[Identity]>,
}

type Identity = (*const Rule, u32);

/// Changes of the matches in one slot.
#[derive(Default)]
struct Edit {
    gone: FxHashSet<(*const Rule, u32)>,
    new: Vec<Candidate>,
}

impl MadeRouters {
    /// Returns the known router, if there is one, without some matches and with others; `None` if nothing remains of it.
    pub(super) fn router(
        &mut self,
        known: Option<&Router>,
        gone: &[Candidate],
        new: Vec<Candidate>,
    ) -> Option<Router> {
        let make = |new| match known {
            Some(known) => known.with(gone, new),
            None => Some(Router::new(new)),
        };
        let known = match known {
            None => None,
            Some(Router::Paths(paths)) => Some(Arc::as_ptr(paths)),
            Some(Router::Root(_) | Router::Priorities(_)) => return make(new),
        };
        let origin = Origin {
            known,
            gone: gone.iter().map(Candidate::identity).collect(),
            new: new.iter().map(Candidate::identity).collect(),
        };
        if let Some(made) = self.0.get(&origin) {
            return Some(made.clone());
        }
        let router = make(new)?;
        self.0.insert(origin, router.clone());
        Some(router)
    }
}

impl Router {
    pub(super) fn new(candidates: Vec<Candidate>) -> Self {
        let nothing = Self::Root(Bucket::default());
        nothing.with(&[], candidates).unwrap_or(nothing)
    }

    /// Returns a copy with `gone` removed and `new` added; `None` if nothing is left.
    pub(super) fn with(&self, gone: &[Candidate], new: Vec<Candidate>) -> Option<Self> {
        let levels = match self {
            Self::Priorities(levels) => levels.to_vec(),
            Self::Root(_) | Self::Paths(_) => {
                if gone.iter().chain(&new).all(|it| it.rule.priority() == 0) {
                    return self.with_equal(gone, new);
                }
                vec![(0, self.clone())]
            }
        };
        let mut changes: BTreeMap<Reverse<i16>, Changes> = levels
            .iter()
            .map(|(priority, _)| (Reverse(*priority), Changes::default()))
            .collect();
        for candidate in gone {
            let of = changes.entry(Reverse(candidate.rule.priority()));
            of.or_default().0.push(candidate.clone());
        }
        for candidate in new {
            let of = changes.entry(Reverse(candidate.rule.priority()));
            of.or_default().1.push(candidate);
        }
        let nothing = Self::Root(Bucket::default());
        let level = |(Reverse(priority), (gone, new)): (Reverse<i16>, Changes)| {
            let known = levels.iter().find(|(known, _)| *known == priority);
            let known = known.map_or(&nothing, |(_, router)| router);
            Some((priority, known.with_equal(&gone, new)?))
        };
        let levels: Vec<_> = changes.into_iter().filter_map(level).collect();
        match &*levels {
            [] => None,
            [(0, only)] => Some(only.clone()),
            _ => Some(Self::Priorities(levels.into())),
        }
    }

    /// Like [`Self::with`], for matches of one priority.
    fn with_equal(&self, gone: &[Candidate], new: Vec<Candidate>) -> Option<Self> {
        let paths = match self {
            Self::Root(root) => Paths {
                root: root.clone(),
                ..Paths::default()
            },
            Self::Paths(paths) => (**paths).clone(),
            // Unreachable: a level of one priority has no levels.
            Self::Priorities(_) => return Some(self.clone()),
        };
        let paths = paths.with(gone, new);
        (!paths.is_empty()).then(|| paths.into())
    }

    /// Returns the rule of the first match of all paths.
    pub(super) fn first(&self) -> Option<&Arc<Rule>> {
        let root = match self {
            Self::Root(bucket) => bucket,
            Self::Paths(paths) => &paths.root,
            Self::Priorities(levels) => {
                return levels.iter().find_map(|(_, router)| router.first());
            }
        };
        root.candidates().first().map(|candidate| &candidate.rule)
    }

    /// Returns the rule of the first match that the request meets.
    #[inline]
    pub(super) fn find(&self, request: &RequestView<'_>) -> Option<&Arc<Rule>> {
        let found = match self {
            Self::Root(bucket) => find_root(bucket, request),
            Self::Paths(paths) => paths.find(request),
            Self::Priorities(levels) => {
                return levels.iter().find_map(|(_, router)| router.find(request));
            }
        };
        found.map(|candidate| &candidate.rule)
    }
}

impl From<Paths> for Router {
    fn from(paths: Paths) -> Self {
        let Paths {
            exact,
            patterns,
            prefixes,
            lengths: _,
            grpc_patterns,
            root,
        } = &paths;
        let has_patterns = !patterns.is_empty() || !grpc_patterns.is_empty();
        if exact.len() + prefixes.len() == 0 && !has_patterns {
            Self::Root(root.clone())
        } else {
            Self::Paths(Arc::new(paths))
        }
    }
}

impl Paths {
    fn with(mut self, gone: &[Candidate], new: Vec<Candidate>) -> Self {
        let mut edits: FxHashMap<Slot, Edit> = FxHashMap::default();
        for candidate in gone {
            let edit = edits.entry(candidate.slot()).or_default();
            edit.gone.insert(candidate.identity());
        }
        for candidate in new {
            edits
                .entry(candidate.slot())
                .or_default()
                .new
                .push(candidate);
        }
        for (slot, edit) in edits {
            let mut candidates = edit.new;
            let previous = self.of(&slot).iter();
            candidates.extend(
                previous
                    .filter(|it| !edit.gone.contains(&it.identity()))
                    .cloned(),
            );
            if candidates.len() > 1 {
                candidates.sort_by_cached_key(Candidate::precedence);
            }
            self.put(slot, candidates);
        }
        self.exact.shrink();
        self.prefixes.shrink();
        let mut lengths: Vec<usize> = self.prefixes.paths().map(|prefix| prefix.len()).collect();
        lengths.sort_unstable_by(|one, two| two.cmp(one));
        lengths.dedup();
        self.lengths = lengths.into();
        self
    }

    fn of(&self, slot: &Slot) -> &[Candidate] {
        let bucket = match slot {
            Slot::Exact(path) => self.exact.get(path),
            Slot::Prefix(prefix) => self.prefixes.get(prefix),
            Slot::Root => Some(&self.root),
            Slot::Patterns => return &self.patterns,
            Slot::GrpcPatterns => return &self.grpc_patterns,
        };
        bucket.map_or(&[], Bucket::candidates)
    }

    fn put(&mut self, slot: Slot, candidates: Vec<Candidate>) {
        let (map, path) = match slot {
            Slot::Exact(path) => (&mut self.exact, path),
            Slot::Prefix(prefix) => (&mut self.prefixes, prefix),
            Slot::Root => return self.root = candidates.into(),
            Slot::Patterns => return self.patterns = candidates.into(),
            Slot::GrpcPatterns => return self.grpc_patterns = candidates.into(),
        };
        if candidates.is_empty() {
            map.remove(&path);
        } else {
            map.insert(path, candidates.into());
        }
    }

    fn is_empty(&self) -> bool {
        let paths = self.exact.len() + self.prefixes.len();
        let patterns = self.patterns.len() + self.grpc_patterns.len();
        paths + patterns + self.root.candidates().len() == 0
    }

    fn find(&self, request: &RequestView<'_>) -> Option<&Candidate> {
        let exact = self.exact.get(&request.path);
        exact
            .and_then(|bucket| bucket.find(request))
            .or_else(|| find_pattern(&self.patterns, request))
            .or_else(|| self.find_below(request))
    }

    /// Searches prefixes, and gRPC patterns among them.
    fn find_below(&self, request: &RequestView<'_>) -> Option<&Candidate> {
        let prefix = self.find_prefix(request);
        let prefix = prefix.or_else(|| find_root(&self.root, request));
        if self.grpc_patterns.is_empty() {
            return prefix;
        }
        let pattern = find_pattern(&self.grpc_patterns, request);
        let both = prefix.into_iter().chain(pattern);
        both.min_by_key(|candidate| candidate.precedence())
    }

    fn find_prefix(&self, request: &RequestView<'_>) -> Option<&Candidate> {
        let path = request.path.as_str();
        self.lengths
            .iter()
            // A prefix ends where a path element ends. Beyond the end of the path, `get` below finds nothing.
            .filter(|length| matches!(path.as_bytes().get(**length), None | Some(b'/')))
            .filter_map(|length| self.prefixes.get(path.get(..*length)?))
            .find_map(|bucket| bucket.find(request))
    }
}

fn find_pattern<'a>(patterns: &'a [Candidate], request: &RequestView<'_>) -> Option<&'a Candidate> {
    // The path last: matching a pattern costs the most.
    patterns.iter().find(|candidate| {
        candidate.fits(request) && candidate.condition().path.matches(request.path)
    })
}

/// Searches the matches of the prefix `/`, which every path has. `*` and authority forms are not paths.
#[inline]
fn find_root<'a>(bucket: &'a Bucket, request: &RequestView<'_>) -> Option<&'a Candidate> {
    matches!(request.path.as_bytes(), [] | [b'/', ..])
        .then(|| bucket.find(request))
        .flatten()
}
