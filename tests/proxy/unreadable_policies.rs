//! Policies that violate their schema and never had a valid version: the requests that they protect get 500, and neighbours
//! are served.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::access_policy::{access, ip_rules};
use crate::client::get;
use crate::client_policy::clients;
use crate::harness::yaml::http;
use crate::origin::Origin;
use crate::rate_limit_policy::{limits, per_hour};
use crate::scene::{Objects, Scene, prefix, route, to};

const GROUP: &str = "gateway.networking.k8s.io";

/// The target of a policy: the rule `rule` of the route `name`.
fn rule_of(name: &str) -> Value {
    json!({"kind": "HTTPRoute", "name": name, "sectionName": "rule"})
}

/// A route with the rules `rule` and `/`.
fn guarded(name: &str) -> String {
    let mut rule = prefix("/rule", "origin");
    rule["name"] = json!("rule");
    let host = format!("{name}.com");
    route(name, &[&host], &[to("origin"), rule])
}

/// An origin behind the routes `one`, `two` and `free`.
fn routes(origin: &Origin) -> Objects {
    let objects = Objects::http().service("origin", &[origin.address]);
    let names = ["one", "two", "free"].into_iter();
    names.map(guarded).fold(objects, Objects::with)
}

/// Returns the statuses of `/rule` and `/` of each route.
async fn statuses(scene: &Scene) -> [[u16; 2]; 3] {
    let mut all = [[0; 2]; 3];
    for (name, found) in ["one", "two", "free"].into_iter().zip(&mut all) {
        for (path, status) in ["/rule", "/"].into_iter().zip(found) {
            let host = format!("{name}.com");
            *status = get(scene.at(80), &host, path).await.status;
        }
    }
    all
}

#[tokio::test]
async fn policies_that_violate_their_schema_refuse_their_scope_alone() {
    let origin = Origin::echo("origin").await;
    let routes = routes(&origin);
    let with = |addresses: &Value, per: &str| {
        let mut rule = per_hour("limit", 1000);
        rule["limit"]["per"] = json!(per);
        let limits = limits("limits", &rule_of("two"), &json!([rule]), None);
        let rules = json!({"ipRules": {"allow": addresses}});
        let objects = routes
            .clone()
            .with(access("access", &rule_of("one"), &rules));
        objects.with(limits)
    };
    let mut scene = Scene::start(&with(&json!("127.0.0.0/8"), "Fortnight"));
    let (refused, served) = ([500, 200], [200, 200]);
    assert_eq!(statuses(&scene).await, [refused, refused, served]);
    let problems = scene.last().load.problems.clone();
    let of = |name: &str| {
        let mut of_name = problems.iter().filter(|it| it.to_string().contains(name));
        of_name.any(|it| it.effect.contains("requests to its targets get 500"))
    };
    assert!(
        of("AccessPolicy default/access") && of("RateLimitPolicy default/limits"),
        "{problems:?}"
    );
    // The next valid versions have an effect, and stay in service.
    scene.replace(&with(&json!(["127.0.0.0/8"]), "Hour")).await;
    assert_eq!(statuses(&scene).await, [served; 3]);
    let outcome = scene
        .change(|folder| {
            let text = with(&json!("192.0.2.0/24"), "Fortnight").text();
            crate::scene::write(folder, "objects.yaml", &text);
        })
        .await;
    assert!(!outcome.load.problems.is_empty());
    assert_eq!(statuses(&scene).await, [served; 3]);
}

/// A policy of another namespace that names the same Gateway and routes does not reach them.
#[tokio::test]
async fn policies_that_violate_their_schema_stay_in_their_namespace() {
    let origin = Origin::echo("origin").await;
    let mut objects = routes(&origin);
    for (index, name) in ["gateway", "one", "two", "free"].into_iter().enumerate() {
        let foreign = json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "AccessPolicy",
            "metadata": {"name": format!("foreign-{index}"), "namespace": "other"},
            "spec": {"targetRefs": [{"name": name, "namespace": "default"}], "basic": {}},
        });
        objects = objects.with(foreign.to_string());
    }
    let scene = Scene::start(&objects);
    assert_eq!(statuses(&scene).await, [[200; 2]; 3]);
}

