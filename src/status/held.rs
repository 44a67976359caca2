//! Which statuses are held back until data planes confirm a change. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;

use super::report::StatusReport;
use crate::api::reference::ParentRef;
use crate::ir::ObjectRef;

/// The Gateways whose data planes are expected to confirm a change. Their statuses, and those of the objects that they
/// serve, must not change meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The Gateways.
    pub gateways: BTreeSet<ObjectRef>,
    /// The Gateway of each ListenerSet.
    pub parents: OrdMap<ObjectRef, Arc<ObjectRef>>,
}

impl Held {
    /// Reports whether the status of an object is held back.
    pub fn holds(&self, object: &ObjectRef, report: &StatusReport) -> bool {
        if self.gateways.is_empty() {
            return false;
        }
        let is_held = |parent: &ParentRef| self.is_parent_held(object, parent);
        if let Some(parents) = report.routes.get(object) {
            return parents.iter().any(|it| is_held(&it.parent_ref));
        }
        if let Some(ancestors) = report.policies.get(object) {
            return ancestors.iter().any(|it| is_held(&it.ancestor_ref));
        }
        if let Some(backend) = report.release_backends.get(object) {
            return backend.gateways.iter().any(|it| self.gateways.contains(it));
        }
        let gateway = self.parents.get(object).map_or(object, |gateway| gateway);
        self.gateways.contains(gateway)
    }

    /// Reports whether the Gateway behind a reference to a Gateway or ListenerSet is held.
    fn is_parent_held(&self, object: &ObjectRef, parent: &ParentRef) -> bool {
        let namespace = parent.namespace.as_deref().unwrap_or(&object.namespace);
        let name = ObjectRef::new(&parent.group, &parent.kind, namespace, &parent.name);
        let gateway = self.parents.get(&name).map_or(&name, |gateway| gateway);
        self.gateways.contains(gateway)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::object_ref::GATEWAY_GROUP;
    use crate::status::{AncestorStatus, ParentStatus, ReleaseBackendStatus, StatusMap};

    fn name(kind: &str, name: &str) -> ObjectRef {
        ObjectRef::gateway_api(kind, "shop", name)
    }

    fn to(kind: &str, name: &str) -> ParentRef {
        ParentRef {
            group: GATEWAY_GROUP.into(),
            kind: kind.into(),
            namespace: None,
            name: name.into(),
            section_name: None,
            port: None,
        }
    }

    /// A report in which each object is of the Gateway of this name.
    fn report(gateway: &str) -> StatusReport {
        let parent = |parent_ref| ParentStatus {
            parent_ref,
            controller_name: "example.com/ours".into(),
            conditions: Vec::new(),
        };
        let ancestor = AncestorStatus {
            ancestor_ref: to("Gateway", gateway),
            controller_name: "example.com/ours".into(),
            conditions: Vec::new(),
        };
        let experimental = ParentRef {
            group: "gateway.networking.x-k8s.io".into(),
            ..to("XListenerSet", "set")
        };
        let routes = [
            ("direct", to("Gateway", gateway)),
            ("through-set", to("ListenerSet", "set")),
            ("through-experimental-set", experimental),
        ];
        let route = |(route, to)| -> (_, Arc<Vec<ParentStatus>>) {
            (name("HTTPRoute", route), vec![parent(to)].into())
        };
        let backend = ReleaseBackendStatus {
            gateways: vec![name("Gateway", gateway)],
            ..ReleaseBackendStatus::default()
        };
        StatusReport {
            routes: routes.into_iter().map(route).collect(),
            policies: StatusMap::unit(name("BackendTLSPolicy", "tls"), [ancestor].into()),
            release_backends: StatusMap::unit(name("ReleaseBackend", "app"), backend.into()),
            ..StatusReport::default()
        }
    }

    #[test]
    fn objects_of_a_held_gateway_are_held() {
        let set = name("ListenerSet", "set");
        for (gateway, is_held) in [("held", true), ("other", false)] {
            let held = Held {
                gateways: [name("Gateway", "held")].into(),
                parents: OrdMap::unit(set.clone(), Arc::new(name("Gateway", gateway))),
            };
            let report = report(gateway);
            for object in [
                name("Gateway", gateway),
                set.clone(),
                name("HTTPRoute", "direct"),
                name("HTTPRoute", "through-set"),
                name("HTTPRoute", "through-experimental-set"),
                name("BackendTLSPolicy", "tls"),
                name("ReleaseBackend", "app"),
            ] {
                assert_eq!(held.holds(&object, &report), is_held, "{object}");
            }
            assert!(!held.holds(&name("GatewayClass", "class"), &report));
            assert!(!Held::default().holds(&name("Gateway", gateway), &report));
        }
    }
}
