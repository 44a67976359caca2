//! What is wrong in service although the configuration may be right: a controller that is away, certificates that expire,
//! backends without endpoints, endpoints that fail, routes whose requests fail, and too little of something. Must not know how
//! that is shown.

mod in_service;
mod limits;
mod overload;
mod policies;
mod rules;
mod tls;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

pub(super) use self::in_service::InService;
use self::in_service::{MAX_NAMED, minutes};
use super::recent::Process;
use crate::finding::{Finding, Kind, Severity, Source};
use crate::ir::ObjectRef;
use crate::status::certificates::Validity;
use crate::table::{Backend, Table};

/// Time without a response of the API server, which is polled every 5 s, from which on that is a trouble.
const SILENCE: Duration = Duration::from_secs(30);
/// Effect of a controller or an API server that is away.
const STALE: &str = "changes of objects do not arrive";

/// Returns what is wrong now, by kind. Of each kind, at most twenty are named, and the rest is counted.
pub(super) fn of(service: &InService<'_>) -> Vec<Finding> {
    let kinds = [
        controller(service),
        overload::of(service),
        certificates(service),
        tls::of_clients(service),
        policies::sign_ins(service),
        without_endpoints(service.table),
        rules::failing(service),
        endpoints(service),
        rules::slow(service),
        policies::peers(service.table),
        limits::exceeded(service),
        unsent(service),
    ];
    named(kinds.into_iter().flatten())
}

fn named(troubles: impl Iterator<Item = Finding>) -> Vec<Finding> {
    let mut by_kind: BTreeMap<Kind, Vec<Finding>> = BTreeMap::new();
    for trouble in troubles {
        by_kind.entry(trouble.kind).or_default().push(trouble);
    }
    let few = |(kind, mut troubles): (Kind, Vec<Finding>)| {
        let rest = troubles.split_off(troubles.len().min(MAX_NAMED));
        if let Some(worst) = rest.iter().map(|it| it.severity).min() {
            let object = format!("{} more", rest.len());
            let more = Finding::of_service(kind, object, "of the same kind".to_owned());
            troubles.push(more.of_severity(worst));
        }
        troubles
    };
    by_kind.into_iter().flat_map(few).collect()
}

fn controller(service: &InService<'_>) -> Vec<Finding> {
    let InService { stats, now, .. } = service;
    let since = |time: Duration| {
        let time = Timestamp::from_second(time.as_secs() as i64);
        time.map_or(String::new(), |it| it.to_string())
    };
    let away = stats.stream.as_ref().filter(|it| !it.is_connected());
    let controller = away.map(|stream| {
        let cause = format!("not connected since {}", since(stream.contact()));
        Finding::of_service(Kind::Controller, "controller".to_owned(), cause)
            .with_effect(STALE)
            .with_remedy(
                "check that its pods run and that this one may connect to them; the log has the error",
            )
    });
    let contact = stats.config.contact();
    let silent = contact.filter(|contact| {
        let now = Duration::from_secs(now.as_second().unsigned_abs());
        now.saturating_sub(*contact) > SILENCE
    });
    let api_server = silent.map(|contact| {
        let cause = format!("no response since {}", since(contact));
        Finding::of_service(Kind::Controller, "API server".to_owned(), cause)
            .with_effect(STALE)
            .with_remedy("check the API server and the way to it")
    });
    controller.into_iter().chain(api_server).collect()
}

fn certificates(service: &InService<'_>) -> Vec<Finding> {
    let ports = service.table.ir.ports.iter();
    let certificates = ports.flat_map(|port| port.certificates());
    let validities = certificates
        .filter_map(|one| Validity::of(one, service.now).map(|validity| (validity, &one.source)));
    // Listeners often share a certificate.
    let troubles: BTreeSet<_> = validities.collect();
    let trouble = |(validity, secret): (Validity, &ObjectRef)| Finding {
        source: Source::Service,
        ..validity.finding(secret, "the certificate")
    };
    troubles.into_iter().map(trouble).collect()
}

