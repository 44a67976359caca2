//! The world of the tests of time, which sources of objects share: a cluster whose writes are numbered from 1, odd ones are
//! policies, and each is for the hostname that the next write adds. And the judge of what is published.

use serde_json::{Value, json};

use crate::snapshot::Snapshot;

/// The address that all policies refuse.
pub(crate) const REFUSED: &str = "192.0.2.1";

/// Reports whether a write is that of a policy.
pub(crate) fn is_policy(version: u64) -> bool {
    version % 2 == 1
}

/// Returns the hostname of a route, which is the name of the policy for it.
pub(crate) fn name(version: u64) -> String {
    format!("h{}", version.div_ceil(2))
}

/// Returns the spec of a policy. Half of the policies need a Secret that may not be there.
pub(crate) fn policy(version: u64) -> Value {
    match version % 4 {
        1 => json!({"basic": {"secretRef": {"name": name(version)}}}),
        _ => json!({"ipRules": {"deny": [REFUSED]}}),
    }
}

/// Returns the first hostname that is published without its policy.
pub(crate) fn unprotected(published: &Snapshot) -> Option<String> {
    let routes = published.http_routes.iter();
    let mut hostnames = routes.filter_map(|route| route.spec.hostnames.first());
    let lacks_policy = |hostname: &str| {
        let policy = published.access_policies.get("default", hostname);
        policy.is_none()
    };
    let found = hostnames.find(|hostname| lacks_policy(hostname));
    found.map(ToString::to_string)
}
