//! `/explain` of the admin server: it says what the proxy then does, with the state of the endpoints.

mod answers;
pub(crate) mod comparison;
mod configuration;
mod outcomes;
mod requests;
mod sent;

use std::collections::BTreeMap;
use std::process::{Command, Output};

use portcullis::settings::AccessLogTarget;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use self::sent::{Connections, Sent, log};
use crate::access_policy::access;
use crate::admin::{metric, service_labels};
use crate::client::{Client, get};
use crate::harness::scale::scaled;
use crate::harness::tls::Certificate;
use crate::harness::yaml;
use crate::origin::Origin;
use crate::scene::{Objects, Scene, http, https, prefix, secret};

/// Configurations, and requests for each of them.
const CONFIGURATIONS: u32 = 6;
const REQUESTS: usize = 500;
/// Requests for each configuration that are also explained from its folder.
const FROM_FOLDER: usize = 5;

const HOSTS: [&str; 7] = [
    "a.example.com",
    "B.example.com",
    "x.b.example.com",
    "example.com",
    "b.org",
    "other.net",
    "127.0.0.1",
];
const HOSTNAMES: [&str; 6] = [
    "a.example.com",
    "*.example.com",
    "*.b.example.com",
    "b.org",
    "*.org",
    "example.com",
];
const METHODS: [&str; 6] = ["GET", "GET", "POST", "PUT", "OPTIONS", "TRACE"];
const HEADERS: [&str; 4] = ["x-a", "x-b", "x-forwarded-proto", "x-forwarded-host"];
const VALUES: [&str; 5] = ["1", "2", "http", "https", "b.org"];

/// A configuration and requests at random.
struct Dice(StdRng);

