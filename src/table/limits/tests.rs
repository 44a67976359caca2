//! Limits as requests of several workers, clients and configurations see them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Barrier;
use std::thread;

use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde_json::{Value, json};

use super::counters::KEYS;
use super::*;
use crate::ir::ObjectRef;
use crate::ir::canonical_path::CanonicalPath;
use crate::ir::cidr::{self, CidrSet};
use crate::ir::limit::{IdentityPart, KeyPart, Rate, Scope};
use crate::ir::route::{Conditions, Match, PathMatch};
use crate::table::authentication::Claims;
use crate::table::matcher::RequestView;

mod costs;
mod memory;
mod pods;
mod simulation;
mod spellings;
mod together;

const SECOND: u64 = 1_000_000_000;
/// A time long after the start.
const NOW: u64 = 1_000_000 * SECOND;

fn limit(requests: u64, burst: u64) -> Limit {
    Limit {
        name: "one".into(),
        condition: None,
        key: Vec::new(),
        identity: Vec::new(),
        rate: Some(Rate {
            requests,
            per: Duration::from_secs(1),
            burst,
        }),
        cost: Cost::default(),
        concurrent: None,
        exempt: CidrSet::default(),
        scope: Scope::default(),
        is_audit: false,
    }
}

fn policies_in(limiters: &Limiters, limits: &[Limit]) -> Arc<CountedLimits> {
    policies_of("ns", limiters, limits)
}

fn policies_of(namespace: &str, limiters: &Limiters, limits: &[Limit]) -> Arc<CountedLimits> {
    policies_named((namespace, "policy"), limiters, limits)
}

fn policies_named(
    (namespace, name): (&str, &str),
    limiters: &Limiters,
    limits: &[Limit],
) -> Arc<CountedLimits> {
    let policy = ObjectRef::new("portcullis.dev", "RateLimitPolicy", namespace, name);
    let limits = IrLimits {
        policy,
        limits: limits.iter().cloned().map(Arc::new).collect(),
        left_out: Vec::new(),
        status: StatusCode::TOO_MANY_REQUESTS,
        has_headers: false,
    };
    Arc::new(CountedLimits::new(&Arc::new(limits), limiters))
}

fn policies(limits: &[Limit]) -> Arc<CountedLimits> {
    policies_in(&Limiters::default(), limits)
}

fn from(address: impl Into<IpAddr>) -> IpAddr {
    address.into()
}

/// A GET of `/` with these headers.
fn view(headers: &HeaderMap) -> RequestView<'_> {
    RequestView {
        host: "a.com",
        method: &Method::GET,
        path: CanonicalPath::ROOT,
        query: None,
        headers,
        added: &[],
        upgrade: None,
    }
}

fn admit<'a>(
    policies: &'a CountedLimits,
    request: &LimitedRequest<'_>,
    now: u64,
) -> Result<WithinLimits<'a>, OverLimit<'a>> {
    let mut within = WithinLimits::default();
    let admitted = policies.admit(request, LimitPhase::Before, now, &mut within);
    admitted.map(|()| within)
}

fn admit_from(policies: &CountedLimits, client: IpAddr, now: u64) -> Result<(), Duration> {
    let headers = HeaderMap::new();
    let request = LimitedRequest {
        client,
        view: view(&headers),
    };
    let admitted = admit(policies, &request, now);
    admitted.map(drop).map_err(|over| over.after)
}

fn admitted(policies: &CountedLimits, now: u64, count: usize) -> usize {
    let client = from([127, 0, 0, 1]);
    let admitted = (0..count).filter(|_| admit_from(policies, client, now).is_ok());
    admitted.count()
}

#[test]
fn admits_the_burst_and_then_the_rate() {
    let policies = policies(&[limit(10, 5)]);
    assert_eq!(admitted(&policies, NOW, 100), 5);
    assert_eq!(admitted(&policies, NOW + SECOND / 10, 100), 1);
    assert_eq!(
        admitted(&policies, NOW + SECOND, 100),
        5,
        "no more than the burst"
    );
    let mut total = 0;
    for step in 0..1_000 {
        total += admitted(&policies, NOW + 2 * SECOND + step * SECOND / 100, 10);
    }
    // 10 s of the rate, and the burst.
    assert!((100..=105).contains(&total), "{total}");
}

