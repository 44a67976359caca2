//! Faults of the configuration: each is the first problem while it lasts, with cause, object and remedy, and is gone after the
//! repair.

mod content;
mod references;

use std::fmt;
use std::net::{SocketAddr, TcpListener};

use portcullis::settings::Ports;
use serde_json::{Value, json};

use crate::access_policy::access;
use crate::api::{document, has_problems, portcullis_at, stdout};
use crate::client::{Client, get};
use crate::first_problem::{Problem, is_first, is_gone};
use crate::harness::scale::scaled;
use crate::harness::tls::{self, Certificate};
use crate::harness::yaml;
use crate::origin::Origin;
use crate::scene::{Objects, Scene, http, https, prefix, route_of, secret, to, write};

/// A configuration, of which a fault changes a part.
struct Configuration {
    listeners: Vec<String>,
    /// The Secret of the HTTPS listener.
    secret: Option<String>,
    endpoints: Vec<SocketAddr>,
    parent: &'static str,
    hosts: &'static [&'static str],
    rule: Value,
    more: Vec<String>,
    /// What is written wrongly.
    typo: (&'static str, &'static str),
}

impl Configuration {
    fn healthy(echo: &Origin) -> Self {
        Self {
            listeners: vec![http("http", 80, ""), https("https", 443, "a.com", &["tls"])],
            secret: Some(secret("tls", &Certificate::new(&["a.com"]))),
            endpoints: vec![echo.address],
            parent: "gateway",
            hosts: &[],
            rule: to("app"),
            more: Vec::new(),
            typo: ("", ""),
        }
    }

    fn text(self) -> String {
        let rules = json!([self.rule]).to_string();
        let mut objects = Objects::gateway(&self.listeners)
            .service("app", &self.endpoints)
            .with(yaml::route("route", self.parent, self.hosts, &rules));
        for document in self.secret.into_iter().chain(self.more) {
            objects = objects.with(document);
        }
        let (right, wrong) = self.typo;
        match right {
            "" => objects.text(),
            _ => objects.text().replace(right, wrong),
        }
    }

    fn backend(&mut self) -> &mut Value {
        &mut self.rule["backendRefs"][0]
    }

    fn filter(&mut self, filter: &Value) {
        self.rule["filters"] = json!([filter]);
    }
}

/// A fault with the first problem that it leads to.
struct Fault {
    problem: Problem<'static>,
    inject: fn(&mut Configuration),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.problem.object, self.problem.texts)
    }
}

fn fault(
    kind: &'static str,
    object: &'static str,
    texts: &'static [&'static str],
    inject: fn(&mut Configuration),
) -> Fault {
    let problem = Problem {
        kind,
        object,
        texts,
    };
    Fault { problem, inject }
}

const ROUTE: &str = "HTTPRoute default/route";
const GATEWAY: &str = "Gateway default/gateway";
const SECRET: &str = "Secret default/tls";

fn start(text: &str) -> Scene {
    Scene::prepared(|folder| write(folder, "objects.yaml", text), |_| {})
}

/// Injects each fault into a healthy process, and repairs it.
async fn come_and_go(faults: Vec<Fault>) {
    let echo = Origin::echo("echo").await;
    let healthy = || Configuration::healthy(&echo).text();
    let mut scene = start(&healthy());
    is_gone(&scene).await;
    for fault in faults {
        println!("{fault}");
        let mut configuration = Configuration::healthy(&echo);
        (fault.inject)(&mut configuration);
        let text = configuration.text();
        scene
            .change(|folder| write(folder, "objects.yaml", &text))
            .await;
        if let Some(address) = scene.address(80) {
            for _ in 0..3 {
                get(address, "a.com", "/").await;
            }
        }
        is_first(&scene, &fault.problem).await;
        scene
            .change(|folder| write(folder, "objects.yaml", &healthy()))
            .await;
        is_gone(&scene).await;
    }
}

#[tokio::test]
async fn faults_of_references_are_the_first_problem_until_they_are_repaired() {
    come_and_go(references::all()).await;
}

#[tokio::test]
async fn faults_of_content_are_the_first_problem_until_they_are_repaired() {
    come_and_go(content::all()).await;
}

