//! Tokens of OpenID providers: what sign-ins and sessions got, by policy.

use std::fmt;

use super::policy_labels::policy_labels;
use super::{Metrics, Page};

impl Metrics {
    /// What sign-ins and sessions get of OpenID providers, by policy.
    pub(super) fn token_requests(&self, page: &mut Page<'_>) -> fmt::Result {
        let sign_ins = self.table.sign_ins();
        let counts = sign_ins.iter().flat_map(|(policy, oidc)| {
            let counts = oidc.token_endpoint.counts();
            counts.map(move |(grant, outcome, count)| {
                let own = [
                    ("grant", grant.name().to_owned()),
                    ("outcome", outcome.name().to_owned()),
                ];
                (policy_labels(policy, own), count)
            })
        });
        let help = "Tokens that sign-ins and sessions needed of an OpenID provider, by outcome";
        page.counters("token_requests", help, counts)
    }
}
