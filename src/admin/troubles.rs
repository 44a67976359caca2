//! What is wrong in service although the configuration may be right: a controller that is away, certificates that expire,
//! backends without endpoints, endpoints that fail, routes whose requests fail, and too little of something. Must not know
//! how that is shown.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::problem::{Kind, Problem};
use super::recent::{Counters, DroppedLines, Process, Shares};
use crate::ir::ObjectRef;
use crate::status::certificates::Validity;
use crate::table::{Backend, Rule, Table};
use crate::telemetry::ProcessStats;

/// Share of the time from which on a worker that is not idle is a trouble.
const BUSY: f64 = 0.95;
/// Maximum number of troubles of a kind that are named.
const MAX_NAMED: usize = 20;

/// What is looked at.
pub(super) struct InService<'a> {
    pub(super) table: &'a Table,
    pub(super) stats: &'a ProcessStats,
    /// The counters of some minutes ago.
    pub(super) before: &'a Counters,
    /// Lines of the logs that were dropped since the start.
    pub(super) dropped: DroppedLines,
    pub(super) now: Timestamp,
}

/// Returns what is wrong now, by kind. Of each kind, at most twenty are named, and the rest is counted.
pub(super) fn of(service: &InService<'_>) -> Vec<Problem> {
    let kinds = [
        controller(service.stats),
        overload(service),
        certificates(service),
        without_endpoints(service.table),
        failing(service),
        endpoints(service),
    ];
    kinds.into_iter().flat_map(named).collect()
}

fn named(mut troubles: Vec<Problem>) -> Vec<Problem> {
    let rest = troubles.split_off(troubles.len().min(MAX_NAMED));
    if let Some(first) = rest.first() {
        let object = format!("{} more", rest.len());
        let message = "of the same kind".to_owned();
        troubles.push(Problem::of_service(first.kind, object, message));
    }
    troubles
}

fn controller(stats: &ProcessStats) -> Vec<Problem> {
    let away = stats.stream.as_ref().filter(|it| !it.is_connected());
    let trouble = away.map(|stream| {
        let seconds = stream.contact().as_secs() as i64;
        let since = Timestamp::from_second(seconds).map_or(String::new(), |it| it.to_string());
        let message = format!("not connected since {since}: changes of objects do not arrive");
        Problem::of_service(Kind::Controller, "controller".to_owned(), message)
    });
    trouble.into_iter().collect()
}

fn overload(service: &InService<'_>) -> Vec<Problem> {
    let InService {
        table,
        stats,
        before,
        dropped,
        ..
    } = service;
    let (now, then) = (Process::now(stats, *dropped), &before.process);
    let time = minutes(then.age());
    let mut troubles = Vec::new();
    let mut add = |object: &str, message| {
        troubles.push(Problem::of_service(
            Kind::Overload,
            object.to_owned(),
            message,
        ));
    };
    if let Some(share) = now.utilization(then).filter(|share| *share >= BUSY) {
        let percent = (share * 100.0).min(100.0);
        add(
            "workers",
            format!("busy for {percent:.0} % of the {time}: requests wait for a CPU"),
        );
    }
    let refused = now.refused.saturating_sub(then.refused);
    if refused > 0 {
        add(
            "connections",
            format!(
                "{refused} were refused in the {time}: the limit of client connections is reached"
            ),
        );
    }
    for (object, count) in now.dropped.since(then.dropped).named() {
        let message = format!(
            "{count} lines were dropped in the {time}: what reads them is too slow, or has stopped"
        );
        add(object, message);
    }
    for backend in table.backends() {
        let faults = before.faults(backend);
        let causes = [
            (faults.overloaded, "a limit of its policy is reached"),
            (
                faults.descriptors,
                "the process has no file descriptor left",
            ),
            (
                faults.local,
                "the process has no local port or memory left, or is not permitted to connect",
            ),
        ];
        for (count, why) in causes.into_iter().filter(|(count, _)| *count > 0) {
            let message = format!("{count} attempts failed in the {time}: {why}");
            add(&backend.id.to_string(), message);
        }
    }
    troubles
}

fn certificates(service: &InService<'_>) -> Vec<Problem> {
    let ports = service.table.ir.ports.iter();
    let certificates = ports.flat_map(|port| port.certificates());
    let validities = certificates
        .filter_map(|one| Validity::of(one, service.now).map(|validity| (validity, &one.source)));
    // Listeners often share a certificate.
    let troubles: BTreeSet<_> = validities.collect();
    let trouble = |(validity, secret): (Validity, &ObjectRef)| {
        let kind = match validity {
            Validity::Expired(_) => Kind::Expired,
            Validity::NotYetValid(_) => Kind::NotYetValid,
            Validity::EndsSoon(_) => Kind::Expires,
        };
        let message = format!("the certificate {validity}");
        Problem::of_service(kind, secret.to_string(), message).about(secret)
    };
    troubles.into_iter().map(trouble).collect()
}