impl Dice {
    fn one<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of.choose(&mut self.0).expect("not empty")
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.0.random_range(0..100) < percent
    }

    fn some<'a>(&mut self, of: &[&'a str], at_most: usize) -> Vec<&'a str> {
        let count = self.0.random_range(0..=at_most);
        of.sample(&mut self.0, count).copied().collect()
    }

    fn path(&mut self) -> String {
        let depth = self.0.random_range(0..3);
        let elements = (0..depth).map(|_| self.one(&["a", "b", "ab"]));
        format!("/{}", elements.collect::<Vec<_>>().join("/"))
    }

    fn condition(&mut self) -> Value {
        let mut condition = json!({});
        if self.chance(80) {
            condition["path"] = match self.one(&["Exact", "PathPrefix", "RegularExpression"]) {
                "RegularExpression" => {
                    let pattern = self.one(&["/a+", "/[ab]/.*", "/(a|b)b?"]);
                    json!({"type": "RegularExpression", "value": pattern})
                }
                kind => json!({"type": kind, "value": self.path()}),
            };
        }
        if self.chance(25) {
            condition["method"] = self.one(&["GET", "POST", "OPTIONS"]).into();
        }
        let headers = self.some(&HEADERS, 2).into_iter().map(|name| {
            let kind = self.one(&["Exact", "Exact", "RegularExpression"]);
            json!({"name": name, "type": kind, "value": self.one(&VALUES)})
        });
        let headers: Vec<_> = headers.collect();
        if self.chance(30) {
            condition["headers"] = headers.into();
        }
        if self.chance(20) {
            condition["queryParams"] = json!([{"name": "q", "value": self.one(&VALUES)}]);
        }
        condition
    }

    fn rule(&mut self) -> Value {
        let matches: Vec<_> = (0..self.0.random_range(1..4))
            .map(|_| self.condition())
            .collect();
        let backends: Vec<_> = (0..self.0.random_range(1..4))
            .map(|_| self.backend())
            .collect();
        let mut rule = json!({"matches": matches, "backendRefs": backends});
        if self.chance(8) {
            let missing =
                json!({"group": "portcullis.dev", "kind": "RouteFilter", "name": "missing"});
            rule["filters"] = json!([{"type": "ExtensionRef", "extensionRef": missing}]);
        }
        rule
    }

    /// A backend, which may be missing, without endpoints or wrong.
    fn backend(&mut self) -> Value {
        let names = ["one", "one", "one", "two", "two", "two", "missing", "empty"];
        let mut backend =
            json!({"name": self.one(&names), "port": 80, "weight": self.0.random_range(0..2)});
        match self.0.random_range(0..25) {
            0 => backend["port"] = json!(81),
            1 => backend["kind"] = json!("Pod"),
            2 => backend["namespace"] = json!("data"),
            _ => {}
        }
        backend
    }

    /// A policy of a route that is broken.
    fn policy(&mut self, route: &str) -> String {
        let spec = match self.chance(50) {
            true => json!({"basic": {"secretRef": {"name": "missing"}}}),
            false => json!({"ipRules": {"deny": ["nonsense"]}}),
        };
        access(route, &json!({"kind": "HTTPRoute", "name": route}), &spec)
    }

    /// The parent of a route: the Gateway or a listener of it, one of which may be missing.
    fn parent(&mut self, listener: &str) -> String {
        match self.0.random_range(0..20) {
            0 => "other".to_owned(),
            1 => "gateway/missing".to_owned(),
            2..10 => "gateway".to_owned(),
            _ => format!("gateway/{listener}"),
        }
    }

    /// The Secret of a listener, which may be missing.
    fn certificate(&mut self, index: usize) -> &'static str {
        // With one of them, the port is open.
        match index > 0 && self.chance(30) {
            true => "missing",
            false => "certificate",
        }
    }

    fn objects(&mut self, fixed: &Objects) -> Objects {
        let (mut listeners, mut texts) = (Vec::new(), Vec::new());
        for port in [80, 81, 443] {
            let mut hostnames = self.some(&HOSTNAMES, 4);
            if hostnames.is_empty() || self.chance(50) {
                hostnames.push("");
            }
            for (index, hostname) in hostnames.into_iter().enumerate() {
                let name = format!("l{port}-{index}");
                texts.push(match port {
                    443 => https(&name, port, hostname, &[self.certificate(index)]),
                    _ => http(&name, port, hostname),
                });
                listeners.push(name);
            }
        }
        let mut objects = fixed.clone().with(yaml::gateway("gateway", &texts));
        for number in 0..self.0.random_range(5..25) {
            let listener = &listeners[self.0.random_range(0..listeners.len())];
            let parent = self.parent(listener);
            let hostnames = self.some(&HOSTNAMES, 2);
            let rules: Vec<_> = (0..self.0.random_range(1..4))
                .map(|_| self.rule())
                .collect();
            let (name, rules) = (format!("r{number}"), Value::from(rules).to_string());
            objects = objects.with(yaml::route(&name, &parent, &hostnames, &rules));
            if self.chance(12) {
                objects = objects.with(self.policy(&name));
            }
        }
        objects
    }

    fn request(&mut self, id: String) -> Sent {
        let port = self.one(&[&80, &81, &443]);
        let mut path = self.path();
        match self.0.random_range(0..20) {
            0 => path = format!("/{path}"),
            1 => path.push_str("/../b"),
            2 => path.push_str("%2fb"),
            3 => path.push('/'),
            _ => {}
        }
        if self.chance(30) {
            path = format!("{path}?p&q={}", self.one(&VALUES));
        }
        let names = self.some(&HEADERS, 3).into_iter();
        let mut headers: Vec<_> = names
            .map(|name| (name.to_owned(), self.one(&VALUES).to_owned()))
            .collect();
        let http2 = self.chance(20);
        if !http2 && self.chance(10) {
            headers.push(("connection".to_owned(), "x-a".to_owned()));
        }
        let host = self.one(&HOSTS);
        Sent {
            id,
            port: *port,
            name: match self.chance(70) {
                true => host.to_owned(),
                false => self.one(&HOSTS).to_owned(),
            },
            host: host.to_owned(),
            method: self.one(&METHODS),
            path,
            headers,
            http2,
        }
    }
}

/// What was explained of a request, and what the proxy then did.
struct Exchanged {
    explained: Value,
    done: Option<(u16, String)>,
}

