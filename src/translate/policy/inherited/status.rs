//! Status of inherited policies: one entry per Gateway whose requests they apply to. Must not know what sections say,
//! nor what they loosen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ir::ObjectRef;
use crate::status::Condition;

use super::super::affected::listed;
use super::super::policy_status::{Effect, PolicyStatuses};
use super::attachments::Attachments;
use super::index;
use super::loosened::loosened;
use super::merge::Obstacle;
use super::path::Levels;
use super::policy::{Policy, Section, Target};
use super::quic::Unserved;
use super::reach::{Distinguish, Known, Reach};
use super::{InheritedPolicies, identity};
use crate::translate::changes::Changes;
use crate::translate::input::Input;
use crate::translate::reason::{ConditionType, Fault, Reason, judge, merge};
use crate::translate::report::Report;

/// Returns why requests through a Gateway cannot be sent to servers of a policy.
type ServerFaults<'a> = &'a dyn Fn(&ObjectRef, &ObjectRef) -> Vec<Fault>;

/// The statuses of all policies.
#[derive(Default)]
pub(in crate::translate) struct Statuses(PolicyStatuses);

impl Statuses {
    /// Updates what has changed.
    pub(in crate::translate) fn step(
        &mut self,
        input: &Input<'_>,
        changes: &Changes,
        (policies, server_faults): (&InheritedPolicies, ServerFaults<'_>),
        attachments: &dyn Attachments,
        report: &mut Report,
    ) {
        let index = &policies.index;
        let known = Known::new(input, index, attachments);
        let of_policy = |name: &ObjectRef| {
            let policy = index.get(name)?;
            let targets = policy.targets.iter();
            Some(Effect {
                of_gateways: of_gateways(&known, server_faults, policy),
                targets: targets.map(|target| target.object.clone()).collect(),
            })
        };
        let changed = index::changed(changes);
        self.0.step(input, changes, changed, of_policy, report);
    }
}

/// The effect of a policy on one Gateway.
#[derive(Default)]
struct OnGateway {
    faults: Vec<Fault>,
    /// Number of sections on paths that have an effect.
    effective: usize,
    /// Whether one of them has it on a target that exists, so that its credentials are used.
    uses_credentials: bool,
    obstacles: BTreeSet<String>,
    loosened: BTreeSet<String>,
    /// Limits by an identity that requests lack.
    without_identity: BTreeSet<String>,
    without_http3: Unserved,
}

/// Returns the conditions of a policy, for each Gateway.
fn of_gateways(
    known: &Known<'_>,
    server_faults: ServerFaults<'_>,
    policy: &Arc<Policy>,
) -> BTreeMap<ObjectRef, Vec<Condition>> {
    let mut gateways: BTreeMap<ObjectRef, OnGateway> = BTreeMap::new();
    let index = known.index;
    let has_http3 = matches!(policy.sections.get(&Section::Http3), Some(Ok(_)));
    let by = match policy.is_of_clients() {
        true if has_http3 => Distinguish::Quic,
        true => Distinguish::Connections,
        false => Distinguish::Requests,
    };
    for target in &policy.targets {
        let reach = Reach::new(known, target, by);
        for gateway in reach.gateways() {
            let on_gateway = gateways.entry(gateway.clone()).or_default();
            let missing = reach.is_missing.then(|| missing(policy, target));
            on_gateway.faults.extend(missing);
        }
        for path in reach.paths() {
            let levels = Levels::new(index, path, known);
            let place = (path.gateway, path.listener);
            let of_port = policy
                .is_of_clients()
                .then(|| Levels::of_port(index, place, known));
            let on_gateway = gateways.entry(path.gateway.clone()).or_default();
            on_gateway.add_path((&levels, of_port.as_ref()), policy, (target, &reach));
            let applies = |of_port: &&Levels<'_>| {
                let obstacle = of_port.obstacle(Section::Http3, policy, target);
                has_http3 && !reach.is_missing && obstacle.is_none()
            };
            if let Some(of_port) = of_port.as_ref().filter(applies) {
                let quic = known.quic(path.gateway, path.listener);
                let listener = (path.listener, &quic);
                on_gateway.without_http3.add(policy, listener, of_port);
            }
        }
    }
    let conditions = gateways.into_iter().map(|(gateway, on_gateway)| {
        let faults = server_faults(&policy.name, &gateway);
        let refusal = index.refusal(policy, &gateway);
        let conditions = on_gateway.conditions(policy, refusal, &faults);
        (gateway, conditions)
    });
    conditions.collect()
}