fn without_endpoints(table: &Table) -> Vec<Problem> {
    let empty = table.backends().filter(|it| it.endpoints().is_empty());
    let trouble = |backend: &Arc<Backend>| {
        let ir = table.ir.backend(&backend.id);
        let message = match ir.and_then(|it| it.endpoints.hostname()) {
            Some(name) => format!(
                "{name} has no address that may be used: DNS has none, or does not answer; its requests get 503"
            ),
            None => "has no ready endpoint: its requests get 503".to_owned(),
        };
        Problem::of_service(Kind::Backend, backend.id.to_string(), message)
            .about(&backend.id.object)
    };
    empty.map(trouble).collect()
}

/// Those that fail or get no requests, with the cause.
fn endpoints(service: &InService<'_>) -> Vec<Problem> {
    let mut troubles = Vec::new();
    let time = minutes(service.before.process.age());
    for backend in service.table.backends() {
        for endpoint in backend.endpoints().iter() {
            let fault = service.before.endpoint_fault(endpoint);
            let cause = fault.map(|(fault, failed)| {
                let (cause, remedy) = (fault.cause(), fault.remedy());
                format!("{cause} (failed attempts in the {time}: {failed}); {remedy}")
            });
            let health = &endpoint.health;
            let state = match (health.is_avoided(), health.has_failed_checks()) {
                (false, _) => None,
                (true, true) => Some("fails its health checks"),
                (true, false) => Some("has failed"),
            };
            let state = state.map(|it| format!("{it} and gets no requests while others work"));
            let (kind, message) = match (state, cause) {
                (None, None) => continue,
                (None, Some(cause)) => (Kind::Failing, cause),
                (Some(state), None) => (Kind::Endpoint, state),
                (Some(state), Some(cause)) => (Kind::Endpoint, format!("{state}: {cause}")),
            };
            let object = format!("{} of {}", endpoint.address, backend.id);
            let trouble = Problem::of_service(kind, object, message);
            troubles.push(trouble.about(&backend.id.object));
        }
    }
    troubles
}

fn failing(service: &InService<'_>) -> Vec<Problem> {
    let mut rules: Vec<_> = service
        .table
        .rules()
        .map(|rule| (service.before.responses(rule), rule))
        .filter(|(it, _)| it.are_failing())
        .collect();
    rules.sort_by_key(|(responses, _)| Reverse(responses.failed));
    let time = minutes(service.before.process.age());
    let trouble = |(Shares { failed, all }, rule): (Shares, &Arc<Rule>)| {
        let object = format!("{} rule {}", rule.ir.id.route, rule.ir.id.index);
        let message = format!("{failed} of {all} responses in the {time} were 5xx");
        Problem::of_service(Kind::Route, object, message).about(&rule.ir.id.route)
    };
    rules.into_iter().map(trouble).collect()
}

/// Names the time until now.
fn minutes(time: Duration) -> String {
    match time.as_secs().div_ceil(60) {
        0 | 1 => "last minute".to_owned(),
        minutes => format!("last {minutes} minutes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_kind_a_few_are_named() {
        let trouble =
            |index: usize| Problem::of_service(Kind::Route, index.to_string(), String::new());
        let all = |count: usize| named((0..count).map(trouble).collect());
        assert_eq!(all(MAX_NAMED).len(), MAX_NAMED);
        let more = all(MAX_NAMED + 5);
        assert_eq!(more.len(), MAX_NAMED + 1);
        assert_eq!(more[MAX_NAMED].object, "5 more");
    }

    #[test]
    fn nothing_is_wrong_with_an_empty_table() {
        let (table, stats) = (Table::empty(), ProcessStats::default());
        let none = DroppedLines::default();
        let before = Counters::now(&table, &stats, none);
        let mut service = InService {
            table: &table,
            stats: &stats,
            before: &before,
            dropped: none,
            now: Timestamp::now(),
        };
        assert_eq!(of(&service), []);
        stats
            .connections
            .refused
            .fetch_add(2, std::sync::atomic::Ordering::Relaxed);
        let troubles = of(&service);
        assert_eq!(troubles.len(), 1);
        assert_eq!(
            troubles[0].message,
            "2 were refused in the last minute: the limit of client connections is reached"
        );
        service.dropped.access_log = 3;
        let troubles = of(&service);
        assert_eq!(troubles.len(), 2);
        assert_eq!(troubles[1].object, "access log");
    }

    #[test]
    fn times_are_named_in_minutes() {
        let named = |seconds| minutes(Duration::from_secs(seconds));
        assert_eq!((&*named(0), &*named(60)), ("last minute", "last minute"));
        assert_eq!(named(61), "last 2 minutes");
    }
}
