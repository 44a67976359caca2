//! Status of inherited policies: one entry per Gateway whose requests they apply to. Must not know what sections say,
//! nor what they loosen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ir::sharing::Text;
use crate::ir::{ListenerKey, ObjectRef};
use crate::status::Condition;

use super::super::affected::listed;
use super::super::policy_status::PolicyStatuses;
use super::attachments::Attachments;
use super::index::{self, Index};
use super::loosened::loosened;
use super::merge::Obstacle;
use super::path::{Levels, Path, Sections};
use super::policy::{Policy, Section, Target};
use super::{InheritedPolicies, identity, is_route};
use crate::translate::changes::Changes;
use crate::translate::input::Input;
use crate::translate::reason::{ConditionType, Fault, Reason, judge, merge};
use crate::translate::report::Report;
use crate::translate::source::Source;

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
        let of_policy = |name: &ObjectRef| {
            let policy = index.get(name)?;
            Some(of_gateways(
                input,
                (index, server_faults),
                policy,
                attachments,
            ))
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
    obstacles: BTreeSet<String>,
    loosened: BTreeSet<String>,
    /// Limits by an identity that requests lack.
    without_identity: BTreeSet<String>,
}

/// The sections of targets as routes and Gateways have them.
struct Existing<'a>(&'a dyn Attachments);

impl Sections for Existing<'_> {
    fn has(&self, object: &ObjectRef, section: &str) -> bool {
        match is_route(object) {
            true => self
                .0
                .rule_names_of(object)
                .iter()
                .any(|it| **it == *section),
            false => {
                let listeners = self.0.listeners_of(object);
                listeners.iter().any(|(_, key)| *key.name == *section)
            }
        }
    }

    fn on_port_of(&self, gateway: &ObjectRef, listener: &ListenerKey) -> Vec<Text> {
        self.0.on_port_of(gateway, listener)
    }
}

/// Returns the conditions of a policy, for each Gateway.
fn of_gateways(
    input: &Input<'_>,
    (index, server_faults): (&Index, ServerFaults<'_>),
    policy: &Arc<Policy>,
    attachments: &dyn Attachments,
) -> BTreeMap<ObjectRef, Vec<Condition>> {
    let mut gateways: BTreeMap<ObjectRef, OnGateway> = BTreeMap::new();
    for target in &policy.targets {
        let object = &target.object;
        input.read(|| Source::Object(object.clone()));
        input.read(|| Source::PoliciesOn(object.clone()));
        let listeners = attachments.listeners_of(object);
        let exists = |section| Existing(attachments).has(object, section);
        let missing = target.section.as_deref().filter(|name| !exists(name));
        let of_gateways: BTreeSet<_> = listeners.iter().map(|(gateway, _)| gateway).collect();
        for gateway in of_gateways {
            let on_gateway = gateways.entry(gateway.clone()).or_default();
            on_gateway.faults.extend(missing.map(|_| {
                let outcome = match policy.fails_closed() {
                    true => format!(
                        "where the policy has an effect, all requests through {object} get 500"
                    ),
                    false => "the target is left out".to_owned(),
                };
                let message = format!("spec.targetRefs: {target} does not exist; {outcome}");
                Fault::new(Reason::TargetNotFound, message)
            }));
        }
        for (gateway, listener) in &listeners {
            if is_other_listener(target, listener) && missing.is_none() {
                continue;
            }
            input.read(|| Source::PoliciesOn(gateway.clone()));
            input.read(|| Source::PoliciesOn(listener.origin.clone()));
            let rule = target.section.as_ref().filter(|_| missing.is_none());
            let path = Path {
                gateway,
                listener,
                route: is_route(object).then_some((object, rule)),
            };
            let existing = &Existing(attachments);
            let levels = Levels::new(index, path, existing);
            let of_port =
                (!policy.protects).then(|| Levels::of_port(index, (gateway, listener), existing));
            let on_gateway = gateways.entry(gateway.clone()).or_default();
            on_gateway.add_path((&levels, of_port.as_ref()), policy, target);
        }
    }
    let conditions = gateways.into_iter().map(|(gateway, on_gateway)| {
        let faults = server_faults(&policy.name, &gateway);
        (gateway, on_gateway.conditions(policy, &faults))
    });
    conditions.collect()
}

/// Reports whether a target names another listener of the same object.
fn is_other_listener(target: &Target, listener: &ListenerKey) -> bool {
    let section = target.section.as_deref();
    listener.origin == target.object && section.is_some_and(|name| *name != *listener.name)
}

impl OnGateway {
    fn add_path(
        &mut self,
        (path, of_port): (&Levels<'_>, Option<&Levels<'_>>),
        policy: &Policy,
        target: &Target,
    ) {
        for section in policy.sections.keys() {
            let field = section.field();
            let of_port = of_port.filter(|_| section.is_of_connections());
            let levels = of_port.unwrap_or(path);
            match levels.obstacle(*section, policy, target) {
                None => self.effective += 1,
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

    fn conditions(&self, policy: &Policy, of_servers: &[Fault]) -> Vec<Condition> {
        let generation = policy.generation;
        let faults = [policy.unusable().as_slice(), &self.faults].concat();
        let unusable = merge(&faults);
        let accepted = judge(
            ConditionType::Accepted,
            Reason::Accepted,
            unusable.as_ref(),
            generation,
        );
        let unresolved = policy.unresolved.iter().chain(of_servers);
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
