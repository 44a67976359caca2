//! Text for the backends of a rule, and for what clients get instead of one.

use std::net::SocketAddr;

use super::configuration::Configuration;
use super::{describe, live, traffic};
use crate::ir::picker::UNANSWERED;
use crate::ir::route::{Action, BackendTarget, WeightedBackend};
use crate::ir::tls::Authorities;
use crate::ir::{
    Backend, BackendId, Endpoints, Filter, PickerRef, Release, Releases, Rule, UpstreamProtocol,
};
use crate::table::Table;

/// Statuses for requests that cannot be forwarded.
struct Refusals {
    invalid: &'static str,
    unavailable: &'static str,
}

const HTTP: Refusals = Refusals {
    invalid: "500",
    unavailable: "503",
};

const GRPC: Refusals = Refusals {
    invalid: "gRPC status UNAVAILABLE",
    unavailable: "gRPC status UNAVAILABLE",
};

const L4: Refusals = Refusals {
    invalid: "a reset connection, or a dropped datagram",
    unavailable: "a reset connection, or a dropped datagram",
};

fn refusals(rule: &Rule, is_call: bool) -> &'static Refusals {
    match &*rule.id.route.kind {
        "TLSRoute" | "TCPRoute" | "UDPRoute" => &L4,
        "GRPCRoute" => &GRPC,
        _ if is_call => &GRPC,
        _ => &HTTP,
    }
}

/// Reports whether requests can be balanced over endpoints of a backend, or over those of a hostname that is resolved once it is
/// in service.
pub(super) fn is_available(id: &BackendId, configuration: Configuration<'_>) -> bool {
    let table = configuration.table;
    match (table.ir.backend(id), table.backend(id)) {
        (Some(_), Some(node)) if configuration.is_in_service() => node.endpoints().are_served(),
        (Some(backend), _) => describe::has_endpoints(&backend.endpoints),
        (None, _) => false,
    }
}

/// Describes the weighted backends with their endpoints, or why there are none. With `live`, the endpoints are those in
/// service, with their state. `is_call` is whether the request is a call of gRPC.
pub(super) fn action(rule: &Rule, (table, live): (&Table, bool), is_call: bool) -> Vec<String> {
    let refusals = refusals(rule, is_call);
    let shares = match &rule.action {
        Action::Invalid(reason) => {
            return vec![format!(
                "none: every request gets {}: {reason}",
                refusals.invalid
            )];
        }
        Action::Forward(_) if rule.filters.iter().any(Filter::responds) => return Vec::new(),
        Action::Forward(shares) => shares,
    };
    let total: u64 = shares.iter().map(|share| u64::from(share.weight)).sum();
    if total == 0 {
        return vec![format!(
            "none with a weight: every request gets {}",
            refusals.invalid
        )];
    }
    shares
        .iter()
        .flat_map(|share| share_lines((share, total), rule, (table, live), refusals))
        .collect()
}

fn endpoints(endpoints: &Endpoints) -> String {
    let list = |addresses: &[SocketAddr]| {
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        addresses.join(", ")
    };
    match endpoints {
        Endpoints::Addresses(addresses) => list(addresses),
        Endpoints::Zoned { addresses, near } => {
            format!(
                "{}, first those in the own zone: {}",
                list(addresses),
                list(near)
            )
        }
        Endpoints::Unready { addresses, unready } => {
            let ready = match &**addresses {
                [] => "none is ready".to_owned(),
                addresses => list(addresses),
            };
            format!("{ready}, only by the picker: {}", list(unready))
        }
        Endpoints::Hostname { hostname, port } => {
            format!("{hostname}:{port}, whose addresses are resolved at runtime")
        }
        Endpoints::Releases(releases) => releases_line(releases),
    }
}

fn releases_line(Releases { cookie, releases }: &Releases) -> String {
    let total: f64 = releases.iter().map(|release| release.weight as f64).sum();
    let release = |release: &Release| {
        let percent = match release.weight {
            0 => 0.0,
            weight => weight as f64 * 100.0 / total,
        };
        let addresses: Vec<_> = release.addresses.iter().map(ToString::to_string).collect();
        let endpoints = match &*addresses {
            [] if release.weight == 0 => "no endpoint".to_owned(),
            [] => "no endpoint: 503".to_owned(),
            addresses => addresses.join(", "),
        };
        format!("release {} {percent:.1} %: {endpoints}", release.name)
    };
    let mut parts: Vec<_> = releases.iter().map(release).collect();
    parts.extend(
        cookie
            .as_ref()
            .map(|cookie| format!("cookie {cookie} keeps a client on its release")),
    );
    parts.join("; ")
}

