//! Rules whose requests fail, with the objects in which the cause may be, and backends that are slower than they were.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::in_service::{InService, MAX_NAMED, minutes};
use crate::admin::responses::Responses;
use crate::finding::{Finding, Kind, Symptom};
use crate::table::{Backend, BackendTarget, Rule, Table};

/// Responses without which a backend is not judged: before, and of late.
const MIN_RESPONSES: (u64, u64) = (100, 20);
/// Time of a response on average from which on a backend is slow, if it took less than a fifth of it before.
const SLOW: Duration = Duration::from_millis(250);
const TIMES_SLOWER: u32 = 5;

/// Returns the rules of which many responses are 5xx, those with the most of them first.
pub(super) fn failing(service: &InService<'_>) -> Vec<Finding> {
    let mut rules: Vec<_> = service
        .table
        .rules()
        .map(|rule| (service.before.responses(rule), rule))
        .filter(|(responses, _)| responses.shares().are_failing())
        .collect();
    rules.sort_by_key(|(responses, _)| Reverse(responses.shares().failed));
    let time = minutes(service.before.process.age());
    let trouble = |(place, (responses, rule)): (usize, (Responses, &Arc<Rule>))| {
        let shares = responses.shares();
        let error = match responses.error() {
            Some(error) => format!(", most with the error `{error}`"),
            None if responses.retries > 0 => {
                ", most from the backend, also after retries".to_owned()
            }
            None => ", most from the backend".to_owned(),
        };
        let message = format!(
            "{} of {} responses in the {time} were 5xx{error}",
            shares.failed, shares.all
        );
        let object = format!("{} rule {}", rule.ir.id.route, rule.ir.id.index);
        let trouble = Finding::of_service(Kind::Route, object, message).about(&rule.ir.id.route);
        Finding {
            // The others are counted only.
            symptom: (place < MAX_NAMED).then(|| symptom(service.table, rule, &responses)),
            ..trouble
        }
    };
    rules.into_iter().enumerate().map(trouble).collect()
}

fn symptom(table: &Table, rule: &Rule, responses: &Responses) -> Symptom {
    let backends = rule.targets().filter_map(|target| match target {
        BackendTarget::Backend(backend) => Some(backend.id.object.clone()),
        BackendTarget::Invalid(_) => None,
    });
    let own = rule.ir.id.route.clone();
    let faults: BTreeSet<&str> = rule
        .faults()
        .chain(faults_of_listeners(table, rule))
        .collect();
    let is_of_backend = responses.error().is_none();
    let remedy = match is_of_backend {
        true => "see its log",
        false => "`portcullis tap --status 5xx` shows them, and errors.md what to do",
    };
    Symptom {
        objects: [own].into_iter().chain(backends).collect(),
        faults: faults.into_iter().map(str::to_owned).collect(),
        is_of_backend,
        remedy,
    }
}

/// Returns why policies of the listeners of a rule are broken. A route with policies of its own does without these.
fn faults_of_listeners<'a>(table: &'a Table, rule: &Rule) -> impl Iterator<Item = &'a str> {
    let route = &rule.ir.id.route;
    let listeners = table.ir.ports.iter().flat_map(|port| &port.listeners);
    let concerned = listeners.filter(move |listener| {
        let attached = listener.routes.get(route);
        attached.is_some_and(|it| it.route.policies.is_none())
    });
    let policies = concerned.filter_map(|listener| listener.policies.as_ref());
    policies.flat_map(|it| it.faults())
}

/// Returns the backends that respond much later than they did before.
pub(super) fn slow(service: &InService<'_>) -> Vec<Finding> {
    let time = minutes(service.before.process.age());
    let trouble = |backend: &Arc<Backend>| {
        let (before, since) = service.before.times(backend);
        let (min_before, min_since) = MIN_RESPONSES;
        let (usual, now) = (before.average(), since.average());
        let is_slow = before.count >= min_before
            && since.count >= min_since
            && now >= SLOW
            && now >= usual.saturating_mul(TIMES_SLOWER);
        let cause = || {
            format!(
                "responds after {} ms on average in the {time}, and took {:.1} ms before",
                now.as_millis(),
                usual.as_secs_f64() * 1000.0
            )
        };
        is_slow.then(|| {
            Finding::of_service(Kind::Slow, backend.id.to_string(), cause())
                .with_remedy("check its load, its log and what it waits for")
                .about(&backend.id.object)
        })
    };
    service.table.backends().filter_map(trouble).collect()
}
