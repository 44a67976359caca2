//! Warnings about sign-ins of AccessPolicies that never end, since no rule takes what browsers bring back. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use http::Method;

use super::warnings::Warning;
use crate::ir::oidc::Oidc;
use crate::ir::policy::{Enforced, Policies};
use crate::ir::route::{Match, PathMatch};
use crate::ir::{Hostname, Hostnames, Ir, Listener, ObjectRef, Port, Rule};

/// The rules of a listener that a policy applies to, with their hosts.
type Rules<'a> = Vec<(&'a Hostnames, &'a Rule)>;

/// Returns the warnings about all listeners.
pub(super) fn of(ir: &Ir) -> BTreeSet<Warning> {
    let mut warnings = BTreeSet::new();
    for port in &ir.ports {
        for listener in &port.listeners {
            for (oidc, rules) in sign_ins(listener).values() {
                warnings.extend(of_policy(port, listener, oidc, rules));
            }
        }
    }
    warnings
}

/// Returns the policies that have browsers sign in, and the rules that they apply to.
fn sign_ins(listener: &Listener) -> BTreeMap<&ObjectRef, (&Arc<Oidc>, Rules<'_>)> {
    let mut found: BTreeMap<_, (_, Rules<'_>)> = BTreeMap::new();
    for attached in listener.routes.iter() {
        for (index, rule) in attached.route.rules.iter().enumerate() {
            let own = attached.route.policies.as_ref();
            let own = own.and_then(|policies| policies.get(index));
            let policies = own.or(listener.policies.as_ref());
            if let Some(oidc) = policies.and_then(|it| oidc(it)) {
                let (_, rules) = found
                    .entry(&oidc.policy)
                    .or_insert_with(|| (oidc, Vec::new()));
                rules.push((&attached.hostnames, rule));
            }
        }
    }
    found
}

fn oidc(policies: &Policies) -> Option<&Arc<Oidc>> {
    match policies.authentication.as_ref()? {
        Enforced::Valid(authentication) => authentication.oidc.as_ref(),
        Enforced::Broken(_) => None,
    }
}

fn of_policy<'a>(
    port: &'a Port,
    listener: &'a Listener,
    oidc: &'a Oidc,
    rules: &'a Rules<'a>,
) -> impl Iterator<Item = Warning> + 'a {
    let paths = [
        (
            "redirectPath",
            &oidc.redirect_path,
            "browsers that come back from the provider are not signed in",
        ),
        ("logoutPath", &oidc.logout_path, "browsers cannot sign out"),
    ];
    let hosts: BTreeSet<&Hostname> = rules.iter().flat_map(|(hosts, _)| hosts.iter()).collect();
    paths
        .into_iter()
        .filter_map(move |(field, path, outcome)| {
            let is_taken = |host: &Hostname| {
                let has_host =
                    |hosts: &Hostnames| hosts.iter().any(|it| it.intersection(host).is_some());
                let mut taking = rules.iter().filter(|(hosts, _)| has_host(hosts));
                taking.any(|(_, rule)| rule.matches.iter().any(|it| takes(it, path)))
            };
            let lacking = hosts.iter().filter(|host| !is_taken(host));
            let lacking: Vec<_> = lacking.map(ToString::to_string).collect();
            let (name, gateway) = (&listener.key.name, &port.gateway);
            (!lacking.is_empty()).then(|| Warning {
                object: Some(oidc.policy.clone()),
                message: format!(
                    "no rule that the policy applies to matches spec.oidc.{field} {path} for host {} of {gateway} listener {name}: {outcome}",
                    lacking.join(", ")
                ),
            })
        })
}

/// Reports whether requests of browsers for a path match.
fn takes(condition: &Match, path: &str) -> bool {
    let Match {
        path: of_path,
        others,
    } = condition;
    let has_path = match of_path {
        PathMatch::Exact(exact) => **exact == *path,
        PathMatch::Prefix(prefix) => {
            let rest = path.strip_prefix(&**prefix);
            rest.is_some_and(|it| it.is_empty() || it.starts_with('/'))
        }
        PathMatch::Regex(pattern) => pattern.matches(path),
        PathMatch::Call(_) => false,
    };
    // The provider chooses the query, and browsers the headers.
    let is_of_browsers = others.method.as_ref().is_none_or(|it| *it == Method::GET);
    has_path && is_of_browsers && others.grpc.is_none()
}
