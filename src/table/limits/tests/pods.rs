//! Limits that pods of a Gateway share, with simulated time: what all pods admit together, of any part of the time.

use proptest::prelude::*;

use super::simulation::{Admitted, SimulatedPod, Simulation, run, shared, warm};
use super::*;
use crate::table::limits::exchange::TooMuch;

#[test]
fn client_of_one_connection_gets_its_limit_from_any_pod() {
    for pods in 1..=4 {
        for pod in 0..pods {
            for rate in [10, 100, 1_000] {
                let mut simulation = Simulation::new(pods, shared(rate, rate));
                warm(&mut simulation);
                let mut demand = vec![0.0; pods];
                demand[pod] = 3.0 * rate as f64 / 1_000.0;
                let admitted = run(&mut simulation, 10, 7, &demand);
                let total = admitted.total as f64;
                let expected = rate as f64 * 10.0;
                assert!(total >= 0.95 * expected, "{pods} {pod} {rate}: {total}");
                assert!(admitted.most <= rate as f64 + 1.0, "{admitted:?}");
            }
        }
    }
}

#[test]
fn client_below_its_limit_is_not_refused() {
    for pod in 0..4 {
        let mut simulation = Simulation::new(4, shared(100, 100));
        warm(&mut simulation);
        let mut demand = vec![0.0; 4];
        demand[pod] = 0.095;
        let admitted = run(&mut simulation, 10, 7, &demand);
        assert!(admitted.total >= 949, "{pod}: {admitted:?}");
    }
}

#[test]
fn audited_limit_refuses_nothing_and_counts_what_is_over_it() {
    let limit = Limit {
        is_audit: true,
        ..shared(100, 100)
    };
    let mut simulation = Simulation::new(3, limit);
    warm(&mut simulation);
    // 500 in a second, of which most arrive at one pod.
    let sent = run(&mut simulation, 5, 7, &[0.25, 0.125, 0.125]).total;
    assert_eq!(sent, 2_500, "all of them are admitted");
    let limits = simulation.pods.iter().map(|pod| &pod.limits.limits[0]);
    let exceeded: u64 = limits.map(|it| it.exceeded.load(Relaxed)).sum();
    // 5 s of the limit and the burst, as where it is enforced.
    let within = sent - exceeded;
    assert!((475..=626).contains(&within), "{within}");
}

#[test]
fn limits_of_minutes_and_bursts_hold() {
    let mut limit = shared(600, 60);
    limit.rate = limit.rate.map(|rate| Rate {
        per: Duration::from_secs(60),
        ..rate
    });
    for pod in 0..3 {
        let mut simulation = Simulation::new(3, limit.clone());
        warm(&mut simulation);
        let mut demand = vec![0.0; 3];
        demand[pod] = 0.2;
        let admitted = run(&mut simulation, 30, 7, &demand);
        assert!(admitted.total >= 285, "{pod}: {admitted:?}");
        assert!(admitted.most <= 61.0, "{pod}: {admitted:?}");
    }
}

/// The requests of a key arrive at one pod, or each seventh of them at the next one.
#[test]
fn thousand_keys_are_limited_each() {
    for (pods, stray, least) in [
        (1, None, 48),
        // 95 % of 3 s. Pods that get no requests have reserves of the burst.
        (2, None, 29),
        (3, Some(7_u64), 29),
        (4, None, 29),
        (4, Some(7), 42),
    ] {
        let mut simulation = Simulation::new(pods, shared(10, 20));
        warm(&mut simulation);
        let mut admitted = vec![Admitted::default(); 1_000];
        for step in 0..3_000_u64 {
            let is_stray = stray.is_some_and(|each| step % each == 0);
            for key in 0..1_000_u16 {
                // About 33 a second of each key.
                if (step + u64::from(key)) % 30 == 0 {
                    let pod = (usize::from(key) + usize::from(is_stray)) % pods;
                    let count = u64::from(simulation.request(pod, key));
                    admitted[usize::from(key)].add(count, 0.3);
                }
            }
            simulation.step();
        }
        for (key, admitted) in admitted.iter().enumerate() {
            // 1.05 of 3 s, and the burst.
            let expected = least..=51;
            assert!(
                expected.contains(&admitted.total),
                "{pods} {key}: {admitted:?}"
            );
        }
    }
}

