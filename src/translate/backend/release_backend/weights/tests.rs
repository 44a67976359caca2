//! Shares of releases compared with an independent implementation of the rules, over random releases.

use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;
use crate::api::release_backend::WeightedRelease;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// A release: its weight if it is listed, and the numbers of its ready and its draining endpoints.
type Scene = Vec<(Option<u32>, u8, u8)>;

fn group(index: usize, ready: u8, draining: u8) -> Group {
    let addresses = |part: u8, count: u8| {
        let address = |last| (Ipv4Addr::new(10, index as u8, part, last), 80).into();
        (0..count).map(address).collect()
    };
    Group {
        ready: addresses(0, ready),
        draining: addresses(1, draining),
    }
}

fn scene(releases: &Scene) -> (Vec<WeightedRelease>, BTreeMap<String, Group>) {
    let (mut listed, mut groups) = (Vec::new(), BTreeMap::new());
    for (index, (weight, ready, draining)) in releases.iter().enumerate() {
        let name = NAMES[index].to_owned();
        if let Some(weight) = *weight {
            let value = name.clone();
            listed.push(WeightedRelease { value, weight });
        }
        if ready + draining > 0 {
            groups.insert(name, group(index, *ready, *draining));
        }
    }
    (listed, groups)
}

/// Sets the shares of releases below the best level to 0.
fn expect_shift(shares: &mut [(&str, f64, u8, u8)], need: u8) {
    let wanted = |it: &&(&str, f64, u8, u8)| it.1 > 0.0;
    let any =
        |is_so: &dyn Fn(u8, u8) -> bool| shares.iter().filter(wanted).any(|it| is_so(it.2, it.3));
    let keeps: Box<dyn Fn(u8, u8) -> bool> = if any(&|ready, _| ready >= need) {
        Box::new(move |ready, _| ready >= need)
    } else if any(&|ready, _| ready > 0) {
        Box::new(|ready, _| ready > 0)
    } else if any(&|_, draining| draining > 0) {
        Box::new(|_, draining| draining > 0)
    } else {
        Box::new(|_, _| true)
    };
    for (_, share, ready, draining) in shares.iter_mut() {
        if !keeps(*ready, *draining) {
            *share = 0.0;
        }
    }
}

