//! Policies on TLS to backends in words: which one applies, and why others do not.

use crate::translate::{BackendPolicies, ConsideredPolicy, Criterion, PolicyVerdict};

/// One line per policy and target.
pub(super) fn policies(backends: &[BackendPolicies]) -> Vec<String> {
    backends.iter().flat_map(of_backend).collect()
}

fn of_backend(policies: &BackendPolicies) -> Vec<String> {
    let BackendPolicies {
        backend,
        port,
        policies,
    } = policies;
    if policies.is_empty() {
        return Vec::new();
    }
    let port = port.map_or_else(String::new, |port| format!(":{port}"));
    let of_policy = |one| format!("  {}", considered(one));
    let lines = policies.iter().map(of_policy);
    std::iter::once(format!("{backend}{port}"))
        .chain(lines)
        .collect()
}

fn considered(one: &ConsideredPolicy) -> String {
    let ConsideredPolicy {
        policy,
        level,
        verdict,
    } = one;
    let outcome = match verdict {
        PolicyVerdict::Applies => "applies".to_owned(),
        PolicyVerdict::Refuses(why) => format!("refuses requests with 500: {why}"),
        PolicyVerdict::Outranked(criterion) => {
            format!("goes after the one that applies: {}", outranked(*criterion))
        }
        PolicyVerdict::NotPermitted(why) => format!("is passed over: {why}"),
        PolicyVerdict::OtherRequests(why) => format!("does not mean this request: {why}"),
    };
    format!("{policy} (level {level}) {outcome}")
}

fn outranked(criterion: Criterion) -> &'static str {
    match criterion {
        Criterion::Level => "that one has a more precise level",
        Criterion::FromSection => "that one names a section in from",
        Criterion::Port => "that one names a port",
        Criterion::Age => "that one is older",
        Criterion::Name => "the name of that one comes first",
    }
}