#[test]
fn owner_that_dies_takes_a_share_until_it_leaves_the_list() {
    let mut simulation = Simulation::new(4, shared(100, 100));
    warm(&mut simulation);
    let view = simulation.pods[0].limiters.group.view().clone();
    let limiter = &simulation.pods[0].limiters.all()[0];
    // The key of a client that "a" does not own.
    let owned = |key: u16| {
        let [high, low] = key.to_be_bytes();
        let headers = HeaderMap::new();
        let request = LimitedRequest {
            client: from([10, 0, high, low]),
            view: super::view(&headers),
        };
        let key = limiter.key(&request, &ClientIdentity::default());
        match view.owner(key) {
            Owner::Own => None,
            Owner::Other(index, _) => Some(index),
        }
    };
    let (key, owner) = (0..100).find_map(|key| Some((key, owned(key)?))).unwrap();
    let demand = [0.3, 0.0, 0.0, 0.0];
    let full = run(&mut simulation, 5, key, &demand);
    assert!(full.total >= 475, "{full:?}");
    simulation.pods[owner].is_running = false;
    let away = run(&mut simulation, 2, key, &demand);
    assert!(away.total <= 100 && away.most <= 101.0, "{away:?}");
    let away = run(&mut simulation, 10, key, &demand);
    assert!((240..=265).contains(&away.total), "a quarter: {away:?}");
    let left = ["a", "b", "c", "d"].map(str::to_owned);
    let left: Vec<_> = left
        .into_iter()
        .filter(|it| *it != simulation.pods[owner].name)
        .collect();
    simulation.list(&left);
    let rest = run(&mut simulation, 5, key, &demand);
    assert!(rest.total >= 475, "{rest:?}");
    assert!(rest.most <= 101.0, "one burst more: {rest:?}");
}

/// An earlier version of a policy may be in force beside the present one, with another limit of the same name and rate.
#[test]
fn clients_of_an_earlier_version_of_a_policy_get_a_part_of_the_limit_at_least() {
    let limit = shared(100, 100);
    let mut simulation = Simulation::new(2, limit.clone());
    let earlier = Limit {
        key: vec![KeyPart::ClientIp { v4: 31, v6: 64 }],
        ..limit
    };
    let name = ObjectRef::earlier_name("policy", 1);
    let mut present = Vec::new();
    for pod in &mut simulation.pods {
        let earlier = std::slice::from_ref(&earlier);
        let limits = policies_named(("ns", name.as_str()), &pod.limiters, earlier);
        present.push(std::mem::replace(&mut pod.limits, limits));
    }
    warm(&mut simulation);
    for key in 0..8 {
        let admitted = run(&mut simulation, 4, 2 * key, &[0.3, 0.0]);
        // 50 in each of 4 s, and the reserve.
        let expected = 200..=501;
        assert!(expected.contains(&admitted.total), "{key}: {admitted:?}");
    }
}

#[test]
fn added_pod_gives_one_burst_more() {
    let limit = shared(100, 100);
    let mut simulation = Simulation::new(2, limit.clone());
    warm(&mut simulation);
    for key in 0..40 {
        let before = run(&mut simulation, 1, key, &[0.3, 0.1]);
        assert!(before.most <= 101.0, "{before:?}");
    }
    simulation.pods.push(SimulatedPod::new("c", &limit));
    simulation.list(&["a", "b", "c"].map(str::to_owned));
    for key in 0..40 {
        let after = run(&mut simulation, 1, key, &[0.1, 0.1, 0.3]);
        assert!(after.most <= 201.0, "{key}: {after:?}");
    }
}

#[test]
fn pods_that_do_not_reach_each_other_admit_the_limit_together() {
    let mut simulation = Simulation::new(4, shared(100, 100));
    warm(&mut simulation);
    simulation.partitioned = vec!["c".to_owned()];
    let demand = [0.2; 4];
    for key in 0..8 {
        let admitted = run(&mut simulation, 5, key, &demand);
        assert!(admitted.most <= 105.0, "{key}: {admitted:?}");
        assert!(admitted.total >= 450, "{key}: {admitted:?}");
    }
    simulation.partitioned.clear();
    let healed = run(&mut simulation, 5, 0, &demand);
    assert!(healed.total >= 475 && healed.most <= 105.0, "{healed:?}");
}

#[test]
fn limit_without_a_key_is_divided() {
    let limit = Limit {
        key: Vec::new(),
        ..shared(100, 10)
    };
    let mut simulation = Simulation::new(4, limit);
    let one = run(&mut simulation, 4, 0, &[0.5, 0.0, 0.0, 0.0]);
    assert!((100..=103).contains(&one.total), "{one:?}");
    let all = run(&mut simulation, 4, 0, &[0.5; 4]);
    assert!((400..=410).contains(&all.total), "{all:?}");
    assert!(all.most <= 11.0, "{all:?}");
}

#[test]
fn shared_limit_of_one_pod_is_that_of_a_replica() {
    let alone = policies(&[Limit {
        scope: Scope::Gateway,
        ..limit(10, 5)
    }]);
    let keyed = policies(&[shared(10, 5)]);
    for policies in [alone, keyed] {
        assert_eq!(admitted(&policies, NOW, 100), 5);
        assert_eq!(admitted(&policies, NOW + SECOND / 10, 100), 1);
    }
}

