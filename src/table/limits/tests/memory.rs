//! Memory of the keys of limits: bounded for the process, however many namespaces and limits it has, shared, and returned.

use std::ops::Range;

use super::*;
use crate::table::limits::group::mixed;
use crate::table::limits::memory::{BUDGET, LimitMemory};

/// Bytes that a part of a table takes besides its keys.
const PART: usize = 128;

/// Limits of a rate and of requests in progress by client.
fn limits(count: usize) -> Vec<Limit> {
    let limit = |index: usize| Limit {
        name: index.to_string().into(),
        key: vec![KeyPart::ClientIp { v4: 32, v6: 64 }],
        concurrent: Some(1),
        ..limit(1, 1)
    };
    (0..count).map(limit).collect()
}

fn taken(limiters: &Limiters, namespace: &str) -> usize {
    let known = limiters.known.lock().unwrap();
    let budget = known.budgets.get(namespace).and_then(Weak::upgrade);
    budget.map_or(0, |budget| budget.taken())
}

/// Sends a request of each key to each limit, which stays in progress. Of these keys, a table wants room for 2,048 before it has
/// 400, for 8,192 before it has 1,000, and for 32,768 before it has 5,500.
fn spray(limits: &[Arc<Limiter>], keys: Range<u64>) -> Vec<CountedRequest> {
    let mut counted = None;
    for limiter in limits {
        for key in keys.clone() {
            // Spread as hashes are.
            limiter.admit(mixed(key), NOW, &mut counted).unwrap();
        }
    }
    counted.into_iter().map(|counted| *counted).collect()
}

fn sweep(limiters: &Limiters, now: u64) {
    (0..2).for_each(|_| limiters.sweep_at(now));
}

#[test]
fn keys_of_a_namespace_take_its_budget_and_nothing_of_another_one() {
    for (count, keys) in [(64, 5_500), (1_280, 400)] {
        let limiters = Limiters::default();
        let hostile = policies_of("hostile", &limiters, &limits(count));
        let neighbour = policies_of("neighbour", &limiters, &limits(1));
        assert_eq!(taken(&limiters, "hostile"), 0, "before the first key");
        let sent = spray(&hostile.limits, 1..keys);
        let bytes = taken(&limiters, "hostile");
        let expected = BUDGET / 4..=BUDGET;
        assert!(expected.contains(&bytes), "{count} limits: {bytes} bytes");
        assert!(hostile.limits.iter().any(|limiter| limiter.evicted() > 0));
        let sent_by_others = spray(&neighbour.limits, 1..keys);
        assert_eq!(neighbour.limits[0].evicted(), 0);
        drop((sent, sent_by_others));
        // Their rates are still in use.
        sweep(&limiters, NOW);
        assert!(taken(&limiters, "hostile") > 0);
        sweep(&limiters, NOW + 10 * SECOND);
        assert_eq!(taken(&limiters, "hostile"), 0);
        assert_eq!(taken(&limiters, "neighbour"), 0);
    }
}

#[test]
fn every_limit_has_its_share_whatever_others_take() {
    let limiters = Limiters::default();
    let policies = policies_in(&limiters, &limits(128));
    let (greedy, other) = (&policies.limits[0], &policies.limits[1]);
    let _all: Vec<_> = std::iter::from_fn(|| greedy.counters.memory.try_take(4_096)).collect();
    let _sent = spray(std::slice::from_ref(other), 1..3_000);
    assert_eq!(other.evicted(), 0);
    spray(std::slice::from_ref(greedy), 1..3_000);
    assert!(greedy.evicted() > 0);
}

#[test]
fn keys_of_many_namespaces_take_the_budget_of_the_process() {
    let limiters = Limiters::default();
    let policies = |index: usize| policies_of(&format!("ns-{index}"), &limiters, &limits(4));
    let hostile: Vec<_> = (0..100).map(policies).collect();
    let neighbour = policies_of("neighbour", &limiters, &limits(1));
    let sent = hostile.iter().map(|it| spray(&it.limits, 1..1_000));
    let sent: Vec<_> = sent.collect();
    let bytes = limiters.memory.taken();
    assert!((BUDGET / 4..=BUDGET).contains(&bytes), "{bytes} bytes");
    let limits = hostile.iter().flat_map(|it| &it.limits);
    assert!(limits.map(|limiter| limiter.evicted()).sum::<u64>() > 0);
    let sent_by_others = spray(&neighbour.limits, 1..3_000);
    assert_eq!(neighbour.limits[0].evicted(), 0);
    drop((sent, sent_by_others));
    sweep(&limiters, NOW + 10 * SECOND);
    assert_eq!(limiters.memory.taken(), 0);
}

