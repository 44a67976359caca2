//! Moments, and which of them the watches of policies have passed: they have seen all that was written before. Objects arrive
//! on one watch for each kind, so that a route may arrive before a policy that was written before it. Does no I/O.

use std::collections::BTreeMap;

use super::scope::Scope;
use crate::api::protects;

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
}

/// At a moment, this was the newest version; `None` if there were no objects.
type Answer = (Moment, Option<u64>);

impl Moments {
    /// Returns the moments of watches of these scopes.
    pub(super) fn of(scopes: &[Scope]) -> Self {
        let numbered = scopes.iter().enumerate();
        let protecting = numbered.filter(|(_, scope)| protects(scope.kind));
        Self {
            watches: protecting
                .map(|(number, _)| (number, Seen::default()))
                .collect(),
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
        let is_wanted = std::mem::take(&mut self.is_wanted);
        is_wanted.then(|| {
            self.last += 1;
            self.last
        })
    }

    /// Reports whether all watches have seen what was written before a moment.
    pub(super) fn is_past(&self, moment: Moment) -> bool {
        self.behind(moment).next().is_none()
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
        let kinds = self.behind(moment).filter_map(|number| {
            let scope = scopes.get(&number)?;
            Some(match self.refusal(number) {
                Some(why) => format!("{scope} ({why})"),
                None => scope.to_string(),
            })
        });
        let kinds: Vec<_> = kinds.collect();
        (!kinds.is_empty()).then(|| {
            let kinds = kinds.join(", ");
            format!("policies may have been written before that the watch of {kinds} has not shown so far")
        })
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

    /// Records the newest version that objects of a scope had at a moment; `None` if there were none.
    pub(super) fn answered(&mut self, scope: usize, moment: Moment, newest: Option<u64>) {
        self.change(scope, |seen| {
            let answer = match seen.first {
                None => &mut seen.first,
                // A restored cluster may never reach it.
                Some(_) => &mut seen.last,
            };
            *answer = Some((moment, newest));
        });
    }

    fn change(&mut self, scope: usize, change: impl FnOnce(&mut Seen)) {
        let Some(seen) = self.watches.get_mut(&scope) else {
            return;
        };
        change(seen);
        let reached = seen.newest;
        let is_reached = |answer: &mut Answer| answer.1 <= reached;
        if let Some((moment, _)) = seen.last.take_if(is_reached) {
            seen.past = seen.past.max(moment);
            seen.first = None;
        }
        if let Some((moment, _)) = seen.first.take_if(is_reached) {
            seen.past = seen.past.max(moment);
            seen.first = seen.last.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::api::Kind;

    /// Returns the moments of the watches of two kinds, and their indices.
    fn two() -> (Moments, usize, usize) {
        let kinds: Vec<_> = Kind::all().iter().collect();
        let moments = Moments::of(&Scope::all(&kinds, None, &BTreeSet::new()));
        let mut watches = moments.watches.keys().copied();
        let (one, other) = (watches.next().unwrap(), watches.next().unwrap());
        drop(watches);
        let mut moments = moments;
        moments
            .watches
            .retain(|scope, _| [one, other].contains(scope));
        moments.listed(one, Some(7));
        moments.listed(other, None);
        (moments, one, other)
    }

    #[test]
    fn moment_is_past_when_all_watches_have_seen_the_newest_version() {
        let (mut moments, one, other) = two();
        let moment = moments.next();
        assert!(!moments.is_past(moment));
        assert_eq!(moments.take(), Some(moment));
        assert_eq!(moments.take(), None);
        moments.answered(other, moment, None);
        moments.answered(one, moment, Some(9));
        moments.saw(one, Some(8));
        assert_eq!(moments.behind(moment).collect::<Vec<_>>(), [one]);
        moments.saw(one, Some(9));
        assert!(moments.is_past(moment));
    }

    #[test]
    fn what_arrives_after_a_moment_waits_for_the_next_one() {
        let (mut moments, one, other) = two();
        let first = moments.next();
        moments.take();
        let second = moments.next();
        assert!(second > first);
        for scope in [one, other] {
            moments.answered(scope, first, None);
        }
        assert!(moments.is_past(first) && !moments.is_past(second));
    }

    #[test]
    fn kinds_that_the_api_server_does_not_serve_are_not_waited_for() {
        let (mut moments, one, other) = two();
        let moment = moments.next();
        moments.absent(one);
        moments.answered(other, moment, None);
        assert!(!moments.is_past(moment));
        moments.answered(one, moment, None);
        assert!(moments.is_past(moment));
    }

    #[test]
    fn kind_that_the_api_server_serves_is_waited_for_before_its_watch_knows() {
        let (mut moments, one, other) = two();
        let moment = moments.next();
        moments.absent(one);
        moments.answered(other, moment, None);
        moments.answered(one, moment, Some(9));
        assert!(!moments.is_past(moment));
        moments.listed(one, Some(8));
        assert!(!moments.is_past(moment));
        moments.saw(one, Some(9));
        assert!(moments.is_past(moment));
    }

    #[test]
    fn moments_pass_while_policies_are_written_without_end() {
        let (mut moments, one, other) = two();
        for version in 9..99 {
            let moment = moments.next();
            moments.take();
            moments.answered(other, moment, None);
            moments.answered(one, moment, Some(version));
            // The watch is behind by one write.
            moments.saw(one, Some(version - 1));
            assert!(!moments.is_past(moment));
            assert!(moments.is_past(moment - 1), "{version}");
        }
    }

    #[test]
    fn watch_of_a_restored_cluster_reaches_the_last_answer() {
        let (mut moments, one, other) = two();
        let moment = moments.next();
        moments.answered(other, moment, None);
        moments.answered(one, moment, Some(9));
        moments.listed(one, Some(3));
        assert!(!moments.is_past(moment));
        moments.answered(one, moment, Some(3));
        assert!(moments.is_past(moment));
    }

    /// The watch has missed the events of a policy that was created and deleted.
    #[test]
    fn newest_version_that_is_deleted_before_the_watch_shows_it_is_asked_for_again() {
        for absent in [false, true] {
            let (mut moments, one, other) = two();
            let moment = moments.next();
            assert_eq!(moments.take(), Some(moment));
            moments.answered(other, moment, None);
            moments.answered(one, moment, Some(9));
            match absent {
                true => moments.absent(one),
                false => moments.listed(one, Some(7)),
            }
            assert!(!moments.is_past(moment));
            let again = moments.take().unwrap();
            moments.answered(other, again, None);
            moments.answered(one, again, (!absent).then_some(7));
            assert!(moments.is_past(moment));
            assert_eq!(moments.take(), None);
        }
    }

    #[test]
    fn list_of_a_restored_cluster_has_older_versions() {
        let (mut moments, one, other) = two();
        let moment = moments.next();
        moments.answered(other, moment, None);
        moments.listed(one, Some(3));
        moments.answered(one, moment, Some(4));
        assert!(!moments.is_past(moment));
    }
}