/// Returns the fault of a target whose listener or rule does not exist.
fn missing(policy: &Policy, target: &Target) -> Fault {
    let outcome = match policy.fails_closed() {
        true => {
            let object = &target.object;
            format!("where the policy has an effect, all requests through {object} get 500")
        }
        false => "the target is left out".to_owned(),
    };
    let message = format!("spec.targetRefs: {target} does not exist; {outcome}");
    Fault::new(Reason::TargetNotFound, message)
}

impl OnGateway {
    fn add_path(
        &mut self,
        (path, of_port): (&Levels<'_>, Option<&Levels<'_>>),
        policy: &Policy,
        (target, reach): (&Target, &Reach<'_>),
    ) {
        for section in policy.sections.keys() {
            let field = section.field();
            let of_port = of_port.filter(|_| section.is_of_connections());
            let levels = of_port.unwrap_or(path);
            match levels.obstacle(*section, policy, target) {
                None => {
                    self.effective += 1;
                    self.uses_credentials |= !reach.is_missing;
                }
                Some(Obstacle::Older(other)) => {
                    let name = &other.policy.name;
                    let place = match other.target == target {
                        true => String::new(),
                        false => format!(", which has the port of {target}"),
                    };
                    let applies = &other.target;
                    let why = format!(
                        "{field} of {name} applies to {applies}{place}: it is older, or first by name"
                    );
                    self.obstacles.insert(why);
                    continue;
                }
                Some(Obstacle::Locked(other)) => {
                    let (name, above) = (&other.policy.name, &other.target);
                    let applies = match other.section == *section {
                        true => "applies".to_owned(),
                        false => format!("locks {field}"),
                    };
                    let field = other.section.field();
                    let why = format!("{field} of {name} {applies}: strategy Overrides on {above}");
                    self.obstacles.insert(why);
                    continue;
                }
            }
            if *section == Section::Limits {
                self.without_identity
                    .extend(identity::lacking(levels, policy, target));
            }
            let loosened = loosened((path, levels), *section, (policy, target));
            self.loosened.extend(loosened);
        }
    }

    /// Returns the conditions. `refusal` says why the policy gets no credentials: what is wrong with them is not known then, and
    /// what a policy without effect would need is not reported.
    fn conditions(
        &self,
        policy: &Policy,
        refusal: Option<&Fault>,
        of_servers: &[Fault],
    ) -> Vec<Condition> {
        let generation = policy.generation;
        let is_known = |section: Section| refusal.is_none() || !section.reads_credentials();
        let refused = refusal.filter(|_| self.uses_credentials);
        let unusable = refused.map(|refusal| {
            let message = format!("{}; its requests get 500", refusal.message);
            Fault::new(refusal.reason, message)
        });
        let faults: Vec<_> = unusable
            .into_iter()
            .chain(policy.unusable(is_known))
            .chain(self.faults.iter().cloned())
            .collect();
        let unusable = merge(&faults);
        let accepted = judge(
            ConditionType::Accepted,
            Reason::Accepted,
            unusable.as_ref(),
            generation,
        );
        let of_credentials = policy.unresolved.iter().filter(|_| refusal.is_none());
        let unresolved = refused.into_iter().chain(of_credentials).chain(of_servers);
        let unresolved: Vec<_> = unresolved.cloned().collect();
        let unresolved = merge(&unresolved);
        let resolved = judge(
            ConditionType::ResolvedRefs,
            Reason::ResolvedRefs,
            unresolved.as_ref(),
            generation,
        );
        let mut conditions = vec![accepted, resolved, self.programmed(generation)];
        if !self.without_identity.is_empty() {
            let kind = ConditionType::LacksIdentity;
            let condition = Condition::holds(kind, Reason::NoAuthentication, generation);
            conditions.push(condition.with_message(listed(&self.without_identity, "; ")));
        }
        conditions.extend(self.without_http3.condition(policy));
        if !self.loosened.is_empty() {
            let kind = ConditionType::LoosensInherited;
            let condition = Condition::holds(kind, Reason::LoosensInherited, generation);
            conditions.push(condition.with_message(listed(&self.loosened, "; ")));
        }
        conditions
    }

    fn programmed(&self, generation: i64) -> Condition {
        let kind = ConditionType::Programmed;
        let why = listed(&self.obstacles, "; ");
        match (self.obstacles.is_empty(), self.effective) {
            (true, _) => Condition::holds(kind, Reason::Programmed, generation),
            (false, 0) => Condition::fails(kind, Reason::Overridden, &why, generation),
            (false, _) => {
                Condition::holds(kind, Reason::PartiallyProgrammed, generation).with_message(why)
            }
        }
    }
}