fn without_endpoints(table: &Table) -> Vec<Finding> {
    let empty = table.backends().filter(|it| !it.endpoints().are_served());
    let trouble = |backend: &Arc<Backend>| {
        if may_pick(table, backend) {
            return only_by_picker(backend);
        }
        let ir = table.ir.backend(&backend.id);
        let (cause, remedy) = match ir.and_then(|it| it.endpoints.hostname()) {
            Some(name) => (
                format!(
                    "{name} has no address that may be used, since DNS has none or does not answer"
                ),
                "correct the name, or look it up from this host",
            ),
            None if !backend.endpoints().is_empty() => (
                "has no release with a weight and a ready endpoint".to_owned(),
                "give a release with ready pods a weight, or look why the pods of the others are not ready",
            ),
            None => (
                "has no ready endpoint".to_owned(),
                "check that pods which its selector names exist and are ready; in a folder, add an EndpointSlice",
            ),
        };
        Finding::of_service(Kind::Backend, backend.id.to_string(), cause)
            .with_effect(backend.id.effect_of_absence())
            .with_remedy(remedy)
            .about(&backend.id.object)
    };
    empty.map(trouble).collect()
}

/// Reports whether a backend has a picker that can be asked, and that may choose pods that are not ready.
fn may_pick(table: &Table, backend: &Backend) -> bool {
    let Some(ir) = table.ir.backend(&backend.id) else {
        return false;
    };
    let server = ir.choice.picker().and_then(|it| it.server.backend());
    let server = server.and_then(|id| table.backend(id));
    let is_asked = server.is_some_and(|it| it.endpoints().are_served());
    is_asked && !ir.endpoints.unready().is_empty()
}

fn only_by_picker(backend: &Backend) -> Finding {
    let cause = "no pod is ready, and its endpoint picker may choose one that is not".to_owned();
    Finding::of_service(Kind::Backend, backend.id.to_string(), cause)
        .with_effect("its requests get 503 unless the picker does")
        .with_remedy("look why the pods are not ready")
        .of_severity(Severity::Warning)
        .about(&backend.id.object)
}

/// Those that fail or get no requests, with the cause.
fn endpoints(service: &InService<'_>) -> Vec<Finding> {
    let mut troubles = Vec::new();
    let time = minutes(service.before.process.age());
    for backend in service.table.backends() {
        for endpoint in backend.endpoints().iter() {
            let fault = service.before.endpoint_fault(endpoint);
            let remedy = fault.map_or(
                "check its log and its load, and healthCheck of its BackendPolicy",
                |(fault, _)| fault.remedy(),
            );
            let cause = fault.map(|(fault, failed)| {
                format!(
                    "{} (failed attempts in the {time}: {failed})",
                    fault.cause()
                )
            });
            let health = &endpoint.health;
            let state = match (health.is_avoided(), health.has_failed_checks()) {
                (false, _) => None,
                (true, true) => Some("fails its health checks"),
                (true, false) => Some("has failed"),
            };
            let state = state.map(|it| format!("{it} and gets no requests while others work"));
            let (kind, cause) = match (state, cause) {
                (None, None) => continue,
                (None, Some(cause)) => (Kind::Failing, cause),
                (Some(state), None) => (Kind::Endpoint, state),
                (Some(state), Some(cause)) => (Kind::Endpoint, format!("{state}: {cause}")),
            };
            let object = format!("{} of {}", endpoint.address, backend.id);
            let trouble = Finding::of_service(kind, object, cause).with_remedy(remedy);
            troubles.push(trouble.about(&backend.id.object));
        }
    }
    troubles
}

