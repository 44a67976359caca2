//! Configuration that is valid and yet fails requests or handshakes: the running process names it until it changes.

use serde_json::{Value, json};

use crate::access_policy::{access, gateway, ip_rules};
use crate::admin::page;
use crate::api::{document, has_problems, portcullis, stdout};
use crate::harness::tls::Certificate;
use crate::incidents::prints_at;
use crate::origin::Origin;
use crate::process::{self, Program};
use crate::rate_limit_policy::limits;
use crate::scene::{Objects, Scene, https, prefix, route, secret, to};

/// Objects with these weights of a rule, with or without an older route that takes the requests of another one, with this
/// certificate of a listener for early.com, and one of another listener for these names.
fn objects(
    echo: &Origin,
    weight: u32,
    rules: &[Value],
    early: &Certificate,
    name: &str,
) -> Objects {
    let mut weighted = prefix("/drained", "app");
    weighted["backendRefs"][0]["weight"] = json!(weight);
    Objects::gateway(&[
        https("early", 443, "early.com", &["early"]),
        https("other", 443, "b.com", &["other"]),
    ])
    .with(secret("early", early))
    .with(secret("other", &Certificate::new(&[name])))
    .service("app", &[echo.address])
    .route("a", &[weighted])
    .route("b", rules)
}

async fn count_in_metrics(scene: &Scene) -> String {
    let metrics = page(scene, "/metrics").await;
    let mut lines = metrics.lines();
    let line = lines.find_map(|line| line.strip_prefix("portcullis_config_problems "));
    line.expect("a metric").to_owned()
}

#[tokio::test]
async fn status_names_valid_configuration_that_fails_requests() {
    let echo = Origin::echo("echo").await;
    let shadowed = [to("app"), prefix("/drained", "app")];
    let early = Certificate::early(&["early.com"]);
    let mut scene = Scene::start(&objects(&echo, 0, &shadowed, &early, "a.com"));
    let expected = [
        "notYetValid Secret default/early: the certificate is not valid before 4000-01-01T00:00:00Z: clients refuse it",
        "hostname Gateway default/gateway: listener other: no certificate is for b.com, only for a.com: clients refuse it",
        "route HTTPRoute default/a: all weights of spec.rules[0].backendRefs are 0: every request gets status 500",
        "shadowed HTTPRoute default/b: for Gateway gateway: spec.rules[1] gets no request: the same match or a wider one \
         comes first in spec.rules[0] of HTTPRoute default/a",
    ];
    has_problems(&scene, &expected).await;
    let texts = [
        "the certificate is not valid before ",
        "no certificate is for b.com, only for a.com: clients refuse it",
        "all weights of spec.rules[0].backendRefs are 0: every request gets status 500",
        "gets no request: the same match or a wider one comes first in spec.rules[0] of HTTPRoute ",
    ];
    prints_at(scene.admin_address(), &["status"], &texts).await;
    // A certificate has metrics of its own.
    assert_eq!(count_in_metrics(&scene).await, "3");

    let valid = Certificate::new(&["early.com"]);
    let mended = objects(&echo, 1, &[to("app")], &valid, "*.com");
    scene.replace(&mended).await;
    let status = portcullis(&scene, &["status"]).await;
    assert!(
        stdout(&status).contains("problems: none"),
        "{}",
        stdout(&status)
    );
    assert_eq!(count_in_metrics(&scene).await, "0");
}

/// Routes to one backend, with or without policies that do less than they seem to.
fn loose(echo: &Origin, has_policies: bool) -> Objects {
    let mut objects = Objects::http()
        .service("app", &[echo.address])
        .route("open", &[to("app")])
        .route("admin", &[prefix("/admin", "app")])
        .with(route(
            "desk",
            &["desk.example.com"],
            &[prefix("/app", "app")],
        ));
    if has_policies {
        let of = |name: &str| json!({"kind": "HTTPRoute", "name": name});
        let rate = json!({"requests": 10, "per": "Second"});
        let rules = json!([
            {"name": "all", "limit": rate, "scope": "Gateway"},
            {"name": "each", "limit": rate, "key": [{"type": "Client"}]},
        ]);
        let oidc = json!({"oidc": {"issuer": "https://login.invalid", "clientID": "desk"}});
        for policy in [
            access("edge", &gateway(), &ip_rules(&["192.0.2.0/24"], &[])),
            access("open", &of("open"), &ip_rules(&["0.0.0.0/0"], &[])),
            limits("admin", &of("admin"), &rules, None),
            access("desk", &of("desk"), &oidc),
        ] {
            objects = objects.with(policy);
        }
    }
    objects
}

