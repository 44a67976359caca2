//! Metadata of all objects of a Gateway: labels, annotations, owner reference.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::child::{Child, ChildKind};
use super::child_plan::Plan;
use super::name;
use crate::api::Resource;
use crate::api::gateway::Gateway;
use crate::ir::object_ref::GATEWAY_GROUP;

/// Label with the name of the Gateway.
pub const GATEWAY_LABEL: &str = "gateway.networking.k8s.io/gateway-name";
/// Label with the name of the GatewayClass.
pub const GATEWAY_CLASS_LABEL: &str = "gateway.networking.k8s.io/gateway-class-name";
/// Label with the manager of the object.
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY_LABEL`] on objects of this controller.
pub const MANAGED_BY: &str = "portcullis-controller";

/// Labels or annotations.
pub(super) type StringMap = BTreeMap<String, String>;

/// Reports whether the labels mark an object of the named Gateway in the same namespace.
pub fn is_made_for(labels: &BTreeMap<String, String>, gateway: &str) -> bool {
    let has = |label: &str, value: &str| labels.get(label).is_some_and(|found| found == value);
    has(MANAGED_BY_LABEL, MANAGED_BY) && has(GATEWAY_LABEL, &name::label_value(gateway))
}

impl Plan<'_> {
    /// Builds an object from the common metadata and `fields`.
    pub(super) fn child(
        &self,
        kind: ChildKind,
        name: &str,
        annotations: Option<&StringMap>,
        fields: Value,
    ) -> Child {
        let metadata = &self.gateway.metadata;
        let mut object = json!({
            "apiVersion": kind.api_version(),
            "kind": kind.name(),
            "metadata": {
                "name": name,
                "namespace": metadata.namespace,
                "labels": self.labels(None),
                "ownerReferences": [{
                    "apiVersion": format!("{GATEWAY_GROUP}/v1"),
                    "kind": Gateway::KIND,
                    "name": metadata.name,
                    "uid": metadata.uid,
                    // `blockOwnerDeletion` is not set: foreground deletion of a Gateway does not
                    // wait for its pods to drain.
                    "controller": true,
                }],
            },
        });
        super::child_plan::set(
            &mut object["metadata"],
            "annotations",
            self.annotations(annotations),
        );
        if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields) {
            object.extend(fields);
        }
        Child {
            kind,
            namespace: metadata.namespace.to_string(),
            name: name.to_owned(),
            gateway_uid: metadata.uid.to_string(),
            object,
            revision: None,
        }
    }

    /// Returns the labels for selectors, which are immutable. They do not change while the Gateway
    /// keeps its name and class.
    pub(super) fn selector(&self) -> StringMap {
        let class = &self.gateway.spec.gateway_class_name;
        let label = |key: &str, name: &str| (key.to_owned(), name::label_value(name));
        StringMap::from([
            label(GATEWAY_LABEL, &self.gateway.metadata.name),
            label(GATEWAY_CLASS_LABEL, class),
        ])
    }

    /// Returns all labels. The infrastructure labels of the Gateway override those of the
    /// parameters. The controller's labels override both.
    pub(super) fn labels(&self, parameters: Option<&StringMap>) -> StringMap {
        let infrastructure = self.gateway.spec.infrastructure.as_ref();
        let asked = infrastructure.map(|infrastructure| &infrastructure.labels);
        let mut labels: StringMap = [parameters, asked]
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

    /// Returns the annotations; `None` if there are none. Those of the Gateway's infrastructure
    /// override those of the parameters.
    pub(super) fn annotations(&self, parameters: Option<&StringMap>) -> Option<StringMap> {
        let infrastructure = self.gateway.spec.infrastructure.as_ref();
        let asked = infrastructure.map(|infrastructure| &infrastructure.annotations);
        let all: StringMap = [parameters, asked]
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
