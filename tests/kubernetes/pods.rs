//! Pods: watched only in the namespaces that have a ReleaseBackend.

use crate::api::{Api, Fault};
use crate::watching::Watching;

fn pod(namespace: &str, name: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}, labels: {{app.kubernetes.io/version: v1}}}}
status: {{podIP: 10.0.0.1, conditions: [{{type: Ready, status: 'True'}}]}}
"
    )
}

const BACKEND: &str = "
apiVersion: portcullis.dev/v1alpha1
kind: ReleaseBackend
metadata: {name: shop, namespace: default}
spec: {splitBy: app.kubernetes.io/version, releases: [{value: v1, weight: 1}]}
";

/// Returns whether any Pods were listed, and whether those of namespace `default` were.
fn has_listed(api: &Api) -> (bool, bool) {
    let asked = |path: &str| !api.requests(path).is_empty();
    (asked("/pods?"), asked("/namespaces/default/pods?"))
}

#[test]
fn watches_pods_only_in_namespaces_with_a_release_backend() {
    let api = Api::start();
    api.apply(&pod("default", "one"));
    api.apply(&pod("other", "two"));
    let watching = Watching::start(&api);
    let load = watching.wait_for(|_| true);
    assert!(load.snapshot.pods.is_empty());
    assert_eq!(has_listed(&api), (false, false));
    api.apply(BACKEND);
    let load = watching.wait_for(|load| load.snapshot.release_backends.len() == 1);
    // The change waits for the Pods, so that the backend never lacks endpoints.
    assert_eq!(load.snapshot.pods.len(), 1);
    assert!(api.requests("/namespaces/other/pods?").is_empty());
    assert!(api.requests("/api/v1/pods?").is_empty());
    api.apply(&pod("default", "three"));
    watching.wait_for(|load| load.snapshot.pods.len() == 2);
    api.delete("ReleaseBackend", "default", "shop");
    let load = watching.wait_for(|load| load.snapshot.release_backends.is_empty());
    assert!(load.snapshot.pods.is_empty());
}

#[test]
fn first_configuration_has_the_pods_of_release_backends() {
    let api = Api::start();
    api.apply(&pod("default", "one"));
    api.apply(BACKEND);
    let watching = Watching::start(&api);
    let load = watching.wait_for(|_| true);
    assert_eq!(load.snapshot.pods.len(), 1);
}

#[test]
fn forbidden_pods_delay_other_changes_only_briefly() {
    let api = Api::start();
    let watching = Watching::start(&api);
    watching.wait_for(|_| true);
    api.fail("Pod", Some(Fault::Status(403)));
    api.apply(BACKEND);
    let load = watching.wait_for(|load| load.snapshot.release_backends.len() == 1);
    assert!(load.snapshot.pods.is_empty());
    api.apply(&pod("default", "one"));
    api.fail("Pod", None);
    watching.wait_for(|load| load.snapshot.pods.len() == 1);
}
