//! All pairs of levels: two policies set the same section at two levels, in each order of creation and with each strategy.
//! Requests show which of them has an effect, and `/explain` and the conditions of both policies and of their targets say so.

mod case;
mod connections;
mod sections;
mod specification;

use futures_util::{StreamExt, stream};
use portcullis::control::data_plane::ServedConfiguration;
use portcullis::status::{ConditionStatus, ConditionType};
use serde_json::{Value, json};

use self::case::Case;
use self::sections::{
    Backends, Effect, ISSUER, Section, jwt, oidc, permits, replaces, text, tokens,
};
use self::specification::{Level, Placed, Rule, pairs};
use crate::provider::{Provider, permitted};
use crate::scene::Scene;

/// Pairs of a scene whose requests take little time. An explanation takes as long as the scene is large.
const PAIRS: usize = 17;

/// Checks all pairs of these levels, and whether the outcome depends on the order in which objects arrive.
async fn check(section: Section, levels: &[Level]) {
    let backends = Backends::new().await;
    let of_scene = PAIRS.max(section.effect.concurrency());
    for pairs in pairs(levels).chunks(of_scene) {
        check_scene(&section, &backends, pairs).await;
    }
}

/// Checks these pairs in one scene.
async fn check_scene(section: &Section, backends: &Backends, pairs: &[[Placed; 2]]) {
    let pairs = pairs.iter().enumerate();
    let cases = pairs.map(|(index, pair)| Case {
        index,
        section,
        pair: *pair,
    });
    let cases: Vec<_> = cases.collect();
    let objects = |with_policies: bool| {
        let add = |objects, case: &Case<'_>| case.add_to(objects, with_policies);
        cases.iter().fold(backends.objects(), add)
    };
    let mut scene = Scene::with(&objects(true), permitted);
    let first = scene.outcome_with(is_resolved).await;
    let tokens = tokens();
    for case in &cases {
        case.check_conditions(&first);
    }
    let requests = cases
        .iter()
        .map(|case| case.check_requests(&scene, &tokens));
    let mut requests = stream::iter(requests).buffer_unordered(section.effect.concurrency());
    while requests.next().await.is_some() {}
    drop(requests);
    scene.replace(&objects(false)).await;
    scene.replace(&objects(true)).await;
    let count = first.report.policies.len();
    // The keys of a provider that is no longer needed may change what is served before.
    let is_whole = |it: &ServedConfiguration| it.report.policies.len() == count && is_resolved(it);
    let again = scene.outcome_with(is_whole).await;
    assert_eq!(again.report, first.report, "policies that arrive later");
}

/// Reports whether all policies have what they name: the keys of a provider are fetched once a policy is in service.
fn is_resolved(outcome: &ServedConfiguration) -> bool {
    let statuses = outcome.report.policies.iter();
    let mut conditions = statuses
        .flat_map(|(_, status)| status.iter())
        .flat_map(|status| status.conditions.iter());
    !conditions
        .any(|it| (it.kind, it.status) == (ConditionType::ResolvedRefs, ConditionStatus::False))
}

/// The levels of a Gateway alone, whose connections ListenerSets may share.
const OF_GATEWAYS: [Level; 2] = [Level::Gateway, Level::Listener];
/// The levels that have clients.
const OF_CLIENTS: [Level; 4] = [
    Level::Gateway,
    Level::Listener,
    Level::ListenerSet,
    Level::ListenerOfSet,
];

#[tokio::test]
async fn denied_addresses_of_all_levels_count() {
    let section = Section {
        rule: Rule::Accumulates,
        effect: Effect::DeniesOwn,
        ..permits(|it| json!({"ipRules": {"deny": [text(it)]}}))
    };
    check(section, &Level::ALL).await;
}

#[tokio::test]
async fn permitted_addresses_of_all_pairs_of_levels() {
    let section = permits(|it| json!({"ipRules": {"allow": [text(it)]}}));
    check(section, &Level::ALL).await;
}

