//! The warnings about the configuration in service, computed again for the part that has changed. Each is logged once when
//! it appears and once when it is resolved.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::ir::Port;
use crate::provider::file::Locations;
use crate::status::{RouteStatuses, Warning, warnings};

/// The warnings, and what they are about.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    ports: Vec<Arc<Port>>,
    of_ports: BTreeSet<Warning>,
    routes: RouteStatuses,
    of_routes: BTreeSet<Warning>,
    all: Arc<BTreeSet<Warning>>,
}

impl Warnings {
    /// Returns the warnings about these ports and routes; the same `Arc` if neither has changed. Takes the statuses of
    /// routes from a report, whose translation has compared the routes already.
    pub(super) fn follow(
        &mut self,
        ports: &[Arc<Port>],
        routes: &RouteStatuses,
        locations: &Locations,
    ) -> Arc<BTreeSet<Warning>> {
        // Equal subtrees are shared, so both comparisons are cheap.
        let has_new_ports = self.ports != ports;
        if has_new_ports {
            self.of_ports = warnings::of_ports(ports);
            self.ports = ports.to_vec();
        }
        let has_new_routes = self.routes.diff(routes).next().is_some();
        if has_new_routes {
            self.of_routes = warnings::of_routes(routes);
            self.routes = routes.clone();
        }
        if has_new_ports || has_new_routes {
            let all = self.of_ports.union(&self.of_routes).cloned().collect();
            log_changes(&self.all, &all, locations);
            self.all = Arc::new(all);
        }
        self.all.clone()
    }
}

fn log_changes(previous: &BTreeSet<Warning>, now: &BTreeSet<Warning>, locations: &Locations) {
    let found = locations.find(now.difference(previous).map(|it| &it.object));
    for warning in now.difference(previous) {
        let located = found.locate(Some(&warning.object), &warning.message);
        tracing::warn!("{located}");
    }
    for warning in previous.difference(now) {
        tracing::info!("resolved: {warning}");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::Kind;
    use crate::snapshot::Snapshot;
    use crate::translate::{Options, Translation, Translator};

    fn gateway() -> Value {
        let kinds = ["TCP", "UDP"];
        let listeners =
            kinds.map(|it| json!({"name": it.to_lowercase(), "port": 9, "protocol": it}));
        let http = json!({"name": "http", "port": 80, "protocol": "HTTP"});
        let listeners: Vec<_> = listeners.into_iter().chain([http]).collect();
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"gatewayClassName": "portcullis", "listeners": listeners},
        })
    }

    fn service() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "app", "namespace": "shop"},
            "spec": {"ports": [{"port": 80}]},
        })
    }

    fn route(kind: &str, name: &str, weight: u32) -> Value {
        let section = kind.strip_suffix("Route").unwrap().to_lowercase();
        let backend = json!({"name": "app", "port": 80, "weight": weight});
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {
                "parentRefs": [{"name": "web", "sectionName": section}],
                "rules": [{"backendRefs": [backend]}],
            },
        })
    }

    fn insert(snapshot: &mut Snapshot, object: &Value) {
        let text = |field: &str| object[field].as_str().unwrap().to_owned();
        let kind = Kind::find(&text("apiVersion"), &text("kind")).unwrap();
        snapshot.insert(kind.decode(object).unwrap());
    }

    fn follow(warnings: &mut Warnings, translation: &Translation) -> Arc<BTreeSet<Warning>> {
        let (ports, routes) = (&translation.ir.ports, &translation.report.routes);
        warnings.follow(ports, routes, &Locations::default())
    }

    #[test]
    fn changed_configuration_has_other_warnings_and_unchanged_has_the_same() {
        let (mut snapshot, mut warnings) = (Snapshot::default(), Warnings::default());
        let mut translator = Translator::new(Options::default());
        let objects = [
            gateway(),
            service(),
            route("HTTPRoute", "a", 0),
            route("HTTPRoute", "b", 1),
            route("TCPRoute", "c", 0),
            route("UDPRoute", "d", 0),
        ];
        objects.iter().for_each(|it| insert(&mut snapshot, it));
        let first = translator.translate(&snapshot, None);
        let found = follow(&mut warnings, &first);
        let texts = found
            .iter()
            .map(|it| format!("{}: {}", it.object, it.message));
        let unweighted = |object: &str, effect: &str| {
            format!("{object}: all weights of spec.rules[0].backendRefs are 0: {effect}")
        };
        let expected = [
            unweighted("HTTPRoute shop/a", "every request gets status 500"),
            unweighted("TCPRoute shop/c", "every connection is reset"),
            unweighted("UDPRoute shop/d", "every datagram is dropped"),
            "HTTPRoute shop/b: for Gateway web listener http: spec.rules[0] gets no request: the same match or a wider one \
             comes first in spec.rules[0] of HTTPRoute shop/a"
                .to_owned(),
        ];
        assert_eq!(texts.collect::<Vec<_>>(), expected);

        let again = translator.translate(&snapshot, Some(&first.ir));
        assert!(Arc::ptr_eq(&found, &follow(&mut warnings, &again)));

        insert(&mut snapshot, &route("HTTPRoute", "a", 1));
        let weighted = translator.translate(&snapshot, Some(&again.ir));
        assert_eq!(follow(&mut warnings, &weighted).len(), 3);
    }
}