#[test]
fn namespace_that_is_added_gets_its_share_after_a_sweep() {
    let fill = |limiter: &Arc<Limiter>| -> Vec<_> {
        std::iter::from_fn(|| limiter.counters.memory.try_take(4_096)).collect()
    };
    let limiters = Limiters::default();
    let before = policies_of("before", &limiters, &limits(32));
    let with_keys = &before.limits[31];
    let _sent = spray(std::slice::from_ref(with_keys), 1..20_000);
    let _of_others: Vec<_> = before.limits.iter().map(fill).collect();
    limiters.sweep_at(NOW);
    assert_eq!(with_keys.evicted(), 0, "nobody lacks memory");
    let after = policies_of("after", &limiters, &limits(1));
    let _first = fill(&after.limits[0]);
    assert!(taken(&limiters, "after") < BUDGET / 16);
    let of_before = taken(&limiters, "before");
    limiters.sweep_at(NOW);
    assert!(with_keys.evicted() > 0);
    assert!(taken(&limiters, "before") < of_before);
    assert!(!fill(&after.limits[0]).is_empty());
    assert!(limiters.memory.taken() <= BUDGET);
}

#[test]
fn memory_of_removed_limits_returns_when_their_requests_end() {
    let limiters = Limiters::default();
    let before = policies_in(&limiters, &limits(2));
    let sent = spray(&before.limits, 1..1_000);
    let of_both = taken(&limiters, "ns");
    let after = policies_in(&limiters, &limits(1));
    drop(before);
    assert_eq!(taken(&limiters, "ns"), of_both, "requests are in progress");
    drop(sent);
    assert_eq!(taken(&limiters, "ns"), of_both / 2);
    drop(after);
    assert_eq!(taken(&limiters, "ns"), 0);
}

#[test]
fn changed_limits_share_the_budget_of_those_before() {
    let limiters = Limiters::default();
    let mut all = Vec::new();
    for round in 0..4 {
        let mut limits = limits(128);
        limits
            .iter_mut()
            .for_each(|limit| limit.concurrent = Some(round + 1));
        let policies = policies_in(&limiters, &limits);
        all.push((spray(&policies.limits, 1..1_000), policies));
        let bytes = taken(&limiters, "ns");
        assert!(bytes <= BUDGET, "{bytes} bytes");
    }
    let limits = all.iter().flat_map(|(_, policies)| &policies.limits);
    let evicted = limits.map(|limiter| limiter.evicted()).sum::<u64>();
    assert!(evicted > 0, "they want more than there is");
    drop(all);
    assert_eq!(taken(&limiters, "ns"), 0);
}

#[test]
fn pods_that_share_limits_count_the_memory_of_leases() {
    let limiters = Limiters::default();
    limiters.group.open();
    let pods = ["a", "b"].map(|name| (name, from([127, 0, 0, 1])));
    limiters.group.set_pods("a", pods);
    let shared: Vec<_> = limits(64)
        .into_iter()
        .map(|limit| Limit {
            scope: Scope::Gateway,
            concurrent: None,
            ..limit
        })
        .collect();
    let policies = policies_in(&limiters, &shared);
    spray(&policies.limits, 1..2);
    let few = taken(&limiters, "ns");
    assert!(few <= 64 * (8 * 49 + PART), "{few} bytes");
    // More than 2,048 for each pod.
    spray(&policies.limits, 2..4_600);
    let bytes = taken(&limiters, "ns");
    assert!((BUDGET / 4..=BUDGET).contains(&bytes), "{bytes} bytes");
}

#[test]
fn limit_without_keys_takes_little() {
    let bytes = size_of::<Limiter>() + size_of::<Counters>() + size_of::<LimitMemory>();
    assert!(bytes <= 400, "{bytes} bytes");
}
