//! Policies that do not work as they should: sign-ins that fail, and pods that share limits and do not respond.

use std::sync::Arc;

use super::in_service::{InService, minutes};
use crate::admin::problem::{Kind, Problem};
use crate::table::Table;

/// Returns the policies whose provider does not give the tokens that they need.
pub(super) fn sign_ins(service: &InService<'_>) -> Vec<Problem> {
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
                "the provider does not accept clientID or the client secret; compare them with the provider",
            ),
            (
                tokens.unavailable,
                "the provider is away or too slow; check it, and that this pod may connect to its token endpoint",
            ),
            (
                tokens.invalid,
                "the provider sends tokens that are not valid; compare issuer and clientID with the provider, and the clock of this \
                 host",
            ),
        ];
        let most = causes.into_iter().max_by_key(|(count, _)| *count);
        let why = most.map_or("", |(_, why)| why);
        let message = format!(
            "{} of {} requests for tokens failed in the {time}: {why}",
            shares.failed, shares.all
        );
        let trouble = Problem::of_service(Kind::SignIn, policy.to_string(), message);
        troubles.push(trouble.about(&policy));
    }
    troubles
}

/// Returns the pods that share limits and do not respond.
pub(super) fn peers(table: &Table) -> Vec<Problem> {
    let group = table.limit_group();
    if !group.is_open() || !table.limiters().iter().any(|it| it.is_shared()) {
        return Vec::new();
    }
    let trouble = |name: Arc<str>| {
        let message = "does not respond to this pod: each admits its own part of the limits with scope Gateway; check that network \
                       policies permit connections between the pods to the port of --peers";
        Problem::of_service(Kind::Peer, format!("Pod {name}"), message.to_owned())
    };
    group.away().into_iter().map(trouble).collect()
}
