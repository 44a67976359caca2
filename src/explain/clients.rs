//! Text for how clients connect to a listener. Must not know the policies themselves.

use std::sync::Arc;
use std::time::Duration;

use super::explanation::Explanation;
use super::policies::cidrs;
use crate::ir::client::{
    AddressSource, ClientAddress, ClientPolicies, ConnectionSettings, ProxyMode, ProxyProtocol,
};
use crate::ir::policy::Enforced;

/// Explains how clients connect, if policies say it.
pub(super) fn explain(explanation: &mut Explanation, clients: Option<&Arc<ClientPolicies>>) {
    let Some(clients) = clients else {
        return;
    };
    let ClientPolicies {
        address,
        proxy_protocol,
        connections,
    } = &**clients;
    explanation.lines("PROXY", proxy_protocol.as_deref().map(shown_protocol));
    explanation.lines("client IP", address.as_ref().map(shown_address));
    explanation.lines("connections", connections.as_deref().map(shown_settings));
}

fn shown_protocol(protocol: &ProxyProtocol) -> String {
    let ProxyProtocol {
        mode,
        trusted,
        policy,
    } = protocol;
    let trusted = cidrs(trusted);
    match mode {
        ProxyMode::Off => format!("no header of the PROXY protocol ({policy})"),
        ProxyMode::Optional => {
            format!("connections from {trusted} may begin with a header ({policy})")
        }
        ProxyMode::Required => {
            format!("connections from {trusted} begin with a header, others are closed ({policy})")
        }
    }
}

fn shown_address(address: &Enforced<ClientAddress>) -> String {
    let ClientAddress { source, policy } = match address {
        Enforced::Valid(address) => &**address,
        Enforced::Broken(why) => {
            return format!("requests to which IP rules or limits apply get 500: {why}");
        }
    };
    let source = match source {
        AddressSource::Connection => "that of the connection".to_owned(),
        AddressSource::Hops(hops) => {
            format!("element {hops} of X-Forwarded-For from the right")
        }
        AddressSource::Proxies(proxies) => format!(
            "the last one in X-Forwarded-For that is not in {}",
            cidrs(proxies)
        ),
        AddressSource::Header { name, trusted } => {
            format!("header {name} of connections from {}", cidrs(trusted))
        }
    };
    match policy {
        Some(policy) => format!("{source} ({policy})"),
        None => source,
    }
}

fn shown_settings(settings: &ConnectionSettings) -> String {
    let ConnectionSettings {
        header_timeout,
        body_timeout,
        idle_timeout,
        stream_idle_timeout,
        handshake_timeout,
        max_headers,
        max_header_bytes,
        max_streams,
        max_connections,
        max_per_client,
        max_requests,
        policies,
    } = settings;
    let time = |name: &str, time: &Option<Duration>| time.map(|time| format!("{name} {time:?}"));
    let count = |name: &str, count: Option<usize>| count.map(|count| format!("{name} {count}"));
    let size = |count: &Option<u32>| count.map(|count| count as usize);
    let set = [
        time("header", header_timeout),
        time("body", body_timeout),
        time("idle", idle_timeout),
        time("streamIdle", stream_idle_timeout),
        time("tlsHandshake", handshake_timeout),
        count("maxCount", *max_headers),
        count("maxBytes", *max_header_bytes),
        count("maxConcurrentStreams", size(max_streams)),
        count("max", *max_connections),
        count("maxPerClient", *max_per_client),
        count("maxRequests", size(max_requests)),
    ];
    let set: Vec<_> = set.into_iter().flatten().collect();
    let policies: Vec<_> = policies.iter().map(ToString::to_string).collect();
    format!("{} ({})", set.join(", "), policies.join(", "))
}