#[tokio::test]
async fn status_names_policies_that_do_less_than_they_seem_to() {
    let echo = Origin::echo("echo").await;
    let mut scene = Scene::start(&loose(&echo, true));
    let texts = [
        "AccessPolicy default/desk: no rule that the policy applies to matches spec.oidc.redirectPath /oauth2/callback for host \
         desk.example.com of Gateway default/gateway listener http: browsers that come back from the provider are not signed in",
        "HTTPRoute default/admin: spec.rules[0] is not protected like spec.rules[0] of HTTPRoute default/open, and \
         both lead to Service default/app:80",
        "RateLimitPolicy default/admin: limit all has scope Gateway: a process without a controller knows no others",
        "RateLimitPolicy default/admin: limit each has the key Client, but no AccessPolicy",
        "AccessPolicy default/open: spec.ipRules.allow permits addresses that AccessPolicy default/edge does not permit",
    ];
    let status = portcullis(&scene, &["status"]).await;
    let shown = stdout(&status);
    for text in texts {
        assert!(shown.contains(text), "`{text}` is not in\n{shown}");
    }
    assert_eq!(status.status.code(), Some(1));
    let kinds = |problems: &Value, object: &str| -> Vec<String> {
        let problems = problems["problems"].as_array().expect("a list");
        let of_object = problems.iter().filter(|it| it["object"] == object);
        of_object
            .map(|it| it["kind"].as_str().expect("a kind").to_owned())
            .collect()
    };
    let problems = document(&scene, "problems").await;
    assert_eq!(kinds(&problems, "HTTPRoute default/admin"), ["policy"]);
    assert_eq!(
        kinds(&problems, "RateLimitPolicy default/admin"),
        ["policy"; 2]
    );
    let desk = kinds(&problems, "AccessPolicy default/desk");
    assert!(desk.contains(&"signIn".to_owned()), "{problems}");

    scene.replace(&loose(&echo, false)).await;
    let status = stdout(&portcullis(&scene, &["status"]).await);
    assert!(status.contains("problems: none"), "{status}");
}

/// Where a text is in a file with these objects: line and number of its document.
fn place(objects: &Objects, part: &str) -> String {
    let text = objects.text();
    let (before, _) = text.split_once(part).expect("a part");
    let begin = before.rfind("\n---\n").map_or(0, |at| at + "\n---\n".len());
    let (line, document) = (
        text[..begin].lines().count() + 1,
        text[..begin].matches("\n---\n").count() + 1,
    );
    format!("objects.yaml:{line} (document {document})")
}

#[tokio::test]
async fn problems_have_the_file_and_the_line_of_their_object() {
    let echo = Origin::echo("echo").await;
    let mut drained = to("app");
    drained["backendRefs"][0]["weight"] = json!(0);
    let objects = Objects::http()
        .service("app", &[echo.address])
        .service("empty", &[])
        .route("lost", &[prefix("/lost", "missing")])
        .route("drained", &[drained])
        .route("unserved", &[prefix("/unserved", "empty")]);
    // Valid YAML, and no valid route.
    let wrong = route("wrong", &[], &[]).replace("rules: []", "rules: 1");
    let objects = objects.with(wrong);
    let scene = Scene::start(&objects);
    let status = stdout(&portcullis(&scene, &["status"]).await);
    for (part, problem) in [
        ("name: lost", "HTTPRoute default/lost: "),
        (
            "name: drained",
            "HTTPRoute default/drained: all weights of spec.rules[0].backendRefs are 0",
        ),
        (
            "name: empty",
            "Service default/empty:80: has no ready endpoint",
        ),
    ] {
        let line = format!("/{}: {problem}", place(&objects, part));
        assert!(status.contains(&line), "`{line}` is not in\n{status}");
    }
    let wrong = "): HTTPRoute default/wrong: spec.rules: Invalid value: ";
    assert!(status.contains(wrong), "{status}");
    let problems = document(&scene, "problems?filter=objects.yaml").await;
    let problems = problems["problems"].as_array().expect("a list");
    let lost = problems
        .iter()
        .find(|it| it["object"] == "HTTPRoute default/lost");
    let lost = lost.expect("a problem");
    let file = lost["file"].as_str().expect("a file");
    assert!(file.ends_with("/objects.yaml"), "{lost}");
    let place = place(&objects, "name: lost");
    let expected = format!(
        "objects.yaml:{} (document {})",
        lost["line"], lost["document"]
    );
    assert_eq!(place, expected);
}

#[tokio::test]
async fn log_has_the_file_and_the_line_of_what_is_wrong() {
    let echo = Origin::echo("echo").await;
    let (objects, _) = process::objects(&echo);
    let mut drained = prefix("/drained", "origin");
    drained["backendRefs"][0]["weight"] = json!(0);
    let objects = objects
        .route("lost", &[prefix("/lost", "missing")])
        .route("drained", &[drained]);
    let mut program = Program::start(&objects, "", &["--drain-deadline", "0s"]);
    program.until("/readyz", 200, "ready").await;
    let log = tokio::task::spawn_blocking(move || {
        program.terminate();
        program.log()
    });
    let log = log.await.expect("it ran");
    for (part, object) in [
        ("name: lost", "HTTPRoute default/lost: "),
        ("name: drained", "HTTPRoute default/drained: "),
    ] {
        let text = format!("/{}: {object}", place(&objects, part));
        let line = log.lines().find(|line| line.contains(&text));
        let line = line.unwrap_or_else(|| panic!("`{text}` is not in\n{log}"));
        // As in `portcullis status`.
        assert!(line.contains("ERROR "), "{line}");
    }
}
