//! The matches of the routes on one listener, by hostname and path, kept current as routes attach and detach. Finds the
//! match that precedes another one and takes all its requests, as far as the conditions alone tell: regular expressions
//! are only compared for equality.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::ir::keyed::KeyedMap;
use crate::ir::precedence::PathRank;
use crate::ir::route::{GrpcCall, Match, PathMatch, ValueMatch};
use crate::ir::sharing::Text;
use crate::ir::{AttachedRoute, Hostname, ObjectRef, Precedence, Route, Rule, RuleId};

/// Matches of one path and hostname that are compared with each other. A path with more of them shadows nothing: the
/// comparisons would grow with the square of their number.
const MAX_MATCHES: usize = 512;
/// Prefixes of a path that it is compared with, the shortest ones.
const MAX_PREFIXES: usize = 32;

/// The matches of one listener. Thousands of listeners have one hostname each, for which a map would take three times the
/// memory. A hostname is in one of the two places.
#[derive(Default)]
pub(in crate::translate) struct MatchIndex {
    first: Option<(Hostname, OnHostname)>,
    others: KeyedMap<Hostname, OnHostname>,
}

/// The matches of one hostname. Small, since thousands of hostnames have one match each.
#[derive(Default)]
struct OnHostname {
    /// In order of paths. Those with the same path are in the order in which they were attached.
    entries: Vec<Entry>,
    /// Number of matches by the priority of their route, in order of priorities.
    priorities: Vec<(i16, usize)>,
}

/// A match of an attached route.
struct Entry {
    route: Arc<Route>,
    /// Position of the rule in the route.
    rule: u32,
    /// Position of the match in the rule.
    r#match: u32,
}

impl Entry {
    fn rule(&self) -> &Arc<Rule> {
        &self.route.rules[self.rule as usize]
    }

    fn condition(&self) -> &Match {
        &self.rule().matches[self.r#match as usize]
    }

    /// Compares its path with another one.
    fn cmp_path(&self, path: &PathKey) -> Ordering {
        match &self.condition().path {
            PathMatch::Exact(text) => path.cmp_to(text, PathRank::Exact),
            PathMatch::Prefix(text) => path.cmp_to(text, PathRank::Prefix),
            PathMatch::Regex(pattern) => path.cmp_to(pattern.source(), PathRank::Regex),
            PathMatch::Call(call) => path.cmp_to(&call_text(call), PathRank::Regex),
        }
        .reverse()
    }

    fn candidate(&self) -> Candidate<'_> {
        Candidate::new(&self.route, self.rule(), self.r#match as usize)
    }
}

/// A path condition. The elements below a prefix follow each other in the order of texts.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct PathKey {
    text: Text,
    rank: PathRank,
}

/// A match of a rule.
pub(in crate::translate) struct Candidate<'a> {
    pub(in crate::translate) precedence: Precedence,
    pub(in crate::translate) rule: &'a Arc<Rule>,
}

/// The matches of a route.
pub(in crate::translate) fn candidates(route: &Route) -> impl Iterator<Item = Candidate<'_>> {
    let rules = route.rules.iter();
    rules.flat_map(|rule| (0..rule.matches.len()).map(|index| Candidate::new(route, rule, index)))
}

fn entries(route: &Arc<Route>) -> impl DoubleEndedIterator<Item = Entry> {
    let rules = route.rules.iter().enumerate();
    rules.flat_map(move |(rule, of_rule)| {
        (0..of_rule.matches.len()).map(move |index| Entry {
            route: route.clone(),
            rule: rule as u32,
            r#match: index as u32,
        })
    })
}

impl MatchIndex {
    /// Adds the matches of a route.
    pub(in crate::translate) fn attach(&mut self, attached: &AttachedRoute) {
        for hostname in attached.hostnames.iter() {
            let on_hostname = self.get_or_insert(hostname);
            entries(&attached.route).for_each(|entry| on_hostname.insert(entry));
        }
    }

