//! ClientPolicies: how clients connect, and where their addresses come from.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use crate::api::Resource;
use crate::api::client_policy::{
    AddressHeader, ClientIp, ClientPolicy, ClientSpec, ClientTimeouts, ConnectionLimits,
    HeaderLimits, Http2Settings, ProxyProtocol, XForwardedFor,
};
use crate::ir::ObjectRef;
use crate::ir::client::{self, AddressSource, ClientAddress, ConnectionSettings, ProxyMode};

use super::access::cidrs;
use super::policy::{Content, Policy, Section};
use crate::translate::duration;
use crate::translate::reason::{ConditionType, Fault, Reason};

/// Parses a policy.
pub(super) fn read(object: &ClientPolicy) -> Policy {
    // Destructured, so that a new field fails to compile until it is handled here.
    let ClientSpec {
        target_refs,
        strategy: _,
        proxy_protocol,
        client_ip,
        timeouts,
        connections,
        headers,
        http2,
    } = &object.spec;
    let name = object.object_ref();
    let mut sections = BTreeMap::new();
    let mut set = |section, content: Option<Result<Content, Fault>>| {
        sections.extend(content.map(|content| (section, content)));
    };
    let proxy_protocol = proxy_protocol.as_ref();
    set(
        Section::ProxyProtocol,
        proxy_protocol.map(|it| self::proxy_protocol(&name, it)),
    );
    let client_ip = client_ip.as_ref();
    set(
        Section::ClientIp,
        client_ip.map(|it| self::client_ip(&name, it)),
    );
    set(Section::Timeouts, timeouts.as_ref().map(self::timeouts));
    let connections = connections.as_ref();
    set(Section::Connections, connections.map(self::connections));
    set(Section::Headers, headers.as_ref().map(self::headers));
    set(Section::Http2, http2.as_ref().map(self::http2));
    if target_refs.iter().any(|target| target.kind != "Gateway") {
        let of_connections = sections.iter_mut().filter(|(it, _)| it.is_of_connections());
        for (section, content) in of_connections {
            let field = section.field();
            *content = invalid(format!(
                "{field} is for Gateways and their listeners: ListenerSets share ports with others"
            ));
        }
    }
    let mut policy = Policy::new(object, ConditionType::ClientPolicyAffected, sections);
    policy.protects = false;
    policy
}

fn invalid<T>(message: String) -> Result<T, Fault> {
    Err(Fault::new(Reason::Invalid, message))
}

fn proxy_protocol(policy: &ObjectRef, section: &ProxyProtocol) -> Result<Content, Fault> {
    let ProxyProtocol {
        mode,
        trusted_cidrs,
    } = section;
    let mode = match mode.as_str() {
        "Off" => ProxyMode::Off,
        "Optional" => ProxyMode::Optional,
        "Required" => ProxyMode::Required,
        other => {
            return invalid(format!(
                "spec.proxyProtocol.mode: {other:?} is none of Off, Optional and Required"
            ));
        }
    };
    let field = "spec.proxyProtocol.trustedCIDRs";
    let trusted = cidrs(trusted_cidrs.as_deref().unwrap_or_default(), field)?;
    if mode != ProxyMode::Off && trusted.is_empty() {
        return invalid(format!("{field}: needs the CIDRs of load balancers"));
    }
    Ok(Content::ProxyProtocol(Arc::new(client::ProxyProtocol {
        mode,
        trusted,
        policy: policy.clone(),
    })))
}

fn client_ip(policy: &ObjectRef, section: &ClientIp) -> Result<Content, Fault> {
    let ClientIp {
        x_forwarded_for,
        header,
    } = section;
    let source = match (x_forwarded_for, header) {
        (None, None) => AddressSource::Connection,
        (Some(list), None) => self::x_forwarded_for(list)?,
        (None, Some(header)) => self::header(header)?,
        (Some(_), Some(_)) => {
            return invalid("spec.clientIP: has both xForwardedFor and header".to_owned());
        }
    };
    Ok(Content::ClientIp(Arc::new(ClientAddress {
        source,
        policy: Some(policy.clone()),
    })))
}

