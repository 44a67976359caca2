//! All findings in one list, errors first, then those with the most effect on requests: about what happens now, files, conditions,
//! valid configuration and notes. The page, `/api/v1/`, the metric and through them `portcullis status` have them from here.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::state::AdminState;
use super::troubles::{self, InService};
use crate::explain::advice;
use crate::finding::{Finding, Kind, Severity, order};
use crate::table::Table;
use crate::telemetry::metrics::MemoryUse;

/// Returns the problems, each with the time since when it is known, and the location of its object if that is in a file.
pub(super) fn of(state: &AdminState, table: &Table) -> Vec<Finding> {
    let mut all = with_those_of_objects(in_service(state, table), state);
    let now = Timestamp::now();
    let second = Timestamp::from_second(now.as_second());
    state.since.set(&mut all, second.unwrap_or(now));
    all
}

/// Looks at the problems, for the time since when they are known.
pub(super) fn note(state: &AdminState) {
    of(state, &state.table.load());
}

/// Adds the problems of files and objects to those of what happens now.
fn with_those_of_objects(in_service: Vec<Finding>, state: &AdminState) -> Vec<Finding> {
    let mut all = in_service;
    all.extend(state.files.load().iter().cloned());
    let report = state.report.load();
    let reported = report.findings().into_iter();
    all.extend(reported.map(|it| {
        let advice = advice(&**report, &it.cause);
        it.with_advice(advice)
    }));
    all.extend(state.warnings.load().iter().cloned());
    order(&mut all);
    state.locations.load().locate(&mut all);
    all
}

/// Returns the number of problems.
pub(super) fn count(state: &AdminState, table: &Table) -> usize {
    let counts = by_kind(state, table).into_iter();
    counts.map(|(_, count)| count as usize).sum()
}

/// Returns the number of problems of each kind and severity, by their names; 0 for the usual severity of a kind without any.
pub(super) fn by_kind(
    state: &AdminState,
    table: &Table,
) -> Vec<((&'static str, &'static str), u64)> {
    counted(&in_service(state, table), state)
}

/// Counts the problems of files and objects, and those of what happens now.
fn counted(in_service: &[Finding], state: &AdminState) -> Vec<((&'static str, &'static str), u64)> {
    let none = Kind::ALL.iter().map(|kind| ((kind.severity(), *kind), 0));
    let mut counts: BTreeMap<(Severity, Kind), u64> = none.collect();
    let (files, warnings) = (state.files.load(), state.warnings.load());
    let reported = state.report.load().findings();
    let all = in_service.iter().chain(files.iter());
    for it in all.chain(&reported).chain(warnings.iter()) {
        *counts.entry((it.severity, it.kind)).or_default() += 1;
    }
    let counts = counts.into_iter();
    let named = |((severity, kind), count): ((Severity, Kind), u64)| {
        ((kind.name(), severity.name()), count)
    };
    counts.map(named).collect()
}

fn in_service(state: &AdminState, table: &Table) -> Vec<Finding> {
    troubles::of(&InService {
        table,
        stats: &state.stats,
        before: &state.recent.before(),
        dropped: state.dropped_lines(),
        memory: MemoryUse::now(),
        now: Timestamp::now(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Duration;

    use arc_swap::ArcSwap;

    use super::*;
    use crate::ir::ObjectRef;
    use crate::telemetry::metrics::StreamStats;
    use crate::telemetry::{AccessLog, ProcessStats};

    /// A process with a controller and an API server, and a policy that comes last.
    fn state(stream: &Arc<StreamStats>) -> AdminState {
        stream.connected();
        let stats = ProcessStats {
            stream: Some(stream.clone()),
            ..ProcessStats::default()
        };
        stats.config.contacted();
        let table = Arc::new(ArcSwap::from_pointee(Table::empty()));
        let state = AdminState::new(table, stats, AccessLog::disabled());
        let policy = ObjectRef::new("portcullis.dev", "AccessPolicy", "default", "open");
        let warning = Finding::of_object(Kind::Policy, &policy, "permits more".to_owned());
        state.warnings.store(Arc::new(BTreeSet::from([warning])));
        state
    }

    #[test]
    fn problems_are_counted_by_kind_and_severity() {
        let state = state(&Arc::default());
        let file = |severity| {
            let (file, message) = ("a.yaml".to_owned(), "is wrong".to_owned());
            Finding::of_file(severity, file, message, None)
        };
        let files = [Severity::Error, Severity::Warning, Severity::Warning];
        state.files.store(Arc::new(Vec::from(files.map(file))));
        let refused = Finding::of_service(Kind::Overload, String::new(), String::new());
        let mut counts = counted(&[refused], &state);
        assert!(counts.contains(&(("port", "error"), 0)), "{counts:?}");
        counts.retain(|(_, count)| *count > 0);
        let expected = [
            (("overload", "error"), 1),
            (("file", "error"), 1),
            (("file", "warning"), 2),
            (("policy", "warning"), 1),
        ];
        assert_eq!(counts, expected);
    }

    /// Returns the first problem where this is changed.
    fn first(state: &AdminState, change: impl FnOnce(&mut InService<'_>)) -> (String, String) {
        let (table, before) = (state.table.load(), state.recent.before());
        let mut service = InService {
            table: &table,
            stats: &state.stats,
            before: &before,
            dropped: state.dropped_lines(),
            memory: None,
            now: Timestamp::now(),
        };
        change(&mut service);
        let mut all = with_those_of_objects(troubles::of(&service), state);
        let first = all.swap_remove(0);
        let message = first.message();
        (first.object, message)
    }

    #[test]
    fn what_a_process_lacks_comes_first_until_it_has_it() {
        let stream = Arc::default();
        let state = state(&stream);
        let changes: [(_, _, fn(&mut InService<'_>)); 4] = [
            ("memory", "the kernel ends it at the limit", |it| {
                let (resident, limit) = (480 << 20, 512 << 20);
                it.memory = Some(MemoryUse { resident, limit });
            }),
            ("access log", "what reads them is too slow", |it| {
                it.dropped.access_log = 1;
            }),
            ("log", "what reads them is too slow", |it| {
                it.dropped.log = 1;
            }),
            ("API server", "changes of objects do not arrive", |it| {
                it.now += Duration::from_secs(60);
            }),
        ];
        let document = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md"));
        let is_first = |(object, message): (String, String), expected: (&str, &str)| {
            assert_eq!(object, expected.0, "{message}");
            assert!(message.contains(expected.1), "{message}");
            let (_, remedy) = message.rsplit_once(';').expect("a remedy");
            assert!(document.contains(remedy), "{remedy}");
        };
        for (object, cause, change) in changes {
            is_first(first(&state, change), (object, cause));
            let repaired = first(&state, |_| {});
            assert_eq!(repaired.0, "AccessPolicy default/open");
        }
        stream.disconnected();
        let away = first(&state, |_| {});
        is_first(away, ("controller", "changes of objects do not arrive"));
        stream.connected();
        let repaired = first(&state, |_| {});
        assert_eq!(repaired.0, "AccessPolicy default/open");
    }
}
