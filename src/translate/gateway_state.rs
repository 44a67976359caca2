//! The part of a translation that does not depend on routes: Gateways with their listeners, ports and conditions.
//! Reused until one of its inputs changes. Must not know routes, Services or endpoints.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::data_plane::DataPlane;
use crate::ir::{Listener, ObjectRef, Port};
use crate::snapshot::Snapshot;
use crate::status::StatusReport;

use super::attachment::{self, Parent, Parents};
use super::certificate::Certificates;
use super::frontend::ClientAuthorities;
use super::gateway::{self, PortDraft};
use super::routes::{OnListener, Totals};
use super::{Input, Mode, conflict, data_plane, listener_set, overlap, report};

/// The translated Gateways of a snapshot, without routes.
#[derive(Default)]
pub(super) struct GatewayState {
    /// What routes attach to.
    pub(super) parents: Parents,
    /// The listeners of [`Self::parents`], without routes; `None` for listeners that cannot be served.
    pub(super) listeners: Vec<Option<Listener>>,
    /// Ports to bind, in order. Their listeners are indices of [`Self::listeners`].
    pub(super) ports: Vec<PortDraft>,
    /// The report, without routes of served kinds.
    pub(super) report: StatusReport,
    /// The data planes that Gateways need in a cluster.
    pub(super) data_planes: BTreeMap<ObjectRef, DataPlane>,
}

impl GatewayState {
    pub(super) fn new(
        input: &Input<'_>,
        certificates: &mut Certificates,
        authorities: &mut ClientAuthorities,
    ) -> Self {
        let classes = gateway::classes(input);
        let mut gateways = gateway::ours(input, &classes);
        let sets = listener_set::merge(input, &mut gateways);
        conflict::within_gateways(&mut gateways);
        if input.options.mode != Mode::Dedicated {
            conflict::across_gateways(&mut gateways);
        }
        authorities.load(input, &mut gateways);
        certificates.load(input, &mut gateways);
        overlap::mark(&mut gateways);
        let (mut listeners, mut ports) = (Vec::new(), Vec::new());
        for gateway in &gateways {
            let first = listeners.len();
            ports.extend(gateway.ports().into_iter().map(|port| PortDraft {
                listeners: port.listeners.iter().map(|index| first + index).collect(),
                ..port
            }));
            listeners.extend(gateway.listeners.iter().map(|draft| draft.finish()));
        }
        ports.sort_by(|one, two| (one.bind, &one.gateway).cmp(&(two.bind, &two.gateway)));
        let data_planes = match input.options.mode {
            Mode::Standalone | Mode::Kubernetes => BTreeMap::new(),
            Mode::Dedicated => data_plane::of_all(&gateways),
        };
        let parents = Parents::new(&gateways, &sets);
        let mut report = report::compose(input, classes, &gateways, &sets);
        report.routes = attachment::refuse_unserved(input, &parents);
        Self {
            parents,
            listeners,
            ports,
            report,
            data_planes,
        }
    }

    /// Returns the served listeners with their routes. Reuses a listener of `known` that is equal, at the same index.
    pub(super) fn listeners_with(
        &self,
        totals: &Totals,
        known: &[Option<Arc<Listener>>],
    ) -> Vec<Option<Arc<Listener>>> {
        let listeners = self.listeners.iter().zip(&self.parents.listeners);
        let with_routes = |(index, ((listener, parent), total))| {
            let (listener, parent): (&Option<Listener>, &Parent) = (listener, parent);
            let total: &OnListener = total;
            let listener = listener.clone().filter(|_| parent.is_served)?;
            let routes = total.routes.clone();
            let listener = Listener { routes, ..listener };
            let known: Option<&Arc<Listener>> = known.get(index).and_then(Option::as_ref);
            let same = known.filter(|known| ***known == listener).cloned();
            Some(same.unwrap_or_else(|| Arc::new(listener)))
        };
        let listeners = listeners.zip(totals.listeners()).enumerate();
        listeners.map(with_routes).collect()
    }

    /// Returns the ports with their listeners. Reuses equal ports of `known`, which are in the same order.
    pub(super) fn ports_with(
        &self,
        listeners: &[Option<Arc<Listener>>],
        known: &[Arc<Port>],
    ) -> Vec<Arc<Port>> {
        let with_listeners = |draft: &PortDraft| {
            let indices = draft.listeners.iter();
            let port = Port {
                bind: draft.bind,
                gateway: draft.gateway.clone(),
                listeners: indices
                    .filter_map(|index| listeners[*index].clone())
                    .collect(),
            };
            let key = (port.bind, &port.gateway);
            let at = known.partition_point(|known| (known.bind, &known.gateway) < key);
            let same = known.get(at).filter(|known| ***known == port).cloned();
            same.unwrap_or_else(|| Arc::new(port))
        };
        self.ports.iter().map(with_listeners).collect()
    }

    /// Sets the number of attached routes of each listener.
    pub(super) fn count_routes(&self, totals: &Totals, report: &mut StatusReport) {
        let mut origin: Option<&ObjectRef> = None;
        let mut index = 0;
        for (parent, total) in self.parents.listeners.iter().zip(totals.listeners()) {
            // Listeners of one object are consecutive, in the order of its spec.
            index = if origin == Some(&parent.key.origin) {
                index + 1
            } else {
                0
            };
            origin = Some(&parent.key.origin);
            let object = &parent.key.origin;
            let gateway = report.gateways.get_mut(object);
            let listeners = gateway.map(|status| &mut status.listeners).or_else(|| {
                let set = report.listener_sets.get_mut(object);
                set.map(|status| &mut status.listeners)
            });
            if let Some(status) = listeners.and_then(|listeners| listeners.get_mut(index)) {
                status.attached_routes = total.accepted;
            }
        }
    }
}

/// Reports whether the objects that [`GatewayState`] depends on are the same in both snapshots.
pub(super) fn is_same(one: &Snapshot, two: &Snapshot) -> bool {
    // Destructured, so that a new kind fails to compile until it is handled here. The comparison skips parts that both
    // maps share (`imbl`).
    let Snapshot {
        gateway_classes,
        gateways,
        listener_sets,
        http_routes: _,
        grpc_routes: _,
        unserved_routes,
        backend_tls_policies: _,
        backend_tls_overrides: _,
        backend_traffic_policies: _,
        xbackends: _,
        release_backends: _,
        service_imports: _,
        reference_grants,
        namespaces,
        services: _,
        pods: _,
        endpoint_slices: _,
        secrets,
        // `ClientAuthorities` tracks the ConfigMaps that Gateways refer to.
        config_maps: _,
        gateway_parameters,
        invalid,
    } = one;
    *gateway_classes == two.gateway_classes
        && *gateways == two.gateways
        && *listener_sets == two.listener_sets
        && *unserved_routes == two.unserved_routes
        && *reference_grants == two.reference_grants
        && *namespaces == two.namespaces
        && *secrets == two.secrets
        && *gateway_parameters == two.gateway_parameters
        && *invalid == two.invalid
}
