//! TelemetryPolicies: which of them applies to a Gateway, the collector that it names, and its status. Keeps policies from
//! one translation to the next.

mod access_log;
mod settings;
mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::Resource;
use crate::api::gateway::Gateway;
use crate::api::reference::BackendObjectRef;
use crate::api::telemetry_policy::{TelemetryPolicy, TelemetrySpec};
use crate::ir::Time;
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::ir::telemetry::{OtlpProtocol, Tracing};
use crate::ir::{BackendId, GatewayLog, ObjectRef, RouteKind};
use crate::status::Condition;

use self::access_log::gateway_log;
use self::settings::{TracingSettings, settings};
use super::policy::index::{PolicyIndex, TargetPolicy};
use super::policy::policy_status::{Effect, PolicyStatuses, conflict};
use crate::translate::backend::{Backends, Resolution};
use crate::translate::changes::Changes;
use crate::translate::consumer::{Consumer, Requests};
use crate::translate::gateway::attachment::Parents;
use crate::translate::input::Input;
use crate::translate::memo::Memo;
use crate::translate::reason::{ConditionType, Fault, Reason, judge};
use crate::translate::report::Report;
use crate::translate::source::Source;

const COLLECTOR: &str = "spec.tracing.provider.backendRef";

/// The telemetry policies of a snapshot, with what they configure.
pub(in crate::translate) struct TelemetryPolicies {
    policies: PolicyIndex<Policy>,
    /// By Gateway.
    outputs: Memo<Output>,
    statuses: PolicyStatuses,
    served: Served,
}

/// What the policy of a Gateway configures.
#[derive(PartialEq, Eq)]
struct Output {
    /// What is traced, or why the collector cannot be used.
    tracing: Result<Option<Arc<Tracing>>, Fault>,
    log: Option<Arc<GatewayLog>>,
}

/// What policies configure, by Gateway.
#[derive(Clone, Default)]
pub(in crate::translate) struct Served {
    /// What is traced.
    pub(in crate::translate) tracing: Arc<BTreeMap<ObjectRef, Arc<Tracing>>>,
    /// What the access log has.
    pub(in crate::translate) access_logs: Arc<BTreeMap<ObjectRef, Arc<GatewayLog>>>,
}

impl Served {
    fn replace(&mut self, gateway: &ObjectRef, output: Option<&Output>) {
        let tracing = output.and_then(|it| it.tracing.as_ref().ok()?.as_ref());
        set(&mut self.tracing, gateway, tracing);
        let log = output.and_then(|it| it.log.as_ref());
        set(&mut self.access_logs, gateway, log);
    }
}

/// Sets or removes the value of a Gateway. Does not copy the map if it has no value for it.
fn set<T>(
    of_gateways: &mut Arc<BTreeMap<ObjectRef, Arc<T>>>,
    gateway: &ObjectRef,
    value: Option<&Arc<T>>,
) {
    match value {
        Some(value) => drop(Arc::make_mut(of_gateways).insert(gateway.clone(), value.clone())),
        None if of_gateways.contains_key(gateway) => {
            drop(Arc::make_mut(of_gateways).remove(gateway));
        }
        None => {}
    }
}

/// A parsed telemetry policy.
struct Policy {
    name: ObjectRef,
    generation: i64,
    created: Option<Time>,
    gateways: BTreeSet<ObjectRef>,
    /// The fault if the policy cannot be applied.
    settings: Result<Settings, Fault>,
}

/// The settings of a policy.
struct Settings {
    /// `None` if nothing is traced.
    tracing: Option<TracingSettings>,
    log: Option<Arc<GatewayLog>>,
}

impl TargetPolicy for Policy {
    fn name(&self) -> &ObjectRef {
        &self.name
    }

    fn backends(&self) -> BTreeSet<&ObjectRef> {
        self.gateways.iter().collect()
    }

    fn source(gateway: ObjectRef) -> Source {
        Source::TelemetryPolicyOf(gateway)
    }

    fn created(&self) -> Option<Time> {
        self.created
    }
}

impl Default for TelemetryPolicies {
    fn default() -> Self {
        Self {
            policies: PolicyIndex::default(),
            outputs: Memo::default(),
            statuses: PolicyStatuses::unused_means("no served Gateway is in spec.targetRefs"),
            served: Served::default(),
        }
    }
}

impl TelemetryPolicies {
    /// Updates what has changed, and the status of policies.
    pub(in crate::translate) fn step(
        &mut self,
        input: &Input<'_>,
        changes: &mut Changes,
        parents: &Parents,
        backends: &mut Backends,
        report: &mut Report,
    ) {
        let read = |name: &ObjectRef| {
            let object = input.find::<TelemetryPolicy>(name)?;
            Some(Policy::read(object))
        };
        let changed = changes.of::<TelemetryPolicy>();
        self.policies.step(input, changes, changed, read);
        self.step_gateways(input, changes, parents, backends);
        let mut statuses = std::mem::take(&mut self.statuses);
        let of_policy = |name: &ObjectRef| {
            let policy = self.policies.get(name)?;
            let gateways = policy.gateways.iter().filter(|gateway| {
                input.read(|| Source::ListenersOf((*gateway).clone()));
                parents.sender(gateway).is_some()
            });
            let conditions = |gateway: &ObjectRef| self.conditions(input, policy, gateway);
            let of_gateways = gateways.map(|gateway| (gateway.clone(), conditions(gateway)));
            Some(Effect {
                of_gateways: of_gateways.collect(),
                targets: policy.gateways.iter().cloned().collect(),
            })
        };
        let changed = changes.of::<TelemetryPolicy>();
        statuses.step(input, changes, changed, of_policy, report);
        self.statuses = statuses;
    }

