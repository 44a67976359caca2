//! Policies that do not work as they should: sign-ins that fail, and pods that share limits and do not respond.

use std::sync::Arc;

use super::in_service::{InService, minutes};
use crate::finding::{Finding, Kind};
use crate::table::Table;

/// Returns the policies whose provider does not give the tokens that they need.
pub(super) fn sign_ins(service: &InService<'_>) -> Vec<Finding> {
    let time = minutes(service.before.process.age());
    let mut troubles = Vec::new();
    for (policy, oidc) in service.table.sign_ins() {
        let tokens = service.before.tokens(&policy, &oidc);
        let shares = tokens.shares();
        if !shares.are_failing() {
            continue;
        }
        let causes = [
            (
                tokens.rejected,
                "the provider does not accept clientID or the client secret",
                "compare them with the provider",
            ),
            (
                tokens.unavailable,
                "the provider is away or too slow",
                "check it, and that this pod may connect to its token endpoint",
            ),
            (
                tokens.invalid,
                "the provider sends tokens that are not valid",
                "compare issuer and clientID with the provider, and the clock of this host",
            ),
        ];
        let most = causes.into_iter().max_by_key(|(count, ..)| *count);
        let (_, why, remedy) = most.unwrap_or_default();
        let cause = format!(
            "{} of {} requests for tokens failed in the {time}: {why}",
            shares.failed, shares.all
        );
        let trouble = Finding::of_service(Kind::SignIn, policy.to_string(), cause);
        troubles.push(trouble.with_remedy(remedy).about(&policy));
    }
    troubles
}

/// Returns the pods that share limits and do not respond.
pub(super) fn peers(table: &Table) -> Vec<Finding> {
    let group = table.limit_group();
    if !group.is_open() || !table.limiters().iter().any(|it| it.is_shared()) {
        return Vec::new();
    }
    let trouble = |name: Arc<str>| {
        let cause = "does not respond to this pod".to_owned();
        Finding::of_service(Kind::Peer, format!("Pod {name}"), cause)
            .with_effect("each admits its own part of the limits with scope Gateway")
            .with_remedy(
                "check that network policies permit connections between the pods to the port of --peers",
            )
    };
    group.away().into_iter().map(trouble).collect()
}
