//! Limits by what requests cost, which is known at the end of their responses.

use super::*;

/// A limit of bytes of responses in a second.
fn bytes(requests: u64, burst: u64) -> Limit {
    Limit {
        cost: Cost::ResponseBytes,
        ..limit(requests, burst)
    }
}

/// Serves a request with a response of this size. Returns the time after which it may be sent again if it is refused.
fn serve(policies: &CountedLimits, response: u64, now: u64) -> Result<(), Duration> {
    let headers = HeaderMap::new();
    let request = LimitedRequest {
        client: from([127, 0, 0, 1]),
        view: view(&headers),
    };
    let within = admit(policies, &request, now).map_err(|over| over.after)?;
    let sizes = BodySizes {
        request: 0,
        response,
    };
    if let Some(mut counted) = within.counted {
        counted.charge_at(sizes, now);
        // A second charge takes nothing.
        counted.charge_at(sizes, now);
    }
    Ok(())
}

#[test]
fn bytes_are_charged_afterwards_and_refuse_what_comes_next() {
    let policies = policies(&[bytes(1_000, 500)]);
    assert_eq!(serve(&policies, 0, NOW), Ok(()));
    assert_eq!(serve(&policies, 499, NOW), Ok(()));
    assert_eq!(serve(&policies, 2_001, NOW), Ok(()), "one byte was left");
    let after = Duration::from_millis(2_001);
    assert_eq!(serve(&policies, 1, NOW), Err(after));
    let then = NOW + 2 * SECOND;
    assert_eq!(serve(&policies, 1, then), Err(Duration::from_millis(1)));
    assert_eq!(serve(&policies, 1, then + SECOND / 1_000), Ok(()));
}

#[test]
fn bytes_add_up_to_the_rate() {
    let policies = policies(&[bytes(1_000_000_000_000, 1_000_000)]);
    let mut total = 0;
    for step in 0..1_000 {
        let admitted = serve(&policies, 1_000_000, NOW + step * 1_000);
        total += u64::from(admitted.is_ok()) * 1_000_000;
    }
    // 1 ms of the rate, and the burst.
    assert!((1_000_000_000..=1_002_000_000).contains(&total), "{total}");
}

#[test]
fn one_response_keeps_a_key_for_an_hour_at_most() {
    let hour = 3_600;
    let day = 24 * hour;
    for (per, longest) in [(1, hour), (hour, hour), (day, day)] {
        for cost in [u64::MAX, 1 << 40] {
            let mut limit = bytes(10, 10);
            limit.rate.as_mut().unwrap().per = Duration::from_secs(per);
            let policies = policies(&[limit]);
            assert_eq!(serve(&policies, cost, NOW), Ok(()));
            let after = serve(&policies, cost, NOW).unwrap_err();
            assert_eq!(after.as_secs(), longest, "per {per} s");
            let then = NOW + longest * SECOND;
            assert_eq!(serve(&policies, 1, then), Ok(()));
        }
    }
}

#[test]
fn costs_of_responses_are_numbers_in_a_header() {
    let cost = Cost::ResponseHeader(http::HeaderName::from_static("x-cost"));
    let policies = policies(&[Limit {
        cost,
        ..limit(1_000, 1_000_000)
    }]);
    let headers = HeaderMap::new();
    let request = LimitedRequest {
        client: from([127, 0, 0, 1]),
        view: view(&headers),
    };
    let spent = || {
        let key = policies_key(&policies, &request);
        let time = policies.limits[0]
            .counters
            .arrivals
            .get(key, 0, |place| place.entry.time.load(Relaxed));
        time.unwrap_or(0)
    };
    let hour = 3_600_000;
    for (value, expected) in [
        (Some("7"), 7),
        (Some(" 12 "), 12),
        (Some("0"), 0),
        (None, 1),
        (Some(""), 1),
        (Some("-5"), 1),
        (Some("1.5"), 1),
        (Some("1e9"), 1),
        (Some("99999999999999999999999999"), hour + 999_999 - 24),
    ] {
        let before = spent().max(NOW);
        let within = admit(&policies, &request, NOW).unwrap();
        let mut counted = within.counted.unwrap();
        let mut response = HeaderMap::new();
        if let Some(value) = value {
            response.insert("x-cost", HeaderValue::from_static(value));
        }
        counted.respond(&response);
        counted.charge_at(BodySizes::default(), NOW);
        assert_eq!(
            (spent().max(NOW) - before) / 1_000_000,
            expected,
            "{value:?}"
        );
    }
}

fn policies_key(policies: &CountedLimits, request: &LimitedRequest<'_>) -> u64 {
    let limiter = &policies.limits[0];
    key::hash(
        &limiter.counters.hasher,
        &limiter.ir,
        request,
        &ClientIdentity::default(),
    )
}

#[test]
fn costs_of_parallel_workers_are_all_charged() {
    let policies = policies(&[bytes(1_000, 1_000_000)]);
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let policies = policies.clone();
            thread::spawn(move || {
                (0..300)
                    .filter(|_| serve(&policies, 1_000, NOW).is_ok())
                    .count()
            })
        })
        .collect();
    let total: usize = workers.into_iter().map(|it| it.join().unwrap()).sum();
    // Each worker may exceed the limit once.
    assert!((1_000..=1_003).contains(&total), "{total}");
    assert!(serve(&policies, 1, NOW).is_err());
}

#[test]
fn audit_charges_costs_and_refuses_nothing() {
    let policies = policies(&[Limit {
        is_audit: true,
        ..bytes(1_000, 1_000)
    }]);
    for _ in 0..3 {
        assert_eq!(serve(&policies, 2_000, NOW), Ok(()));
    }
    // Those that Enforce would refuse take nothing, as there.
    let then = NOW + SECOND + SECOND / 1_000;
    assert_eq!(serve(&policies, 2_000, then), Ok(()));
    assert_eq!(policies.limits[0].exceeded.load(Relaxed), 2);
}
