//! Tests of plans: single cases, and the arithmetic of shares for any weights.

use proptest::prelude::{any, prop_assert, prop_assert_eq, prop_assume, proptest};
use proptest::sample::Index;

use super::*;

fn listed(releases: &[(&str, u32)]) -> Vec<WeightedRelease> {
    let release = |(value, weight): &(&str, u32)| WeightedRelease {
        value: (*value).to_owned(),
        weight: *weight,
    };
    releases.iter().map(release).collect()
}

fn plan(releases: &[(&str, u32)], changes: &[&str], add: bool) -> Result<Plan, String> {
    let changes: Vec<Change> = changes.iter().map(|text| text.parse().unwrap()).collect();
    Plan::new(&listed(releases), &changes, add)
}

/// Weights after the changes, as on the command line.
fn after(releases: &[(&str, u32)], changes: &[&str]) -> String {
    let plan = plan(releases, changes, true).unwrap();
    let weights = plan.releases.iter();
    let weights: Vec<_> = weights
        .map(|it| format!("{}={}", it.name, it.after))
        .collect();
    weights.join(" ")
}

#[test]
fn percentage_keeps_the_other_weights_if_possible() {
    assert_eq!(after(&[("v1", 90), ("v2", 0)], &["v2=10%"]), "v1=90 v2=10");
    assert_eq!(
        after(&[("v1", 100), ("v2", 0)], &["v2=20%"]),
        "v1=100 v2=25"
    );
    assert_eq!(
        after(&[("v1", 30), ("v2", 60)], &["v3=10%"]),
        "v1=30 v2=60 v3=10"
    );
}

#[test]
fn percentage_keeps_the_sum_if_the_other_weights_cannot_stay() {
    assert_eq!(after(&[("v1", 100), ("v2", 0)], &["v2=10%"]), "v1=90 v2=10");
    assert_eq!(
        after(&[("v1", 1000), ("v2", 0)], &["v2=0.1%"]),
        "v1=999 v2=1"
    );
    assert_eq!(after(&[("v1", 1), ("v2", 0)], &["v2=10%"]), "v1=90 v2=10");
    assert_eq!(
        after(&[("v1", 1), ("v2", 2), ("v3", 0)], &["v3=10%"]),
        "v1=30 v2=60 v3=10"
    );
}

#[test]
fn zero_and_hundred_percent_set_weights_to_zero() {
    assert_eq!(
        after(&[("v1", 90), ("v2", 10)], &["v2=100%"]),
        "v1=0 v2=100"
    );
    assert_eq!(after(&[("v1", 0), ("v2", 7)], &["v2=100%"]), "v1=0 v2=7");
    assert_eq!(after(&[("v1", 0), ("v2", 0)], &["v2=100%"]), "v1=0 v2=100");
    assert_eq!(after(&[("v1", 90), ("v2", 10)], &["v2=0%"]), "v1=90 v2=0");
    let large = [("v1", MAX_WEIGHT), ("v2", 1)];
    assert_eq!(after(&large, &["v2=100%"]), "v1=0 v2=1000000");
}

#[test]
fn notes_scaled_weights() {
    let scaled = plan(&[("v1", 100), ("v2", 0)], &["v2=10%"], false).unwrap();
    let note = "Weights of other releases (v1) are scaled, so that v2 gets exactly 10% and they keep their proportions.";
    assert_eq!(scaled.notes, [note]);
    let kept = plan(&[("v1", 90), ("v2", 0)], &["v2=10%"], false).unwrap();
    assert_eq!(kept.notes, Vec::<String>::new());
    let whole = plan(&[("v1", 90), ("v2", 0)], &["v2=100%"], false).unwrap();
    assert_eq!(whole.notes, Vec::<String>::new());
}