/// Asserts that the explanation of a request is what the proxy did.
fn compare(exchanged: &Exchanged, line: Option<&Value>, about: &str) {
    let Exchanged { explained, done } = exchanged;
    let about = format!("{about}\n{explained:#}\n{done:?}\n{line:?}");
    let ports = explained["ports"].as_array().expect("ports");
    assert_eq!(ports.len(), 1, "{about}");
    let outcome = &ports[0]["outcome"];
    let Some((status, backend)) = done else {
        let reason = outcome["reason"].as_str().unwrap_or_default();
        assert!(reason.contains("the handshake is refused"), "{about}");
        assert_eq!(outcome["route"], Value::Null, "{about}");
        return assert_eq!(outcome["status"], Value::Null, "{about}");
    };
    let line = line.unwrap_or_else(|| panic!("no line: {about}"));
    let logged = |name: &str| line.get(name).cloned().unwrap_or_default();
    assert_eq!(outcome["route"], logged("route"), "{about}");
    assert_eq!(outcome["rule"], logged("rule"), "{about}");
    assert_eq!(
        explained["found"],
        json!(!outcome["route"].is_null()),
        "{about}"
    );
    if *status == 421 {
        let listener = ports[0]["listener"][0].as_str().expect("a line");
        assert!(listener.contains("for the handshake, but"), "{about}");
    }
    let error = logged("error");
    if outcome["route"].is_null() {
        // That of the response.
        assert_eq!(outcome["reason"], error, "{about}");
        return assert_eq!(outcome["status"], json!(status), "{about}");
    }
    if !outcome["status"].is_null() {
        assert_eq!(outcome["status"], json!(status), "{about}");
        return assert_eq!(error, expected_error(outcome), "{about}");
    }
    let backends = ports[0]["backends"].as_array().expect("backends");
    let backends: Vec<_> = backends.iter().filter_map(Value::as_str).collect();
    let used = |part: &str| {
        let mut weighted = backends.iter().filter(|it| !it.starts_with("0.0 %"));
        weighted.any(|line| line.contains(part))
    };
    // Chance has chosen the backend.
    let (part, expected) = match status {
        200 => (format!("Service default/{backend}:80"), Value::Null),
        500 => ("%  500: ".to_owned(), INVALID.into()),
        503 => (" has no ready endpoint: 503".to_owned(), NO_ENDPOINT.into()),
        _ => panic!("{about}"),
    };
    assert!(used(&part), "{about}");
    assert_eq!(error, expected, "{about}");
}

/// Errors of the access log.
const INVALID: &str = "the route cannot be served as configured";
const NO_ENDPOINT: &str = "the backend has no ready endpoint";

/// Returns the error of the access log for what is explained to be broken.
fn expected_error(outcome: &Value) -> &'static str {
    let reason = outcome["reason"].as_str().expect("a reason");
    match reason {
        _ if reason.contains("AccessPolicy default/") => {
            "a policy that protects the route is broken"
        }
        _ if reason.contains(" has no ready endpoint") => NO_ENDPOINT,
        _ if reason.starts_with("all weights of ") => "the route has no backend",
        _ => INVALID,
    }
}

/// Sends requests at random, each after its explanation.
async fn exchange(scene: &Scene, dice: &mut Dice, seed: u64) -> Vec<(Sent, Exchanged)> {
    let mut connections = Connections::of(scene);
    let mut all = Vec::new();
    for number in 0..REQUESTS {
        let sent = dice.request(format!("{seed}/{number}"));
        let explained = connections.explain(&sent).await;
        let done = connections.send(&sent).await;
        let done = done.map(|answer| (answer.status, answer.name()));
        all.push((sent, Exchanged { explained, done }));
    }
    all
}

/// Asserts that the command says of the folder what the proxy has said.
fn compare_with_folder(scene: &Scene, all: &[(Sent, Exchanged)]) {
    for (sent, exchanged) in all.iter().step_by(REQUESTS / FROM_FOLDER) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        command.args(["explain", "-o", "json"]).arg(scene.folder());
        command.arg(sent.described());
        for header in sent.described_headers() {
            command.args(["-H", &header]);
        }
        let explained: Value =
            serde_json::from_str(&text(&command.output().expect("run"))).expect("JSON");
        let outcome = |explained: &Value| explained["ports"][0]["outcome"].clone();
        assert_eq!(
            outcome(&explained),
            outcome(&exchanged.explained),
            "{sent:?}"
        );
    }
}

#[tokio::test]
async fn says_what_the_proxy_does_for_random_requests() {
    let (one, two) = (Origin::echo("one").await, Origin::echo("two").await);
    let fixed = Objects::default()
        .service("one", &[one.address])
        .service("two", &[two.address])
        .service("empty", &[])
        .with(secret("certificate", &Certificate::new(&["a.example.com"])));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("access.log");
    let mut sent_and_done = Vec::new();
    for seed in 1..=u64::from(scaled(CONFIGURATIONS)) {
        let mut dice = Dice(StdRng::seed_from_u64(seed));
        let scene = Scene::with(&dice.objects(&fixed), |settings| {
            settings.access_log.target = AccessLogTarget::File(file.clone());
        });
        let all = exchange(&scene, &mut dice, seed).await;
        compare_with_folder(&scene, &all);
        sent_and_done.extend(all);
    }
    let logged = sent_and_done.iter().filter(|(_, it)| it.done.is_some());
    let lines = log(&file, logged.count());
    let (mut outcomes, mut errors) = (BTreeMap::new(), BTreeMap::new());
    for (sent, exchanged) in &sent_and_done {
        let line = lines.get(&sent.id);
        compare(exchanged, line, &format!("{sent:?}"));
        let status = exchanged.done.as_ref().map_or(0, |(status, _)| *status);
        *outcomes.entry(status).or_insert(0) += 1;
        let error = line.and_then(|line| line["error"].as_str());
        *errors.entry(error.unwrap_or_default()).or_insert(0) += 1;
    }
    for error in [
        INVALID,
        NO_ENDPOINT,
        "the route has no backend",
        "a policy that protects the route is broken",
    ] {
        let count = errors.get(error).copied().unwrap_or(0);
        assert!(count >= 20, "too few of {error}: {errors:?}");
    }
    for status in [0, 200, 400, 404, 405, 421, 500, 503] {
        let count = outcomes.get(&status).copied().unwrap_or(0);
        assert!(count >= 20, "too few of {status}: {outcomes:?}");
    }
}

