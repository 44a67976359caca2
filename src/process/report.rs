//! The report of a pod to its controller about a [`ServedConfiguration`]: the revision in service, the ports
//! that could not be bound, and the objects that could not be read.

use crate::control::data_plane::ServedConfiguration;
use crate::ir::{BindReport, Transport};
use crate::wire::{Binds, Serves};

/// Maximum number of reported problems, and of characters of each. They appear in conditions. The
/// log has all of them.
const MAX_PROBLEMS: usize = 16;
const MAX_PROBLEM_CHARS: usize = 300;

/// Builds the report of a served configuration; `None` if its objects did not come from a controller.
pub(super) fn serves(served: &ServedConfiguration) -> Option<Serves> {
    let position = served.load.position.clone()?;
    let binds = by_transport(&served.binds);
    let unbound = binds.udp.iter().chain(&binds.tcp);
    let unbound = unbound.map(|(port, error)| (*port, error.clone()));
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
        unbound: unbound.collect(),
        binds: Some(binds),
        problems: lines,
        behind: None,
    })
}

fn by_transport(report: &BindReport) -> Binds {
    let mut binds = Binds::default();
    for (bind, result) in report {
        let error = result.as_ref().err().map(|error| error.to_string());
        match (bind.transport, error) {
            (Transport::Tcp, Some(error)) => drop(binds.tcp.insert(bind.port, error)),
            (Transport::Udp, Some(error)) => drop(binds.udp.insert(bind.port, error)),
            (Transport::Tcp | Transport::Udp, None) => {}
            (Transport::Quic, error) => {
                // Bound means on each address.
                let known = binds.quic.entry(bind.port).or_default();
                *known = known.take().or(error);
            }
        }
    }
    binds
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
    use crate::ir::Bind;
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
    fn transports_of_a_port_are_apart() {
        let bound = || Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, 65_092)));
        let taken = || Err("taken".into());
        let udp = |port| Bind {
            transport: Transport::Udp,
            ..Bind::tcp(None, port)
        };
        let quic = |port| Bind::tcp(None, port).quic();
        let first = Bind::tcp(Some(Ipv4Addr::LOCALHOST.into()), 444).quic();
        let binds = BindReport::from([
            (Bind::tcp(None, 53), bound()),
            (udp(53), taken()),
            (Bind::tcp(None, 443), bound()),
            (quic(443), taken()),
            (Bind::tcp(None, 444), taken()),
            (first, taken()),
            (quic(444), bound()),
            (quic(445), bound()),
        ]);
        let report = serves(&served(Some(position()), 0, binds)).unwrap();
        let error = || "taken".to_owned();
        assert_eq!(report.unbound, [(53, error()), (444, error())].into());
        let expected = Binds {
            tcp: [(444, error())].into(),
            udp: [(53, error())].into(),
            quic: [(443, Some(error())), (444, Some(error())), (445, None)].into(),
        };
        assert_eq!(report.binds, Some(expected));
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
