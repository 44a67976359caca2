//! Several kinds of load balancers. The binary has only one so far.

use serde_json::json;

use super::*;
use crate::ir::ObjectRef;
use crate::snapshot::Snapshot;
use crate::translate::backend::kind::PodSelection;
use crate::translate::backend::registry::REGISTRY;
use crate::translate::backend::{service, service_import};
use crate::translate::input::Options;
use crate::translate::registry::Registry;

static OTHER: LoadBalancerKind = LoadBalancerKind {
    read: |namespace, value| match value["name"].as_str() {
        Some(name) => Ok(LoadBalancer {
            object: ObjectRef::new("example.com", "Other", namespace, name),
            pods: PodSelection::OfObject,
        }),
        None => Err(vec![".name is missing".to_owned()]),
    },
    marked: |_, _| Vec::new(),
    marks: "the label other",
    find: |_, _| Err(Fault::new(Reason::BackendNotFound, "")),
};

static OTHER_KIND: BackendKind = BackendKind {
    gvk: "example.com/v1.Other",
    load_balancer: Some(&OTHER),
    ..service_import::KIND
};

fn chosen(kinds: &[&'static BackendKind], other: Value) -> (Result<String, String>, Vec<String>) {
    let configured = [
        ("v1.Service".to_owned(), json!({"name": "shop"})),
        ("example.com/v1.Other".to_owned(), other),
    ];
    let (snapshot, options) = (Snapshot::default(), Options::default());
    let Chosen { result, unused } = choose(
        REGISTRY,
        kinds,
        &Input::new(&snapshot, None, &options, &Registry),
        "team",
        &configured.into_iter().collect(),
    );
    let result = result.map(|(_, it)| it.object.to_string());
    (result.map_err(|fault| fault.message), unused)
}

#[test]
fn first_kind_in_order_of_backend_kinds_is_used() {
    let other = || json!({"name": "other"});
    let (result, unused) = chosen(&[&service::KIND, &OTHER_KIND], other());
    assert_eq!(result.unwrap(), "Service team/shop");
    let why = "is not used: v1.Service comes first in --backend-kinds";
    let path = "spec.loadBalancer[\"example.com/v1.Other\"]";
    assert_eq!(unused, [format!("{path} {why}")]);
    let (result, unused) = chosen(&[&OTHER_KIND, &service::KIND], other());
    assert_eq!(result.unwrap(), "Other team/other");
    let why = "is not used: example.com/v1.Other comes first in --backend-kinds";
    assert_eq!(unused, [format!("spec.loadBalancer[\"v1.Service\"] {why}")]);
}

#[test]
fn validates_unused_configuration() {
    let (result, _) = chosen(&[&service::KIND, &OTHER_KIND], json!({}));
    let fault = "spec.loadBalancer[\"example.com/v1.Other\"].name is missing";
    assert_eq!(result.unwrap_err(), fault);
}

#[test]
fn reports_kind_that_is_not_enabled() {
    let (result, unused) = chosen(&[&OTHER_KIND], json!({"name": "other"}));
    assert_eq!(result.unwrap(), "Other team/other");
    let why = "is ignored: the kind is not enabled; --backend-kinds enables it";
    assert_eq!(unused, [format!("spec.loadBalancer[\"v1.Service\"] {why}")]);
}
