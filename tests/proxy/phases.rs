//! The order of phases: a request that violates several of them gets the response of the first one, and a response passes
//! filters, then error pages, then compression.

use std::io::Read;

use flate2::read::GzDecoder;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use portcullis::ir::policy::Phase;
use serde_json::{Value, json};

use crate::access_policy::{access, connect_from, gateway, ip_rules};
use crate::client::{Answer, Client};
use crate::client_policy::clients;
use crate::credentials::{api_key, keys};
use crate::origin::{Origin, empty, full};
use crate::rate_limit_policy::{limits, per_hour};
use crate::route_filter::{filter, rule};
use crate::route_policy::policy;
use crate::scene::{Objects, Scene, http, prefix, to};

/// What a request that violates one phase gets: a status, and what the limits or the body say. Two phases have the status 403,
/// and two 429.
const REFUSALS: [(Phase, u16, &str); Phase::ALL.len()] = [
    (Phase::ClientIp, 500, "a policy that protects the route"),
    (Phase::IpRules, 403, "this address may not"),
    (Phase::Limits, 429, "\"early\";r=0;"),
    (Phase::BodyLimit, 413, "larger than the route permits"),
    (Phase::Authentication, 401, "credentials are missing"),
    (Phase::Authorization, 403, "this client may not"),
    (Phase::IdentityLimits, 429, "\"late\";r=0;"),
    (Phase::Filters, 410, "by the filter"),
    (Phase::Backend, 503, ""),
];

/// A limit of one request with this header.
fn limit(name: &str, header: &str) -> Value {
    let mut rule = per_hour(name, 1);
    rule["match"] = json!({"headers": [{"name": header, "value": "1"}]});
    rule
}

/// A route whose rules have a filter that answers, no endpoint, or both, behind policies of all kinds. Where the addresses of
/// clients come from cannot be used on port 8080.
fn objects(origin: &Origin) -> Objects {
    let mut both = rule("/both", "answer");
    both["backendRefs"][0]["name"] = json!("none");
    let rules = [
        to("origin"),
        rule("/answered", "answer"),
        prefix("/none", "none"),
        both,
    ];
    let mut late = limit("late", "x-late");
    late["key"] = json!([{"type": "Client"}]);
    let mut spec = ip_rules(&[], &["127.0.0.2"]);
    spec["apiKey"] = api_key()["apiKey"].clone();
    spec["authorization"] = json!({"default": "Allow", "rules": [
        {"name": "a", "action": "Deny", "match": {"headers": [{"name": "x-forbidden", "value": "1"}]}},
    ]});
    let mut broken = gateway();
    broken["sectionName"] = json!("broken");
    let source = json!({"clientIP": {"xForwardedFor": {"trustedCIDRs": ["10.0.0.0/99"]}}});
    let answer = json!({"directResponse": {"status": 410, "body": "by the filter"}});
    let size = json!({"requestBody": {"maxSize": 4}});
    let rates = json!([limit("early", "x-early"), late]);
    let headers = json!({"headers": "Draft"});
    Objects::gateway(&[http("http", 80, ""), http("broken", 8080, "")])
        .service("origin", &[origin.address])
        .service("none", &[])
        .route("route", &rules)
        .with(filter("answer", &answer))
        .with(keys())
        .with(clients("clients", &broken, &source))
        .with(access("access", &gateway(), &spec))
        .with(limits("limits", &gateway(), &rates, Some(headers)))
        .with(policy("size", &gateway(), &size))
}