#[test]
fn names_the_keys_that_use_most() {
    let mut per_client = limit(10, 10);
    per_client.key = vec![KeyPart::ClientIp { v4: 32, v6: 64 }];
    let policies = policies(&[per_client]);
    for (client, count) in [(1, 2), (2, 10), (3, 5), (4, 1), (5, 1), (6, 1), (7, 1)] {
        let client = from([127, 0, 0, client]);
        for _ in 0..count {
            assert_eq!(admit_from(&policies, client, NOW), Ok(()));
        }
    }
    let limiter = &policies.limits[0];
    let usage = limiter.usage_at(NOW);
    let percents: Vec<_> = usage.most.iter().map(|it| it.percent).collect();
    assert_eq!((usage.keys, &percents[..]), (7, &[100, 50, 20, 10, 10][..]));
    let [first, second, ..] = &usage.most[..] else {
        panic!("{usage:?}");
    };
    assert_ne!(first.digest, second.digest);
    // A second later, all of the burst is back.
    assert_eq!(limiter.usage_at(NOW + SECOND).keys, 0);
}

#[test]
fn names_requests_in_progress() {
    let mut concurrent = limit(10, 10);
    (concurrent.rate, concurrent.concurrent) = (None, Some(4));
    let policies = policies(&[concurrent]);
    let headers = HeaderMap::new();
    let request = LimitedRequest {
        client: from([127, 0, 0, 1]),
        view: view(&headers),
    };
    let held = admit(&policies, &request, NOW).map_err(|over| over.after);
    let usage = policies.limits[0].usage_at(NOW);
    assert_eq!((usage.keys, usage.most[0].percent), (1, 25));
    drop(held);
    assert_eq!(policies.limits[0].usage_at(NOW).keys, 0);
}

#[test]
fn says_when_a_request_may_be_sent_again() {
    let policies = policies(&[limit(10, 1)]);
    assert_eq!(admitted(&policies, NOW, 1), 1);
    let client = from([127, 0, 0, 1]);
    let after = Duration::from_millis(60);
    let refused = admit_from(&policies, client, NOW + SECOND / 25);
    assert_eq!(refused, Err(after));
    assert_eq!(admit_from(&policies, client, NOW + SECOND / 10), Ok(()));
}

#[test]
fn workers_share_a_limit() {
    let policies = policies(&[limit(1, 1_000)]);
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let policies = policies.clone();
            thread::spawn(move || admitted(&policies, NOW, 1_000))
        })
        .collect();
    let total: usize = workers.into_iter().map(|it| it.join().unwrap()).sum();
    assert_eq!(total, 1_000);
}

#[test]
fn first_requests_of_a_key_that_come_at_once_count_together() {
    let rounds: Vec<_> = (0..3_000).map(|_| policies(&[limit(1, 1)])).collect();
    let rounds = Arc::new(rounds);
    let both = Arc::new(Barrier::new(2));
    let workers = [rounds.clone(), rounds.clone()].map(|rounds| {
        let both = both.clone();
        thread::spawn(move || {
            let admitted = rounds.iter().map(|policies| {
                both.wait();
                admitted(policies, NOW, 1)
            });
            admitted.sum::<usize>()
        })
    });
    let total: usize = workers.into_iter().map(|it| it.join().unwrap()).sum();
    assert_eq!(total, rounds.len());
}

#[test]
fn clients_of_a_network_count_together() {
    let key = vec![KeyPart::ClientIp { v4: 32, v6: 64 }];
    let policies = policies(&[Limit { key, ..limit(1, 1) }]);
    let v6 = |low: u16, net: u16| from(Ipv6Addr::new(0x2001, 0xdb8, 0, net, 0, 0, 0, low));
    for (client, is_admitted) in [
        (from([10, 0, 0, 1]), true),
        (from([10, 0, 0, 2]), true),
        (from([10, 0, 0, 1]), false),
        (from(Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped()), false),
        (v6(1, 0), true),
        (v6(2, 0), false),
        (v6(1, 1), true),
    ] {
        let admitted = admit_from(&policies, client, NOW).is_ok();
        assert_eq!(admitted, is_admitted, "{client}");
    }
}

