//! The findings about valid configuration in service, computed again for the part that has changed. Each is logged once when it
//! appears and once when it is resolved.

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::finding::Finding;
use crate::ir::{Listener, Port};
use crate::process::announce::log_changes;
use crate::provider::file::Locations;
use crate::status::{AncestorStatus, RouteStatuses, StatusMap, StatusReport, warnings};
use crate::translate::Mode;

/// The findings, and what they are about.
#[derive(Debug)]
pub(super) struct Warnings {
    mode: Mode,
    ports: Vec<Arc<Port>>,
    of_listeners: Vec<(Arc<Listener>, Vec<Finding>)>,
    of_limits: BTreeSet<Finding>,
    routes: RouteStatuses,
    of_routes: BTreeSet<Finding>,
    policies: StatusMap<[AncestorStatus]>,
    of_policies: BTreeSet<Finding>,
    all: Arc<BTreeSet<Finding>>,
}

impl Warnings {
    /// Creates those of no configuration.
    pub(super) fn new(mode: Mode) -> Self {
        Self {
            mode,
            ports: Vec::new(),
            of_listeners: Vec::new(),
            of_limits: BTreeSet::new(),
            routes: RouteStatuses::new(),
            of_routes: BTreeSet::new(),
            policies: StatusMap::new(),
            of_policies: BTreeSet::new(),
            all: Arc::default(),
        }
    }

    /// Returns the findings about these ports and statuses; the same `Arc` if neither has changed. Takes the statuses of
    /// routes and policies from a report, whose translation has compared them already.
    pub(super) fn follow(
        &mut self,
        ports: &[Arc<Port>],
        report: &StatusReport,
        locations: &Locations,
    ) -> Arc<BTreeSet<Finding>> {
        // Equal subtrees are shared, so all comparisons are cheap.
        let has_new_ports = self.ports != ports;
        if has_new_ports {
            self.judge_listeners(ports);
            if self.mode == Mode::Standalone {
                self.of_limits = warnings::of_shared_limits(ports);
            }
            self.ports = ports.to_vec();
        }
        let has_new_routes = self.routes.diff(&report.routes).next().is_some();
        if has_new_routes {
            self.of_routes = warnings::of_routes(&report.routes);
            self.routes = report.routes.clone();
        }
        let has_new_policies = self.policies.diff(&report.policies).next().is_some();
        if has_new_policies {
            self.of_policies = warnings::of_policies(&report.policies);
            self.policies = report.policies.clone();
        }
        if has_new_ports || has_new_routes || has_new_policies {
            let of_listeners = self.of_listeners.iter().flat_map(|(_, found)| found);
            let parts = [&self.of_limits, &self.of_routes, &self.of_policies];
            let all = of_listeners.chain(parts.into_iter().flatten());
            let all: BTreeSet<_> = all.cloned().collect();
            let new = all.difference(&self.all).cloned().collect();
            log_changes(new, self.all.difference(&all), locations);
            self.all = Arc::new(all);
        }
        self.all.clone()
    }