#[tokio::test]
async fn users_of_all_pairs_of_levels() {
    let section = permits(|it| json!({"basic": {"secretRef": {"name": format!("users-{it}")}}}));
    check(section, &Level::ALL).await;
}

#[tokio::test]
async fn api_keys_of_all_pairs_of_levels() {
    let section = permits(|it| {
        json!({"apiKey": {
            "secretRefs": [{"name": format!("keys-{it}")}],
            "from": [{"type": "Header", "name": "X-Key"}],
        }})
    });
    check(section, &Level::ALL).await;
}

#[tokio::test]
async fn tokens_of_all_pairs_of_levels() {
    check(permits(jwt), &Level::ALL).await;
}

#[tokio::test]
async fn sign_ins_of_all_pairs_of_levels() {
    let provider = Provider::start().await;
    ISSUER.get_or_init(|| provider.issuer());
    let section = Section {
        effect: Effect::SignIn,
        ..permits(oidc)
    };
    check(section, &Level::ALL).await;
}

#[tokio::test]
async fn authorization_servers_of_all_pairs_of_levels() {
    let section = permits(|it| {
        json!({"external": {
            "protocol": "HTTP", "backendRef": {"name": format!("server-{it}"), "port": 80},
            "http": {"allowedHeaders": ["X-Who"]},
        }})
    });
    check(section, &Level::ALL).await;
}

#[tokio::test]
async fn authorization_of_all_pairs_of_levels() {
    let section = permits(|it| {
        let own = json!({"headers": [{"name": "x-who", "value": it}]});
        json!({"authorization": {"rules": [{"name": "own", "action": "Allow", "match": own}]}})
    });
    check(section, &Level::ALL).await;
}

#[tokio::test]
async fn required_credentials_of_all_pairs_of_levels() {
    let section = |any: char, spec: fn(char) -> Value| Section {
        rule: Rule::Requires(any),
        effect: Effect::Credentials(any),
        ..permits(spec)
    };
    let first = |it: char| json!({"require": if it == 'a' { "Any" } else { "All" }});
    let second = |it: char| json!({"require": if it == 'b' { "Any" } else { "All" }});
    check(section('a', first), &Level::ALL).await;
    check(section('b', second), &Level::ALL).await;
}

#[tokio::test]
async fn limits_of_all_pairs_of_levels() {
    let section = replaces(
        "RateLimitPolicy",
        Effect::Header("ratelimit-policy"),
        |it| {
            let limit = json!({"requests": 100_000, "per": "Hour"});
            json!({"rules": [{"name": it, "limit": limit}], "response": {"headers": "Draft"}})
        },
    );
    check(section, &Level::ALL).await;
}

#[tokio::test]
async fn headers_of_all_pairs_of_levels() {
    let kind = "RoutePolicy";
    let of_response =
        |it: char| json!({"responseHeaders": {"set": [{"name": "x-section", "value": it}]}});
    let of_request =
        |it: char| json!({"requestHeaders": {"set": [{"name": "x-section", "value": it}]}});
    check(
        replaces(kind, Effect::Header("x-section"), of_response),
        &Level::ALL,
    )
    .await;
    check(
        replaces(kind, Effect::Header("x-of-request"), of_request),
        &Level::ALL,
    )
    .await;
}

#[tokio::test]
async fn bodies_of_all_pairs_of_levels() {
    let kind = "RoutePolicy";
    let of_request =
        |it: char| json!({"requestBody": {"maxSize": if it == 'a' { "8" } else { "16" }}});
    let of_response =
        |it: char| json!({"compression": {"encodings": [if it == 'a' { "gzip" } else { "br" }]}});
    check(replaces(kind, Effect::BodySize, of_request), &Level::ALL).await;
    check(replaces(kind, Effect::Encoding, of_response), &Level::ALL).await;
}

