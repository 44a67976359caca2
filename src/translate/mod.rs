//! Translates a snapshot into the IR and the status report. Pure and total: the same input gives the same bytes, and no
//! object causes a panic. Must not know clocks, randomness, files, sockets or clusters.

mod attachment;
mod authority;
mod backend;
mod backend_tls;
mod certificate;
pub mod closure;
mod conflict;
mod cors;
mod data_plane;
mod duration;
mod external_auth;
mod filter;
mod frontend;
mod gateway;
mod gateway_state;
mod grpc_route;
mod http_match;
mod http_route;
mod infrastructure;
mod listener;
mod listener_set;
mod mirror;
mod overlap;
mod parameters;
mod patterns;
mod policy_status;
mod priority;
mod reason;
mod reference_grant;
mod released;
mod report;
mod retry;
mod route;
mod routes;
mod selector;
mod session_persistence;
mod shadow;
mod traffic_policy;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::data_plane::DataPlane;
use crate::ir::{Ir, Listener, ListenerKey, ObjectRef, Port, RuleId};
use crate::location::Location;
use crate::permissions::{InfrastructurePermissions, Permissions};
use crate::snapshot::Snapshot;
use crate::status::StatusReport;

pub use self::backend::{backend_kinds, watched_kinds};
pub use self::backend_tls::{BackendPolicies, ConsideredPolicy, Criterion, PolicyVerdict};
pub use self::shadow::{Shadowed, shadowed};

use self::backend::Backends;
use self::certificate::Certificates;
use self::frontend::ClientAuthorities;
use self::gateway_state::GatewayState;
use self::routes::{Changed, RouteChange, Routes};

/// The controllerName of our GatewayClasses.
pub const CONTROLLER_NAME: &str = "portcullis.dev/gateway-controller";

/// The inputs of a translation apart from objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// This controller manages GatewayClasses with this `spec.controllerName`.
    pub controller_name: Arc<str>,
    /// Where the objects come from.
    pub mode: Mode,
    /// Permissions that the operator gives to objects.
    pub permissions: Permissions,
    /// What the data planes of Gateways may ask of the cluster; `None` where none are created.
    pub infrastructure: Option<Arc<InfrastructurePermissions>>,
    /// The zone and node of the data plane that serves the result.
    pub location: Location,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            controller_name: CONTROLLER_NAME.into(),
            mode: Mode::Standalone,
            permissions: Permissions::default(),
            infrastructure: None,
            location: Location::default(),
        }
    }
}

/// The source of objects, as far as it changes how they are translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A folder without other controllers: the class `portcullis` exists implicitly, and objects that are not served
    /// get notes.
    Standalone,
    /// A cluster with other controllers. Objects that other controllers manage are ignored.
    Kubernetes,
    /// A cluster in which every Gateway has dedicated data planes and addresses: ports of different Gateways do not
    /// conflict, and `spec.addresses` are not bound.
    Dedicated,
}

/// The result of a translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The configuration to serve.
    pub ir: Ir,
    /// The status of the objects.
    pub report: StatusReport,
    /// The data planes that Gateways need, with [`Mode::Dedicated`] only. A Gateway that is in the report but not here
    /// keeps its data plane: its class or its parameters are invalid, which may be temporary.
    pub data_planes: BTreeMap<ObjectRef, DataPlane>,
}

/// Translates all objects. `previous` is the IR that is being served: if a Secret becomes invalid, its last good
/// certificate is taken from there.
pub fn translate(snapshot: &Snapshot, previous: Option<&Ir>, options: &Options) -> Translation {
    Translator::new(options.clone()).translate(snapshot, previous)
}

/// Translates one snapshot after the other incrementally. Each result equals that of [`translate`]. Equal parts of
/// consecutive results are the same `Arc`, so that later steps can compare pointers.
///
/// Keeps the results of each step with their inputs: Gateways and their listeners as one `GatewayState`, backends by
/// identity, routes one by one.
pub struct Translator {
    options: Options,
    /// The snapshot from which the fields below were computed; `None` before the first translation.
    seen: Option<Snapshot>,
    gateways: GatewayState,
    certificates: Certificates,
    authorities: ClientAuthorities,
    backends: Backends,
    routes: Routes,
    /// The served listeners of [`GatewayState::listeners`], at the same indices.
    listeners: Vec<Option<Arc<Listener>>>,
    ports: Vec<Arc<Port>>,
    report: StatusReport,
}

impl Translator {
    /// Creates a translator.
    pub fn new(options: Options) -> Self {
        Self {
            seen: None,
            gateways: GatewayState::default(),
            certificates: Certificates::default(),
            authorities: ClientAuthorities::default(),
            backends: Backends::new(&options),
            routes: Routes::new(),
            listeners: Vec::new(),
            ports: Vec::new(),
            report: StatusReport::default(),
            options,
        }
    }

