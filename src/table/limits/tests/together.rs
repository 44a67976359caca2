//! Limits of one policy: all of them count a request, or none.

use super::*;

#[test]
fn refused_requests_count_in_no_limit_and_wait_for_the_longest() {
    let by_client = || vec![KeyPart::ClientIp { v4: 32, v6: 64 }];
    let hour = |requests, key| Limit {
        key,
        rate: Some(Rate {
            requests,
            per: Duration::from_secs(3600),
            burst: requests,
        }),
        ..limit(1, 1)
    };
    let named = |name: &str, limit| Limit {
        name: name.into(),
        ..limit
    };
    let audited = Limit {
        is_audit: true,
        ..named("audited", hour(3, Vec::new()))
    };
    let (all, each) = (
        named("all", hour(4, Vec::new())),
        named("each", hour(2, by_client())),
    );
    let minute = named(
        "minute",
        Limit {
            key: by_client(),
            ..limit(2, 2)
        },
    );
    for limits in [
        [all.clone(), each.clone(), audited.clone(), minute.clone()],
        [minute, audited, each, all],
    ] {
        let policies = policies(&limits);
        let [one, other] = [1, 2].map(|host| from([127, 0, 0, host]));
        let longest = Duration::from_secs(1800);
        for _ in 0..2 {
            assert_eq!(admit_from(&policies, one, NOW), Ok(()));
        }
        for _ in 0..20 {
            assert_eq!(admit_from(&policies, one, NOW), Err(longest));
        }
        // One is left of the limit that only counts.
        for _ in 0..2 {
            assert_eq!(admit_from(&policies, other, NOW), Ok(()));
        }
        let audited = policies.limits.iter().find(|it| it.ir.is_audit).unwrap();
        assert_eq!(audited.exceeded.load(Relaxed), 1);
        assert_eq!(
            admit_from(&policies, from([127, 0, 0, 3]), NOW),
            Err(longest / 2)
        );
    }
}

#[test]
fn refusal_by_identity_counts_in_no_limit() {
    let by_identity = Limit {
        name: "each".into(),
        identity: vec![IdentityPart::Client],
        ..limit(1, 1)
    };
    let policies = policies(&[limit(2, 2), by_identity]);
    let headers = HeaderMap::new();
    let request = LimitedRequest {
        client: from([127, 0, 0, 1]),
        view: view(&headers),
    };
    let admits = |name| {
        let identity = ClientIdentity {
            name: Some(["ns", name]),
            ..ClientIdentity::default()
        };
        let mut within = WithinLimits::default();
        let phases = [LimitPhase::Before, LimitPhase::Identified(&identity)];
        let mut admitted = phases.into_iter().map(|phase| {
            let admitted = policies.admit(&request, phase, NOW, &mut within);
            admitted.map_err(|over| over.limiter.ir.name.to_string())
        });
        admitted.find(Result::is_err).unwrap_or(Ok(()))
    };
    assert_eq!(admits("alice"), Ok(()));
    for _ in 0..5 {
        assert_eq!(admits("alice"), Err("each".to_owned()));
    }
    assert_eq!(admits("bob"), Ok(()));
    assert_eq!(admits("carol"), Err("one".to_owned()));
}