    fn detach(&mut self, attached: &AttachedRoute) {
        for hostname in attached.hostnames.iter() {
            if let Some(on_hostname) = self.get_mut(hostname) {
                // In reverse, since removal searches from the end.
                let entries = entries(&attached.route).rev();
                entries.for_each(|entry| on_hostname.remove(&entry));
                if on_hostname.entries.is_empty() {
                    self.remove(hostname);
                }
            }
        }
    }

    fn get(&self, hostname: &Hostname) -> Option<&OnHostname> {
        match &self.first {
            Some((known, matches)) if known == hostname => Some(matches),
            _ => self.others.get(hostname),
        }
    }

    fn get_mut(&mut self, hostname: &Hostname) -> Option<&mut OnHostname> {
        match &mut self.first {
            Some((known, matches)) if known == hostname => Some(matches),
            _ => self.others.get_mut(hostname),
        }
    }

    fn get_or_insert(&mut self, hostname: &Hostname) -> &mut OnHostname {
        let is_first = match &self.first {
            Some((known, _)) => known == hostname,
            None => self.others.is_empty(),
        };
        match is_first {
            true => {
                let new = || (hostname.clone(), OnHostname::default());
                &mut self.first.get_or_insert_with(new).1
            }
            false => self.others.entry(hostname.clone()).or_default(),
        }
    }

    fn remove(&mut self, hostname: &Hostname) {
        if self.first.take_if(|(known, _)| known == hostname).is_none() {
            self.others.remove(hostname);
        }
    }

    /// Replaces the matches of a route. Adds the routes to `affected` for which [`Self::winner`] may be another one.
    pub(in crate::translate) fn replace(
        &mut self,
        previous: Option<&AttachedRoute>,
        now: Option<&AttachedRoute>,
        affected: &mut FxHashSet<ObjectRef>,
    ) {
        let both = previous.zip(now);
        if both.is_some_and(|(previous, now)| std::ptr::eq(previous, now)) {
            return;
        }
        let is_same = both.is_some_and(|(previous, now)| {
            previous.hostnames == now.hostnames && have_same_matches(&previous.route, &now.route)
        });
        // With the same matches too: what is indexed keeps the previous rules alive.
        if let Some(previous) = previous {
            if !is_same {
                self.add_affected(previous, affected);
            }
            self.detach(previous);
        }
        if let Some(now) = now {
            self.attach(now);
            if !is_same {
                self.add_affected(now, affected);
            }
        }
    }

    /// The rule that gets the requests of a match under a hostname in its place. Which of its matches brings a rule a
    /// request makes no difference.
    pub(in crate::translate) fn winner(
        &self,
        hostname: &Hostname,
        candidate: &Candidate<'_>,
    ) -> Option<&RuleId> {
        let on_hostname = self.get(hostname)?;
        let wider = on_hostname.wider(candidate).into_iter().flatten();
        let wider = wider.filter(|entry| asks_no_more(entry.condition(), candidate.condition()));
        let before = wider.map(Entry::candidate);
        let before = before.filter(|other| other.precedence < candidate.precedence);
        let winner = before.min_by(|one, two| one.precedence.cmp(&two.precedence))?;
        Some(&winner.rule.id).filter(|winner| **winner != candidate.rule.id)
    }

    /// Adds the routes with matches that the attached route shadows, or may shadow without it.
    fn add_affected(&self, attached: &AttachedRoute, affected: &mut FxHashSet<ObjectRef>) {
        let mut by_path: BTreeMap<PathKey, Vec<Candidate<'_>>> = BTreeMap::new();
        for candidate in candidates(&attached.route) {
            let path = PathKey::of(&candidate.condition().path);
            by_path.entry(path).or_default().push(candidate);
        }
        let hostnames = attached.hostnames.iter();
        for on_hostname in hostnames.filter_map(|hostname| self.get(hostname)) {
            for candidates in by_path.values() {
                on_hostname.add_affected(candidates, affected);
            }
        }
    }
}

impl OnHostname {
    fn insert(&mut self, entry: Entry) {
        *or_insert(&mut self.priorities, entry.route.priority) += 1;
        let path = PathKey::of(&entry.condition().path);
        let end = self
            .entries
            .partition_point(|it| it.cmp_path(&path).is_le());
        reserve_first(&mut self.entries);
        self.entries.insert(end, entry);
    }