    /// Judges the listeners that have changed, or whose routes have.
    fn judge_listeners(&mut self, ports: &[Arc<Port>]) {
        let known = mem::take(&mut self.of_listeners).into_iter();
        let known = known.map(|known| (Arc::as_ptr(&known.0), known));
        let mut known: FxHashMap<_, _> = known.collect();
        for port in ports {
            let of_port = port.listeners.iter().map(|listener| {
                let judged = known.remove(&Arc::as_ptr(listener));
                judged.unwrap_or_else(|| {
                    let found = warnings::of_listener(port, listener);
                    (listener.clone(), found)
                })
            });
            self.of_listeners.extend(of_port);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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

    fn follow(warnings: &mut Warnings, translation: &Translation) -> Arc<BTreeSet<Finding>> {
        let Translation { ir, report, .. } = translation;
        warnings.follow(&ir.ports, report, &Locations::default())
    }

    #[test]
    fn changed_configuration_has_other_warnings_and_unchanged_has_the_same() {
        let mut snapshot = Snapshot::default();
        let mut warnings = Warnings::new(Mode::Standalone);
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
        let texts = found.iter().map(ToString::to_string);
        let unweighted = |object: &str, effect: &str| {
            format!(
                "{object}: all weights of spec.rules[0].backendRefs are 0: {effect}; name a backendRef with a weight above 0"
            )
        };
        let expected = [
            unweighted("HTTPRoute shop/a", "every request gets status 500"),
            unweighted("TCPRoute shop/c", "every connection is reset"),
            unweighted("UDPRoute shop/d", "every datagram is dropped"),
            "HTTPRoute shop/b: for Gateway web listener http: spec.rules[0] gets no request: the same match or a wider one \
             comes first in spec.rules[0] of HTTPRoute shop/a; remove it, or narrow the match that comes first"
                .to_owned(),
        ];
        assert_eq!(texts.collect::<Vec<_>>(), expected);

        let again = translator.translate(&snapshot, Some(&first.ir));
        assert!(Arc::ptr_eq(&found, &follow(&mut warnings, &again)));

        insert(&mut snapshot, &route("HTTPRoute", "a", 1));
        let weighted = translator.translate(&snapshot, Some(&again.ir));
        assert_eq!(follow(&mut warnings, &weighted).len(), 3);
    }

    #[test]
    fn only_changed_listeners_are_judged_again() {
        let mut snapshot = Snapshot::default();
        let mut warnings = Warnings::new(Mode::Standalone);
        let mut translator = Translator::new(Options::default());
        let routes = [route("HTTPRoute", "a", 0), route("TCPRoute", "c", 0)];
        let objects = [gateway(), service()].into_iter().chain(routes);
        objects.for_each(|it| insert(&mut snapshot, &it));
        let first = translator.translate(&snapshot, None);
        follow(&mut warnings, &first);
        let judged = |warnings: &Warnings| -> BTreeMap<String, *const Finding> {
            let all = warnings.of_listeners.iter();
            let judged = all.filter(|(_, found)| !found.is_empty());
            judged
                .map(|(listener, found)| (listener.key.name.to_string(), found.as_ptr()))
                .collect()
        };
        let before = judged(&warnings);
        assert!(before.keys().eq(["http", "tcp"]), "{before:?}");
        insert(&mut snapshot, &route("HTTPRoute", "b", 0));
        let second = translator.translate(&snapshot, Some(&first.ir));
        follow(&mut warnings, &second);
        let after = judged(&warnings);
        assert_ne!(before["http"], after["http"]);
        assert_eq!(before["tcp"], after["tcp"]);
    }

    /// Prints the time to compute the warnings of 2,500 routes: `cargo test --release --lib warnings_speed -- --ignored
    /// --nocapture`. In the second round, all lead to one backend, and half of them are protected.
    #[test]
    #[ignore = "a measurement"]
    fn warnings_speed() {
        let routes = (0..2500).map(|number| {
            let mut route = route("HTTPRoute", &format!("r{number}"), 1);
            route["spec"]["rules"][0]["matches"] =
                json!([{"path": {"type": "PathPrefix", "value": format!("/path/{number}")}}]);
            route
        });
        let policies = (0..2500).step_by(2).map(|number| {
            let name = format!("r{number}");
            let target =
                json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": name});
            json!({
                "apiVersion": "portcullis.dev/v1alpha1", "kind": "AccessPolicy",
                "metadata": {"name": name, "namespace": "shop"},
                "spec": {"targetRefs": [target], "ipRules": {"allow": ["192.0.2.0/24"]}},
            })
        });
        let mut snapshot = Snapshot::default();
        let objects = [gateway(), service()].into_iter().chain(routes);
        objects.for_each(|it| insert(&mut snapshot, &it));
        let mut translator = Translator::new(Options::default());
        let mut previous = None;
        for policies in [Vec::new(), policies.collect()] {
            policies.iter().for_each(|it| insert(&mut snapshot, it));
            let translation = translator.translate(&snapshot, previous.as_ref());
            let mut warnings = Warnings::new(Mode::Standalone);
            let start = std::time::Instant::now();
            let found = follow(&mut warnings, &translation).len();
            println!("{found} warnings: {:?}", start.elapsed());
            let start = std::time::Instant::now();
            follow(&mut warnings, &translation);
            println!("unchanged: {:?}", start.elapsed());
            previous = Some(translation.ir);
        }
    }
}