fn x_forwarded_for(section: &XForwardedFor) -> Result<AddressSource, Fault> {
    let field = "spec.clientIP.xForwardedFor";
    let XForwardedFor {
        trusted_hops,
        trusted_cidrs,
    } = section;
    match (trusted_hops, trusted_cidrs) {
        (Some(0), None) => invalid(format!("{field}.trustedHops: is less than 1")),
        (Some(hops), None) => Ok(AddressSource::Hops((*hops).into())),
        (None, Some(texts)) => {
            let proxies = cidrs(texts, &format!("{field}.trustedCIDRs"))?;
            Ok(AddressSource::Proxies(proxies))
        }
        (None, None) | (Some(_), Some(_)) => invalid(format!(
            "{field}: needs trustedHops or trustedCIDRs, and not both"
        )),
    }
}

fn header(section: &AddressHeader) -> Result<AddressSource, Fault> {
    let AddressHeader {
        name,
        trusted_cidrs,
    } = section;
    let field = "spec.clientIP.header";
    let Ok(name) = name.parse::<HeaderName>() else {
        return invalid(format!(
            "{field}.name: {name:?} is not the name of a header"
        ));
    };
    Ok(AddressSource::Header {
        name,
        trusted: cidrs(trusted_cidrs, &format!("{field}.trustedCIDRs"))?,
    })
}

fn timeouts(section: &ClientTimeouts) -> Result<Content, Fault> {
    let ClientTimeouts {
        header,
        body,
        idle,
        stream_idle,
        tls_handshake,
    } = section;
    let parse = |text: &Option<String>, name: &str| -> Result<Option<Duration>, Fault> {
        let Some(text) = text else { return Ok(None) };
        let field = format!("spec.timeouts.{name}");
        match duration::parse(text, &field) {
            Ok(Duration::ZERO) => invalid(format!("{field}: 0 would end every connection")),
            Ok(time) => Ok(Some(time)),
            Err(fault) => invalid(fault.message),
        }
    };
    Ok(Content::Connections(ConnectionSettings {
        header_timeout: parse(header, "header")?,
        body_timeout: parse(body, "body")?,
        idle_timeout: parse(idle, "idle")?,
        stream_idle_timeout: parse(stream_idle, "streamIdle")?,
        handshake_timeout: parse(tls_handshake, "tlsHandshake")?,
        ..ConnectionSettings::default()
    }))
}

fn connections(section: &ConnectionLimits) -> Result<Content, Fault> {
    let ConnectionLimits {
        max,
        max_per_client,
        max_requests,
    } = section;
    for (name, value) in [
        ("max", max),
        ("maxPerClient", max_per_client),
        ("maxRequests", max_requests),
    ] {
        if *value == Some(0) {
            return invalid(format!(
                "spec.connections.{name}: 0 would refuse everything"
            ));
        }
    }
    Ok(Content::Connections(ConnectionSettings {
        max_connections: max.map(|it| it as usize),
        max_per_client: max_per_client.map(|it| it as usize),
        max_requests: *max_requests,
        ..ConnectionSettings::default()
    }))
}

fn headers(section: &HeaderLimits) -> Result<Content, Fault> {
    let HeaderLimits {
        max_count,
        max_bytes,
    } = section;
    for (name, value) in [("maxCount", max_count), ("maxBytes", max_bytes)] {
        if *value == Some(0) {
            return invalid(format!("spec.headers.{name}: 0 would refuse every request"));
        }
    }
    Ok(Content::Connections(ConnectionSettings {
        max_headers: max_count.map(|it| it as usize),
        max_header_bytes: max_bytes.map(|it| it as usize),
        ..ConnectionSettings::default()
    }))
}

fn http2(section: &Http2Settings) -> Result<Content, Fault> {
    let Http2Settings {
        max_concurrent_streams,
    } = section;
    if *max_concurrent_streams == Some(0) {
        return invalid("spec.http2.maxConcurrentStreams: 0 would refuse every request".to_owned());
    }
    Ok(Content::Connections(ConnectionSettings {
        max_streams: *max_concurrent_streams,
        ..ConnectionSettings::default()
    }))
}
