//! Explains to people why a policy applies to requests for a backend and others do not. Makes no decisions.

use super::TlsPolicies;
use super::criterion::Criterion;
use super::policy::{Candidate, Path, Policy, PolicyTarget};
use crate::api::Resource;
use crate::api::filter::HttpFilter;
use crate::api::grpc_route::GrpcRoute;
use crate::api::http_route::HttpRoute;
use crate::api::reference::BackendRef;
use crate::api::route::{RouteResource, RouteRule};
use crate::ir::{ListenerKey, ObjectRef, RuleId};
use crate::settings::permissions::{BackendKinds, PolicyLevel};
use crate::snapshot::Listed;
use crate::translate::input::Input;

/// The policies that target a backend of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendPolicies {
    /// The backend.
    pub backend: ObjectRef,
    /// The port in the backendRef.
    pub port: Option<u16>,
    /// One entry for each target with this backend: first the policy that applies, then the others by precedence, then
    /// those that do not select these requests.
    pub policies: Vec<ConsideredPolicy>,
}

/// A policy, with the verdict on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsideredPolicy {
    /// The policy.
    pub policy: ObjectRef,
    /// The level of the target.
    pub level: PolicyLevel,
    /// The verdict.
    pub verdict: PolicyVerdict,
}

/// The verdict on a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyVerdict {
    /// It applies.
    Applies,
    /// It would apply, but requests are refused for this reason.
    Refuses(String),
    /// It selects the requests, but the one that applies takes precedence by this criterion.
    Outranked(Criterion),
    /// It selects the requests, but the operator does not permit its settings.
    NotPermitted(String),
    /// It does not select the requests, for this reason.
    OtherRequests(String),
}

impl TlsPolicies {
    /// Returns the policies that target the backends of a rule, with the verdict on each for the requests of a
    /// listener.
    pub(in crate::translate) fn of_rule(
        &self,
        input: &Input<'_>,
        rule: &RuleId,
        gateway: &ObjectRef,
        listener: &ListenerKey,
    ) -> Vec<BackendPolicies> {
        let kinds = input.kinds;
        let RuleId { route, index, name } = rule;
        let path = Path {
            route,
            rule: name.as_deref(),
            consumer: Some(&gateway.namespace),
            through: Some((gateway, Some(listener))),
        };
        let backends = backend_refs(input, route, *index)
            .iter()
            .filter(|it| kinds.is_target(&BackendKinds::All, &it.group, &it.kind));
        let of_backend = |reference: &BackendRef<HttpFilter>| {
            let backend = reference.backend().object_ref(&path.route.namespace);
            let ports = kinds.target_ports(input, &BackendKinds::All, &backend);
            let mut ports = ports.into_iter().flatten();
            let port = ports.find(|port| Some(port.port) == reference.port);
            let port = port.and_then(|port| port.name.as_deref());
            BackendPolicies {
                policies: self.explain(&backend, port, &path),
                port: reference.port,
                backend,
            }
        };
        backends.map(of_backend).collect()
    }

    /// Returns the verdict on every policy that targets a backend, for requests to a port with this name or without
    /// one.
    fn explain(
        &self,
        backend: &ObjectRef,
        port: Option<&str>,
        path: &Path<'_>,
    ) -> Vec<ConsideredPolicy> {
        let winner = self.winner(backend, port, path);
        let policies = self.0.of_backend(backend).iter();
        let targets = policies.flat_map(|policy| {
            let targets = policy.targets.iter().filter(|it| it.backend == *backend);
            targets.map(|target| (&**policy, target))
        });
        let mut considered: Vec<_> = targets
            .map(|(policy, target)| {
                let rank = policy.rank_of(target, path);
                let is_port = target.section.is_none() || target.section.as_deref() == port;
                let candidate = rank.filter(|_| is_port).map(|rank| Candidate {
                    policy,
                    target,
                    rank,
                });
                let verdict = match (&candidate, &winner) {
                    (Some(one), Some(winner)) => verdict(one, winner),
                    (Some(one), None) => not_permitted(one),
                    (None, _) => PolicyVerdict::OtherRequests(other(policy, target, port, path)),
                };
                let is_winner =
                    matches!(verdict, PolicyVerdict::Applies | PolicyVerdict::Refuses(_));
                let order = (!is_winner, candidate.is_none(), candidate.map(|it| it.rank));
                let one = ConsideredPolicy {
                    policy: policy.name.clone(),
                    level: policy.level(target),
                    verdict,
                };
                (order, one)
            })
            .collect();
        considered.sort_by_key(|(order, _)| *order);
        considered.into_iter().map(|(_, one)| one).collect()
    }
}

fn verdict(one: &Candidate<'_>, winner: &Candidate<'_>) -> PolicyVerdict {
    let Candidate {
        policy,
        target,
        rank,
    } = one;
    if std::ptr::eq(*policy, winner.policy) && std::ptr::eq(*target, winner.target) {
        return match one.settings() {
            Ok(_) => PolicyVerdict::Applies,
            Err(fault) => PolicyVerdict::Refuses(fault.message),
        };
    }
    if policy.is_passed_over(target) {
        return not_permitted(one);
    }
    PolicyVerdict::Outranked(match rank.criterion(&winner.rank) {
        Some(criterion) => criterion,
        None if policy.has_age_of(winner.policy) => Criterion::Name,
        None => Criterion::Age,
    })
}

fn not_permitted(one: &Candidate<'_>) -> PolicyVerdict {
    let fault = one.policy.forbidden(one.target);
    PolicyVerdict::NotPermitted(fault.map(|fault| fault.message).unwrap_or_default())
}

/// Returns why a target does not select requests.
fn other(policy: &Policy, target: &PolicyTarget, port: Option<&str>, path: &Path<'_>) -> String {
    if let Some(section) = target
        .section
        .as_ref()
        .filter(|it| Some(it.as_str()) != port)
    {
        return format!("it is for port {section}");
    }
    match &target.from {
        Some(from) if !from.selects(path) => format!("it is for requests of {from}"),
        _ => format!(
            "namespace {} is neither that of the Gateway nor that of the {}",
            policy.name.namespace, target.backend.kind
        ),
    }
}

/// Returns the backendRefs of a rule of a route; none if the rule does not exist.
fn backend_refs<'a>(
    input: &Input<'a>,
    route: &ObjectRef,
    rule: usize,
) -> &'a [BackendRef<HttpFilter>] {
    match &*route.kind {
        GrpcRoute::KIND => backend_refs_of::<GrpcRoute>(input, route, rule),
        _ => backend_refs_of::<HttpRoute>(input, route, rule),
    }
}

fn backend_refs_of<'a, R: Listed + RouteResource>(
    input: &Input<'a>,
    route: &ObjectRef,
    rule: usize,
) -> &'a [BackendRef<HttpFilter>] {
    let route = input.find::<R>(route);
    let rule = route.and_then(|route| route.spec().rules.get(rule));
    rule.map_or(&[], |rule| rule.references().1)
}