#[test]
fn keys_are_made_of_headers_cookies_and_hosts() {
    let part = |part| Limit {
        key: vec![part],
        ..limit(1, 1)
    };
    let header = part(KeyPart::Header(http::HeaderName::from_static("x-user")));
    let host = part(KeyPart::Header(http::header::HOST));
    let cookie = part(KeyPart::Cookie("user".into()));
    let hostname = part(KeyPart::Hostname);
    let admits = |policies: &CountedLimits, host: &str, name: &'static str, value: &'static str| {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_static(value));
        let request = LimitedRequest {
            client: from([127, 0, 0, 1]),
            view: RequestView {
                host,
                ..view(&headers)
            },
        };
        admit(policies, &request, NOW).is_ok()
    };
    let policies = policies(&[header]);
    assert!(admits(&policies, "a", "x-user", "one"));
    assert!(admits(&policies, "a", "x-user", "two"));
    assert!(!admits(&policies, "b", "x-user", "one"));
    assert!(admits(&policies, "a", "x-other", ""), "without the header");
    assert!(!admits(&policies, "a", "x-other", ""));
    let policies = self::policies(&[host]);
    assert!(admits(&policies, "a", "host", "a.com"));
    assert!(!admits(&policies, "a", "host", "A.com.:80"));
    assert!(admits(&policies, "a", "host", "b.com"));
    let policies = self::policies(&[cookie]);
    assert!(admits(&policies, "a", "cookie", "a=b; user=1"));
    assert!(admits(&policies, "a", "cookie", "user=2;user=1"));
    assert!(!admits(&policies, "a", "cookie", "users=3; user=1"));
    let policies = self::policies(&[hostname]);
    assert!(admits(&policies, "a", "x", "") && admits(&policies, "b", "x", ""));
    assert!(!admits(&policies, "a", "x", ""));
}

#[test]
fn keys_are_made_of_headers_that_the_proxy_adds() {
    let name = http::HeaderName::from_static("x-forwarded-for");
    let policies = policies(&[Limit {
        key: vec![KeyPart::Header(name.clone())],
        ..limit(1, 1)
    }]);
    let headers = HeaderMap::new();
    for (address, is_admitted) in [("one", true), ("two", true), ("one", false)] {
        let added = [(name.clone(), HeaderValue::from_static(address))];
        let request = LimitedRequest {
            client: from([127, 0, 0, 1]),
            view: RequestView {
                added: &added,
                ..view(&headers)
            },
        };
        let admitted = admit(&policies, &request, NOW).is_ok();
        assert_eq!(admitted, is_admitted, "{address}");
    }
}

#[test]
fn limits_by_identity_count_what_authentication_has_established() {
    let claims = |value: Value| Claims::new(value.as_object().unwrap()).unwrap();
    let [alice, bob] = ["alice", "bob"].map(|sub| claims(json!({"sub": sub, "team": "shop"})));
    let anonymous = claims(json!({"team": ["shop", "sales"]}));
    let token = |issuer, claims| ClientIdentity {
        name: None,
        token: Some(TokenIdentity {
            issuer: ["ns", issuer],
            claims,
        }),
    };
    let named = |namespace, name| ClientIdentity {
        name: Some([namespace, name]),
        token: None,
    };
    let both = ClientIdentity {
        name: Some(["ns", "alice"]),
        ..token("one", &bob)
    };
    let admits = |policies: &CountedLimits, identity: &ClientIdentity<'_>| {
        let headers = HeaderMap::new();
        let request = LimitedRequest {
            client: from([127, 0, 0, 1]),
            view: view(&headers),
        };
        let mut within = WithinLimits::default();
        let before = policies.admit(&request, LimitPhase::Before, NOW, &mut within);
        assert!(before.is_ok() && within.remaining.is_none());
        let phase = LimitPhase::Identified(identity);
        policies.admit(&request, phase, NOW, &mut within).is_ok()
    };
    let by = |part| {
        policies(&[Limit {
            identity: vec![part],
            ..limit(1, 1)
        }])
    };
    let by_client = by(IdentityPart::Client);
    for (identity, expected) in [
        (&named("ns", "alice"), true),
        (&named("ns", "bob"), true),
        (&both, false),
        (&named("other", "alice"), true),
        (&token("one", &alice), true),
        (&token("one", &alice), false),
        (&token("one", &bob), true),
        (&token("two", &bob), true),
        (&token("one", &anonymous), true),
        (&ClientIdentity::default(), true),
        (&ClientIdentity::default(), false),
    ] {
        assert_eq!(admits(&by_client, identity), expected, "{identity:?}");
    }
    let by_team = by(IdentityPart::Claim("team".into()));
    for (identity, expected) in [
        (&token("one", &alice), true),
        (&token("one", &bob), false),
        (&both, false),
        (&token("two", &bob), true),
        (&token("one", &anonymous), true),
        (&named("ns", "alice"), true),
        (&ClientIdentity::default(), false),
    ] {
        assert_eq!(admits(&by_team, identity), expected, "{identity:?}");
    }
}

