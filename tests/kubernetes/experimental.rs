//! Clusters that do not serve the released version of a kind: XListenerSets of Gateway API 1.3 and 1.4, and older versions.

use kube::Config;

use crate::api::Api;
use crate::harness::ports::free_ports;
use crate::plane::{DataPlane, request};
use crate::watching::{SHORT_TIMING, Watching};

fn set(version: &str, kind: &str, port: u16) -> String {
    format!(
        "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: set, namespace: default}}\nspec:\n  parentRef: {{name: web}}\n  \
         listeners: [{{name: http, port: {port}, protocol: HTTP, hostname: {kind}.example}}]\n"
    )
}

const EXPERIMENTAL: (&str, &str) = ("gateway.networking.x-k8s.io/v1alpha1", "XListenerSet");
const RELEASED: (&str, &str) = ("gateway.networking.k8s.io/v1", "ListenerSet");

#[test]
fn routes_attach_to_an_experimental_listener_set() {
    let api = Api::start();
    api.set_served("ListenerSet", false);
    let [own, port] = free_ports();
    api.apply(&set(EXPERIMENTAL.0, EXPERIMENTAL.1, port));
    api.apply(&format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: web, namespace: default}}\nspec:\n  \
         gatewayClassName: portcullis\n  allowedListeners: {{namespaces: {{from: Same}}}}\n  \
         listeners: [{{name: own, port: {own}, protocol: HTTP}}]\n"
    ));
    api.apply(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: of-set, namespace: default}\nspec:\n  \
         parentRefs: [{group: gateway.networking.x-k8s.io, kind: XListenerSet, name: set}]\n  \
         rules: [{filters: [{type: RequestRedirect, requestRedirect: {hostname: there}}]}]\n",
    );
    let _plane = DataPlane::start(&api);
    let asked = || request(port, "/", "xlistenerset.example");
    crate::eventually(asked, |answer| {
        answer.as_deref().is_some_and(|it| it.contains("there"))
    });
}

#[test]
fn released_listener_sets_replace_experimental_ones() {
    let api = Api::start();
    api.set_served("ListenerSet", false);
    api.apply(&set(EXPERIMENTAL.0, EXPERIMENTAL.1, 80));
    let config = Config::new(api.url().parse().unwrap());
    let watching = Watching::start_with(config, |provider| provider.timed(SHORT_TIMING));
    let hostname = |load: &portcullis::provider::Load| {
        let mut sets = load.snapshot.listener_sets.iter();
        sets.next()
            .and_then(|set| set.spec.listeners[0].hostname.clone())
    };
    watching.wait_for(|load| hostname(load).as_deref() == Some("XListenerSet.example"));
    api.apply(&set(RELEASED.0, RELEASED.1, 80));
    api.set_served("ListenerSet", true);
    watching.wait_for(|load| hostname(load).as_deref() == Some("ListenerSet.example"));
}

#[test]
fn older_version_is_asked_for_where_the_released_one_is_not_served() {
    for (kind, version) in [("HTTPRoute", "v1beta1"), ("BackendTLSPolicy", "v1alpha3")] {
        for is_served in [true, false] {
            let api = Api::start();
            api.set_served(kind, is_served);
            let watching = Watching::start(&api);
            // Nothing is published before all kinds have been asked for.
            watching.wait_for(|_| true);
            let asked = api.requests(&format!("/apis/gateway.networking.k8s.io/{version}"));
            assert_eq!(asked.is_empty(), is_served, "{kind}: {asked:?}");
        }
    }
}
