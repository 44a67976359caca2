//! Moments, and which of them the watches of policies have passed: they have seen all that was written or deleted before. Objects
//! arrive on one watch for each kind, so that a route may arrive before a policy that was written before it. Does no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use super::scope::Scope;
use crate::api::{Key, protects};

/// Maximum number of watches in a message: there may be one for each kind and namespace.
const WATCHES_SHOWN: usize = 8;
/// What to do about a moment that is not past.
pub(super) const REMEDY: &str =
    "check that this process may list and watch these, and that the API server responds";

/// A point in time. Moments are counted from 1; 0 is past.
pub(super) type Moment = u64;

/// What sends requests for a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Requester {
    /// The watch.
    Watch,
    /// What asks for the newest version.
    Newest,
}

/// The moments that have been asked for, and what the watches of policies that protect requests have seen.
#[derive(Default)]
pub(super) struct Moments {
    /// The last moment that was taken.
    last: Moment,
    /// Whether something waits for the next one.
    is_wanted: bool,
    /// By the index of the scope.
    watches: BTreeMap<usize, Seen>,
    /// Number of watches by the last moment that is past for them. The first one is past for all, so that no question walks
    /// the watches.
    past: BTreeMap<Moment, usize>,
    /// Why the API server refuses requests for scopes.
    refusals: BTreeMap<(usize, Requester), String>,
}

/// What the watch of a scope has seen.
#[derive(Default)]
struct Seen {
    /// The newest version; `None` while the watch has no list, since it does not know that the cluster serves the kind.
    newest: Option<u64>,
    /// The last moment that is past.
    past: Moment,
    /// The first answer that the watch has not reached.
    first: Option<Answer>,
    /// The last one. If it took the place of the first one, a watch that follows constant writes would reach none.
    last: Option<Answer>,
    /// The versions of the objects that the watch has shown.
    known: BTreeMap<Key, u64>,
    /// What the next answer has found deleted.
    gone: Vec<Gone>,
}

/// An object that existed no longer at a version of the cluster.
type Gone = (Key, u64);

/// What was found at a moment.
struct Answer {
    moment: Moment,
    /// The newest version; `None` if there were no objects.
    newest: Option<u64>,
    /// What the watch had shown, and was deleted.
    gone: Vec<Gone>,
}

impl Seen {
    /// Reports whether the watch has shown all that was written and deleted before.
    fn has_reached(&self, answer: &Answer) -> bool {
        let is_shown = |(key, at): &Gone| self.known.get(key).is_none_or(|version| version > at);
        answer.newest <= self.newest && answer.gone.iter().all(is_shown)
    }

    /// Takes an answer that the watch has reached.
    fn take_reached(&mut self, place: fn(&mut Self) -> &mut Option<Answer>) -> Option<Moment> {
        let answer = place(self).take()?;
        if self.has_reached(&answer) {
            return Some(answer.moment);
        }
        *place(self) = Some(answer);
        None
    }
}

impl Moments {
    /// Returns the moments of watches of these scopes.
    pub(super) fn of(scopes: &[Scope]) -> Self {
        let numbered = scopes.iter().enumerate();
        let protecting = numbered.filter(|(_, scope)| protects(scope.kind));
        Self::of_watches(protecting.map(|(number, _)| number))
    }

    fn of_watches(numbers: impl Iterator<Item = usize>) -> Self {
        let watches: BTreeMap<_, _> = numbers.map(|number| (number, Seen::default())).collect();
        let past = (!watches.is_empty()).then_some((0, watches.len()));
        Self {
            past: past.into_iter().collect(),
            watches,
            ..Self::default()
        }
    }

    /// Indices of the scopes whose newest versions have to be asked for.
    pub(super) fn scopes(&self) -> impl Iterator<Item = usize> {
        self.watches.keys().copied()
    }

    /// Returns the next moment: it comes after everything that has arrived.
    pub(super) fn next(&mut self) -> Moment {
        self.is_wanted = true;
        self.last + 1
    }

    /// Returns the next moment if something waits for it: the newest versions have to be asked for.
    pub(super) fn take(&mut self) -> Option<Moment> {
        let is_wanted = mem::take(&mut self.is_wanted);
        is_wanted.then(|| {
            self.last += 1;
            self.last
        })
    }

    /// Reports whether all watches have seen what was written before a moment.
    pub(super) fn is_past(&self, moment: Moment) -> bool {
        let first = self.past.first_key_value();
        first.is_none_or(|(past, _)| *past >= moment)
    }

    /// Indices of the scopes whose watches may not have seen what was written before a moment.
    fn behind(&self, moment: Moment) -> impl Iterator<Item = usize> {
        let behind = self.watches.iter();
        behind
            .filter(move |(_, seen)| seen.past < moment)
            .map(|(number, _)| *number)
    }

    /// Says which watches may not have seen what was written before a moment; `None` if it is past.
    pub(super) fn why_not_past(
        &self,
        moment: Moment,
        scopes: &BTreeMap<usize, Scope>,
    ) -> Option<String> {
        if self.is_past(moment) {
            return None;
        }
        let (refused, others): (Vec<_>, Vec<_>) = self
            .behind(moment)
            .partition(|number| self.refusal(*number).is_some());
        // Those that need a repair come first.
        let shown = refused.iter().chain(&others).take(WATCHES_SHOWN);
        let watches = shown.filter_map(|number| {
            let scope = scopes.get(number)?;
            Some(match self.refusal(*number) {
                Some(why) => format!("{scope} ({why})"),
                None => scope.to_string(),
            })
        });
        let watches = watches.collect::<Vec<_>>().join(", ");
        let more = match (refused.len() + others.len()).saturating_sub(WATCHES_SHOWN) {
            0 => String::new(),
            more => format!(" and of {more} more"),
        };
        Some(format!(
            "policies may have been written before that the watch of {watches}{more} has not shown so far"
        ))
    }