#[test]
fn impossible_shares_are_refused() {
    for (releases, change, part) in [
        (
            &[("v1", 0), ("v2", 5)][..],
            "v2=10%",
            "no other listed release has a weight",
        ),
        (
            &[("v1", 999_999), ("v2", 1), ("v3", 0)],
            "v3=33.333%",
            "no weights up to 1000000",
        ),
    ] {
        let error = plan(releases, &[change], false).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn releases_that_are_not_listed_need_add() {
    let error = plan(&[("v1", 90), ("v2", 10)], &["v3=5"], false).unwrap_err();
    let expected =
        "release v3 is not listed in spec.releases (listed: v1, v2); use --add to list it";
    assert_eq!(error, expected);
    let error = plan(&[], &["v3=5"], false).unwrap_err();
    assert!(error.contains("(the list is empty)"), "{error}");
    let added = plan(&[("v1", 90)], &["v3=5"], true).unwrap();
    assert_eq!(added.steps(), [("v3".to_owned(), 5)]);
    assert_eq!(added.rollback(), [("v3".to_owned(), 0)]);
    let added = plan(&[("v1", 90)], &["v3=0"], true).unwrap();
    assert_eq!(added.steps(), [("v3".to_owned(), 0)]);
}

#[test]
fn writes_only_what_changes_and_raises_first() {
    let plan = plan(
        &[("v1", 100), ("v2", 0), ("v3", 5)],
        &["v1=0", "v3=5", "v2=100"],
        false,
    )
    .unwrap();
    assert_eq!(plan.steps(), [("v2".to_owned(), 100), ("v1".to_owned(), 0)]);
    assert_eq!(
        plan.rollback(),
        [("v1".to_owned(), 100), ("v2".to_owned(), 0)]
    );
}

#[test]
fn shifted_is_the_named_release_that_grows() {
    let shifted = |releases: &[(&str, u32)], changes: &[&str]| {
        let plan = plan(releases, changes, false).unwrap();
        plan.shifted().join(" ")
    };
    assert_eq!(
        shifted(&[("v1", 100), ("v2", 0)], &["v1=90", "v2=10"]),
        "v2"
    );
    assert_eq!(shifted(&[("v1", 1), ("v2", 0)], &["v2=10%"]), "v2");
    assert_eq!(shifted(&[("v1", 90), ("v2", 10)], &["v2=5"]), "v2");
    assert_eq!(shifted(&[("v1", 0), ("v2", 0)], &["v2=5"]), "v2");
}

#[test]
fn notes_that_no_release_has_a_weight() {
    let plan = plan(&[("v1", 1)], &["v1=0"], false).unwrap();
    assert_eq!(
        plan.notes,
        ["No listed release has a weight above 0: requests get status 503."]
    );
}

proptest! {
    #[test]
    fn shares_are_exact_and_others_keep_their_proportions(
        weights in proptest::collection::vec(0..=MAX_WEIGHT, 2..6),
        small in any::<bool>(),
        named in any::<Index>(),
        share in 0..=Percent::WHOLE,
    ) {
        let weights: Vec<u32> = match small {
            true => weights.iter().map(|weight| weight % 101).collect(),
            false => weights,
        };
        let named = named.index(weights.len());
        // Coarse ones are what people write.
        let share = if small { share / 1000 * 1000 } else { share };
        let text = format!("{}.{:03}%", share / 1000, share % 1000);
        let others: u64 = weights.iter().map(|it| u64::from(*it)).sum::<u64>() - u64::from(weights[named]);
        let result = weights_for_share(&weights, named, text.parse().unwrap());
        if others == 0 && share > 0 && share < Percent::WHOLE {
            prop_assert_eq!(result, Err(ShareError::NoOther));
            return Ok(());
        }
        let Ok(after) = result else {
            prop_assert!(share > 0 && share < Percent::WHOLE);
            prop_assume!(false);
            return Ok(());
        };
        let sum: u64 = after.iter().map(|weight| u64::from(*weight)).sum();
        prop_assert!(after.iter().all(|weight| *weight <= MAX_WEIGHT));
        prop_assert_eq!(
            u64::from(after[named]) * u64::from(Percent::WHOLE),
            u64::from(share) * sum
        );
        if share == Percent::WHOLE {
            return Ok(());
        }
        for one in 0..weights.len() {
            for two in 0..weights.len() {
                if one == named || two == named {
                    continue;
                }
                prop_assert_eq!(
                    u64::from(after[one]) * u64::from(weights[two]),
                    u64::from(after[two]) * u64::from(weights[one])
                );
                prop_assert_eq!(after[one] == 0, weights[one] == 0);
            }
        }
    }

    #[test]
    fn percentages_of_small_weights_always_work(
        weights in proptest::collection::vec(0..=100_u32, 1..5),
        share in 1..100_u32,
    ) {
        prop_assume!(weights.iter().any(|weight| *weight > 0));
        let mut weights = weights;
        weights.push(0);
        let share = format!("{share}%").parse().unwrap();
        prop_assert!(weights_for_share(&weights, weights.len() - 1, share).is_ok());
    }
}