/// Runs the command against the admin address of a data plane.
fn explain(scene: &Scene, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_portcullis"))
        .args(["explain", "--admin"])
        .arg(format!("http://{}", scene.admin_address()))
        .args(arguments)
        .env("PORTCULLIS_CONFIG_DIR", "/nowhere")
        .output()
        .expect("run")
}

fn text(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.is_empty(), "{error}");
    String::from_utf8(output.stdout.clone()).expect("text")
}

#[tokio::test]
async fn command_asks_a_running_proxy() {
    let echo = Origin::echo("echo").await;
    let base = Objects::http().service("echo", &[echo.address]);
    let mut rule = prefix("/a", "echo");
    rule["matches"][0]["headers"] = json!([{"name": "x-token", "value": "secret"}]);
    let mut scene = Scene::start(&base.clone().route("route", &[rule]));
    let output = explain(&scene, &["http://a.com/a/b", "-H", "x-token: secret"]);
    let address = echo.address;
    let expected = format!(
        "GET http://a.com/a/b\nin service: generation 1\n\n\
         port        *:80 (http) of Gateway default/gateway\n\
         listener    http, hostname *\n\
         rule        HTTPRoute default/route rule 0, match 0 (path /a and below, header x-token=<redacted>; hostname *)\n\
         backends    100.0 %  Service default/echo:80 over HTTP/1.1: 1 endpoint\n{:21}{address}: healthy, 0 in flight\n",
        ""
    );
    assert_eq!(text(&output), expected);
    assert_eq!(output.status.code(), Some(0));

    let none = explain(&scene, &["http://a.com/a", "--values"]);
    assert_eq!(none.status.code(), Some(1));
    let shown = text(&none);
    let reason = "header x-token=secret; hostname *): header x-token does not match";
    assert!(shown.contains(reason), "{shown}");

    let output = explain(&scene, &["-o", "json", "POST http://a.com/"]);
    assert_eq!(output.status.code(), Some(1));
    let page = "/explain?output=json&request=POST%20http://a.com/";
    let page = get(scene.admin_address(), "localhost", page).await;
    assert_eq!(text(&output), page.text());

    scene
        .replace(&base.route("route", &[prefix("/", "echo")]))
        .await;
    let output = explain(&scene, &["POST http://a.com/"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output).contains("in service: generation 2\n"));
}

#[tokio::test]
async fn command_passes_on_why_a_proxy_refuses() {
    let scene = Scene::start(&Objects::http());
    let long = format!("http://a.com/{}", "a".repeat(20_000));
    for (address, url, reason) in [
        (scene.at(80), "http://a.com/", "it has no /explain"),
        (scene.admin_address(), &long, "are too long for it"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_portcullis"))
            .args(["explain", "--admin", &address.to_string(), url])
            .output()
            .expect("run");
        assert_eq!(output.status.code(), Some(3));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(reason), "{error}");
    }
}

#[tokio::test]
async fn shows_ejected_endpoints() {
    let echo = Origin::echo("echo").await;
    let dead = Origin::dead();
    let objects = Objects::http()
        .service("app", &[echo.address, dead])
        .route("route", &[prefix("/", "app")]);
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    let ejections = format!("upstream_ejections_total{{{}}}", service_labels("app"));
    // The endpoint of a request is random.
    while metric(&scene, &ejections).await == 0.0 {
        client.get("a.com", "/").await;
    }
    let page = get(
        scene.admin_address(),
        "localhost",
        "/explain?request=http://a.com/",
    )
    .await;
    let text = page.text();
    for part in [
        "over HTTP/1.1: 2 endpoints, 1 ejected\n".to_owned(),
        format!("{}: healthy, 0 in flight\n", echo.address),
        format!("{dead}: ejected "),
    ] {
        assert!(text.contains(&part), "{part}: {text}");
    }
}