fn share_lines(
    (share, total): (&WeightedBackend, u64),
    rule: &Rule,
    (table, live): (&Table, bool),
    refusals: &Refusals,
) -> Vec<String> {
    let percent = f64::from(share.weight) * 100.0 / total as f64;
    let id = share.target.backend();
    let backend = id.and_then(|id| table.ir.backend(id));
    let node = id.and_then(|id| table.backend(id)).filter(|_| live);
    let may_pick = backend.is_some_and(|backend| !backend.endpoints.unready().is_empty());
    let target = match &share.target {
        BackendTarget::Invalid(reason) => format!("{}: {reason}", refusals.invalid),
        BackendTarget::Backend(id) => match (backend, node) {
            (Some(backend), Some(node)) if may_pick || node.endpoints().are_served() => {
                format!("{}: {}", protocol(backend), live::summary(backend, node))
            }
            (Some(backend), None) if may_pick || describe::has_endpoints(&backend.endpoints) => {
                format!("{}: {}", protocol(backend), endpoints(&backend.endpoints))
            }
            _ => format!("{id} has no ready endpoint: {}", refusals.unavailable),
        },
    };
    let mut lines = vec![format!("{percent:5.1} %  {target}")];
    let states = node.map(|node| live::endpoints(&node.endpoints()));
    let traffic = backend.and_then(|backend| backend.traffic.as_ref());
    let policy = traffic.map(|traffic| traffic::policy(traffic, rule.session().is_some()));
    let own = backend.and_then(|backend| backend.policy.as_ref());
    let own = own.map(|policy| traffic::backend_policy(policy));
    let picker = backend.and_then(|backend| backend.choice.picker());
    let picker = picker.map(|picker| picker_lines(picker, table));
    let details = states.into_iter().chain(picker).chain(policy).chain(own);
    let details = details.flatten();
    let details = details.chain(describe::filters(&share.filters, &table.ir));
    lines.extend(details.map(|detail| format!("         {detail}")));
    lines
}

/// Describes the picker of a backend: how it is asked, and what requests get without it.
fn picker_lines(picker: &PickerRef, table: &Table) -> Vec<String> {
    let server = match &picker.server {
        BackendTarget::Invalid(why) => format!("none: {why}"),
        BackendTarget::Backend(id) => table
            .ir
            .backend(id)
            .map_or_else(|| id.to_string(), |server| picker_server(server)),
    };
    vec![
        format!("endpoint picker {server}"),
        format!("{UNANSWERED}: {}", picker.failure_mode.effect()),
    ]
}

fn picker_server(server: &Backend) -> String {
    let tls = server.tls.as_ref();
    let is_unverified =
        tls.is_some_and(|tls| tls.verification.authorities == Authorities::Unverified);
    let unverified = match is_unverified {
        true => ", whose certificate is not verified",
        false => "",
    };
    format!("{}{unverified}", protocol(server))
}

/// Names a backend and the protocol of its endpoints.
fn protocol(backend: &Backend) -> String {
    let Backend {
        id, protocol, tls, ..
    } = backend;
    let protocol = match protocol {
        UpstreamProtocol::Http1 => "HTTP/1.1",
        UpstreamProtocol::H2c => "HTTP/2",
        UpstreamProtocol::Tcp => "TCP",
        UpstreamProtocol::Udp => "UDP",
    };
    // The id of a backend with its own TLS settings contains "in TLS" already.
    let is_own = id.tls.as_ref().is_some_and(|used| used.policy == id.object);
    let tls = if tls.is_some() && !is_own {
        " in TLS"
    } else {
        ""
    };
    format!("{id} over {protocol}{tls}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describes_releases_with_their_shares() {
        let release = |name: &str, weight, ports: &[u16]| Release {
            name: name.into(),
            weight,
            token: "".into(),
            addresses: ports
                .iter()
                .map(|port| ([10, 0, 0, 1], *port).into())
                .collect(),
        };
        let releases = Releases {
            cookie: Some("rel".into()),
            releases: vec![
                release("v1", 999, &[80, 81]),
                release("v2", 1, &[]),
                release("v3", 0, &[82]),
            ],
        };
        assert_eq!(
            endpoints(&Endpoints::Releases(releases)),
            "release v1 99.9 %: 10.0.0.1:80, 10.0.0.1:81; release v2 0.1 %: no endpoint: 503; \
             release v3 0.0 %: 10.0.0.1:82; cookie rel keeps a client on its release"
        );
    }
}
