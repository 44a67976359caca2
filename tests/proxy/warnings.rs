//! Configuration that is valid and yet fails requests or handshakes: the running process names it until it changes.

use serde_json::{Value, json};

use crate::admin::page;
use crate::api::{has_problems, portcullis, stdout};
use crate::harness::tls::Certificate;
use crate::incidents::prints_at;
use crate::origin::Origin;
use crate::scene::{Objects, Scene, https, prefix, secret, to};

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