    /// Records why the API server refuses requests for a scope, or that it no longer does. Returns whether something may wait
    /// for the scope.
    pub(super) fn refused(
        &mut self,
        scope: usize,
        requester: Requester,
        why: Option<String>,
    ) -> bool {
        if !self.watches.contains_key(&scope) {
            return false;
        }
        match why {
            Some(why) => self.refusals.insert((scope, requester), why),
            None => self.refusals.remove(&(scope, requester)),
        };
        true
    }

    fn refusal(&self, scope: usize) -> Option<&str> {
        let of_scope = (scope, Requester::Watch)..=(scope, Requester::Newest);
        let mut refusals = self.refusals.range(of_scope);
        refusals.next().map(|(_, why)| &**why)
    }

    /// Records which objects the next list of a scope has that is complete, each with its version.
    pub(super) fn lists(&mut self, scope: usize, objects: impl Iterator<Item = (Key, u64)>) {
        if let Some(seen) = self.watches.get_mut(&scope) {
            seen.known = objects.collect();
        }
    }

    /// Records that a list of a scope is complete, and the newest version in it.
    pub(super) fn listed(&mut self, scope: usize, newest: Option<u64>) {
        // A cluster that was restored has older versions.
        self.change(scope, |seen| seen.newest = Some(newest.unwrap_or_default()));
        self.ask_anew(scope);
    }

    /// Records that the watch of a scope has found that the cluster does not serve its kind.
    pub(super) fn absent(&mut self, scope: usize) {
        self.change(scope, |seen| seen.newest = None);
        self.ask_anew(scope);
    }

    /// Asks again for the newest version if the watch has not reached it: the watch has missed events, and that version may be
    /// deleted by now.
    fn ask_anew(&mut self, scope: usize) {
        let seen = self.watches.get(&scope);
        self.is_wanted |= seen.is_some_and(|seen| seen.first.is_some());
    }

    /// Records an event of a version. Versions that cannot be compared do not count.
    pub(super) fn saw(&mut self, scope: usize, version: Option<u64>) {
        self.change(scope, |seen| {
            let version = version.unwrap_or_default();
            seen.newest = seen.newest.map(|newest| newest.max(version));
        });
    }

    /// Records a version of an object of a scope.
    pub(super) fn applied(&mut self, scope: usize, key: &Key, version: Option<u64>) {
        if let Some((seen, version)) = self.watches.get_mut(&scope).zip(version) {
            seen.known.insert(key.clone(), version);
        }
        self.saw(scope, version);
    }

    /// Records the deletion of an object of a scope, and its version.
    pub(super) fn deleted(&mut self, scope: usize, key: &Key, version: Option<u64>) {
        if let Some(seen) = self.watches.get_mut(&scope) {
            seen.known.remove(key);
        }
        self.saw(scope, version);
    }

    /// Records which objects of a scope existed at a version of the cluster. The next answer for the scope is reached once the
    /// watch has shown the deletion of those that it had shown and that no longer existed.
    pub(super) fn existed(&mut self, scope: usize, at: u64, keys: &BTreeSet<Key>) {
        if let Some(seen) = self.watches.get_mut(&scope) {
            let known = seen.known.iter();
            let gone = known.filter(|(key, version)| **version <= at && !keys.contains(*key));
            seen.gone = gone.map(|(key, _)| (key.clone(), at)).collect();
        }
    }

    /// Records the newest version that objects of a scope had at a moment; `None` if there were none.
    pub(super) fn answered(&mut self, scope: usize, moment: Moment, newest: Option<u64>) {
        self.change(scope, |seen| {
            let gone = mem::take(&mut seen.gone);
            let answer = match seen.first {
                None => &mut seen.first,
                // A restored cluster may never reach it.
                Some(_) => &mut seen.last,
            };
            *answer = Some(Answer {
                moment,
                newest,
                gone,
            });
        });
    }

    fn change(&mut self, scope: usize, change: impl FnOnce(&mut Seen)) {
        let Some(seen) = self.watches.get_mut(&scope) else {
            return;
        };
        change(seen);
        let before = seen.past;
        if let Some(moment) = seen.take_reached(|it| &mut it.last) {
            seen.past = seen.past.max(moment);
            seen.first = None;
        }
        if let Some(moment) = seen.take_reached(|it| &mut it.first) {
            seen.past = seen.past.max(moment);
            seen.first = seen.last.take();
        }
        let past = seen.past;
        if past > before {
            self.move_watch(before, past);
        }
    }

    /// Counts a watch at another moment.
    fn move_watch(&mut self, before: Moment, past: Moment) {
        if let Some(count) = self.past.get_mut(&before) {
            *count -= 1;
            if *count == 0 {
                self.past.remove(&before);
            }
        }
        *self.past.entry(past).or_default() += 1;
    }
}

#[cfg(test)]
mod tests;
