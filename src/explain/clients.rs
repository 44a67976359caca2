//! Text for how clients connect to a listener. Must not know the policies themselves.

use std::sync::Arc;
use std::time::Duration;

use super::explanation::Explanation;
use super::policies::cidrs;
use crate::ir::client::{
    AddressSource, ClientAddress, ClientPolicies, ConnectionSettings, DotSegments,
    DuplicateSlashes, EscapedSlashes, Http3, PathSettings, ProxyMode, ProxyProtocol, TlsSettings,
};
use crate::ir::http2::Http2Windows;
use crate::ir::policy::Enforced;
use crate::ir::tls::{AlpnProtocol, TlsVersion};

/// Explains how clients connect to this port, if policies say it.
pub(super) fn explain(
    explanation: &mut Explanation,
    port: u16,
    clients: Option<&Arc<ClientPolicies>>,
) {
    let Some(clients) = clients else {
        return;
    };
    let ClientPolicies {
        address,
        tls,
        path,
        proxy_protocol,
        http3,
        unknown_protocol,
        connections,
    } = &**clients;
    explanation.lines("TLS policy", tls.as_deref().map(shown_tls));
    explanation.lines("path", path.as_deref().map(shown_path));
    explanation.lines("PROXY", proxy_protocol.as_deref().map(shown_protocol));
    explanation.lines("HTTP3", http3.as_deref().map(|it| shown_http3(it, port)));
    let unknown = unknown_protocol.as_deref().map(undecided);
    let address = address.as_ref().map(shown_address);
    explanation.lines("client IP", unknown.into_iter().chain(address));
    explanation.lines("connections", connections.as_deref().map(shown_settings));
}

fn shown_tls(settings: &TlsSettings) -> String {
    let TlsSettings {
        min_version,
        suites,
        groups,
        alpn,
        policy,
    } = settings;
    let version = min_version.map(|version| match version {
        TlsVersion::Tls12 => "minVersion 1.2".to_owned(),
        TlsVersion::Tls13 => "minVersion 1.3".to_owned(),
    });
    let alpn: Vec<_> = alpn.iter().copied().map(AlpnProtocol::name).collect();
    let set = [
        version,
        list("cipherSuites", suites),
        list("groups", groups),
        list("alpn", &alpn),
    ];
    let set: Vec<_> = set.into_iter().flatten().collect();
    format!("{} ({policy})", set.join("; "))
}

fn shown_path(settings: &PathSettings) -> String {
    let PathSettings {
        escaped_slashes,
        duplicate_slashes,
        dot_segments,
        policy,
    } = settings;
    let escaped = match escaped_slashes {
        EscapedSlashes::Keep => "kept",
        EscapedSlashes::Reject => "refused with 400",
        EscapedSlashes::Decode => "redirected to slashes",
    };
    let duplicates = match duplicate_slashes {
        DuplicateSlashes::Forward => "compared as one and forwarded",
        DuplicateSlashes::Merge => "merged",
        DuplicateSlashes::Keep => "kept",
    };
    let dots = match dot_segments {
        DotSegments::Keep => "kept",
        DotSegments::Normalize => "resolved",
        DotSegments::Reject => "refused with 400",
    };
    format!(
        "escaped slashes are {escaped}, duplicate slashes {duplicates}, dot segments {dots} ({policy})"
    )
}

fn list(name: &str, values: &[impl ToString]) -> Option<String> {
    let values: Vec<_> = values.iter().map(ToString::to_string).collect();
    (!values.is_empty()).then(|| format!("{name} {}", values.join(", ")))
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

fn shown_http3(http3: &Http3, port: u16) -> String {
    let Http3 {
        advertised_port,
        max_age,
        policy,
    } = http3;
    let advertised = advertised_port.unwrap_or(port);
    format!("on UDP port {port}; Alt-Svc names port {advertised}, for {max_age:?} ({policy})")
}

/// What follows where it is unknown where addresses of clients come from.
fn undecided(why: &str) -> String {
    format!("requests to which IP rules or limits apply get 500: {why}")
}

fn shown_address(address: &Enforced<ClientAddress>) -> String {
    let ClientAddress { source, policy } = match address {
        Enforced::Valid(address) => &**address,
        Enforced::Broken(why) => return undecided(why),
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
        windows: Http2Windows { stream, connection },
        max_connections,
        max_per_client,
        max_requests,
        max_age,
        tcp_keepalive,
        underscores,
        request_id,
        forwarded,
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
        time("maxConnectionAge", max_age),
        count("maxCount", *max_headers),
        count("maxBytes", *max_header_bytes),
        count("maxConcurrentStreams", size(max_streams)),
        count("initialStreamWindow", size(stream)),
        count("initialConnectionWindow", size(connection)),
        count("max", *max_connections),
        count("maxPerClient", *max_per_client),
        count("maxRequests", size(max_requests)),
        time("tcpKeepalive", tcp_keepalive),
        underscores.map(|it| format!("underscores {it:?}")),
        request_id.map(|it| format!("requestID {it:?}")),
        forwarded.as_ref().map(|headers| {
            let names: Vec<_> = headers.iter().map(|it| it.name()).collect();
            let names = names.join(" ");
            format!(
                "forwarded {}",
                if names.is_empty() { "none" } else { &names }
            )
        }),
    ];
    let set: Vec<_> = set.into_iter().flatten().collect();
    let policies: Vec<_> = policies.iter().map(ToString::to_string).collect();
    format!("{} ({})", set.join(", "), policies.join(", "))
}
