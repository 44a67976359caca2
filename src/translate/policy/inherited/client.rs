//! ClientPolicies: how clients connect, and where their addresses come from.

mod headers;
mod http3;
mod limited;
mod path;
mod tls;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use crate::api::Resource;
use crate::api::client_policy::{
    AddressHeader, ClientIp, ClientPolicy, ClientSpec, ClientTimeouts, ConnectionLimits,
    Http2Settings, ProxyProtocol, XForwardedFor,
};
use crate::api::inherited_policy::Unreadable;
use crate::ir::ObjectRef;
use crate::ir::client::{self, AddressSource, ClientAddress, ConnectionSettings, ProxyMode};

use self::limited::{Limit, limited};
use super::access::cidrs;
use super::policy::{Content, Policy, Section};
use crate::translate::duration;
use crate::translate::policy::policy_status::unreadable_fault;
use crate::translate::policy::windows::windows;
use crate::translate::reason::{ConditionType, Fault, invalid};

/// Maximum of `maxConnectionAge`.
const MAX_AGE: Limit = (Duration::from_secs(7 * 24 * 3600), "168h");
/// Maximum of `tcpKeepalive`.
const MAX_KEEPALIVE: Limit = (Duration::from_secs(2 * 3600), "2h");

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
        http3,
        tls,
        path,
    } = &object.spec;
    if let Some(unreadable) = &object.unreadable {
        return policy(object, broken(unreadable));
    }
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
    set(Section::Headers, headers.as_ref().map(headers::headers));
    set(Section::Http2, http2.as_ref().map(self::http2));
    let http3 = http3.as_ref();
    set(Section::Http3, http3.map(|it| http3::http3(&name, it)));
    set(Section::Tls, tls.as_ref().map(|it| tls::tls(&name, it)));
    set(Section::Path, path.as_ref().map(|it| path::path(&name, it)));
    if target_refs.iter().any(|target| target.kind != "Gateway") {
        let of_connections = sections.iter_mut().filter(|(it, _)| it.is_of_connections());
        for (section, content) in of_connections {
            let field = section.field();
            *content = invalid(format!(
                "{field} is for Gateways and their listeners: ListenerSets share ports with others"
            ));
        }
    }
    policy(object, sections)
}

fn policy(object: &ClientPolicy, sections: BTreeMap<Section, Result<Content, Fault>>) -> Policy {
    let mut policy = Policy::new(object, ConditionType::ClientPolicyAffected, sections);
    policy.protects = false;
    policy.pending = object.pending.as_deref().map(|it| Arc::new(read(it)));
    policy
}

/// Returns the sections of a policy that is not valid and say where addresses come from: those that it sets, or both if it is
/// unknown which ones it would set.
fn broken(unreadable: &Unreadable) -> BTreeMap<Section, Result<Content, Fault>> {
    let of_addresses = [Section::ProxyProtocol, Section::ClientIp].into_iter();
    let is_set = |section: &Section| {
        let mut set = unreadable.sections.iter();
        set.any(|it| Some(&**it) == section.field().strip_prefix("spec."))
    };
    let set: Vec<_> = of_addresses.clone().filter(is_set).collect();
    let set = match set.is_empty() {
        true => of_addresses.collect(),
        false => set,
    };
    let broken = |section| (section, Err(unreadable_fault(unreadable)));
    set.into_iter().map(broken).collect()
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
        max_connection_age,
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
    let max_age = max_connection_age.as_deref();
    let max_age = max_age.map(|it| limited(it, "spec.timeouts.maxConnectionAge", MAX_AGE));
    Ok(Content::Connections(ConnectionSettings {
        header_timeout: parse(header, "header")?,
        body_timeout: parse(body, "body")?,
        idle_timeout: parse(idle, "idle")?,
        stream_idle_timeout: parse(stream_idle, "streamIdle")?,
        handshake_timeout: parse(tls_handshake, "tlsHandshake")?,
        max_age: max_age.transpose()?,
        ..ConnectionSettings::default()
    }))
}

fn connections(section: &ConnectionLimits) -> Result<Content, Fault> {
    let ConnectionLimits {
        max,
        max_per_client,
        max_requests,
        tcp_keepalive,
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
    let keepalive = tcp_keepalive.as_deref();
    let keepalive = keepalive.map(|it| limited(it, "spec.connections.tcpKeepalive", MAX_KEEPALIVE));
    Ok(Content::Connections(ConnectionSettings {
        max_connections: max.map(|it| it as usize),
        max_per_client: max_per_client.map(|it| it as usize),
        max_requests: *max_requests,
        tcp_keepalive: keepalive.transpose()?,
        ..ConnectionSettings::default()
    }))
}

fn http2(section: &Http2Settings) -> Result<Content, Fault> {
    let Http2Settings {
        max_concurrent_streams,
        initial_stream_window,
        initial_connection_window,
    } = section;
    if *max_concurrent_streams == Some(0) {
        return invalid("spec.http2.maxConcurrentStreams: 0 would refuse every request".to_owned());
    }
    Ok(Content::Connections(ConnectionSettings {
        max_streams: *max_concurrent_streams,
        windows: windows(
            "spec.http2",
            initial_stream_window.as_ref(),
            initial_connection_window.as_ref(),
        )?,
        ..ConnectionSettings::default()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_out_of_their_range_name_the_field() {
        let message = |content: Result<Content, Fault>| content.err().map(|fault| fault.message);
        for (age, expected) in [
            ("1s", None),
            ("168h", None),
            ("999ms", Some("must be 1s to 168h")),
            ("0s", Some("must be 1s to 168h")),
            ("169h", Some("must be 1s to 168h")),
        ] {
            let section = ClientTimeouts {
                max_connection_age: Some(age.to_owned()),
                ..ClientTimeouts::default()
            };
            let expected = expected.map(|it| format!("spec.timeouts.maxConnectionAge: {it}"));
            assert_eq!(message(timeouts(&section)), expected, "{age}");
        }
        for (time, expected) in [
            ("2h", None),
            ("3h", Some("must be 1s to 2h")),
            ("1ms", Some("must be 1s to 2h")),
        ] {
            let section = ConnectionLimits {
                tcp_keepalive: Some(time.to_owned()),
                ..ConnectionLimits::default()
            };
            let expected = expected.map(|it| format!("spec.connections.tcpKeepalive: {it}"));
            assert_eq!(message(connections(&section)), expected, "{time}");
        }
    }
}
