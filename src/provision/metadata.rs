//! What all objects of a Gateway have in common: labels, annotations, their owner.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Child, ChildKind, Plan, name};
use crate::api::Resource;
use crate::api::gateway::Gateway;
use crate::ir::object_ref::GATEWAY_GROUP;

/// Label that names the Gateway.
pub const GATEWAY_LABEL: &str = "gateway.networking.k8s.io/gateway-name";
/// Label that names the class of the Gateway.
pub const GATEWAY_CLASS_LABEL: &str = "gateway.networking.k8s.io/gateway-class-name";
/// Label that says who made the object.
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// The value of [`MANAGED_BY_LABEL`] on objects of ours.
pub const MANAGED_BY: &str = "portcullis-controller";

/// Labels or annotations.
pub(super) type Texts = BTreeMap<String, String>;

/// Whether an object with these labels was made for the Gateway of this name, in its namespace.
pub fn is_made_for(labels: &BTreeMap<String, String>, gateway: &str) -> bool {
    let has = |label: &str, value: &str| labels.get(label).is_some_and(|found| found == value);
    has(MANAGED_BY_LABEL, MANAGED_BY) && has(GATEWAY_LABEL, &name::label_value(gateway))
}

impl Plan<'_> {
    /// An object with the metadata that all have, and `fields` beside it.
    pub(super) fn child(
        &self,
        kind: ChildKind,
        name: &str,
        annotations: Option<&Texts>,
        fields: Value,
    ) -> Child {
        let metadata = &self.gateway.metadata;
        let mut object = json!({
            "apiVersion": kind.api_version(),
            "kind": kind.kind(),
            "metadata": {
                "name": name,
                "namespace": metadata.namespace,
                "labels": self.labels(None),
                "ownerReferences": [{
                    "apiVersion": format!("{GATEWAY_GROUP}/v1"),
                    "kind": Gateway::KIND,
                    "name": metadata.name,
                    "uid": metadata.uid,
                    // Nothing blocks: a Gateway that is deleted in the foreground does not wait for its pods to drain.
                    "controller": true,
                }],
            },
        });
        super::set(
            &mut object["metadata"],
            "annotations",
            self.annotations(annotations),
        );
        if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields) {
            object.extend(fields);
        }
        Child {
            kind,
            namespace: metadata.namespace.clone(),
            name: name.to_owned(),
            gateway_uid: metadata.uid.clone(),
            object,
            revision: None,
        }
    }

    /// Labels that never change while the Gateway keeps its name and class: a selector cannot change.
    pub(super) fn selector(&self) -> Texts {
        let class = &self.gateway.spec.gateway_class_name;
        let label = |key: &str, name: &str| (key.to_owned(), name::label_value(name));
        Texts::from([
            label(GATEWAY_LABEL, &self.gateway.metadata.name),
            label(GATEWAY_CLASS_LABEL, class),
        ])
    }

    /// All labels: those of parameters, over them those of the Gateway's infrastructure, and over all our own.
    pub(super) fn labels(&self, parameters: Option<&Texts>) -> Texts {
        let infrastructure = self.gateway.spec.infrastructure.as_ref();
        let asked = infrastructure.map(|infrastructure| &infrastructure.labels);
        let mut labels: Texts = [parameters, asked]
            .into_iter()
            .flatten()
            .flatten()
            .map(own)
            .collect();
        let ours = [
            ("app.kubernetes.io/name", "portcullis"),
            ("app.kubernetes.io/instance", &self.name),
            (MANAGED_BY_LABEL, MANAGED_BY),
        ];
        labels.extend(ours.map(|(key, value)| (key.to_owned(), value.to_owned())));
        labels.extend(self.selector());
        labels
    }

    /// Annotations of parameters, and over them those of the Gateway's infrastructure; `None` when there is none.
    pub(super) fn annotations(&self, parameters: Option<&Texts>) -> Option<Texts> {
        let infrastructure = self.gateway.spec.infrastructure.as_ref();
        let asked = infrastructure.map(|infrastructure| &infrastructure.annotations);
        let all: Texts = [parameters, asked]
            .into_iter()
            .flatten()
            .flatten()
            .map(own)
            .collect();
        (!all.is_empty()).then_some(all)
    }
}

fn own((key, value): (&String, &String)) -> (String, String) {
    (key.clone(), value.clone())
}
