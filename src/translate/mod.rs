//! Snapshot in, IR and status report out. Pure and total: the same input gives the same bytes, and no object makes it
//! panic. Knows no clock, randomness, file, socket or cluster.

mod attachment;
mod backend;
mod base64;
mod certificate;
mod conflict;
mod data_plane;
mod filter;
mod gateway;
mod http_match;
mod http_route;
mod listener;
mod listener_set;
mod overlap;
mod parameters;
mod reason;
mod reference_grant;
mod report;
mod selector;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::data_plane::DataPlane;
use crate::ir::{Backend, BackendId, Ir, ObjectRef, Port};
use crate::snapshot::Snapshot;
use crate::status::StatusReport;

/// The controllerName of GatewayClasses that are ours.
pub const CONTROLLER_NAME: &str = "portcullis.dev/gateway-controller";

/// What a translation depends on beside objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// GatewayClasses with this `spec.controllerName` are ours.
    pub controller_name: Arc<str>,
    /// Where the objects come from.
    pub mode: Mode,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            controller_name: CONTROLLER_NAME.into(),
            mode: Mode::Standalone,
        }
    }
}

/// Where objects come from, as far as it changes their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A folder that belongs to us alone: the class `portcullis` is implied, and what nobody serves is noted.
    Standalone,
    /// A cluster with other controllers, whose objects are none of our business.
    Kubernetes,
    /// The same, where every Gateway has data planes of its own behind an address of its own: no Gateway takes a port
    /// from another, and `spec.addresses` are not addresses to bind.
    Dedicated,
}

/// What became of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translation {
    /// What to serve.
    pub ir: Ir,
    /// What to tell the authors of the objects.
    pub report: StatusReport,
    /// What Gateways need in a cluster; empty in standalone mode. One of ours that is in the report and not here keeps
    /// what it has: its class or its parameters are at fault, which may pass.
    pub data_planes: BTreeMap<ObjectRef, DataPlane>,
}

/// Translates all objects. `previous` is the IR that is being served: a Secret that has turned bad keeps its last good
/// certificate from there.
pub fn translate(snapshot: &Snapshot, previous: Option<&Ir>, options: &Options) -> Translation {
    let input = Input::new(snapshot, previous, options);
    let classes = gateway::classes(&input);
    let mut gateways = gateway::ours(&input, &classes);
    let sets = listener_set::merge(&input, &mut gateways);
    conflict::within_gateways(&mut gateways);
    if options.mode != Mode::Dedicated {
        conflict::across_gateways(&mut gateways);
    }
    certificate::load(&input, &mut gateways);
    overlap::mark(&mut gateways);
    let mut backends = backend::Backends::new(&input);
    let parents = attachment::Parents::new(&gateways, &sets);
    let mut routes = http_route::attach(&input, &parents, &mut backends, &mut gateways);
    routes.extend(attachment::refuse_unserved(&input, &parents, &gateways));
    let data_planes = match options.mode {
        Mode::Standalone | Mode::Kubernetes => BTreeMap::new(),
        Mode::Dedicated => data_plane::of_all(&gateways),
    };
    Translation {
        ir: assemble(&gateways, &backends),
        report: report::compose(&input, classes, &gateways, &sets, routes),
        data_planes,
    }
}

/// Everything that a step may look at.
struct Input<'a> {
    snapshot: &'a Snapshot,
    previous: Option<&'a Ir>,
    options: &'a Options,
    grants: reference_grant::Grants<'a>,
}

impl<'a> Input<'a> {
    fn new(snapshot: &'a Snapshot, previous: Option<&'a Ir>, options: &'a Options) -> Self {
        Self {
            snapshot,
            previous,
            options,
            grants: reference_grant::Grants::new(snapshot),
        }
    }
}

fn assemble(gateways: &[gateway::GatewayDraft<'_>], backends: &backend::Backends<'_>) -> Ir {
    let mut ports: Vec<Arc<Port>> = gateways
        .iter()
        .flat_map(gateway::GatewayDraft::ports)
        .collect();
    ports.sort_by_key(|port| port.bind);
    let mut used: BTreeMap<BackendId, Arc<Backend>> = BTreeMap::new();
    for listener in ports.iter().flat_map(|port| &port.listeners) {
        for rule in listener.routes.iter().flat_map(|route| &route.route.rules) {
            used.extend(backends.of(rule));
        }
    }
    Ir {
        ports,
        backends: used.into_values().collect(),
    }
}

#[cfg(test)]
mod tests;
