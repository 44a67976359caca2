//! Releases: shares, cookies, and state that survives a change.

use std::net::SocketAddr;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::runtime::per_worker::WorkerId;
use crate::table::{Backend, Transport};

fn address(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

fn release(name: &str, weight: u64, ports: &[u16]) -> ir::Release {
    ir::Release {
        name: name.into(),
        weight,
        token: format!("token-{name}").into(),
        addresses: ports.iter().map(|port| address(*port)).collect(),
    }
}

fn endpoints(releases: Vec<ir::Release>) -> ir::Endpoints {
    ir::Endpoints::Releases(ir::Releases {
        cookie: Some("rel".into()),
        releases,
    })
}

fn backend(endpoints: ir::Endpoints) -> Backend {
    let ir = ir::Backend::plain(endpoints);
    Backend::new(&ir, Transport::Plain, Arc::default())
}

fn of_weights(weights: &[u64]) -> Releases {
    let weights = weights.iter().enumerate();
    let releases = weights.map(|(index, weight)| release(&format!("v{index}"), *weight, &[]));
    let ir = ir::Releases {
        cookie: None,
        releases: releases.collect(),
    };
    Releases::new(&ir, &[], &BackendStats::default(), false)
}

fn name(release: &Arc<Release>) -> &str {
    &release.stats.name
}

#[test]
fn each_release_has_as_many_points_as_its_weight() {
    let mut random = StdRng::seed_from_u64(1);
    for _ in 0..200 {
        let count = random.random_range(1..=16);
        let limit = if random.random() { 20 } else { 1_000_000 };
        let weights: Vec<u64> = (0..count).map(|_| random.random_range(0..limit)).collect();
        let releases = of_weights(&weights);
        let total: u64 = weights.iter().sum();
        let mut begin = 0;
        for (index, weight) in weights.iter().enumerate() {
            let end = begin + weight;
            if *weight > 0 {
                for point in [begin, end - 1] {
                    assert_eq!(name(releases.at(point).unwrap()), format!("v{index}"));
                }
                let exact = *weight as f64 / total as f64;
                assert!((releases.share(&releases[index]) - exact).abs() < 1e-6);
            }
            begin = end;
        }
        assert!(releases.at(total).is_none());
    }
}

#[test]
fn draws_by_weight() {
    const DRAWS: u32 = 200_000;
    let weights = [50, 0, 30, 15, 4, 1];
    let releases = of_weights(&weights);
    let mut counts = [0; 6];
    for _ in 0..DRAWS {
        let drawn = releases.draw().unwrap();
        let index = releases.iter().position(|one| Arc::ptr_eq(one, drawn));
        counts[index.unwrap()] += 1;
    }
    assert_eq!(counts[1], 0);
    let deviation = |(weight, count): (&u64, &u32)| {
        let expected = f64::from(DRAWS) * *weight as f64 / 100.0;
        (f64::from(*count) - expected).powi(2) / expected
    };
    let drawn = weights
        .iter()
        .zip(&counts)
        .filter(|(weight, _)| **weight > 0);
    let chi_square: f64 = drawn.map(deviation).sum();
    // Four degrees of freedom: a correct draw exceeds this once in ten million runs.
    assert!(chi_square < 38.2, "{chi_square} from {counts:?}");
}

#[test]
fn draws_nothing_without_weights_and_does_not_overflow() {
    assert!(of_weights(&[]).draw().is_none());
    assert!(of_weights(&[0, 0]).draw().is_none());
    let huge = of_weights(&[u64::MAX, u64::MAX]);
    assert!(huge.draw().is_some());
    assert!(huge.share(&huge[0]) <= 1.0);
}

#[test]
fn cookie_selects_release_with_weight_and_endpoints() {
    let backend = backend(endpoints(vec![
        release("gone", 1, &[]),
        release("idle", 0, &[1]),
        release("used", 1, &[2]),
    ]));
    let endpoints = backend.endpoints();
    let releases = endpoints.releases().unwrap();
    let selected = |value: &str| releases.of_cookie(value.as_bytes()).map(name);
    assert_eq!(selected("token-used"), Some("used"));
    for other in [
        "token-gone",
        "token-idle",
        "token-",
        "used",
        "token-used2",
        "",
    ] {
        assert_eq!(selected(other), None, "{other}");
    }
    let value = |is_secure| releases[2].set_cookie(is_secure).unwrap();
    assert_eq!(
        value(false),
        "rel=token-used; Path=/; HttpOnly; SameSite=Lax"
    );
    assert_eq!(
        value(true),
        "rel=token-used; Path=/; HttpOnly; SameSite=Lax; Secure"
    );
    assert!(of_weights(&[1])[0].set_cookie(true).is_none());
    assert!(SetCookie::new("a\nb", "c").is_none());
}

#[test]
fn empty_token_is_not_a_cookie() {
    let mut without_token = release("one", 1, &[1]);
    without_token.token = "".into();
    let backend = backend(endpoints(vec![without_token]));
    let endpoints = backend.endpoints();
    let releases = endpoints.releases().unwrap();
    assert!(releases.of_cookie(b"").is_none());
    assert!(releases[0].set_cookie(false).is_none());
}

#[test]
fn endpoints_and_counters_survive_changes() {
    let backend = backend(endpoints(vec![
        release("v1", 90, &[1, 2]),
        release("v2", 10, &[3]),
    ]));
    let before = backend.endpoints();
    let first = before.releases().unwrap();
    first[0].stats.record(WorkerId::ONLY, 200);
    first[1].stats.record(WorkerId::ONLY, 500);
    let id = |one: &Arc<Endpoint>| one.id;

    backend.configure_endpoints(&endpoints(vec![
        release("v1", 0, &[2]),
        release("v2", 100, &[1, 3, 4]),
    ]));
    let after = backend.endpoints();
    assert_eq!(after.len(), 4);
    let second = after.releases().unwrap();
    let ids: Vec<u64> = second[1].endpoints.iter().map(id).collect();
    assert_eq!(
        ids[..2],
        [first[0].endpoints[0].id, first[1].endpoints[0].id]
    );
    assert_eq!(second[0].endpoints[0].id, first[0].endpoints[1].id);
    assert!(Arc::ptr_eq(&second[1].endpoints[2], &after[3]));
    assert_eq!(second[0].stats.classes(), [0, 1, 0, 0, 0]);
    assert_eq!(second[1].stats.classes(), [0, 0, 0, 0, 1]);
    assert!(second.current(&first[0]).is_none());
    assert!(Arc::ptr_eq(second.current(&first[1]).unwrap(), &second[1]));

    backend.configure_endpoints(&ir::Endpoints::from(vec![address(3)]));
    let plain = backend.endpoints();
    assert!(plain.releases().is_none());
    assert_eq!(plain[0].id, first[1].endpoints[0].id);
}

#[test]
fn peers_of_an_endpoint_are_those_of_its_release() {
    let releases = vec![release("v1", 1, &[1, 2]), release("v2", 1, &[3])];
    let backend = backend(endpoints(releases));
    let endpoints = backend.endpoints();
    let peers = |at: usize| endpoints.peers(&endpoints[at]).len();
    assert_eq!([peers(0), peers(1), peers(2)], [2, 2, 1]);
    let gone = endpoints[2].clone();
    backend.configure_endpoints(&ir::Endpoints::from(vec![address(1)]));
    assert!(backend.endpoints().peers(&gone).is_empty());
}
