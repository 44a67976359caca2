//! When moments are past.

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

fn key(name: &str) -> Key {
    Key::new("default", name)
}

#[test]
fn moment_is_past_when_the_watch_has_seen_what_was_deleted_before() {
    let (mut moments, one, other) = two();
    moments.lists(one, [(key("a"), 5), (key("b"), 7)].into_iter());
    moments.applied(one, &key("c"), Some(9));
    moments.applied(one, &key("later"), Some(21));
    let moment = moments.next();
    moments.answered(other, moment, None);
    moments.existed(one, 20, &BTreeSet::from([key("b")]));
    moments.answered(one, moment, Some(7));
    assert!(!moments.is_past(moment));
    moments.deleted(one, &key("a"), Some(12));
    assert!(!moments.is_past(moment));
    // It was created again: its deletion was before.
    moments.applied(one, &key("c"), Some(22));
    assert!(moments.is_past(moment));
    // Each answer has what was deleted before it.
    moments.answered(other, moment + 1, None);
    moments.answered(one, moment + 1, Some(7));
    assert!(moments.is_past(moment + 1));
}

/// The watch has missed the deletion.
#[test]
fn list_shows_what_was_deleted_before() {
    let (mut moments, one, other) = two();
    moments.applied(one, &key("a"), Some(9));
    let moment = moments.next();
    moments.answered(other, moment, None);
    moments.existed(one, 20, &BTreeSet::new());
    moments.answered(one, moment, None);
    assert!(!moments.is_past(moment));
    moments.lists(one, std::iter::empty());
    moments.listed(one, None);
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
