//! Endpoints by the policy of a backend.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::ir;
use crate::ir::backend_policy::BackendPolicy;
use crate::ir::limit::KeyPart;
use crate::runtime::clock::Clock;
use crate::table::Transport;

fn policy(load_balancing: LoadBalancing) -> BackendPolicy {
    BackendPolicy {
        load_balancing,
        ..BackendPolicy::without_settings(ir::ObjectRef::core("Policy", "ns", "one"))
    }
}

fn hashed() -> BackendPolicy {
    let key = KeyPart::ClientIp { v4: 32, v6: 64 };
    policy(LoadBalancing::ConsistentHash(vec![key]))
}

fn backend(endpoints: u16, policy: BackendPolicy) -> Backend {
    let address = |port| ([127, 0, 0, 1], port).into();
    let ir = ir::Backend {
        policy: Some(Arc::new(policy)),
        ..ir::Backend::plain((1..=endpoints).map(address).collect())
    };
    Backend::new(&ir, Transport::Plain, Arc::default())
}

/// Selects an endpoint for a key.
fn request(worker: &WorkerEndpoints, backend: &Backend, key: Option<u64>) -> Option<InFlight> {
    let endpoints = backend.endpoints();
    let choice = Choice::of(backend, worker.worker(), endpoints.ring(), key);
    select(worker, &endpoints, &[], choice)
}

fn worker() -> WorkerEndpoints {
    WorkerEndpoints::new(WorkerId::ONLY, Clock::new())
}

/// Returns the port that each key gets.
fn ports(backend: &Backend) -> BTreeMap<u64, u16> {
    let worker = worker();
    let port = |key| {
        let selected = request(&worker, backend, Some(key)).unwrap();
        selected.endpoint().address.port()
    };
    (0..400).map(|key| (key, port(key))).collect()
}

#[test]
fn few_requests_of_a_key_stay_together_and_many_are_bounded() {
    let (worker, backend) = (worker(), backend(4, hashed()));
    let mut requests = Vec::new();
    let most = || {
        let endpoints = backend.endpoints();
        endpoints.iter().map(|it| it.load.in_flight()).max()
    };
    for count in 1..=400 {
        requests.push(request(&worker, &backend, Some(7)));
        if count <= ALWAYS_PERMITTED {
            assert_eq!(most(), Some(count));
        }
    }
    // A fourth more than the mean, and what the count of the mean is late.
    assert!(most() <= Some(125 + 8), "{:?}", most());
}

#[test]
fn only_keys_of_an_endpoint_that_fails_move_and_to_all_others() {
    let backend = backend(5, hashed());
    let before = ports(&backend);
    backend.endpoints()[0].health.fail_checks();
    let after = ports(&backend);
    let mut moved_to = BTreeMap::new();
    for (key, port) in before {
        match port {
            1 => *moved_to.entry(after[&key]).or_insert(0) += 1,
            _ => assert_eq!(after[&key], port),
        }
    }
    let ports: Vec<_> = moved_to.keys().copied().collect();
    assert_eq!(ports, [2, 3, 4, 5], "{moved_to:?}");
}

#[test]
fn endpoints_in_turn_pass_over_failed_ones() {
    let (worker, backend) = (worker(), backend(3, policy(LoadBalancing::RoundRobin)));
    let next = || {
        let selected = request(&worker, &backend, None).unwrap();
        selected.endpoint().address.port()
    };
    assert_eq!([next(), next(), next(), next()], [1, 2, 3, 1]);
    backend.endpoints()[2].health.fail_checks();
    assert_eq!([next(), next(), next(), next()], [2, 1, 1, 2]);
}