    fn remove(&mut self, entry: &Entry) {
        let of_path = self.range(&PathKey::of(&entry.condition().path));
        let is_same = |known: &Entry| {
            (known.rule, known.r#match) == (entry.rule, entry.r#match)
                && known.route.object == entry.route.object
        };
        let first = of_path.start;
        let Some(place) = self.entries[of_path].iter().rposition(is_same) else {
            return;
        };
        let priority = self.entries.remove(first + place).route.priority;
        *or_insert(&mut self.priorities, priority) -= 1;
        self.priorities.retain(|(_, count)| *count > 0);
    }

    /// The places of the matches with this path.
    fn range(&self, path: &PathKey) -> Range<usize> {
        let first = self.entries.partition_point(|it| it.cmp_path(path).is_lt());
        let rest = &self.entries[first..];
        first..first + rest.partition_point(|it| it.cmp_path(path).is_eq())
    }

    fn get(&self, path: &PathKey) -> &[Entry] {
        &self.entries[self.range(path)]
    }

    /// The matches whose path covers that of the candidate, and that may precede it.
    fn wider(&self, candidate: &Candidate<'_>) -> Vec<&[Entry]> {
        let path = &candidate.condition().path;
        let highest = self.priorities.last().map(|(priority, _)| *priority);
        let mut wider = vec![PathKey::of(path)];
        // Of equal priority, the longer path always precedes.
        if highest > Some(candidate.priority()) {
            wider.extend(prefixes(path));
        }
        let matches = wider.iter().map(|path| self.get(path));
        matches
            .filter(|matches| matches.len() <= MAX_MATCHES)
            .collect()
    }

    /// The matches whose path is this one or narrower, as far as this one may precede them.
    fn narrower(&self, path: &PathMatch) -> impl Iterator<Item = &Entry> {
        let own = self.get(&PathKey::of(path));
        let prefix = match path {
            PathMatch::Prefix(text) if self.priorities.len() > 1 => Some(text),
            // Of equal priority, the longer path always precedes.
            PathMatch::Exact(_)
            | PathMatch::Prefix(_)
            | PathMatch::Regex(_)
            | PathMatch::Call(_) => None,
        };
        let prefix = prefix.into_iter();
        let exact = prefix
            .clone()
            .flat_map(|text| self.get(&PathKey::exact(text)));
        let below = prefix.flat_map(|text| {
            // `0` is the character after `/`.
            let [first, end] = ['/', '0'].map(|next| {
                let bound = PathKey::exact(&format!("{text}{next}"));
                self.entries
                    .partition_point(|it| it.cmp_path(&bound).is_lt())
            });
            &self.entries[first..end]
        });
        let is_pattern =
            |path: &PathMatch| matches!(path, PathMatch::Regex(_) | PathMatch::Call(_));
        let below = below.filter(move |it| !is_pattern(&it.condition().path));
        own.iter().chain(exact).chain(below)
    }

    /// Adds the routes with matches that the candidates shadow, or may shadow without them. The candidates are all
    /// those of a route with the same path.
    fn add_affected(&self, candidates: &[Candidate<'_>], affected: &mut FxHashSet<ObjectRef>) {
        let Some(first) = candidates.first() else {
            return;
        };
        let path = &first.condition().path;
        let of_path = self.get(&PathKey::of(path)).len();
        if of_path > MAX_MATCHES + candidates.len() {
            return;
        }
        // Otherwise the route determines whether the matches of the path are compared at all.
        let is_compared = of_path <= MAX_MATCHES;
        for entry in self.narrower(path) {
            let is_shadowed = || {
                let other = entry.candidate();
                candidates.iter().any(|candidate| {
                    candidate.precedence < other.precedence
                        && asks_no_more(candidate.condition(), other.condition())
                })
            };
            if !is_compared || is_shadowed() {
                affected.insert(entry.route.object.clone());
            }
        }
    }
}

impl PathKey {
    fn of(path: &PathMatch) -> Self {
        match path {
            PathMatch::Exact(text) => Self::new(text.clone(), PathRank::Exact),
            PathMatch::Prefix(text) => Self::new(text.clone(), PathRank::Prefix),
            PathMatch::Regex(pattern) => Self::new(pattern.source().into(), PathRank::Regex),
            PathMatch::Call(call) => Self::new(call_text(call).into(), PathRank::Regex),
        }
    }

    fn exact(text: &str) -> Self {
        Self::new(text.into(), PathRank::Exact)
    }

    fn new(text: Text, rank: PathRank) -> Self {
        Self { text, rank }
    }

    /// Compares it with the path of this text and rank.
    fn cmp_to(&self, text: &str, rank: PathRank) -> Ordering {
        (&*self.text, self.rank).cmp(&(text, rank))
    }
}

impl<'a> Candidate<'a> {
    /// The `index`-th match of a rule of this route.
    pub(in crate::translate) fn new(route: &Route, rule: &'a Arc<Rule>, index: usize) -> Self {
        let precedence = Precedence::new(route.kind, route.priority, route.created, rule, index);
        Self { precedence, rule }
    }

    fn condition(&self) -> &'a Match {
        &self.rule.matches[self.precedence.r#match]
    }

    fn priority(&self) -> i16 {
        self.precedence.priority.0
    }
}

/// Returns a text that only equal conditions have. No pattern of an HTTPRoute begins with a blank and matches a path.
fn call_text(call: &GrpcCall) -> String {
    let part = |condition: &Option<ValueMatch>| match condition {
        None => String::new(),
        Some(ValueMatch::Exact(text)) => format!("={text}"),
        Some(ValueMatch::Regex(pattern)) => format!("~{}", pattern.source()),
    };
    let (service, method) = (part(&call.service), part(&call.method));
    format!(" {}{service}{method}", service.len())
}

/// Returns the value of a key in a sorted list. Adds it if the key is missing.
fn or_insert<K: Ord, V: Default>(sorted: &mut Vec<(K, V)>, key: K) -> &mut V {
    let at = match sorted.binary_search_by(|(known, _)| known.cmp(&key)) {
        Ok(at) => at,
        Err(at) => {
            reserve_first(sorted);
            sorted.insert(at, (key, V::default()));
            at
        }
    };
    &mut sorted[at].1
}

/// Reserves space for exactly one element in an empty list. The default growth begins with four.
fn reserve_first<T>(list: &mut Vec<T>) {
    if list.is_empty() {
        list.reserve_exact(1);
    }
}

fn have_same_matches(one: &Route, two: &Route) -> bool {
    one.priority == two.priority
        && one.created == two.created
        && one.rules.len() == two.rules.len()
        && one
            .rules
            .iter()
            .zip(&two.rules)
            .all(|(one, two)| one.id.index == two.id.index && one.matches == two.matches)
}

/// The prefixes of a path, without itself.
fn prefixes(path: &PathMatch) -> impl Iterator<Item = PathKey> {
    let (text, is_exact) = match path {
        PathMatch::Exact(text) => (&**text, true),
        PathMatch::Prefix(text) => (&**text, false),
        PathMatch::Regex(_) | PathMatch::Call(_) => ("", false),
    };
    let same = (is_exact && text.starts_with('/')).then_some(text.len());
    let ends = text.match_indices('/').map(|(end, _)| end);
    let ends = same.into_iter().chain(ends.take(MAX_PREFIXES));
    ends.map(|end| PathKey::new(text[..end].into(), PathRank::Prefix))
}

/// Whether a match has no condition, the path aside, that the other one lacks.
fn asks_no_more(one: &Match, other: &Match) -> bool {
    // Whatever its service and method are, which the path says.
    let is_grpc_only = one.others.grpc.is_some() && other.others.grpc.is_none();
    !is_grpc_only
        && one
            .others
            .method
            .as_ref()
            .is_none_or(|it| other.others.method.as_ref() == Some(it))
        && one
            .others
            .headers
            .iter()
            .all(|it| other.others.headers.contains(it))
        && one
            .others
            .query
            .iter()
            .all(|it| other.others.query.contains(it))
}
