//! Objects that no CRD would admit: each is checked separately, its error is logged, and the others
//! stay in service.

use serde_json::{Value, json};

use crate::api::Api;
use crate::harness::ports::free_ports;
use crate::plane::DataPlane;
use crate::{eventually, route};

/// A data plane with a valid route, to which invalid objects are added one by one.
struct Scene {
    api: Api,
    plane: DataPlane,
    judged: usize,
}

impl Scene {
    fn start() -> Self {
        let api = Api::start();
        api.apply(&route("good", "one"));
        let plane = DataPlane::start(&api);
        plane.wait_for("good.example", "https://one/");
        Self {
            api,
            plane,
            judged: 0,
        }
    }

    /// Adds an invalid object; checks that the others are unaffected and that the log contains
    /// `reason`.
    fn check(&mut self, object: Value, reason: &str) {
        self.judged += 1;
        let text = |field: &str| object["metadata"][field].as_str().unwrap().to_owned();
        let kind = object["kind"].as_str().unwrap().to_owned();
        let (namespace, name) = (text("namespace"), text("name"));
        let about = format!("{kind} {namespace}/{name}");
        let lines = || self.plane.log(&about).len();
        let before = lines();
        let host = format!("next{}", self.judged);
        self.api.put(object);
        self.api.apply(&route(&host, "two"));
        self.plane
            .wait_for(&format!("{host}.example"), "https://two/");
        let good = self.plane.answer("good.example");
        assert_eq!(good.as_deref(), Some("https://one/"), "{reason:?}");
        let news = || self.plane.log(&about).split_off(before);
        eventually(news, |news| {
            reason.is_empty() || news.iter().any(|line| line.contains(reason))
        });
        self.api.delete(&kind, &namespace, &name);
        // What is deleted stays in service for a moment, and the next object of this name may share problems with it.
        let unresolved = || {
            let lines = self.plane.log(&about);
            let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
            (count("ERROR ") + count("WARN ")).saturating_sub(count("resolved: "))
        };
        eventually(unresolved, |count| *count == 0);
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        assert!(self.plane.log("panicked").is_empty());
        assert!(self.plane.is_alive());
    }
}

fn object(kind: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
        "metadata": {"name": "bad", "namespace": "default"}, "spec": spec,
    })
}

/// Returns a route of `bad.example` with these rules.
fn ruled(rules: &Value) -> Value {
    object(
        "HTTPRoute",
        &json!({"parentRefs": [{"name": "edge"}], "hostnames": ["bad.example"], "rules": rules}),
    )
}

fn redirecting() -> Value {
    json!({"filters": [{"type": "RequestRedirect", "requestRedirect": {"hostname": "bad", "statusCode": 302}}]})
}

fn matching(expression: &str) -> Value {
    let mut rule = redirecting();
    rule["matches"] = json!([{"path": {"type": "RegularExpression", "value": expression}}]);
    ruled(&json!([rule]))
}

fn filtering(filter: &Value) -> Value {
    ruled(&json!([{"filters": [filter]}]))
}

fn forwarding(field: &str, value: u64) -> Value {
    let mut reference = json!({"name": "nothing", "port": 80});
    reference[field] = value.into();
    ruled(&json!([{"backendRefs": [reference, reference]}]))
}

fn listener(name: &str, port: i64) -> Value {
    json!({"name": name, "port": port, "protocol": "HTTP"})
}

fn listening(listeners: &Value) -> Value {
    object(
        "Gateway",
        &json!({"gatewayClassName": "portcullis", "listeners": listeners}),
    )
}

#[test]
fn invalid_route_does_not_affect_others() {
    let mut scene = Scene::start();
    scene.check(matching("(/a["), "unclosed character class");
    scene.check(matching("(a{1000}){1000}"), "compiles to more than");
    scene.check(filtering(&json!({"type": "Brew"})), "filter type Brew");
    scene.check(
        filtering(&json!({"type": "RequestRedirect"})),
        "its block is missing",
    );
    scene.check(filtering(&json!({"type": 7})), "cannot be read");
    scene.check(forwarding("weight", 1 << 31), "does not exist");
    scene.check(forwarding("weight", 1 << 40), "backendRefs[0].weight");
    scene.check(forwarding("port", 0), "does not exist");
    scene.check(forwarding("port", 70_000), "backendRefs[0].port");
    // Rules without backends respond with 500, which is not an error.
    scene.check(ruled(&json!([])), "");
    scene.check(ruled(&json!([{}])), "");
    scene.check(ruled(&json!(vec![redirecting(); 10_000])), "");
    for hostname in ["*.", "*", "a..example", "1.2.3.4"] {
        let mut route = ruled(&json!([redirecting()]));
        route["spec"]["hostnames"] = json!([hostname]);
        scene.check(route, "");
    }
    let mut own_parent = ruled(&json!([redirecting()]));
    own_parent["spec"]["parentRefs"] = json!([{"kind": "HTTPRoute", "name": "bad"}]);
    scene.check(own_parent, "");
}

#[test]
fn invalid_gateway_does_not_affect_others() {
    let mut scene = Scene::start();
    let [one, other] = free_ports();
    let (one, other) = (i64::from(one), i64::from(other));
    scene.check(
        listening(&json!([listener("l", 70_000)])),
        "listeners[0].port",
    );
    scene.check(listening(&json!([listener("l", -1)])), "listeners[0].port");
    scene.check(listening(&json!([listener("l", 0)])), "0 is not a port");
    let twice = json!([listener("l", one), listener("l", other)]);
    scene.check(listening(&twice), "");
    scene.check(listening(&json!([])), "none of its listeners can be served");
    scene.check(listening(&json!("none")), "spec.listeners");
    let mut starred = listener("l", one);
    starred["hostname"] = "*.".into();
    scene.check(listening(&json!([starred])), "is not a hostname");
    let own_parent = json!({"parentRef": {"kind": "ListenerSet", "name": "bad"}, "listeners": [listener("l", one)]});
    scene.check(object("ListenerSet", &own_parent), "");
    let empty = json!({"parentRef": {"name": "edge"}, "listeners": []});
    scene.check(object("ListenerSet", &empty), "NotAllowed");
}

#[test]
fn serves_objects_with_large_or_long_fields() {
    let api = Api::start();
    let plane = DataPlane::start(&api);
    let mut large = ruled(&json!([redirecting()]));
    large["metadata"]["annotations"] = json!({"note": "x".repeat(1 << 20)});
    api.put(large);
    plane.wait_for("bad.example", &format!("http://bad:{}/", plane.port));
    let mut long = ruled(&json!([redirecting()]));
    long["metadata"]["name"] = "n".repeat(253).into();
    long["spec"]["hostnames"] = json!(["long.example"]);
    api.put(long);
    plane.wait_for("long.example", &format!("http://bad:{}/", plane.port));
}