#[test]
fn all_endpoints_are_used_below_the_share_of_healthy_ones() {
    let mut policy = policy(LoadBalancing::Random);
    policy.passive.panic_percent = 50;
    let (worker, backend) = (worker(), backend(5, policy));
    let used = || {
        let mut used = [false; 5];
        for _ in 0..300 {
            let selected = request(&worker, &backend, None).unwrap();
            used[usize::from(selected.endpoint().address.port()) - 1] = true;
        }
        used
    };
    let endpoints = backend.endpoints();
    endpoints[..2].iter().for_each(|it| it.health.fail_checks());
    assert_eq!(used(), [false, false, true, true, true]);
    endpoints[2].health.fail_checks();
    assert_eq!(used(), [true; 5]);
}

#[test]
fn full_endpoints_count_among_the_healthy_ones() {
    let mut policy = policy(LoadBalancing::Random);
    policy.passive.panic_percent = 50;
    policy.limits.requests_per_endpoint = Some(1);
    let (worker, backend) = (worker(), backend(5, policy));
    let endpoints = backend.endpoints();
    endpoints[..2].iter().for_each(|it| it.health.fail_checks());
    let _held = [(); 2].map(|()| request(&worker, &backend, None).unwrap());
    for _ in 0..50 {
        let selected = request(&worker, &backend, None).unwrap();
        assert!(selected.endpoint().address.port() > 2);
    }
}

#[test]
fn ejections_last_while_few_endpoints_of_the_backend_are_ejected() {
    let mut full = policy(LoadBalancing::RoundRobin);
    full.limits.requests_per_endpoint = Some(1);
    let mut zone = policy(LoadBalancing::RoundRobin);
    zone.passive.max_ejected_percent = 20;
    for backend in [backend(4, full), zoned(zone)] {
        let (worker, endpoints) = (worker(), backend.endpoints());
        let ejected = &endpoints[3].health;
        let until = health::now() + 60_000;
        ejected.avoided_until.store(until, Relaxed);
        // The last one finds the others full.
        let _held = [(); 4].map(|()| {
            let choice = Choice::of(&backend, worker.worker(), None, None);
            select(&worker, &endpoints, &[], choice.with_near(endpoints.near())).unwrap()
        });
        assert_eq!(ejected.avoided_until.load(Relaxed), until);
    }
}

#[test]
fn endpoint_with_failed_checks_does_not_stand_in_for_full_ones() {
    let mut policy = policy(LoadBalancing::LeastRequest);
    policy.limits.requests_per_endpoint = Some(1);
    let (worker, backend) = (worker(), backend(3, policy));
    let endpoints = backend.endpoints();
    endpoints[0].health.fail_checks();
    let _held = [(); 2].map(|()| request(&worker, &backend, None).unwrap());
    assert!(request(&worker, &backend, None).is_none());
    assert!(are_full(&backend, &endpoints, &[]));
    endpoints.iter().for_each(|it| it.health.fail_checks());
    assert!(request(&worker, &backend, None).is_some());
}

#[test]
fn full_endpoints_get_no_request() {
    let mut policy = hashed();
    policy.limits.requests_per_endpoint = Some(2);
    let (worker, backend) = (worker(), backend(3, policy));
    let requests: Vec<_> = (0..6)
        .map(|_| request(&worker, &backend, Some(1)).expect("an endpoint"))
        .collect();
    assert!(request(&worker, &backend, Some(1)).is_none());
    assert!(are_full(&backend, &backend.endpoints(), &[]));
    drop(requests);
    assert!(request(&worker, &backend, Some(1)).is_some());
}

/// The workers of a process begin and end requests at the same time.
#[test]
fn limit_of_an_endpoint_holds_for_the_sum_of_the_workers() {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    const MAX: u32 = 2;
    const WORKERS: usize = 4;
    let mut policy = policy(LoadBalancing::LeastRequest);
    policy.limits.requests_per_endpoint = Some(MAX);
    let backend = backend(2, policy);
    let held: [AtomicU32; 2] = Default::default();
    let served = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for index in 0..WORKERS {
            let (backend, held, served) = (&backend, &held, &served);
            scope.spawn(move || {
                let worker = WorkerEndpoints::new(WorkerId::new(index, WORKERS), Clock::new());
                for _ in 0..5000 {
                    let Some(begun) = request(&worker, backend, None) else {
                        assert!(are_full(backend, &backend.endpoints(), &[]));
                        continue;
                    };
                    let held = &held[usize::from(begun.endpoint().address.port()) - 1];
                    assert!(held.fetch_add(1, SeqCst) < MAX);
                    std::thread::yield_now();
                    held.fetch_sub(1, SeqCst);
                    served.fetch_add(1, SeqCst);
                }
            });
        }
    });
    // As many fit as there are workers.
    assert!(served.into_inner() > 5000);
}