#[test]
fn requests_that_do_not_meet_the_condition_neither_count_nor_are_refused() {
    let others = Conditions {
        method: Some(Method::POST),
        ..Conditions::default()
    };
    let condition = Match {
        path: PathMatch::Prefix("/login".into()),
        others: others.into(),
    };
    let policies = policies(&[Limit {
        condition: Some(condition),
        ..limit(1, 1)
    }]);
    let headers = HeaderMap::new();
    for (method, path, is_admitted) in [
        (Method::GET, "/login", true),
        (Method::POST, "/", true),
        (Method::POST, "/login/a", true),
        (Method::POST, "/login", false),
        (Method::GET, "/login", true),
        (Method::POST, "/logins", true),
    ] {
        let request = LimitedRequest {
            client: from([127, 0, 0, 1]),
            view: RequestView {
                method: &method,
                path: CanonicalPath::new(path).unwrap(),
                ..view(&headers)
            },
        };
        let admitted = admit(&policies, &request, NOW).is_ok();
        assert_eq!(admitted, is_admitted, "{method} {path}");
    }
}

#[test]
fn requests_in_progress_are_limited_until_they_end() {
    let policies = policies(&[Limit {
        rate: None,
        concurrent: Some(2),
        key: vec![KeyPart::ClientIp { v4: 32, v6: 64 }],
        ..limit(1, 1)
    }]);
    let headers = HeaderMap::new();
    let request = LimitedRequest {
        client: from([127, 0, 0, 1]),
        view: view(&headers),
    };
    let first = admit(&policies, &request, NOW).unwrap();
    let _second = admit(&policies, &request, NOW).unwrap();
    assert!(admit(&policies, &request, NOW).is_err());
    drop(first);
    let _third = admit(&policies, &request, NOW).unwrap();
    assert!(admit(&policies, &request, NOW).is_err());
}

#[test]
fn exempt_clients_and_audit_are_not_refused() {
    let exempt = std::iter::once(cidr::parse("127.0.0.0/8").unwrap()).collect();
    let policies = policies(&[Limit {
        exempt,
        ..limit(1, 1)
    }]);
    assert_eq!(admitted(&policies, NOW, 10), 10);
    let policies = self::policies(&[Limit {
        is_audit: true,
        ..limit(1, 1)
    }]);
    assert_eq!(admitted(&policies, NOW, 10), 10);
    assert_eq!(policies.limits[0].exceeded.load(Relaxed), 9);
}

#[test]
fn counters_survive_other_configurations_and_not_other_limits() {
    let limiters = Limiters::default();
    let before = policies_in(&limiters, &[limit(1, 5)]);
    assert_eq!(admitted(&before, NOW, 3), 3);
    let same = policies_in(&limiters, &[limit(1, 5)]);
    drop(before);
    assert_eq!(admitted(&same, NOW, 10), 2);
    let other = policies_in(&limiters, &[limit(1, 6)]);
    assert_eq!(admitted(&other, NOW, 10), 6);
}

/// Targets that a policy loses keep its former rules for a while.
#[test]
fn earlier_version_of_a_policy_gives_nobody_another_burst() {
    let limiters = Limiters::default();
    let version = |number: u64| ObjectRef::earlier_name("policy", number);
    let earlier =
        |number: u64, limits: &[Limit]| policies_named(("ns", &version(number)), &limiters, limits);
    let before = policies_in(&limiters, &[limit(1, 5)]);
    assert_eq!(admitted(&before, NOW, 3), 3);
    let changed = policies_in(&limiters, &[limit(1, 6)]);
    let former = earlier(1, &[limit(1, 5)]);
    drop(before);
    assert_eq!(admitted(&former, NOW, 10), 2);
    assert_eq!(admitted(&changed, NOW, 10), 6);
    // Another change leaves the limit as it is.
    let again = earlier(2, &[limit(1, 6)]);
    assert_eq!(admitted(&again, NOW, 10), 0);
    assert_eq!(admitted(&changed, NOW + SECOND, 10), 1);
    assert_eq!(admitted(&again, NOW + SECOND, 10), 0);
    let other = policies_named(("ns", "other"), &limiters, &[limit(1, 6)]);
    assert_eq!(admitted(&other, NOW, 10), 6);
}

#[test]
fn many_keys_take_bounded_memory_and_are_counted() {
    let policies = policies(&[Limit {
        key: vec![KeyPart::ClientIp { v4: 32, v6: 64 }],
        ..limit(1, 1)
    }]);
    let keys = 4 * KEYS;
    for address in 0..keys as u32 {
        let client = from(Ipv4Addr::from(address));
        assert_eq!(admit_from(&policies, client, NOW), Ok(()));
    }
    let evicted = policies.limits[0].evicted();
    let kept = keys - evicted as usize;
    assert!(
        (KEYS * 9 / 10..=KEYS).contains(&kept),
        "{kept} of {KEYS} keys"
    );
    // Once their time has passed, nothing is lost with them.
    admitted(&policies, NOW + 10 * SECOND, 1);
    assert_eq!(policies.limits[0].evicted(), evicted);
}
