//! Memory of the keys of limits: bounded for each namespace however many limits it has, and returned.

use super::*;
use crate::table::limits::memory::BUDGET;

/// Bytes that a part of a table takes besides its keys.
const PART: usize = 128;
/// Most bytes of the first keys of a limit, which it has beyond the budget.
const FIRST: usize = 8 * (16 + 8) + 2 * PART;

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

/// Sends requests of many clients, which stay in progress.
fn spray(policies: &CountedLimits, clients: u32) -> Vec<CountedRequest> {
    let headers = HeaderMap::new();
    let mut counted = Vec::new();
    for limiter in &policies.limits {
        for client in 0..clients {
            let request = LimitedRequest {
                client: from(Ipv4Addr::from(client)),
                view: view(&headers),
            };
            let key = limiter.key(&request, &ClientIdentity::default());
            let mut of_request = None;
            // The second time, a key may be over the limit.
            let _ = limiter.admit(key, NOW, &mut of_request);
            counted.extend(of_request.map(|counted| *counted));
        }
    }
    counted
}

fn sweep(limiters: &Limiters, now: u64) {
    for _ in 0..2 {
        limiters
            .all()
            .iter()
            .for_each(|limiter| limiter.sweep_at(now));
    }
}

#[test]
fn keys_of_a_namespace_take_its_budget_and_nothing_of_another_one() {
    for (count, clients) in [(128, 20_000), (2_560, 1_000)] {
        let limiters = Limiters::default();
        let hostile = policies_of("hostile", &limiters, &limits(count));
        let neighbour = policies_of("neighbour", &limiters, &limits(1));
        assert_eq!(taken(&limiters, "hostile"), 0, "before the first key");
        let sent = spray(&hostile, clients);
        let bytes = taken(&limiters, "hostile");
        let max = BUDGET + count * FIRST;
        assert!(bytes <= max, "{count} limits: {bytes} bytes");
        assert!(bytes >= BUDGET / 4, "{count} limits: {bytes} bytes");
        assert!(hostile.limits.iter().any(|limiter| limiter.evicted() > 0));
        let sent_by_others = spray(&neighbour, clients);
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
    let (last, others) = policies.limits.split_last().unwrap();
    let of = |limits: &[Arc<Limiter>]| CountedLimits {
        ir: policies.ir.clone(),
        limits: limits.into(),
        need_identity: false,
    };
    let _sent = spray(&of(others), 20_000);
    let _sent_to_last = spray(&of(std::slice::from_ref(last)), 2_000);
    assert_eq!(last.evicted(), 0);
}

#[test]
fn memory_of_removed_limits_returns_when_their_requests_end() {
    let limiters = Limiters::default();
    let before = policies_in(&limiters, &limits(2));
    let sent = spray(&before, 1_000);
    let of_both = taken(&limiters, "ns");
    let after = policies_in(&limiters, &limits(1));
    drop(before);
    assert_eq!(taken(&limiters, "ns"), of_both, "requests are in progress");
    drop(sent);
    let of_one = taken(&limiters, "ns");
    assert!(
        (1..of_both).contains(&of_one),
        "{of_one} of {of_both} bytes"
    );
    drop(after);
    assert_eq!(taken(&limiters, "ns"), 0);
}

#[test]
fn changed_limits_share_the_budget_of_those_before() {
    let limiters = Limiters::default();
    let mut all = Vec::new();
    for round in 0..4 {
        let mut limits = limits(64);
        limits
            .iter_mut()
            .for_each(|limit| limit.concurrent = Some(round + 1));
        let policies = policies_in(&limiters, &limits);
        all.push((spray(&policies, 20_000), policies));
        let bytes = taken(&limiters, "ns");
        let max = BUDGET + all.len() * limits.len() * FIRST;
        assert!(bytes <= max, "{bytes} bytes");
    }
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
    let sent = spray(&policies, 1);
    assert!(sent.is_empty());
    let few = taken(&limiters, "ns");
    assert!(few <= 64 * (8 * 49 + PART), "{few} bytes");
    spray(&policies, 30_000);
    let bytes = taken(&limiters, "ns");
    assert!((BUDGET / 4..=BUDGET).contains(&bytes), "{bytes} bytes");
}

#[test]
fn limit_without_keys_takes_little() {
    let bytes = size_of::<Limiter>() + size_of::<LimitMemory>();
    assert!(bytes <= 400, "{bytes} bytes");
}
