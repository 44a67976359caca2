//! The report of a pod to its controller about a [`ServedConfiguration`]: the revision in service, the ports
//! that could not be bound, and the objects that could not be read.

use std::collections::BTreeMap;

use crate::control::data_plane::ServedConfiguration;
use crate::ir::Transport;
use crate::wire::Serves;

/// Maximum number of reported problems, and of characters of each. They appear in conditions. The
/// log has all of them.
const MAX_PROBLEMS: usize = 16;
const MAX_PROBLEM_CHARS: usize = 300;

/// Builds the report of a served configuration; `None` if its objects did not come from a controller.
pub(super) fn serves(served: &ServedConfiguration) -> Option<Serves> {
    let position = served.load.position.clone()?;
    // Without its QUIC port, a listener is served all the same.
    let binds = served.binds.iter();
    let binds = binds.filter(|(bind, _)| bind.transport != Transport::Quic);
    let failed = binds.filter_map(|(bind, result)| {
        let error = result.as_ref().err()?;
        Some((bind.port, error.to_string()))
    });
    let unbound: BTreeMap<u16, String> = failed.collect();
    let problems = &served.load.problems;
    let shown = if problems.len() > MAX_PROBLEMS {
        MAX_PROBLEMS - 1
    } else {
        MAX_PROBLEMS
    };
    let mut lines: Vec<String> = problems
        .iter()
        .take(shown)
        .map(|problem| truncate(&problem.to_string()))
        .collect();
    if problems.len() > shown {
        lines.push(format!("and {} more: see the log", problems.len() - shown));
    }
    Some(Serves {
        position,
        unbound,
        problems: lines,
        behind: None,
    })
}

fn truncate(text: &str) -> String {
    match text.char_indices().nth(MAX_PROBLEM_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;

    use super::*;
    use crate::finding::Severity;
    use crate::ir::{Bind, BindReport};
    use crate::provider::{Load, Problem};
    use crate::wire::Position;

    fn served(
        position: Option<Position>,
        problems: usize,
        binds: BindReport,
    ) -> ServedConfiguration {
        let problem = |number| {
            let text = format!("{number}: {}", "é".repeat(400));
            Problem::of_file(Severity::Error, "", text)
        };
        ServedConfiguration {
            load: Arc::new(Load {
                position,
                problems: (0..problems).map(problem).collect(),
                ..Load::default()
            }),
            generation: 1,
            report: Arc::default(),
            binds,
        }
    }

    fn position() -> Position {
        Position {
            instance: "5f2c".to_owned(),
            revision: 7,
        }
    }

    #[test]
    fn reports_only_objects_from_a_controller() {
        assert_eq!(serves(&served(None, 1, BindReport::new())), None);
        let report = serves(&served(Some(position()), 0, BindReport::new())).unwrap();
        assert_eq!(report.position, position());
        assert!(report.unbound.is_empty() && report.problems.is_empty());
    }

    #[test]
    fn names_unbound_ports_as_declared() {
        let bound = SocketAddr::from((Ipv4Addr::LOCALHOST, 65_092));
        let binds = BindReport::from([
            (Bind::tcp(None, 80), Ok(bound)),
            (Bind::tcp(None, 443), Err("taken".into())),
        ]);
        let report = serves(&served(Some(position()), 0, binds)).unwrap();
        assert_eq!(report.unbound, [(443, "taken".to_owned())].into());
    }

    #[test]
    fn bounds_reported_problems() {
        let lines = |count| {
            let report = serves(&served(Some(position()), count, BindReport::new()));
            report.unwrap().problems
        };
        assert_eq!(lines(16).len(), 16);
        let many = lines(40);
        assert_eq!(many.len(), 16);
        assert_eq!(many[15], "and 25 more: see the log");
        assert!(
            many.iter().all(|line| line.chars().count() <= 301),
            "{many:?}"
        );
    }
}
