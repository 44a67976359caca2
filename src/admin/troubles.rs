//! What is wrong in service although the configuration may be right: certificates that expire, backends without endpoints,
//! endpoints that fail, and routes whose requests fail. Must not know how that is shown.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use crate::table::{Rule, Table};

/// Time before its end from which on a certificate is a trouble, in seconds.
const EXPIRES_SOON: i64 = 14 * 24 * 60 * 60;
/// Percent of responses with a 5xx from which on a rule is a trouble.
const MANY_FAILURES: u64 = 1;
/// Maximum number of troubles of a kind that are named.
const MAX_NAMED: usize = 20;

/// An object that does not work, and why.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) object: String,
    pub(super) message: String,
}

/// Returns what is wrong now, by kind. Of each kind, at most twenty are named, and the rest is counted.
pub(super) fn of(table: &Table, now: Timestamp) -> Vec<Trouble> {
    let kinds = [
        certificates(table, now),
        without_endpoints(table),
        ejected(table),
        failing(table),
    ];
    kinds.into_iter().flat_map(named).collect()
}

fn named(mut troubles: Vec<Trouble>) -> Vec<Trouble> {
    let rest = troubles.len().saturating_sub(MAX_NAMED);
    troubles.truncate(MAX_NAMED);
    if rest > 0 {
        troubles.push(Trouble {
            object: format!("{rest} more"),
            message: "of the same kind".to_owned(),
        });
    }
    troubles
}

fn certificates(table: &Table, now: Timestamp) -> Vec<Trouble> {
    let certificates = table.ir.ports.iter().flat_map(|port| port.certificates());
    let ends = certificates.map(|one| (one.not_after, &one.source));
    // In order of their ends. Listeners often share a certificate.
    let soon: BTreeSet<_> = ends
        .filter(|(end, _)| end - now.as_second() < EXPIRES_SOON)
        .collect();
    let trouble = |(end, secret)| {
        let date = Timestamp::from_second(end).map_or(String::new(), |end| end.to_string());
        Trouble {
            object: format!("{secret}"),
            message: match end <= now.as_second() {
                true => format!("the certificate has expired at {date}: clients refuse it"),
                false => format!("the certificate expires at {date}"),
            },
        }
    };
    soon.into_iter().map(trouble).collect()
}

fn without_endpoints(table: &Table) -> Vec<Trouble> {
    let empty = table.backends().filter(|it| it.endpoints().is_empty());
    let trouble = |object: String| Trouble {
        object,
        message: "has no ready endpoint: its requests get 503".to_owned(),
    };
    empty.map(|it| trouble(it.id.to_string())).collect()
}

fn ejected(table: &Table) -> Vec<Trouble> {
    let mut troubles = Vec::new();
    for backend in table.backends() {
        let endpoints = backend.endpoints();
        for endpoint in endpoints.iter().filter(|it| it.health.is_avoided()) {
            let why = match endpoint.health.has_failed_checks() {
                true => "fails its health checks",
                false => "has failed",
            };
            troubles.push(Trouble {
                object: format!("{} of {}", endpoint.address, backend.id),
                message: format!("{why} and gets no requests while others work"),
            });
        }
    }
    troubles
}

fn failing(table: &Table) -> Vec<Trouble> {
    let mut rules: Vec<_> = table
        .rules()
        .map(|rule| {
            let classes = rule.state.stats.classes();
            (classes[4], classes.iter().sum::<u64>(), rule)
        })
        .filter(|(failed, all, _)| *failed > 0 && failed * 100 >= all * MANY_FAILURES)
        .collect();
    rules.sort_by_key(|(failed, ..)| Reverse(*failed));
    let trouble = |(failed, all, rule): (u64, u64, &Arc<Rule>)| Trouble {
        object: format!("{} rule {}", rule.route_name(), rule.ir.id.index),
        message: format!("{failed} of {all} responses since it exists were 5xx"),
    };
    rules.into_iter().map(trouble).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_kind_a_few_are_named() {
        let trouble = |index: usize| Trouble {
            object: index.to_string(),
            message: String::new(),
        };
        let all = |count: usize| named((0..count).map(trouble).collect());
        assert_eq!(all(MAX_NAMED).len(), MAX_NAMED);
        let more = all(MAX_NAMED + 5);
        assert_eq!(more.len(), MAX_NAMED + 1);
        assert_eq!(more[MAX_NAMED].object, "5 more");
    }

    #[test]
    fn nothing_is_wrong_with_an_empty_table() {
        assert_eq!(of(&Table::empty(), Timestamp::now()), []);
    }
}
