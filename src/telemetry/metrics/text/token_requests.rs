//! Tokens of OpenID providers: what sign-ins and sessions got, by policy.

use std::fmt;

use super::{Metrics, Page};

impl Metrics {
    /// What sign-ins and sessions get of OpenID providers, by policy.
    pub(super) fn token_requests(&self, page: &mut Page<'_>) -> fmt::Result {
        let sign_ins = self.table.sign_ins();
        let counts = sign_ins.iter().flat_map(|(policy, oidc)| {
            let counts = oidc.token_endpoint.counts();
            counts.map(|(grant, outcome, count)| {
                let labels = [
                    ("namespace", policy.namespace.to_string()),
                    ("policy", policy.name.to_string()),
                    ("grant", grant.name().to_owned()),
                    ("outcome", outcome.name().to_owned()),
                ];
                (labels, count)
            })
        });
        let help = "Tokens that sign-ins and sessions needed of an OpenID provider, by outcome";
        page.counters("token_requests", help, counts)
    }
}
