//! Shares of endpoints at various ages.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use proptest::prelude::*;

use super::super::balance::{self, Choice};
use super::super::in_flight::{InFlight, WorkerEndpoints};
use super::*;
use crate::ir;
use crate::runtime::clock::Clock;
use crate::runtime::per_worker::WorkerId;
use crate::table::Transport;

/// In milliseconds.
const WINDOW: u64 = 30_000;
const REQUESTS: usize = 20_000;

fn addresses(ports: Range<u16>) -> Vec<SocketAddr> {
    let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
    ports.map(address).collect()
}

/// Returns endpoints, of which the last `added` were added later.
fn endpoints(old: u16, added: u16) -> Vec<Arc<Endpoint>> {
    let ir = ir::Backend {
        slow_start: Some(Duration::from_millis(WINDOW)),
        ..ir::Backend::plain(addresses(0..old).into())
    };
    let backend = Backend::new(&ir, Transport::Plain, Arc::default());
    backend.set_endpoints(&addresses(0..old + added));
    backend.endpoints().to_vec()
}

/// Returns the slow start at an age of the last endpoint.
fn at(endpoints: &[Arc<Endpoint>], age: u64) -> SlowStart {
    let added_at = endpoints.last().unwrap().added_at.unwrap();
    SlowStart {
        window: WINDOW,
        now: added_at.get() + age,
    }
}

fn worker() -> WorkerEndpoints {
    WorkerEndpoints::new(WorkerId::ONLY, Clock::new())
}

fn select(endpoints: &[Arc<Endpoint>], slow_start: SlowStart) -> InFlight {
    balance::select(&worker(), endpoints, &[], Choice::by_load(Some(slow_start))).unwrap()
}

/// Returns the part of the requests that the last endpoint gets, if each ends before the next
/// begins.
fn part(endpoints: &[Arc<Endpoint>], slow_start: SlowStart) -> f64 {
    let last = endpoints.last().unwrap();
    let is_last = |_: &usize| Arc::ptr_eq(select(endpoints, slow_start).endpoint(), last);
    (0..REQUESTS).filter(is_last).count() as f64 / REQUESTS as f64
}

/// Allows five standard deviations of a part of [`REQUESTS`].
fn assert_near(actual: f64, expected: f64) {
    let variance = expected * (1.0 - expected) / REQUESTS as f64;
    let permitted = 5.0 * variance.sqrt() + 1e-6;
    assert!(
        (actual - expected).abs() < permitted,
        "{actual} is not {expected}"
    );
}

#[test]
fn share_rises_linearly_from_a_tenth() {
    let endpoints = endpoints(1, 1);
    let share = |age| at(&endpoints, age).share(&endpoints[1]);
    assert_near(share(0), 0.1);
    assert_near(share(WINDOW / 2), 0.55);
    assert_near(share(WINDOW), 1.0);
    assert_near(share(WINDOW * 100), 1.0);
    assert_near(at(&endpoints, 0).share(&endpoints[0]), 1.0);
}

#[test]
fn added_endpoint_gets_its_share_of_few_requests() {
    for old in [1, 3] {
        let endpoints = endpoints(old, 1);
        let equal = 1.0 / f64::from(old + 1);
        for age in [0, WINDOW / 3, WINDOW * 2 / 3, WINDOW] {
            let slow_start = at(&endpoints, age);
            let share = slow_start.share(endpoints.last().unwrap());
            assert_near(part(&endpoints, slow_start), share * equal);
        }
    }
}

#[test]
fn added_endpoint_has_its_share_of_requests_in_flight() {
    let endpoints = endpoints(3, 1);
    for (age, permitted) in [(0, 0.0..0.25), (WINDOW / 2, 0.35..0.75), (WINDOW, 0.9..1.1)] {
        let slow_start = at(&endpoints, age);
        let mut requests: Vec<_> = (0..120).map(|_| select(&endpoints, slow_start)).collect();
        let (mut added, mut others) = (0, 0);
        for _ in 0..REQUESTS {
            let ended = rand::rng().random_range(0..requests.len());
            requests.swap_remove(ended);
            requests.push(select(&endpoints, slow_start));
            added += endpoints[3].load.in_flight();
            others += endpoints[0].load.in_flight();
        }
        let ratio = added as f64 / others as f64;
        assert!(permitted.contains(&ratio), "{ratio} at the age {age}");
    }
}

#[test]
fn endpoints_of_one_age_get_equal_shares() {
    let endpoints = endpoints(1, 2);
    for age in [0, WINDOW / 2] {
        assert_near(part(&endpoints[1..], at(&endpoints, age)), 0.5);
    }
}

#[test]
fn added_endpoint_gets_all_requests_when_alone() {
    let endpoints = endpoints(1, 1);
    let slow_start = at(&endpoints, 0);
    assert_near(part(&endpoints[1..], slow_start), 1.0);
    let excluded = [endpoints[0].id];
    for _ in 0..100 {
        let selected = balance::select(
            &worker(),
            &endpoints,
            &excluded,
            Choice::by_load(Some(slow_start)),
        )
        .unwrap();
        assert_eq!(selected.endpoint().id, endpoints[1].id);
    }
}

#[test]
fn added_endpoint_gets_all_requests_while_others_are_avoided() {
    let endpoints = endpoints(1, 1);
    let health = &endpoints[0].health;
    health.avoided_until.store(u64::MAX, Relaxed);
    assert_near(part(&endpoints, at(&endpoints, 0)), 1.0);
}

proptest! {
    #[test]
    fn shares_rise_with_age(window in 1_000..900_000_u64, ages in any::<[u32; 2]>()) {
        let endpoints = endpoints(1, 1);
        let [younger, older] = ages.map(|age| u64::from(age) % (window * 2));
        let share = |age| SlowStart { window, ..at(&endpoints, age) }.share(&endpoints[1]);
        prop_assert!((0.1..=1.0).contains(&share(younger)));
        prop_assert_eq!(younger <= older || share(younger) >= share(older), true);
        prop_assert_eq!(younger >= older || share(younger) <= share(older), true);
        prop_assert!(share(window - 1) < 1.0);
    }
}
