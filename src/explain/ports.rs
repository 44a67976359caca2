//! The ports and listeners that a request may be for, and text for what happens where there is none.

use std::sync::Arc;

use super::explanation::nearest;
use super::request::ExplainedRequest;
use crate::ir::PortProtocol;
use crate::table::{Port, Table};

/// The ports that the URL may refer to. If the URL has no port and nothing listens on the default port of its scheme,
/// these are all ports of the scheme. `is_declared` is whether a listener that is not served has the port.
pub(super) fn candidates<'a>(
    table: &'a Table,
    request: &ExplainedRequest,
    is_declared: bool,
) -> Vec<&'a Arc<Port>> {
    let speaks = |port: &&Arc<Port>| port.protocol() == request.protocol;
    let of_scheme: Vec<_> = table.ports().iter().filter(speaks).collect();
    let number = request.number();
    let exact: Vec<_> = of_scheme
        .iter()
        .copied()
        .filter(|port| port.bind().port == number)
        .collect();
    if exact.is_empty() && request.port.is_none() && !is_declared {
        return of_scheme;
    }
    exact
}

/// Says that the port of the request is closed, or speaks another protocol, and which ports are open. `is_declared` is
/// whether a listener that is not served has it.
pub(super) fn no_port(table: &Table, request: &ExplainedRequest, is_declared: bool) -> Vec<String> {
    let number = request.number();
    let scheme = request.scheme();
    let same = table.ports().iter().find(|port| port.bind().port == number);
    let first = match same {
        Some(port) => {
            let gateway = &port.ir.gateway;
            let speaks = protocol(port.protocol());
            format!("port {number} of {gateway} is not for {scheme}, but for {speaks}")
        }
        None if is_declared => format!("port {number} is closed: no listener on it is served"),
        None => format!("port {number} is closed: no listener has it"),
    };
    let open = nearest(
        table.ports().iter().collect(),
        |port| usize::from(port.bind().port.abs_diff(number)),
        |port| format!("open: {} ({})", port.bind(), protocol(port.protocol())),
        "open ports",
    );
    let none = open
        .is_empty()
        .then(|| "the configuration opens no port".to_owned());
    std::iter::once(first).chain(open).chain(none).collect()
}

pub(super) fn protocol(protocol: PortProtocol) -> &'static str {
    match protocol {
        PortProtocol::Http => "http",
        PortProtocol::Tls => "https or tls",
        PortProtocol::Tcp => "tcp",
        PortProtocol::Udp => "udp",
    }
}

/// Says that no listener of a port is for the host, what happens, and which hosts there are.
pub(super) fn no_listener(port: &Port, host: &str, outcome: &str) -> Vec<String> {
    let hosts = nearest(
        port.listeners().iter().collect(),
        |listener| strsim::damerau_levenshtein(host, &listener.ir.hostname.to_string()),
        |listener| {
            format!(
                "for {}: listener {}",
                listener.ir.hostname, listener.ir.key.name
            )
        },
        "listeners",
    );
    let first = format!("none for {host}: {outcome}");
    std::iter::once(first).chain(hosts).collect()
}