    /// Returns what policies configure, by Gateway.
    pub(in crate::translate) fn served(&self) -> Served {
        self.served.clone()
    }

    fn step_gateways(
        &mut self,
        input: &Input<'_>,
        changes: &mut Changes,
        parents: &Parents,
        backends: &mut Backends,
    ) {
        let mut names = self.outputs.outdated(changes);
        let targeted = changes.sources().iter().filter_map(|source| match source {
            Source::TelemetryPolicyOf(gateway) => Some(gateway.clone()),
            _ => None,
        });
        names.extend(targeted);
        for gateway in names {
            let computed = input.reading(|| self.of_gateway(input, &gateway, parents, backends));
            let collector = |output: Option<&Output>| -> Option<BackendId> {
                let tracing = output?.tracing.as_ref().ok()?.as_ref()?;
                Some(tracing.collector.clone())
            };
            if let Some(collector) = collector(computed.0.as_ref()) {
                backends.claim(&collector, true);
            }
            let previous = self.outputs.replace(&gateway, computed).previous;
            if let Some(collector) = collector(previous.as_ref()) {
                backends.release(&collector, true);
            }
            self.served.replace(&gateway, self.outputs.get(&gateway));
            changes.announce(Source::TracingOf(gateway));
        }
    }

    /// Returns what the policy of a Gateway configures; `None` without a policy or a listener.
    fn of_gateway(
        &self,
        input: &Input<'_>,
        gateway: &ObjectRef,
        parents: &Parents,
        backends: &mut Backends,
    ) -> Option<Output> {
        input.read(|| Source::TelemetryPolicyOf(gateway.clone()));
        input.read(|| Source::ListenersOf(gateway.clone()));
        let policy = self.policies.of_backend(gateway).first()?;
        let consumer = &parents[parents.of_gateway(gateway).next()?].consumer;
        let has_set = |set: &ObjectRef| parents.has_set(input, gateway, set);
        let Settings { tracing, log } = policy.settings.as_ref().ok()?;
        let tracing = tracing.as_ref().map(|settings| {
            let of_gateway = (gateway, consumer);
            traced(input, (policy, settings), of_gateway, &has_set, backends)
        });
        Some(Output {
            tracing: tracing.transpose(),
            log: log.clone(),
        })
    }

    fn conditions(
        &self,
        input: &Input<'_>,
        policy: &Policy,
        gateway: &ObjectRef,
    ) -> Vec<Condition> {
        input.read(|| Source::TelemetryPolicyOf(gateway.clone()));
        input.read(|| Source::TracingOf(gateway.clone()));
        let winner = self.policies.of_backend(gateway).first();
        let other = winner.filter(|winner| winner.name != policy.name);
        let conflict = other.map(|winner| conflict(&winner.name, gateway));
        let fault = policy.settings.as_ref().err().or(conflict.as_ref());
        let (accepted, resolved) = (ConditionType::Accepted, ConditionType::ResolvedRefs);
        let mut conditions = vec![judge(accepted, Reason::Accepted, fault, policy.generation)];
        if fault.is_none() {
            let unresolved = self.outputs.get(gateway);
            let unresolved = unresolved.and_then(|it| it.tracing.as_ref().err());
            let reason = Reason::ResolvedRefs;
            conditions.push(judge(resolved, reason, unresolved, policy.generation));
        }
        conditions
    }
}

impl Policy {
    fn read(object: &TelemetryPolicy) -> Self {
        let TelemetryPolicy { metadata, spec } = object;
        let gateways = spec.target_refs.iter();
        let gateways = gateways.filter(|it| it.group == GATEWAY_GROUP && it.kind == Gateway::KIND);
        let gateways =
            gateways.map(|it| ObjectRef::gateway_api(&it.kind, &metadata.namespace, &it.name));
        Self {
            name: object.object_ref(),
            generation: metadata.generation,
            created: metadata.creation_timestamp,
            gateways: gateways.collect(),
            settings: Settings::read(spec).map_err(|fault| {
                let message = format!("{}; the policy is not applied", fault.message);
                Fault::new(Reason::Invalid, message)
            }),
        }
    }
}

impl Settings {
    fn read(spec: &TelemetrySpec) -> Result<Self, Fault> {
        Ok(Self {
            tracing: settings(spec)?,
            log: gateway_log(spec.access_log.as_ref())?,
        })
    }
}

/// Returns what a policy traces of the requests through a Gateway, or why its collector cannot be used.
fn traced(
    input: &Input<'_>,
    (policy, settings): (&Policy, &TracingSettings),
    (gateway, consumer): (&ObjectRef, &Consumer),
    has_set: &dyn Fn(&ObjectRef) -> bool,
    backends: &mut Backends,
) -> Result<Arc<Tracing>, Fault> {
    let name = settings.backend_ref.object_ref(&policy.name.namespace);
    input.read(|| Source::Backend(name.clone()));
    let requests = Requests {
        route: &policy.name,
        rule: None,
        kind: match settings.protocol {
            OtlpProtocol::Http => RouteKind::Http,
            OtlpProtocol::Grpc => RouteKind::Grpc,
        },
        consumer: Some(consumer),
        of_all_listeners: Some(has_set),
    };
    let BackendObjectRef { port, .. } = settings.backend_ref;
    match backends.resolve(input, &requests, &name, port, COLLECTOR)? {
        Resolution::Backend(backend) => {
            let tracing = settings.tracing(&policy.name, &backend.id, gateway);
            Ok(Arc::new(tracing))
        }
        Resolution::Refused(why) => Err(Fault::new(Reason::BackendNotFound, why)),
    }
}