/// Four of six endpoints are in the zone.
fn zoned(policy: BackendPolicy) -> Backend {
    let address = |port| ([127, 0, 0, 1], port).into();
    let ir = ir::Backend {
        policy: Some(Arc::new(policy)),
        ..ir::Backend::plain(ir::Endpoints::Zoned {
            addresses: (1..=6).map(address).collect(),
            near: (3..=6).map(address).collect(),
        })
    };
    Backend::new(&ir, Transport::Plain, Arc::default())
}

#[test]
fn endpoints_in_the_zone_get_all_requests_while_half_of_them_are_healthy() {
    for method in [
        LoadBalancing::LeastRequest,
        LoadBalancing::RoundRobin,
        LoadBalancing::Random,
    ] {
        let (worker, backend) = (worker(), zoned(policy(method)));
        let endpoints = backend.endpoints();
        let used = |excluded: &[u64]| {
            let mut used = [0; 6];
            for _ in 0..300 {
                let choice = Choice::of(&backend, worker.worker(), None, None);
                let choice = choice.with_near(endpoints.near());
                let selected = select(&worker, &endpoints, excluded, choice).unwrap();
                used[usize::from(selected.endpoint().address.port()) - 1] += 1;
            }
            used.map(|count| count > 0)
        };
        let all = [true; 6];
        assert_eq!(used(&[]), [false, false, true, true, true, true]);
        // A request that has failed at all of them goes to others.
        let near: Vec<_> = endpoints[2..].iter().map(|it| it.id).collect();
        assert_eq!(used(&near), [true, true, false, false, false, false]);
        endpoints[2..4]
            .iter()
            .for_each(|it| it.health.fail_checks());
        assert_eq!(used(&[]), [false, false, false, false, true, true]);
        endpoints[4].health.fail_checks();
        assert_eq!(used(&[]), [true, true, false, false, false, true]);
        endpoints[2..].iter().for_each(|it| it.health.pass_checks());
        assert_ne!(used(&[]), all);
    }
}

#[test]
fn requests_without_room_in_the_zone_go_to_others() {
    let mut policy = policy(LoadBalancing::LeastRequest);
    policy.limits.requests_per_endpoint = Some(1);
    let (worker, backend) = (worker(), zoned(policy));
    let endpoints = backend.endpoints();
    let begun: Vec<_> = (0..6)
        .map(|_| {
            let choice = Choice::of(&backend, worker.worker(), None, None);
            select(&worker, &endpoints, &[], choice.with_near(endpoints.near())).unwrap()
        })
        .collect();
    let ports: Vec<_> = begun
        .iter()
        .map(|it| it.endpoint().address.port())
        .collect();
    assert!(ports[..4].iter().all(|port| *port > 2), "{ports:?}");
    assert!(ports[4..].iter().all(|port| *port <= 2), "{ports:?}");
}

#[test]
fn zone_outlives_changes_of_endpoints_and_policy() {
    let policy = policy(LoadBalancing::LeastRequest);
    let backend = zoned(policy);
    let address = |port| ([127, 0, 0, 1], port).into();
    backend.configure_endpoints(&ir::Endpoints::Zoned {
        addresses: vec![address(1), address(6)],
        near: vec![address(6)],
    });
    let endpoints = backend.endpoints();
    assert_eq!(endpoints.near().unwrap()[0].id, endpoints[1].id);
    backend.configure_endpoints(&vec![address(1), address(6)].into());
    assert!(backend.endpoints().near().is_none());
}
