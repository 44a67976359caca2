//! Too little of something: CPU time, memory, connections, file descriptors, room for lines of logs, and what the policy of a
//! backend permits.

use super::in_service::{InService, minutes};
use crate::admin::recent::Process;
use crate::admin::shares::Shares;
use crate::finding::{Finding, Kind, Severity};
use crate::telemetry::metrics::MemoryUse;

/// Share of the time from which on a worker that is not idle is a trouble.
const BUSY: f64 = 0.95;
/// Percent of the memory that the process may have from which on that is a trouble.
const FULL: u64 = 90;

/// Returns what there is too little of.
pub(super) fn of(service: &InService<'_>) -> Vec<Finding> {
    let mut troubles = of_process(service);
    let before = service.before;
    let time = minutes(before.process.age());
    for backend in service.table.backends() {
        let faults = before.faults(backend);
        let causes = [
            (
                faults.overloaded,
                "a limit of its policy is reached",
                "raise it, or add endpoints",
            ),
            (
                faults.descriptors,
                "the process has no file descriptor left",
                "raise the hard limit (ulimit -n, LimitNOFILE=), or set --max-connections",
            ),
            (
                faults.local,
                "the process has no local port or memory left, or is not permitted to connect",
                "give it more, or add endpoints or pods, and check the network policies of this one",
            ),
        ];
        for (count, why, remedy) in causes.into_iter().filter(|(count, ..)| *count > 0) {
            let cause = format!("{count} attempts failed in the {time}: {why}");
            let trouble = Finding::of_service(Kind::Overload, backend.id.to_string(), cause);
            troubles.push(trouble.with_remedy(remedy).about(&backend.id.object));
        }
    }
    troubles
}

fn of_process(service: &InService<'_>) -> Vec<Finding> {
    let InService {
        stats,
        dropped,
        memory,
        ..
    } = service;
    let (now, then) = (Process::now(stats, *dropped), &service.before.process);
    let time = minutes(then.age());
    let mut troubles = Vec::new();
    let mut add = |severity, object: &str, (cause, effect, remedy): (String, &str, &str)| {
        let trouble = Finding::of_service(Kind::Overload, object.to_owned(), cause);
        let trouble = trouble.with_effect(effect).with_remedy(remedy);
        troubles.push(trouble.of_severity(severity));
    };
    if let Some(cause) = memory.and_then(full) {
        let effect = "the kernel ends it at the limit";
        let remedy = "raise the limit of its container, lower --max-connections, or run more pods";
        add(Severity::Warning, "memory", (cause, effect, remedy));
    }
    if let Some(share) = now.utilization(then).filter(|share| *share >= BUSY) {
        let percent = (share * 100.0).min(100.0);
        let cause = format!("busy for {percent:.0} % of the {time}");
        let remedy = "give the process more of them, or run more pods";
        add(
            Severity::Warning,
            "workers",
            (cause, "requests wait for a CPU", remedy),
        );
    }
    let refused = now.refused.saturating_sub(then.refused);
    if refused > 0 {
        let cause = format!(
            "{refused} were refused in the {time}: the limit of client connections is reached"
        );
        let remedy = "raise --max-connections, or run more pods";
        add(Severity::Error, "connections", (cause, "", remedy));
    }
    for (object, count) in now.dropped.since(then.dropped).named() {
        let cause = format!(
            "{count} lines were dropped in the {time}: what reads them is too slow, or has stopped"
        );
        let remedy = "check it, or log less";
        add(Severity::Warning, object, (cause, "", remedy));
    }
    troubles
}

/// Returns why memory is a trouble, if it is.
fn full(memory: MemoryUse) -> Option<String> {
    let MemoryUse { resident, limit } = memory;
    let share = Shares {
        failed: resident,
        all: limit,
    };
    let mebibytes = |bytes: u64| bytes >> 20;
    share.are_percent(FULL).then(|| {
        format!(
            "{} of the {} MiB that the process may have are in use",
            mebibytes(resident),
            mebibytes(limit)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_trouble_near_its_limit() {
        let of = |resident: u64, limit: u64| {
            full(MemoryUse {
                resident: resident << 20,
                limit: limit << 20,
            })
        };
        assert_eq!(of(899, 1000), None);
        let message = of(900, 1000).unwrap();
        assert!(message.starts_with("900 of the 1000 MiB "), "{message}");
    }
}