/// Computes shares with fractions: the share of each release, and the endpoints that serve it.
fn expected(spec: &ReleaseBackendSpec, releases: &Scene) -> Vec<(&'static str, f64, u8, u8)> {
    let need = spec.min_ready.unwrap_or(1) as u8;
    let is_unavailable = spec.below_min_ready == BelowMinReady::Unavailable;
    let named = releases.iter().enumerate();
    let named: Vec<_> = named.map(|(index, it)| (NAMES[index], *it)).collect();
    let sum: f64 = named.iter().filter_map(|(_, it)| it.0).map(f64::from).sum();
    let is_other =
        |it: &(Option<u32>, u8, u8)| it.0.is_none() && (it.1 > 0 || it.2 > 0 && !is_unavailable);
    let listed = named.iter().filter(|(_, it)| it.0.is_some()).count() as f64;
    let others = named.iter().filter(|(_, it)| is_other(it)).count() as f64;
    let quality = |it: &(Option<u32>, u8, u8)| match (it.1, it.2) {
        (0, 0) => 0,
        (0, _) => 1,
        _ => 2,
    };
    let best_listed = named
        .iter()
        .filter(|(_, it)| it.0 > Some(0))
        .map(|(_, it)| quality(it))
        .max();
    let best_other = named
        .iter()
        .filter(|(_, it)| is_other(it))
        .map(|(_, it)| quality(it))
        .max();
    let falls_back =
        spec.unlisted == Unlisted::Fallback && best_other.unwrap_or(0) > best_listed.unwrap_or(0);
    let base = |it: &(Option<u32>, u8, u8)| match (spec.unlisted, it.0) {
        (Unlisted::Ignore, weight) => weight.map_or(0.0, f64::from),
        (Unlisted::Equal, Some(_)) if sum == 0.0 => 0.0,
        (Unlisted::Equal, Some(weight)) => f64::from(weight) / sum * listed / (listed + others),
        (Unlisted::Equal, None) if sum == 0.0 => 1.0,
        (Unlisted::Equal, None) => 1.0 / (listed + others),
        (Unlisted::Fallback, Some(weight)) => {
            if falls_back {
                0.0
            } else {
                f64::from(weight)
            }
        }
        (Unlisted::Fallback, None) => {
            if falls_back {
                1.0
            } else {
                0.0
            }
        }
    };
    let kept = named
        .iter()
        .filter(|(_, it)| it.0.is_some() || is_other(it));
    let mut shares: Vec<_> = kept
        .map(|(name, it)| (*name, base(it), it.1, it.2))
        .collect();
    if spec.unlisted == Unlisted::Ignore || spec.unlisted == Unlisted::Fallback && !falls_back {
        shares.retain(|(name, ..)| {
            named
                .iter()
                .any(|(known, it)| known == name && it.0.is_some())
        });
    }
    if !is_unavailable {
        expect_shift(&mut shares, need);
    }
    let total: f64 = shares.iter().map(|it| it.1).sum();
    for (_, share, ready, draining) in &mut shares {
        *share = if total == 0.0 { 0.0 } else { *share / total };
        if is_unavailable && *ready < need {
            *ready = if *share > 0.0 { 0 } else { *ready };
            *draining = 0;
        } else if *ready > 0 || *share == 0.0 {
            *draining = 0;
        }
    }
    shares
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn shares_follow_the_rules(
        releases in proptest::collection::vec(
            (proptest::option::of(prop_oneof![Just(0), Just(1), 0..1_000_001_u32]), 0..4_u8, 0..3_u8),
            0..NAMES.len() + 1,
        ),
        unlisted in proptest::sample::select(vec![Unlisted::Ignore, Unlisted::Equal, Unlisted::Fallback]),
        below_min_ready in proptest::sample::select(vec![BelowMinReady::Shift, BelowMinReady::Unavailable]),
        min_ready in proptest::option::of(1..4_u32),
    ) {
        let (listed, groups) = scene(&releases);
        let spec = ReleaseBackendSpec {
            releases: listed,
            unlisted,
            min_ready,
            below_min_ready,
            ..ReleaseBackendSpec::default()
        };
        let shares = weigh(&spec, &groups);
        let expected = expected(&spec, &releases);
        let names = |list: Vec<&str>| list.join(" ");
        prop_assert_eq!(
            names(shares.iter().map(|it| it.name).collect()),
            names(expected.iter().map(|it| it.0).collect())
        );
        let sum: u64 = shares.iter().map(|share| share.weight).sum();
        for (share, (name, part, ready, draining)) in shares.iter().zip(expected) {
            let own = if sum == 0 { 0.0 } else { share.weight as f64 / sum as f64 };
            prop_assert!((own - part).abs() < 1e-6, "{name}: {own}, not {part}: {shares:?}");
            let serving = share.addresses().len();
            prop_assert_eq!(serving, usize::from(ready + draining), "{}: {:?}", name, shares);
        }
    }
}

fn spec(releases: &[(&str, u32)], unlisted: Unlisted) -> ReleaseBackendSpec {
    let release = |(value, weight): &(&str, u32)| WeightedRelease {
        value: (*value).to_owned(),
        weight: *weight,
    };
    ReleaseBackendSpec {
        releases: releases.iter().map(release).collect(),
        unlisted,
        ..ReleaseBackendSpec::default()
    }
}

fn weights(spec: &ReleaseBackendSpec, ready: &[(&str, u8, u8)]) -> Vec<(String, u64)> {
    let group = |(index, (name, ready, draining)): (usize, &(&str, u8, u8))| {
        ((*name).to_owned(), group(index, *ready, *draining))
    };
    let groups = ready.iter().enumerate().map(group).collect();
    let shares = weigh(spec, &groups);
    let weights = shares.iter().map(|it| (it.name.to_owned(), it.weight));
    weights.collect()
}

#[test]
fn equal_gives_each_unlisted_release_an_equal_share() {
    let spec = spec(&[("a", 90), ("b", 10)], Unlisted::Equal);
    let shares = weights(&spec, &[("a", 1, 0), ("b", 1, 0), ("x", 1, 0), ("y", 1, 0)]);
    // A quarter each for x and y; a and b share half of the requests, 9 to 1.
    let expected = [("a", 180), ("b", 20), ("x", 100), ("y", 100)];
    assert_eq!(shares, expected.map(|(name, it)| (name.to_owned(), it)));
}

#[test]
fn share_of_release_without_endpoints_shifts_in_proportion() {
    let spec = spec(&[("a", 90), ("b", 9), ("c", 1)], Unlisted::Ignore);
    let shares = weights(&spec, &[("b", 1, 0), ("c", 1, 0)]);
    let expected = [("a", 0), ("b", 9), ("c", 1)];
    assert_eq!(shares, expected.map(|(name, it)| (name.to_owned(), it)));
}