    /// Translates all objects, as [`translate`] does.
    pub fn translate(&mut self, snapshot: &Snapshot, previous: Option<&Ir>) -> Translation {
        let before = self.seen.replace(snapshot.clone());
        let is_first = before.is_none();
        let before = before.unwrap_or_default();
        let options = self.options.clone();
        let input = Input::new(snapshot, previous, &options);
        let mut parents_changed = false;
        // A bad Secret takes its certificate from `previous`, so the result can change although no object does.
        let gateways_changed = is_first
            || self.certificates.depend_on_past
            || !gateway_state::is_same(&before, snapshot)
            || self.authorities.differ(&before, snapshot);
        if gateways_changed {
            let gateways = GatewayState::new(&input, &mut self.certificates, &mut self.authorities);
            let former = std::mem::replace(&mut self.gateways, gateways);
            let (unserved, report) = (&former.report.routes, &self.gateways.report);
            self.routes.replace_unserved(unserved, &report.routes);
            parents_changed = former.parents != self.gateways.parents
                || before.gateways != snapshot.gateways
                || before.listener_sets != snapshot.listener_sets
                || before.invalid != snapshot.invalid;
        }
        // Before routes, which resolve their references against the present backends.
        let backends = self.backends.follow(&input, &before);
        let around = Changed {
            objects: backends.objects,
            granting: granting(&before, snapshot),
            labelled: labelled(&before, snapshot),
            parents: parents_changed,
        };
        let change = RouteChange {
            input: &input,
            before: &before,
            around: &around,
            parents: &self.gateways.parents,
        };
        let routes_changed = self.routes.follow(&change, &mut self.backends);
        let policies_changed = before.backend_tls_policies != snapshot.backend_tls_policies
            || before.backend_tls_overrides != snapshot.backend_tls_overrides
            || before.backend_traffic_policies != snapshot.backend_traffic_policies
            // Conditions of policies also mention targets that no route refers to.
            || around.objects.iter().any(|object| self.backends.tls.target(object))
            || backends.have_other_statuses;
        if gateways_changed || routes_changed || policies_changed {
            self.assemble(&input);
        }
        self.report.release_backends = self.backends.release_statuses.clone();
        Translation {
            ir: Ir {
                ports: self.ports.clone(),
                backends: self.backends.served(),
            },
            report: self.report.clone(),
            data_planes: self.gateways.data_planes.clone(),
        }
    }

    /// Returns the policies on TLS that target the backends of a rule, with the verdict on each for requests of a
    /// listener. Explains the objects that were translated last.
    pub fn backend_policies(
        &self,
        rule: &RuleId,
        gateway: &ObjectRef,
        listener: &ListenerKey,
    ) -> Vec<BackendPolicies> {
        let policies = &self.backends.tls;
        self.seen.as_ref().map_or_else(Vec::new, |snapshot| {
            policies.of_rule(snapshot, rule, gateway, listener)
        })
    }

    /// Assembles listeners with their routes, ports with their listeners, and the report.
    fn assemble(&mut self, input: &Input<'_>) {
        let totals = &self.routes.totals;
        let mut report = self.gateways.report.clone();
        self.gateways.count_routes(totals, &mut report);
        report.routes = self.routes.statuses.clone();
        let policies = &self.backends.tls;
        let uses = self.routes.uses(&self.gateways.parents, policies.targets());
        let senders = self.routes.senders(&self.gateways.parents, policies);
        report.policies = backend_tls::statuses(input, policies, &uses, &senders);
        let traffic = &self.backends.traffic;
        let uses = self.routes.uses(&self.gateways.parents, traffic.targets());
        report.policies.extend(traffic.statuses(input, &uses));
        let names = policies.names().chain(traffic.names());
        let unused = policy_status::unused(input, names, &report.policies);
        report.notes.extend(unused);
        let crowded = policy_status::crowded(&report.policies);
        report.notes.extend(crowded);
        let senders = self.routes.backend_senders(&self.gateways.parents);
        report.backends = self.backends.statuses(input, senders);
        report.notes.extend(self.backends.notes());
        report.notes.extend(totals.notes().cloned());
        report.notes.sort();
        self.report = report;
        self.listeners = self.gateways.listeners_with(totals, &self.listeners);
        self.ports = self.gateways.ports_with(&self.listeners, &self.ports);
    }
}

/// Returns the namespaces whose ReferenceGrants changed.
fn granting(before: &Snapshot, now: &Snapshot) -> BTreeSet<String> {
    let changes = now.reference_grants.changes_since(&before.reference_grants);
    let namespaces = changes.iter().map(|change| &change.key.namespace);
    namespaces.cloned().collect()
}

/// Returns the namespaces that changed.
fn labelled(before: &Snapshot, now: &Snapshot) -> BTreeSet<String> {
    let changes = now.namespaces.changes_since(&before.namespaces);
    changes
        .iter()
        .map(|change| change.key.name.clone())
        .collect()
}

/// The inputs of every step.
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

#[cfg(test)]
mod tests;