/// Spans and records that are lost.
fn unsent(service: &InService<'_>) -> Vec<Finding> {
    let before = &service.before.process;
    let now = Process::now(service.stats, service.dropped);
    let unsent = now.unsent.saturating_sub(before.unsent);
    let trouble = (unsent > 0).then(|| {
        let cause = format!(
            "{unsent} spans and records of the access log were dropped in the {}: their collector is away, too slow or \
             refuses them, as the log says",
            minutes(before.age())
        );
        Finding::of_service(Kind::Telemetry, "telemetry".to_owned(), cause)
            .with_remedy("check it, or send it less by a TelemetryPolicy")
    });
    trouble.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::recent::{Counters, DroppedLines};
    use crate::telemetry::ProcessStats;
    use crate::telemetry::metrics::StreamStats;

    fn in_service<'a>(
        table: &'a Table,
        stats: &'a ProcessStats,
        before: &'a Counters,
    ) -> InService<'a> {
        InService {
            table,
            stats,
            before,
            dropped: DroppedLines::default(),
            memory: None,
            now: Timestamp::now(),
        }
    }

    #[test]
    fn of_each_kind_a_few_are_named() {
        let trouble =
            |index: usize| Finding::of_service(Kind::Route, index.to_string(), String::new());
        let all = |count: usize| named((0..count).map(trouble));
        assert_eq!(all(MAX_NAMED).len(), MAX_NAMED);
        let more = all(MAX_NAMED + 5);
        assert_eq!(more.len(), MAX_NAMED + 1);
        assert_eq!(more[MAX_NAMED].object, "5 more");
        let ejected = Finding::of_service(Kind::Endpoint, "a".to_owned(), String::new());
        let mixed = named((0..MAX_NAMED + 5).map(trouble).chain([ejected]));
        let last = mixed[MAX_NAMED..].iter();
        let last: Vec<_> = last.map(|it| (it.kind, &*it.object)).collect();
        assert_eq!(last, [(Kind::Route, "5 more"), (Kind::Endpoint, "a")]);
    }

    #[test]
    fn the_rest_of_a_kind_is_as_bad_as_its_worst() {
        let trouble = |severity| {
            let trouble = Finding::of_service(Kind::Overload, String::new(), String::new());
            trouble.of_severity(severity)
        };
        let named_first = (0..MAX_NAMED).map(|_| trouble(Severity::Error));
        let rest_with = |worst| {
            let rest = [Severity::Warning, worst].map(trouble);
            named(named_first.clone().chain(rest))[MAX_NAMED].severity
        };
        assert_eq!(rest_with(Severity::Warning), Severity::Warning);
        assert_eq!(rest_with(Severity::Error), Severity::Error);
    }

    #[test]
    fn nothing_is_wrong_with_an_empty_table() {
        let (table, stats) = (Table::empty(), ProcessStats::default());
        let before = Counters::now(&table, &stats, DroppedLines::default());
        let mut service = in_service(&table, &stats, &before);
        assert_eq!(of(&service), []);
        stats
            .connections
            .refused
            .fetch_add(2, std::sync::atomic::Ordering::Relaxed);
        let troubles = of(&service);
        assert_eq!(troubles.len(), 1);
        let message =
            "2 were refused in the last minute: the limit of client connections is reached";
        assert!(troubles[0].message().starts_with(message), "{troubles:?}");
        service.dropped.access_log = 3;
        let troubles = of(&service);
        assert_eq!(troubles.len(), 2);
        assert_eq!(troubles[1].object, "access log");
    }

    #[test]
    fn controller_that_is_away_is_a_trouble_until_it_streams() {
        let (table, stream) = (Table::empty(), Arc::new(StreamStats::default()));
        let stats = ProcessStats {
            stream: Some(stream.clone()),
            ..ProcessStats::default()
        };
        let before = Counters::now(&table, &stats, DroppedLines::default());
        let service = in_service(&table, &stats, &before);
        let kinds = |troubles: Vec<Finding>| -> Vec<Kind> {
            troubles.into_iter().map(|it| it.kind).collect()
        };
        assert_eq!(kinds(of(&service)), [Kind::Controller]);
        stream.connected();
        assert_eq!(kinds(of(&service)), []);
    }

    #[test]
    fn silence_of_the_api_server_is_a_trouble_after_a_while() {
        let (table, stats) = (Table::empty(), ProcessStats::default());
        let before = Counters::now(&table, &stats, DroppedLines::default());
        stats.config.contacted();
        let later = |time: Duration| {
            let mut service = in_service(&table, &stats, &before);
            service.now += time;
            of(&service)
        };
        assert_eq!(later(Duration::ZERO), []);
        let troubles = later(Duration::from_secs(120));
        assert_eq!(troubles.len(), 1, "{troubles:?}");
        assert!(troubles[0].cause.starts_with("no response since "));
    }
}