/// A policy that says where the addresses of clients come from refuses what decides by them: not what others do on the same
/// listener, and nothing on another one.
#[tokio::test]
async fn client_policies_that_violate_their_schema_refuse_what_decides_by_addresses() {
    let origin = Origin::echo("origin").await;
    let listeners = [
        http("one", 80, ""),
        http("two", 81, ""),
        http("three", 82, ""),
        "{name: tcp, port: 90, protocol: TCP}".to_owned(),
    ];
    let objects = Objects::gateway(&listeners).service("origin", &[origin.address]);
    let names = ["guarded", "free"].into_iter();
    let routed = names.map(guarded).fold(objects, Objects::with);
    let rules = ip_rules(&["127.0.0.0/8"], &[]);
    let routed = routed.with(access("access", &rule_of("guarded"), &rules));
    let tcp = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "TCPRoute", "metadata": {"name": "tcp"},
        "spec": {
            "parentRefs": [{"name": "gateway", "sectionName": "tcp"}],
            "rules": [{"backendRefs": [{"name": "origin", "port": 80}]}],
        },
    });
    let of_tcp = access(
        "of-tcp",
        &json!({"kind": "TCPRoute", "name": "tcp"}),
        &rules,
    );
    let routed = routed.with(tcp.to_string()).with(of_tcp);
    let on =
        |listener: &str| json!({"kind": "Gateway", "name": "gateway", "sectionName": listener});
    let with = |hops: &Value, mode: &Value| {
        let source = json!({"clientIP": {"xForwardedFor": {"trustedHops": hops}}});
        let protocol = json!({"proxyProtocol": {"mode": mode, "trustedCIDRs": ["192.0.2.0/24"]}});
        let objects = routed.clone().with(clients("source", &on("one"), &source));
        let objects = objects.with(clients("protocol", &on("two"), &protocol));
        objects.with(clients("of-tcp", &on("tcp"), &protocol))
    };
    let statuses = async |scene: &Scene| {
        let mut all = [[0; 3]; 3];
        for (port, found) in [80, 81, 82].into_iter().zip(&mut all) {
            let requests = [("guarded", "/rule"), ("guarded", "/"), ("free", "/rule")];
            for ((name, path), status) in requests.into_iter().zip(found) {
                let host = format!("{name}.com");
                *status = get(scene.at(port), &host, path).await.status;
            }
        }
        all
    };
    let mut scene = Scene::start(&with(&json!("many"), &json!(7)));
    let (refused, served) = ([500, 200, 200], [200; 3]);
    assert_eq!(statuses(&scene).await, [refused, refused, served]);
    assert!(is_closed(scene.at(90)).await);
    let problems = scene.last().load.problems.clone();
    for name in [
        "ClientPolicy default/source",
        "ClientPolicy default/protocol",
    ] {
        let mut of_name = problems.iter().filter(|it| it.to_string().contains(name));
        let expected = "IP rules, limits or authorization by address apply to get 500";
        assert!(
            of_name.any(|it| it.effect.contains(expected)),
            "{problems:?}"
        );
    }
    scene.replace(&with(&json!(1), &json!("Optional"))).await;
    assert_eq!(statuses(&scene).await, [served; 3]);
    assert!(!is_closed(scene.at(90)).await);
}

/// Reports whether a connection ends without a response.
async fn is_closed(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(address).await else {
        return true;
    };
    let request = b"GET / HTTP/1.1\r\nHost: a.com\r\nConnection: close\r\n\r\n";
    let mut response = Vec::new();
    let sent = stream.write_all(request).await;
    let read = stream.read_to_end(&mut response).await;
    sent.is_err() || read.is_err() || response.is_empty()
}

/// A policy whose targets cannot be read protects requests that nobody knows. A process that starts with it does not become
/// ready; one that serves already stays ready.
#[tokio::test]
async fn policies_without_readable_targets_keep_a_process_from_becoming_ready() {
    let origin = Origin::echo("origin").await;
    let rules = ip_rules(&["127.0.0.0/8"], &[]);
    let valid = routes(&origin).with(access("access", &rule_of("one"), &rules));
    let policy = json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "AccessPolicy",
        "metadata": {"name": "access"}, "spec": {"targetRefs": 7, "ipRules": {"allow": ["127.0.0.0/8"]}},
    });
    let broken = routes(&origin).with(policy.to_string());
    let mut scene = Scene::start(&broken);
    let readiness = async |scene: &Scene| {
        let answer = get(scene.admin_address(), "admin", "/readyz").await;
        (answer.status, answer.text().to_owned())
    };
    let (status, reason) = readiness(&scene).await;
    assert_eq!(status, 503, "{reason}");
    for expected in [
        "AccessPolicy default/access: spec.targetRefs: Invalid value",
        "no target of it can be read",
    ] {
        assert!(reason.contains(expected), "{reason}");
    }
    scene.replace(&valid).await;
    assert_eq!(readiness(&scene).await.0, 200);
    // The last valid version stays in service.
    let text = broken.text();
    let outcome = scene
        .change(|folder| crate::scene::write(folder, "objects.yaml", &text))
        .await;
    assert!(!outcome.load.problems.is_empty());
    assert_eq!(readiness(&scene).await.0, 200);
}