/// Sends a request that violates these phases and no others.
async fn send(scene: &Scene, violated: &[Phase], is_http2: bool) -> Answer {
    let violates = |phase: Phase| violated.contains(&phase);
    let port = if violates(Phase::ClientIp) { 8080 } else { 80 };
    let from = [127, 0, 0, 1 + u8::from(violates(Phase::IpRules))];
    let stream = connect_from(from, scene.at(port)).await;
    let stream = stream.expect("connected");
    let mut client = match is_http2 {
        true => Client::http2_on(stream).await,
        false => Client::http1_on(stream).await,
    };
    let path = match (violates(Phase::Filters), violates(Phase::Backend)) {
        (false, false) => "/",
        (true, false) => "/answered",
        (false, true) => "/none",
        (true, true) => "/both",
    };
    let headers = [
        (violates(Phase::Limits), "x-early", "1"),
        (violates(Phase::BodyLimit), "content-length", "8"),
        (!violates(Phase::Authentication), "x-api-key", "key-of-shop"),
        (violates(Phase::Authorization), "x-forbidden", "1"),
        (violates(Phase::IdentityLimits), "x-late", "1"),
    ];
    let mut request = client.request(Method::POST, "a.com", path);
    for (_, name, value) in headers.into_iter().filter(|(is_sent, ..)| *is_sent) {
        request = request.header(name, value);
    }
    let body = match violates(Phase::BodyLimit) {
        true => full("too long"),
        false => empty(),
    };
    client.fetch(request.body(body).expect("a request")).await
}

/// All sets of phases, each of them in order.
fn sets() -> impl Iterator<Item = Vec<Phase>> {
    (0..1_usize << Phase::ALL.len()).map(|set| {
        let phases = Phase::ALL.into_iter().enumerate();
        let phases = phases.filter(|(at, _)| (set >> at) & 1 == 1);
        phases.map(|(_, phase)| phase).collect()
    })
}

#[tokio::test]
async fn first_phase_that_a_request_violates_decides() {
    assert_eq!(REFUSALS.map(|(phase, ..)| phase), Phase::ALL, "the order");
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&objects(&origin));
    // Takes the only request of both limits.
    let first = send(&scene, &[Phase::Limits, Phase::IdentityLimits], false).await;
    assert_eq!(first.status, 200);
    for violated in sets() {
        for is_http2 in [false, true] {
            let answer = send(&scene, &violated, is_http2).await;
            let refusal = REFUSALS
                .iter()
                .find(|(phase, ..)| Some(phase) == violated.first());
            let (status, text) = refusal.map_or((200, ""), |(_, status, text)| (*status, *text));
            let said = format!("{} {}", answer.header("ratelimit"), answer.text());
            assert!(
                answer.status == status && said.contains(text),
                "{violated:?}: {} {said}",
                answer.status
            );
        }
    }
    assert_eq!(origin.requests(), 3, "those that violate nothing");
}

#[tokio::test]
async fn responses_pass_filters_then_pages_then_compression() {
    let origin = Origin::new(|_: Request<Incoming>| async {
        let mut response = Response::new(full("of the backend"));
        *response.status_mut() = StatusCode::NOT_FOUND;
        let language = HeaderValue::from_static("en");
        response.headers_mut().insert("content-language", language);
        response
    });
    let origin = origin.await;
    let text = "<p>sorry</p>".repeat(100);
    let page = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "pages"}, "data": {"a.html": text},
    });
    let keys = json!([{"key": "a.html", "mediaType": "text/html"}]);
    let spec = json!({
        "errorPages": [{"codes": [404], "source": "Backend", "configMapRef": {"name": "pages", "keys": keys}}],
        "compression": {"encodings": ["gzip"], "minSize": 4},
    });
    let mut rule = to("origin");
    rule["filters"] = json!([{"type": "ResponseHeaderModifier", "responseHeaderModifier": {"set": [
        {"name": "content-language", "value": "de"}, {"name": "content-encoding", "value": "br"},
        {"name": "x-added", "value": "1"},
    ]}}]);
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .route("route", &[rule])
        .with(page.to_string())
        .with(policy("pages", &gateway(), &spec));
    let scene = Scene::start(&objects);
    for mut client in Client::both(scene.at(80)).await {
        let accepts = [("accept-encoding", "gzip")];
        let answer = client.get_with("a.com", "/", &accepts).await;
        // What the filter says about the content of the backend does not hold for the page.
        assert_eq!(
            (answer.status, answer.header("content-language")),
            (404, "")
        );
        assert_eq!(answer.header("x-added"), "1");
        assert_eq!(answer.header("content-encoding"), "gzip");
        let mut decoded = String::new();
        let read = GzDecoder::new(&answer.body[..]).read_to_string(&mut decoded);
        read.expect("gzip");
        assert_eq!(decoded, text);
    }
}
