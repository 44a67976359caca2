//! Text for what policies require of requests, and the order of the phases. Must not know the policies themselves.

use std::sync::Arc;

use super::explanation::Explanation;
use crate::ir::cidr::CidrSet;
use crate::ir::policy::{Enforced, IpRules, PHASES, Policies};

/// Maximum number of CIDRs of a list that are shown.
const MAX_CIDRS: usize = 10;

/// Explains what policies require, if there are any.
pub(super) fn explain(explanation: &mut Explanation, policies: Option<&Arc<Policies>>) {
    let Some(policies) = policies else {
        return;
    };
    let Policies { ip_rules } = &**policies;
    explanation.lines("IP rules", ip_rules.as_ref().map(shown_ip_rules));
    let order = PHASES.map(|phase| phase.to_string());
    explanation.line("order", order.join(", then "));
}

fn shown_ip_rules(rules: &Enforced<IpRules>) -> String {
    let IpRules {
        allow,
        deny,
        policies,
    } = match rules {
        Enforced::Valid(rules) => &**rules,
        Enforced::Broken(why) => return format!("every request gets 500: {why}"),
    };
    let allow = match allow {
        Some(allow) => format!("only {}", cidrs(allow)),
        None => "every address".to_owned(),
    };
    let deny = match deny.is_empty() {
        true => String::new(),
        false => format!(", but not {}", cidrs(deny)),
    };
    let policies: Vec<_> = policies.iter().map(ToString::to_string).collect();
    format!("{allow}{deny} ({})", policies.join(", "))
}

fn cidrs(set: &CidrSet) -> String {
    let all: Vec<_> = set.iter().collect();
    let mut shown: Vec<_> = all
        .iter()
        .take(MAX_CIDRS)
        .map(ToString::to_string)
        .collect();
    if all.len() > MAX_CIDRS {
        shown.push(format!("{} more", all.len() - MAX_CIDRS));
    }
    shown.join(", ")
}