/// A policy on TLS to a Service that violates its schema refuses requests to the Service, which would get them in plain text.
#[tokio::test]
async fn policies_on_tls_that_violate_their_schema_refuse_requests_to_their_service() {
    let origin = Origin::echo("origin").await;
    let objects = routes(&origin);
    let of = |hostname: &Value, group: &str, kind: &str| {
        let policy = json!({
            "apiVersion": group, "kind": kind, "metadata": {"name": "tls"},
            "spec": {
                "targetRefs": [{"group": "", "kind": "Service", "name": "origin"}],
                "validation": {"hostname": hostname, "wellKnownCACertificates": "System"},
            },
        });
        objects.clone().with(policy.to_string())
    };
    for (group, kind) in [
        ("gateway.networking.k8s.io/v1", "BackendTLSPolicy"),
        ("portcullis.dev/v1alpha1", "BackendTLSOverride"),
    ] {
        let mut scene = Scene::start(&of(&json!(7), group, kind));
        assert_eq!(statuses(&scene).await, [[500; 2]; 3], "{kind}");
        let problems = scene.last().load.problems.clone();
        let expected = "requests to its targets get 500";
        let mut effects = problems.iter().map(|problem| &problem.effect);
        assert!(effects.any(|it| it.contains(expected)), "{problems:?}");
        // Without the policy, they are sent in plain text.
        scene.replace(&objects).await;
        assert_eq!(statuses(&scene).await, [[200; 2]; 3], "{kind}");
    }
}

/// The version before one that is not valid stays in service, but says nothing of the targets that it lacks.
#[tokio::test]
async fn versions_that_violate_their_schema_refuse_the_targets_that_they_add() {
    let origin = Origin::echo("origin").await;
    let rules = ip_rules(&["127.0.0.0/8"], &[]);
    let routes = routes(&origin).service("idle", &[]);
    let routes = routes.with(access("access", &rule_of("one"), &rules));
    let route = |name: &str| json!({"group": GROUP, "kind": "HTTPRoute", "name": name, "sectionName": "rule"});
    let listener = |name: &str| json!({"group": GROUP, "kind": "Gateway", "name": "gateway", "sectionName": name});
    let service = |name: &str| json!({"group": "", "kind": "Service", "name": name});
    let of_routes = [route("one"), route("two")];
    let of_services = [service("idle"), service("origin")];
    let second = [[200, 200], [500, 200], [200, 200]];
    for (kind, targets, field, valid, refused) in [
        (
            "AccessPolicy",
            &of_routes,
            "ipRules",
            json!({"allow": ["127.0.0.0/8"]}),
            second,
        ),
        (
            "RateLimitPolicy",
            &of_routes,
            "rules",
            json!([per_hour("limit", 1000)]),
            second,
        ),
        (
            "ClientPolicy",
            &[listener("idle"), listener("http")],
            "clientIP",
            json!({"xForwardedFor": {"trustedHops": 1}}),
            [[500, 200], [200, 200], [200, 200]],
        ),
        (
            "BackendTLSPolicy",
            &of_services,
            "validation",
            json!({"hostname": "a.com", "wellKnownCACertificates": "System"}),
            [[500; 2]; 3],
        ),
        (
            "BackendTLSOverride",
            &of_services,
            "validation",
            json!({"hostname": "a.com", "wellKnownCACertificates": "System"}),
            [[500; 2]; 3],
        ),
    ] {
        let group = match kind {
            "BackendTLSPolicy" => "gateway.networking.k8s.io/v1",
            _ => "portcullis.dev/v1alpha1",
        };
        let with = |targets: &[Value], section: &Value| {
            let policy = json!({
                "apiVersion": group, "kind": kind, "metadata": {"name": "policy"},
                "spec": {"targetRefs": targets, field: section},
            });
            routes.clone().with(policy.to_string())
        };
        let mut scene = Scene::start(&with(&targets[..1], &valid));
        assert_eq!(statuses(&scene).await, [[200; 2]; 3], "{kind}");
        let text = with(targets, &json!(7)).text();
        let outcome = scene
            .change(|folder| crate::scene::write(folder, "objects.yaml", &text))
            .await;
        let problems = &outcome.load.problems;
        let mut effects = problems.iter().map(|problem| &problem.effect);
        assert!(
            effects.any(|it| it.contains("where only the new one applies")),
            "{problems:?}"
        );
        assert_eq!(statuses(&scene).await, refused, "{kind}");
        scene.replace(&with(&targets[..1], &valid)).await;
        assert_eq!(statuses(&scene).await, [[200; 2]; 3], "{kind}");
    }
}
