//! Watches of selected namespaces, with permissions for these only.

use kube::Config;

use crate::api::Api;
use crate::plane::DataPlane;
use crate::route;
use crate::watching::Watching;

fn within(api: &Api, namespaces: &[&str]) -> Watching {
    let namespaces: Vec<_> = namespaces.iter().map(|name| (*name).to_owned()).collect();
    let config = Config::new(api.url().parse().unwrap());
    Watching::start_with(config, |provider| provider.within(namespaces))
}

fn route_in(namespace: &str, name: &str) -> String {
    route(name, "target").replace("namespace: default", &format!("namespace: {namespace}"))
}

#[test]
fn requests_only_the_configured_namespaces() {
    let api = Api::start();
    api.permit(&["a", "b"]);
    for namespace in ["a", "b", "c"] {
        api.apply(&route_in(namespace, "r"));
        api.apply(&format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}}}}}"
        ));
    }
    let watching = within(&api, &["a", "b"]);
    let load = watching.wait_for(|_| true);
    let keys: Vec<_> = load
        .snapshot
        .http_routes
        .keys()
        .map(ToString::to_string)
        .collect();
    assert_eq!(keys, ["a/r", "b/r"]);
    assert_eq!(load.snapshot.namespaces.len(), 3);
    assert!(api.requests("/v1/httproutes").is_empty());
    assert!(api.requests("/namespaces/c/").is_empty());
    api.apply(&route_in("c", "s"));
    api.apply(&route_in("b", "s"));
    watching.wait_for(|load| load.snapshot.http_routes.get("b", "s").is_some());
}

#[test]
fn list_of_one_namespace_does_not_affect_others() {
    let api = Api::start();
    for name in ["r", "s"] {
        api.apply(&route_in("a", name));
        api.apply(&route_in("b", name));
    }
    let watching = within(&api, &["a", "b"]);
    watching.wait_for(|load| load.snapshot.http_routes.len() == 4);
    api.delete_unseen("HTTPRoute", "a", "r");
    watching.wait_for(|load| load.snapshot.http_routes.get("a", "r").is_none());
    for load in watching.history() {
        for (namespace, name) in [("a", "s"), ("b", "r"), ("b", "s")] {
            assert!(load.snapshot.http_routes.get(namespace, name).is_some());
        }
    }
}

#[test]
fn namespaces_flag_includes_the_gateways_namespace() {
    let api = Api::start();
    api.permit(&["apps", "default"]);
    api.apply(&route("a", "one"));
    let arguments = ["--namespaces", "apps", "--gateway", "default/edge"];
    let plane = DataPlane::start_with(&api, &arguments);
    plane.wait_for("a.example", "https://one/");
}
