//! Text for TLS policies of backends: which one applies, and why others do not.

use crate::translate::{BackendPolicies, ConsideredPolicy, Criterion, PolicyVerdict};

/// Describes the policies of each backend, one line per policy and target.
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
        PolicyVerdict::Refuses(why) => {
            format!("applies but cannot be used, so that requests get 500: {why}")
        }
        PolicyVerdict::Outranked(criterion) => {
            format!("has lower precedence: {}", outranked(*criterion))
        }
        PolicyVerdict::NotPermitted(why) => format!("is ignored: {why}"),
        PolicyVerdict::OtherRequests(why) => format!("does not select this request: {why}"),
    };
    format!("{policy} (level {level}) {outcome}")
}

fn outranked(criterion: Criterion) -> &'static str {
    match criterion {
        Criterion::Level => "the policy that applies has a more specific level",
        Criterion::FromSection => "the policy that applies names a section in from",
        Criterion::Port => "the policy that applies names a port",
        Criterion::Age => "the policy that applies is older",
        Criterion::Name => "the policy that applies is first by name",
    }
}
