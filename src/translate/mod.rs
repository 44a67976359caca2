//! Translates a snapshot into the IR and the status report. Pure and total: the same input gives the same bytes, and no
//! object causes a panic. Must not know clocks, randomness, files, sockets or clusters.

mod affecting;
mod backend;
mod budgets;
mod changes;
pub mod closure;
mod config_map;
mod consumer;
mod duration;
mod endpoints;
mod filter;
mod gateway;
mod http_match;
mod input;
mod keys;
mod links;
mod media_type;
mod memo;
mod patterns;
mod policy;
mod policy_servers;
mod protocol;
mod reason;
mod reference_grant;
mod registry;
mod report;
mod retry;
mod route;
mod served;
mod size;
mod source;
mod telemetry;
mod timeouts;
mod unknown_field;

use std::sync::Arc;

use imbl::OrdMap;

use crate::ir::packed::packed;
use crate::ir::{Ir, ListenerKey, ObjectRef, RuleId};
use crate::provision::data_plane::DataPlane;
use crate::snapshot::Snapshot;
use crate::status::StatusReport;

pub use self::backend::{backend_kinds, watched_kinds};
pub use self::policy::backend_tls::{BackendPolicies, ConsideredPolicy, Criterion, PolicyVerdict};
pub use self::policy::inherited::access::discovery::read_discovery;
pub use self::policy::inherited::access::key_backend::{KeyServer, key_backends_may_differ};
pub use self::policy::inherited::access::remote::{
    KeySetSource, WantedKeySet, WantedKeySets, check_key_set, key_set_users,
};
pub use self::route::shadow::{Shadowed, shadowed};

use self::backend::Backends;
use self::changes::Changes;
use self::gateway::gateways::Gateways;
use self::gateway::parameters;
use self::input::Input;
pub use self::input::{CONTROLLER_NAME, Mode, Options};
use self::policy::{backend_policy, backend_tls, inherited, traffic_policy};
use self::policy_servers::PolicyServers;
use self::registry::Registry;
use self::report::Report;
use self::route::routes::Routes;
use self::route::routes::requests::RouteRequests;
use self::telemetry::{Served, TelemetryPolicies};

/// The result of a translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The configuration to serve.
    pub ir: Ir,
    /// The status of the objects.
    pub report: StatusReport,
    /// The data planes that Gateways need, with [`Mode::Dedicated`] only. A Gateway that is in the report but not here
    /// keeps its data plane: its class or its parameters are invalid, which may be temporary.
    pub data_planes: OrdMap<ObjectRef, Arc<DataPlane>>,
}

/// Translates all objects. `previous` is the IR that is being served: if a Secret becomes invalid, its last good
/// certificate is taken from there.
pub fn translate(snapshot: &Snapshot, previous: Option<&Ir>, options: &Options) -> Translation {
    Translator::new(options.clone()).translate(snapshot, previous)
}

/// Returns the key sets that the policies of a snapshot need. The oldest policies of a namespace come first if it has too
/// many.
pub fn wanted_key_sets(snapshot: &Snapshot, options: &Options) -> WantedKeySets {
    let input = Input::new(snapshot, None, options, &Registry);
    inherited::access::remote::wanted_key_sets(snapshot, &input)
}

/// Translates one snapshot after the other incrementally. Each result equals that of [`translate`]. Equal parts of
/// consecutive results are the same `Arc`, so that later steps can compare pointers.
///
/// Each step keeps its outputs, and computes those again of which a source has changed (`memo.rs`).
pub struct Translator {
    options: Options,
    /// The snapshot from which the fields below were computed.
    snapshot: Snapshot,
    inherited: inherited::InheritedPolicies,
    credentials: inherited::Credentials,
    gateways: Gateways,
    backends: Backends,
    routes: Routes,
    policy_servers: PolicyServers,
    inherited_statuses: inherited::Statuses,
    tls_statuses: backend_tls::Statuses,
    traffic_statuses: traffic_policy::Statuses,
    backend_policy_statuses: backend_policy::Statuses,
    telemetry: TelemetryPolicies,
    report: Report,
}

