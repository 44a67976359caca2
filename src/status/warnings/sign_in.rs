//! Findings about sign-ins and sessions of AccessPolicies that never end, since no rule takes what browsers bring back, or what the
//! provider sends. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use http::Method;

use crate::finding::{Finding, Kind};
use crate::ir::canonical_path::CanonicalPath;
use crate::ir::oidc::Oidc;
use crate::ir::policy::{Enforced, Policies};
use crate::ir::route::Match;
use crate::ir::{Hostname, Hostnames, Listener, ObjectRef, Port, Rule};

/// The rules of a listener that a policy applies to, with their hosts.
type Rules<'a> = Vec<(&'a Hostnames, &'a Rule)>;

/// Maximum number of hosts that a finding names.
const MAX_NAMED: usize = 8;

/// Returns the findings about a listener.
pub(super) fn of_listener(port: &Port, listener: &Listener) -> Vec<Finding> {
    let sign_ins = sign_ins(listener);
    let of_policies = sign_ins.values();
    of_policies
        .flat_map(|(oidc, rules)| of_policy(port, listener, oidc, rules))
        .collect()
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
) -> impl Iterator<Item = Finding> + 'a {
    let paths = [
        Some(OwnPath {
            field: "redirectPath",
            path: &oidc.redirect_path,
            method: Method::GET,
            outcome: "browsers that come back from the provider are not signed in",
        }),
        Some(OwnPath {
            field: "logoutPath",
            path: &oidc.logout_path,
            method: Method::GET,
            outcome: "browsers cannot sign out",
        }),
        oidc.back_channel_logout_path.as_ref().map(|path| OwnPath {
            field: "backChannelLogoutPath",
            path,
            method: Method::POST,
            outcome: "the provider cannot end sessions",
        }),
    ];
    let hosts: BTreeSet<&Hostname> = rules.iter().flat_map(|(hosts, _)| hosts.iter()).collect();
    paths
        .into_iter()
        .flatten()
        .filter_map(move |OwnPath { field, path, method, outcome }| {
            let taking = Taking::of(rules, (CanonicalPath::new(path)?, &method));
            let mut lacking = hosts.iter().filter(|host| !taking.has(host));
            let named: Vec<_> = lacking.by_ref().take(MAX_NAMED).map(ToString::to_string).collect();
            let more = if lacking.next().is_some() { " and others" } else { "" };
            let (name, gateway) = (&listener.key.name, &port.gateway);
            (!named.is_empty()).then(|| {
                let cause = format!(
                    "no rule that the policy applies to matches spec.oidc.{field} {path} for host {}{more} of {gateway} listener \
                     {name}",
                    named.join(", ")
                );
                let finding = Finding::of_object(Kind::SignIn, &oidc.policy, cause);
                finding.with_effect(outcome).with_remedy("correct the path, or add a rule for it")
            })
        })
}

/// A path that the policy needs.
struct OwnPath<'a> {
    field: &'static str,
    path: &'a str,
    /// That of its requests.
    method: Method,
    /// What happens if no rule takes them.
    outcome: &'static str,
}

/// The hosts of rules that take a path.
struct Taking<'a> {
    all: BTreeSet<&'a Hostname>,
    /// Those of more than one name, which are few.
    sets: Vec<&'a Hostname>,
}

impl<'a> Taking<'a> {
    fn of(rules: &Rules<'a>, request: (CanonicalPath<'_>, &Method)) -> Self {
        let taking = rules.iter();
        let taking = taking.filter(|(_, rule)| rule.matches.iter().any(|it| takes(it, request)));
        let all: BTreeSet<_> = taking.flat_map(|(hosts, _)| hosts.iter()).collect();
        let is_set = |host: &&&Hostname| !matches!(host, Hostname::Exact(_));
        let sets = all.iter().filter(is_set).copied().collect();
        Self { all, sets }
    }

    /// Reports whether a rule takes the path for a host. With thousands of hosts, most are found by their name.
    fn has(&self, host: &Hostname) -> bool {
        let meets = |it: &&Hostname| it.intersection(host).is_some();
        self.all.contains(host)
            || match host {
                Hostname::Exact(_) => self.sets.iter().any(meets),
                Hostname::Wildcard(_) | Hostname::Any => self.all.iter().any(meets),
            }
    }
}

/// Reports whether requests for a path with a method match.
fn takes(condition: &Match, (path, method): (CanonicalPath<'_>, &Method)) -> bool {
    let Match {
        path: of_path,
        others,
    } = condition;
    // The provider chooses the query, and browsers the headers.
    let has_method = others.method.as_ref().is_none_or(|it| it == method);
    of_path.matches(path) && has_method && others.grpc.is_none()
}
