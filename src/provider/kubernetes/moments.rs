//! Moments, and which of them the watches of policies have passed: they have seen all that was written before. Objects arrive
//! on one watch for each kind, so that a route may arrive before a policy that was written before it. Does no I/O.

use std::collections::BTreeMap;

use super::scope::Scope;
use crate::api::protects;

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
}

/// At a moment, this was the newest version; `None` if there were no objects.
type Answer = (Moment, Option<u64>);

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
        let is_wanted = std::mem::take(&mut self.is_wanted);
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
        let (before, reached) = (seen.past, seen.newest);
        let is_reached = |answer: &mut Answer| answer.1 <= reached;
        if let Some((moment, _)) = seen.last.take_if(is_reached) {
            seen.past = seen.past.max(moment);
            seen.first = None;
        }
        if let Some((moment, _)) = seen.first.take_if(is_reached) {
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
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::api::Kind;

    /// Returns the moments of the watches of two kinds, and their indices.
    fn two() -> (Moments, usize, usize) {
        let kinds: Vec<_> = Kind::all().iter().collect();
        let moments = Moments::of(&Scope::all(&kinds, None, &BTreeSet::new()));
        let mut watches = moments.scopes();
        let (one, other) = (watches.next().unwrap(), watches.next().unwrap());
        let mut moments = Moments::of_watches([one, other].into_iter());
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

    /// What happens to a watch.
    #[derive(Clone, Debug)]
    enum Step {
        Take,
        Listed(usize, Option<u64>),
        Absent(usize),
        Saw(usize, u64),
        Answered(usize, Moment, Option<u64>),
    }

    const WATCHES: usize = 4;

    fn step() -> impl Strategy<Value = Step> {
        let version = || prop_oneof![Just(None), (1..9_u64).prop_map(Some)];
        prop_oneof![
            1 => Just(Step::Take),
            2 => (0..WATCHES, version()).prop_map(|(watch, newest)| Step::Listed(watch, newest)),
            1 => (0..WATCHES).prop_map(Step::Absent),
            3 => (0..WATCHES, 1..9_u64).prop_map(|(watch, version)| Step::Saw(watch, version)),
            6 => (0..WATCHES, 1..6_u64, version())
                .prop_map(|(watch, moment, newest)| Step::Answered(watch, moment, newest)),
        ]
    }

    proptest! {
        #[test]
        fn moment_is_past_exactly_when_it_is_for_each_watch(steps in vec(step(), 0..120)) {
            let mut moments = Moments::of_watches(0..WATCHES);
            for step in steps {
                match step {
                    Step::Take => {
                        moments.next();
                        moments.take();
                    }
                    Step::Listed(watch, newest) => moments.listed(watch, newest),
                    Step::Absent(watch) => moments.absent(watch),
                    Step::Saw(watch, version) => moments.saw(watch, Some(version)),
                    Step::Answered(watch, moment, newest) => moments.answered(watch, moment, newest),
                }
                for moment in 0..8 {
                    let plain = moments.watches.values().all(|seen| seen.past >= moment);
                    prop_assert_eq!(moments.is_past(moment), plain, "{}", moment);
                }
                prop_assert_eq!(moments.past.values().sum::<usize>(), WATCHES);
            }
        }
    }

    #[test]
    fn nothing_is_waited_for_without_watches_of_policies() {
        assert!(Moments::default().is_past(7));
        assert!(Moments::of(&[]).is_past(7));
    }

    #[test]
    fn message_names_few_of_many_watches_and_those_first_that_need_a_repair() {
        let namespaces = (0..9).map(|number| format!("team-{number}")).collect();
        let kinds: Vec<_> = Kind::all().iter().collect();
        let scopes = Scope::all(&kinds, None, &namespaces);
        let mut moments = Moments::of(&scopes);
        let scopes: BTreeMap<_, _> = scopes.into_iter().enumerate().collect();
        let last = moments.scopes().last().unwrap();
        moments.refused(last, Requester::Watch, Some("no right".to_owned()));
        let why = moments.why_not_past(1, &scopes).unwrap();
        let first = format!("the watch of {} (no right), ", scopes[&last]);
        assert!(why.contains(&first), "{why}");
        let more = moments.scopes().count() - WATCHES_SHOWN;
        assert!(why.contains(&format!(" and of {more} more has")), "{why}");
        assert_eq!(why.matches(" in team-").count(), WATCHES_SHOWN);
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