impl Translator {
    /// Creates a translator.
    pub fn new(options: Options) -> Self {
        Self {
            snapshot: Snapshot::default(),
            inherited: inherited::InheritedPolicies::default(),
            credentials: inherited::Credentials::default(),
            gateways: Gateways::default(),
            backends: Backends::new(&options),
            routes: Routes::new(),
            policy_servers: PolicyServers::default(),
            inherited_statuses: inherited::Statuses::default(),
            tls_statuses: backend_tls::Statuses::default(),
            traffic_statuses: traffic_policy::Statuses::default(),
            backend_policy_statuses: backend_policy::Statuses::default(),
            telemetry: TelemetryPolicies::default(),
            report: Report::default(),
            options,
        }
    }

    /// Translates all objects, as [`translate`] does.
    pub fn translate(&mut self, snapshot: &Snapshot, previous: Option<&Ir>) -> Translation {
        let known = std::mem::replace(&mut self.snapshot, snapshot.clone());
        let mut changes = Changes::between(known, snapshot);
        let changes = &mut changes;
        let input = &Input::new(snapshot, previous, &self.options, &Registry);
        let report = &mut self.report;
        let is_first = report.statuses.routes.is_empty();
        parameters::step(input, changes, report);
        self.inherited.step(input, changes);
        let policies = &self.inherited;
        self.gateways.step(input, policies, changes, report);
        let parents = &self.gateways.parents;
        // Before routes, which resolve their references against the present backends.
        self.backends.step(input, changes);
        let (routes, backends) = (&mut self.routes, &mut self.backends);
        routes.step(input, parents, policies, backends, changes, report);
        let requests = &RouteRequests {
            input,
            routes,
            parents,
            policies,
        };
        let decided = self.credentials.step(input, changes, policies, requests);
        let refusals = self.credentials.refusals(decided.policies);
        if let Some(mut refused) = self.inherited.refuse(refusals) {
            // Where routes are attached decides what policies may bring, which decides what they require there.
            let policies = &self.inherited;
            routes.step(input, parents, policies, backends, &mut refused, report);
            changes.extend(refused);
        }
        let policies = &self.inherited;
        self.telemetry
            .step(input, changes, parents, backends, report);
        let requests = &RouteRequests {
            input,
            routes,
            parents,
            policies,
        };
        let servers = &mut self.policy_servers;
        servers.step(input, changes, policies, (requests, parents), backends);
        backends.appoint(input, changes);
        let server_faults =
            |policy: &ObjectRef, gateway: &ObjectRef| servers.faults(input, policy, gateway);
        self.tls_statuses
            .step(input, changes, &backends.tls, requests, report);
        self.traffic_statuses
            .step(input, changes, &backends.traffic, requests, report);
        let of_backends = (&backends.policies, &backends.traffic);
        self.backend_policy_statuses
            .step(input, changes, of_backends, requests, report);
        self.inherited_statuses
            .step(input, changes, (policies, &server_faults), requests, report);
        let senders = |backend: &_| routes.backend_senders(parents, backend);
        backends.report(input, changes, senders, report);
        let changed = routes.totals.take_changed();
        let totals = routes.totals.listeners();
        self.gateways.assemble(changed, totals, report);
        if is_first && !report.statuses.routes.is_empty() {
            report.statuses.routes = packed(&report.statuses.routes);
            backends.pack();
        }
        let Served {
            tracing,
            access_logs,
        } = self.telemetry.served();
        Translation {
            ir: Ir {
                ports: self.gateways.ports(),
                backends: backends.served(),
                tracing,
                access_logs,
                policy_servers: self.policy_servers.served(),
            },
            report: report.current(),
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
        let input = Input::new(&self.snapshot, None, &self.options, &Registry);
        policies.of_rule(&input, rule, gateway, listener)
    }
}

#[cfg(test)]
mod tests;
