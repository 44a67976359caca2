//! What `portcullis check` says of Ingresses, which are not served.

use crate::check::{PLAIN, check_says};

/// An Ingress, and another one in a list.
const INGRESSES: &str = "\
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: shop
  namespace: web
  annotations:
    example.com/owner: team-a
    nginx.ingress.kubernetes.io/rewrite-target: /$1
    nginx.ingress.kubernetes.io/limit-rate: '100'
---
apiVersion: v1
kind: List
items:
- apiVersion: networking.k8s.io/v1
  kind: Ingress
  metadata: {name: blog, annotations: {nginx.ingress.kubernetes.io/no-such-setting: 'on'}}
";

#[test]
fn check_says_what_a_migration_makes_of_each_annotation() {
    let next = "Ingress of networking.k8s.io/v1 is not a kind that Portcullis reads; ignored; `portcullis migrate` converts \
                those of ingress-nginx to routes and policies";
    let prefix = "metadata.annotations[nginx.ingress.kubernetes.io/";
    let rewrite = format!(
        "a.yaml:8 (document 1): Ingress web/shop: {prefix}rewrite-target]: ignored; `portcullis migrate`: converted: RouteFilter"
    );
    let rate = format!(
        "a.yaml:9 (document 1): Ingress web/shop: {prefix}limit-rate]: ignored; `portcullis migrate`: not possible: "
    );
    let unknown =
        format!("{prefix}no-such-setting]: ignored; `portcullis migrate` knows no such annotation");
    let parts = [next, &rewrite, &rate, &unknown];
    // Notes and warnings are no faults: the rest is served.
    let text = check_says(&["--quiet"], &format!("{INGRESSES}---\n{PLAIN}"), 0, &parts);
    assert_eq!(text.matches(prefix).count(), 3, "{text}");
    assert!(!text.contains("example.com/owner"), "{text}");
}
