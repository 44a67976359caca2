//! Text for the traffic policy of a backend.

use crate::ir::session::{Carrier, SessionPersistence};
use crate::ir::traffic::{RetryBudget, TrafficPolicy};

/// Describes the policy, one line per setting. A rule with `sessionPersistence` does not use the policy's sessions.
pub(super) fn policy(policy: &TrafficPolicy, has_rule_session: bool) -> Vec<String> {
    let TrafficPolicy {
        policy: name,
        retry_budget,
        session,
    } = policy;
    let budget = retry_budget.as_ref().map(budget);
    let session = session.as_ref().map(|session| match has_rule_session {
        true => "sessions: not used, because the rule has sessionPersistence".to_owned(),
        false => sessions(session),
    });
    let settings = budget.into_iter().chain(session);
    settings
        .map(|setting| format!("{name}: {setting}"))
        .collect()
}

fn budget(budget: &RetryBudget) -> String {
    let RetryBudget {
        percent,
        interval,
        min_retries,
        min_interval,
    } = budget;
    format!(
        "retries up to {percent} % of the requests in {interval:?}, but always at least {min_retries} in {min_interval:?}"
    )
}

fn sessions(session: &SessionPersistence) -> String {
    match &session.carrier {
        Carrier::Cookie { name, .. } => format!("sessions by cookie {name}"),
        Carrier::Header(name) => format!("sessions by header {name}"),
    }
}
