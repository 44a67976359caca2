//! What the policies on a path require of its requests and connections: the values of the IR, section by section.

use std::sync::Arc;

use crate::ir::authorization::Authorization;
use crate::ir::cidr::CidrSet;
use crate::ir::client::{ClientAddress, ClientPolicies, ConnectionSettings, ProxyMode};
use crate::ir::http2::Http2Windows;
use crate::ir::limit::Limits;
use crate::ir::policy::{Enforced, IpRules, Policies};
use crate::ir::route::Timeouts;
use crate::ir::route_defaults::RouteDefaults;

use super::authentication;
use super::path::{Levels, OnLevel};
use super::policy::{Content, Section};

/// Returns what the policies of these levels require.
pub(super) fn effective(levels: &Levels<'_>) -> Policies {
    Policies {
        ip_rules: enforced(&levels.applied(Section::IpRules), ip_rules),
        limits: limits(&levels.applied(Section::Limits)),
        route: route(levels).map(Arc::new),
        authentication: authentication::required(levels),
        authorization: authorization(&levels.applied(Section::Authorization)),
    }
}

/// Returns what a section requires. A section that protects is never left out: one broken policy breaks it.
fn enforced<T>(
    applied: &[OnLevel<'_>],
    translate: impl Fn(&[OnLevel<'_>]) -> Result<T, String>,
) -> Option<Enforced<T>> {
    if applied.is_empty() {
        return None;
    }
    Some(match translate(applied) {
        Ok(required) => Enforced::Valid(Arc::new(required)),
        Err(why) => Enforced::Broken(why.into()),
    })
}

/// Denied addresses accumulate. The list of permitted addresses is that of the most specific policy. Names the policies that
/// these are of.
fn ip_rules(applied: &[OnLevel<'_>]) -> Result<IpRules, String> {
    let (mut allow, mut deny, mut policies) = (None, CidrSet::default(), Vec::new());
    for (place, policy) in applied.iter().enumerate() {
        let Content::IpRules {
            allow: own,
            deny: denied,
        } = policy.content()?
        else {
            continue;
        };
        allow.clone_from(own);
        deny = deny.union(denied);
        if !denied.is_empty() || place + 1 == applied.len() {
            policies.push(policy.policy.name.clone());
        }
    }
    Ok(IpRules {
        allow,
        deny,
        policies: policies.into(),
    })
}

/// The rules of the most specific policy.
fn authorization(applied: &[OnLevel<'_>]) -> Option<Enforced<Authorization>> {
    match applied.last()?.content() {
        Ok(Content::Authorization(authorization)) => Some(Enforced::Valid(authorization.clone())),
        Ok(_) => None,
        Err(why) => Some(Enforced::Broken(why.into())),
    }
}

/// The limits of the most specific policy.
fn limits(applied: &[OnLevel<'_>]) -> Option<Enforced<Limits>> {
    match applied.last()?.content() {
        Ok(Content::Limits(limits)) => Some(Enforced::Valid(limits.clone())),
        Ok(_) => None,
        Err(why) => Some(Enforced::Broken(why.into())),
    }
}

/// How requests are handled, section by section. What cannot be used is left out.
fn route(levels: &Levels<'_>) -> Option<RouteDefaults> {
    let mut defaults: Option<RouteDefaults> = None;
    for section in [
        Section::RequestBody,
        Section::RouteTimeouts,
        Section::Retry,
        Section::RequestHeaders,
        Section::ResponseHeaders,
        Section::Compression,
        Section::ErrorPages,
    ] {
        if let Some((_, Content::Route(content))) = usable(levels, section) {
            let known = defaults.take().unwrap_or_default();
            defaults = Some(with_section(known, content));
        }
    }
    defaults
}

/// Adds a section to others.
fn with_section(known: RouteDefaults, section: &RouteDefaults) -> RouteDefaults {
    let mut policies = known.policies;
    for policy in &section.policies {
        if !policies.contains(policy) {
            policies.push(policy.clone());
        }
    }
    let timeouts = known.timeouts;
    // All fields are named, so that a new one fails to compile until it is handled here.
    RouteDefaults {
        max_body: known.max_body.or(section.max_body),
        buffered_body: known.buffered_body.or(section.buffered_body),
        timeouts: Timeouts {
            request: timeouts.request.or(section.timeouts.request),
            backend_request: timeouts
                .backend_request
                .or(section.timeouts.backend_request),
        },
        stream_idle: known.stream_idle.or(section.stream_idle),
        retry: known.retry.or_else(|| section.retry.clone()),
        request_headers: known
            .request_headers
            .or_else(|| section.request_headers.clone()),
        response_headers: known
            .response_headers
            .or_else(|| section.response_headers.clone()),
        compression: known.compression.or_else(|| section.compression.clone()),
        error_pages: match known.error_pages.is_empty() {
            true => section.error_pages.clone(),
            false => known.error_pages,
        },
        policies,
    }
}

/// Returns how clients connect. `levels` are those of a listener, and `of_port` those of its port, which `takes_quic` if that
/// may have HTTP/3.
pub(super) fn clients(
    levels: &Levels<'_>,
    of_port: &Levels<'_>,
    takes_quic: bool,
) -> ClientPolicies {
    let applied = |section| usable(of_port, section);
    let proxy_protocol = match applied(Section::ProxyProtocol) {
        Some((_, Content::ProxyProtocol(protocol))) => Some(protocol.clone()),
        _ => None,
    };
    let mut connections = None;
    for section in [
        Section::Timeouts,
        Section::Connections,
        Section::Headers,
        Section::Http2,
    ] {
        if let Some((policy, Content::Connections(settings))) = applied(section) {
            let known = connections.take().unwrap_or_default();
            let mut joined = joined(known, settings);
            if !joined.policies.contains(&policy.policy.name) {
                joined.policies.push(policy.policy.name.clone());
            }
            connections = Some(joined);
        }
    }
    ClientPolicies {
        address: address(&levels.applied(Section::ClientIp)),
        tls: match usable(levels, Section::Tls) {
            Some((_, Content::Tls(tls))) => Some(tls.clone()),
            _ => None,
        },
        path: match usable(levels, Section::Path) {
            Some((_, Content::Path(path))) => Some(path.clone()),
            _ => None,
        },
        proxy_protocol,
        http3: match applied(Section::Http3) {
            Some((_, Content::Http3(http3))) => {
                Some(http3.clone()).filter(|_| takes_quic && proxied_by(of_port).is_none())
            }
            _ => None,
        },
        unknown_protocol: unknown(&of_port.applied(Section::ProxyProtocol)),
        connections: connections.map(Arc::new),
    }
}

/// Returns the most specific policy of a section that can be used.
fn usable<'a>(levels: &Levels<'a>, section: Section) -> Option<(OnLevel<'a>, &'a Content)> {
    let applied = levels.applied(section).into_iter().rev();
    let mut usable = applied.filter_map(|it| Some((it, it.usable()?)));
    usable.next()
}

/// Where the address of a client comes from.
fn address(applied: &[OnLevel<'_>]) -> Option<Enforced<ClientAddress>> {
    match applied.last()?.content() {
        Ok(Content::ClientIp(address)) => Some(Enforced::Valid(address.clone())),
        Ok(_) => None,
        Err(why) => Some(Enforced::Broken(why.into())),
    }
}

/// Returns the policy due to which connections of a port may begin with a header of the PROXY protocol, which those of QUIC do
/// not have. It is also one that cannot be used: what it would say is not known.
pub(super) fn proxied_by<'a>(of_port: &Levels<'a>) -> Option<OnLevel<'a>> {
    let applied = of_port.applied(Section::ProxyProtocol);
    let last = applied.last().copied();
    let broken = last.filter(|it| it.content().is_err());
    let is_on = |it: &OnLevel<'_>| match it.usable() {
        Some(Content::ProxyProtocol(protocol)) => protocol.mode != ProxyMode::Off,
        _ => false,
    };
    let usable = usable(of_port, Section::ProxyProtocol).map(|(it, _)| it);
    broken.or(usable.filter(is_on))
}

/// Returns why it is unknown where connections come from.
fn unknown(applied: &[OnLevel<'_>]) -> Option<Arc<str>> {
    applied.last()?.content().err().map(Arc::from)
}

/// Returns the settings of two sections, which set different ones.
fn joined(known: ConnectionSettings, section: &ConnectionSettings) -> ConnectionSettings {
    // All fields are named, so that a new one fails to compile until it is handled here.
    ConnectionSettings {
        header_timeout: known.header_timeout.or(section.header_timeout),
        body_timeout: known.body_timeout.or(section.body_timeout),
        idle_timeout: known.idle_timeout.or(section.idle_timeout),
        stream_idle_timeout: known.stream_idle_timeout.or(section.stream_idle_timeout),
        handshake_timeout: known.handshake_timeout.or(section.handshake_timeout),
        max_headers: known.max_headers.or(section.max_headers),
        max_header_bytes: known.max_header_bytes.or(section.max_header_bytes),
        max_streams: known.max_streams.or(section.max_streams),
        windows: Http2Windows {
            stream: known.windows.stream.or(section.windows.stream),
            connection: known.windows.connection.or(section.windows.connection),
        },
        max_connections: known.max_connections.or(section.max_connections),
        max_per_client: known.max_per_client.or(section.max_per_client),
        max_requests: known.max_requests.or(section.max_requests),
        max_age: known.max_age.or(section.max_age),
        tcp_keepalive: known.tcp_keepalive.or(section.tcp_keepalive),
        underscores: known.underscores.or(section.underscores),
        request_id: known.request_id.or(section.request_id),
        forwarded: known.forwarded.or_else(|| section.forwarded.clone()),
        policies: known.policies,
    }
}