/// Each policy sets another field, so that the section of the other one is replaced as a whole.
#[tokio::test]
async fn timeouts_of_all_pairs_of_levels() {
    let section = |short: char, spec: fn(char) -> Value| {
        replaces("RoutePolicy", Effect::Deadline(short), spec)
    };
    let first = |it: char| json!({"timeouts": if it == 'a' { json!({"request": "25ms"}) } else { json!({"backendRequest": "1h"}) }});
    let second = |it: char| json!({"timeouts": if it == 'b' { json!({"backendRequest": "25ms"}) } else { json!({"request": "1h"}) }});
    check(section('a', first), &Level::ALL).await;
    check(section('b', second), &Level::ALL).await;
}

#[tokio::test]
async fn retries_of_all_pairs_of_levels() {
    let section = replaces("RoutePolicy", Effect::Attempts, |it| {
        let attempts = if it == 'a' { 1 } else { 2 };
        json!({"retry": {"codes": [418], "attempts": attempts, "backoff": "1ms"}})
    });
    check(section, &Level::ALL).await;
}

#[tokio::test]
async fn error_pages_of_all_pairs_of_levels() {
    let section = replaces("RoutePolicy", Effect::Page, |it| {
        let keys = json!([{"key": "page", "mediaType": "text/plain"}]);
        let page = json!({"name": format!("page-{it}"), "keys": keys});
        json!({"errorPages": [{"codes": [418], "source": "Any", "configMapRef": page}]})
    });
    check(section, &Level::ALL).await;
}

#[tokio::test]
async fn paths_of_all_pairs_of_levels() {
    let section = replaces(
        "ClientPolicy",
        Effect::Path,
        |it| json!({"path": {"escapedSlashes": if it == 'a' { "Reject" } else { "Decode" }}}),
    );
    check(section, &OF_CLIENTS).await;
}

#[tokio::test]
async fn connections_of_all_pairs_of_levels() {
    let kind = "ClientPolicy";
    let of_headers =
        |it: char| json!({"headers": {"underscores": if it == 'a' { "Reject" } else { "Drop" }}});
    let of_requests =
        |it: char| json!({"connections": {"maxRequests": if it == 'a' { 1 } else { 2 }}});
    check(
        replaces(kind, Effect::Underscores, of_headers),
        &OF_GATEWAYS,
    )
    .await;
    check(replaces(kind, Effect::Requests, of_requests), &OF_GATEWAYS).await;
}

#[tokio::test]
async fn addresses_of_clients_of_all_pairs_of_levels() {
    let section = replaces("ClientPolicy", Effect::ClientAddress, |it| {
        let header = json!({"name": format!("X-Address-{it}"), "trustedCIDRs": ["127.0.0.0/8"]});
        json!({"clientIP": {"header": header}})
    });
    check(section, &OF_CLIENTS).await;
}

#[tokio::test]
async fn tls_of_all_pairs_of_levels() {
    let section = replaces("ClientPolicy", Effect::Tls, |it| match it {
        'a' => json!({"tls": {"minVersion": "1.3"}}),
        _ => json!({"tls": {"alpn": ["http/1.1"]}}),
    });
    check(section, &OF_CLIENTS).await;
}

#[tokio::test]
async fn timeouts_of_connections_of_all_pairs_of_levels() {
    let section = replaces("ClientPolicy", Effect::Timeouts, |it| match it {
        'a' => json!({"timeouts": {"header": "50ms"}}),
        _ => json!({"timeouts": {"idle": "50ms"}}),
    });
    check(section, &OF_GATEWAYS).await;
}

#[tokio::test]
async fn http2_of_all_pairs_of_levels() {
    let section = replaces(
        "ClientPolicy",
        Effect::Streams,
        |it| json!({"http2": {"maxConcurrentStreams": if it == 'a' { 7 } else { 9 }}}),
    );
    check(section, &OF_GATEWAYS).await;
}

#[tokio::test]
async fn proxy_protocol_of_all_pairs_of_levels() {
    let section = replaces("ClientPolicy", Effect::ProxyHeader, |it| {
        let mode = if it == 'a' { "Required" } else { "Optional" };
        json!({"proxyProtocol": {"mode": mode, "trustedCIDRs": ["127.0.0.0/8"]}})
    });
    check(section, &OF_GATEWAYS).await;
}