#[test]
fn owner_grants_no_more_than_a_lease_and_only_its_keys() {
    let mut simulation = Simulation::new(3, shared(100, 200));
    warm(&mut simulation);
    let pod = &simulation.pods[0];
    let view = pod.limiters.group.view();
    let index = pod.index();
    let now = simulation.nanos();
    let limit = {
        // The hash of the limit, from a wish of another pod.
        let other = &simulation.pods[1];
        let mut found = None;
        for key in 0..50 {
            assert!(simulation.request(1, key));
        }
        other
            .index()
            .collect(&other.limiters.group.view(), now, 0, |_, wish| {
                found = Some(wish.ask.limit);
                false
            });
        found.unwrap()
    };
    let owned = |key: &u64| matches!(view.owner(*key), Owner::Own);
    let own = (1..).step_by(2).find(owned).unwrap();
    let other = (1..).step_by(2).find(|key| !owned(key)).unwrap();
    let ask = |limit, key, tokens| index.grant(&view, Ask { limit, key, tokens }, now);
    assert_eq!(ask(limit, own, u64::MAX).tokens, 5);
    assert_eq!(ask(limit, own, 0).tokens, 0);
    assert_eq!(ask(limit, other, 1), Grant::OF_ANOTHER);
    assert_eq!(ask(limit + 1, own, 1), Grant::OF_ANOTHER);
    let mut total = 5;
    for _ in 0..1_000 {
        total += ask(limit, own, u64::MAX).tokens;
    }
    assert_eq!(total, 134, "the burst without the reserves of two pods");
    let empty = ask(limit, own, 5);
    assert_eq!((empty.tokens, empty.left), (0, 0));
    assert!((MIN_WAIT_MS..100).contains(&empty.wait), "{empty:?}");
}

const MIN_WAIT_MS: u32 = 10;

#[test]
fn response_with_more_than_was_asked_for_is_refused() {
    let mut simulation = Simulation::new(2, shared(100, 100));
    warm(&mut simulation);
    let mut wishes = Vec::new();
    for key in 0..20 {
        assert!(simulation.request(0, key));
    }
    let pod = &simulation.pods[0];
    let now = simulation.nanos();
    let view = pod.limiters.group.view();
    pod.index().collect(&view, now, 0, |_, wish| {
        wishes.push(wish);
        true
    });
    let wish = wishes.pop().unwrap();
    let grant = |tokens| Grant {
        tokens,
        left: u64::MAX,
        wait: 7,
    };
    assert_eq!(wish.apply(grant(2), now), Err(TooMuch));
    assert_eq!(wish.apply(grant(1), now), Ok(()));
    // A second response, and one that a pod without the limit sends, change nothing for the worse.
    assert_eq!(wish.apply(grant(1), now), Ok(()));
    assert_eq!(wish.apply(Grant::OF_ANOTHER, now), Ok(()));
    let admitted = (0..100).filter(|_| simulation.request(0, 1)).count();
    assert!(admitted <= 50, "{admitted}");
}

#[test]
fn costs_are_made_up_for_by_leases() {
    let limit = Limit {
        cost: Cost::ResponseBytes,
        ..shared(10_000, 10_000)
    };
    for pod in 0..3 {
        let mut simulation = Simulation::new(3, limit.clone());
        warm(&mut simulation);
        let mut total = 0;
        for _ in 0..10_000 {
            let client = from([10, 0, 0, 7]);
            let headers = HeaderMap::new();
            let request = LimitedRequest {
                client,
                view: view(&headers),
            };
            let now = simulation.nanos();
            if let Ok(within) = admit(&simulation.pods[pod].limits, &request, now)
                && let Some(mut counted) = within.counted
            {
                let sizes = BodySizes {
                    request: 0,
                    response: 3_000,
                };
                counted.charge_at(sizes, now);
                total += 3_000;
            }
            simulation.step();
        }
        // 10 s, the burst, and the last response beyond it.
        assert!((95_000..=113_000).contains(&total), "{pod}: {total}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Pods admit at most 1.05 of the limit and the burst in any part of the time, for every distribution of requests.
    #[test]
    fn pods_together_admit_a_limit(
        pods in 1_usize..=4,
        rate in 5_u64..400,
        burst in 4_u64..500,
        phases in prop::collection::vec((prop::collection::vec(0.0_f64..1.5, 4), 1_u16..3), 1..4),
    ) {
        let mut simulation = Simulation::new(pods, shared(rate, burst));
        for (demand, key) in phases {
            let admitted = run(&mut simulation, 1, key, &demand[..pods]);
            prop_assert!(
                admitted.most <= burst as f64 + 0.05 * rate as f64 + 1.0,
                "{admitted:?} of {rate} and {burst}"
            );
        }
    }
}