#[tokio::test]
async fn busy_process_has_no_problem() {
    let echo = Origin::echo("echo").await;
    let text = Configuration::healthy(&echo).text();
    let scene = start(&text);
    let none: [&str; 0] = [];
    for _ in 0..scaled(10) {
        let mut kept = [
            Client::http1(scene.at(80)).await,
            Client::http2(scene.at(80)).await,
            Client::tls(scene.at(443), "a.com", &tls::client(&["h2"])).await,
        ];
        for number in 0..300 {
            let status = match kept.get_mut(number % 4) {
                Some(client) => client.get("a.com", "/").await.status,
                None => get(scene.at(80), "a.com", "/").await.status,
            };
            assert_eq!(status, 200);
        }
        // What is recent is all since the start.
        has_problems(&scene, &none).await;
    }
    is_gone(&scene).await;
}

#[tokio::test]
async fn problem_is_known_since_it_was_seen_first() {
    let echo = Origin::echo("echo").await;
    let mut scene = start(&Configuration::healthy(&echo).text());
    let broken = |hosts| {
        let mut configuration = Configuration::healthy(&echo);
        configuration.backend()["name"] = json!("ap");
        configuration.hosts = hosts;
        configuration.text()
    };
    let mut known = None;
    for hosts in [&[][..], &["a.com"]] {
        scene
            .change(|folder| write(folder, "objects.yaml", &broken(hosts)))
            .await;
        let problem = Problem {
            kind: "object",
            object: ROUTE,
            texts: &["Service default/ap does not exist"],
        };
        is_first(&scene, &problem).await;
        let problems = document(&scene, "problems").await;
        let since = problems["problems"][0]["since"].as_str().expect("a time");
        let since = since.to_owned();
        let status = portcullis_at(scene.admin_address(), &["status"]).await;
        let printed = stdout(&status);
        assert!(
            printed.contains(&format!(" (since {since})\n")),
            "{printed}"
        );
        assert_eq!(*known.get_or_insert_with(|| since.clone()), since);
    }
}

#[tokio::test]
async fn port_of_another_process_is_the_first_problem_until_it_is_free() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = taken.local_addr().expect("an address").port();
    let addresses = "  addresses: [{type: IPAddress, value: 127.0.0.1}]\n";
    let gateway = yaml::gateway_with("gateway", &[http("http", port, "")], addresses);
    let objects = Objects::default().with(gateway);
    let scene = Scene::prepared(
        |folder| write(folder, "objects.yaml", &objects.text()),
        |settings| settings.ports = Ports::AsDeclared,
    );
    let problem = Problem {
        kind: "port",
        object: GATEWAY,
        texts: &[
            "another process uses the port",
            ": stop it, or use another port than ",
        ],
    };
    is_first(&scene, &problem).await;
    drop(taken);
    is_gone(&scene).await;
}

#[tokio::test]
async fn fault_of_one_route_comes_before_its_failures_and_not_before_those_of_others() {
    let echo = Origin::echo("echo").await;
    let objects = Objects::http()
        .service("app", &[echo.address])
        .service("dead", &[Origin::dead()])
        .route("a", &[prefix("/missing", "missing")])
        .route("b", &[prefix("/dead", "dead")]);
    let scene = Scene::start(&objects);
    for path in ["/missing", "/dead", "/dead"] {
        get(scene.at(80), "a.com", path).await;
    }
    has_problems(
        &scene,
        &[
            "failing 127.0.0.1:",
            "object HTTPRoute default/a: for Gateway gateway: ResolvedRefs is False (BackendNotFound)",
            "route HTTPRoute default/b rule 0: 2 of 2 responses in the last minute were 5xx",
            "route HTTPRoute default/a rule 0: 1 of 1 responses in the last minute were 5xx, most with the error `the route cannot \
             be served as configured`; see HTTPRoute default/a",
        ],
    )
    .await;
}

#[tokio::test]
async fn broken_policy_of_another_listener_does_not_come_before_the_failures_of_a_route() {
    let target = json!({"kind": "Gateway", "name": "gateway", "sectionName": "other"});
    let basic = json!({"basic": {"secretRef": {"name": "users"}}});
    let objects = Objects::gateway(&[http("http", 80, ""), http("other", 81, "")])
        .service("dead", &[Origin::dead()])
        .with(route_of("http", &[to("dead")]))
        .with(access("users", &target, &basic));
    let scene = Scene::start(&objects);
    get(scene.at(80), "a.com", "/").await;
    let problems = document(&scene, "problems").await;
    let problems = problems["problems"].as_array().expect("a list").iter();
    let kinds: Vec<_> = problems.map(|it| it["kind"].as_str()).collect();
    let expected = ["failing", "route", "object"].map(Some);
    assert_eq!(kinds.first_chunk::<3>(), Some(&expected), "{kinds:?}");
}
