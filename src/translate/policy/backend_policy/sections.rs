//! The sections of a BackendPolicy. Validates the same as the CRD: an API server with another version of the CRD may accept
//! other values.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::api::backend_policy::{
    BackendLimits as LimitsSpec, Connection as ConnectionSpec, ConsistentHash, EndpointLimits,
    Http1Connection, LoadBalancing as Spec,
};
use crate::api::client_policy::Http2Settings;
use crate::ir::backend_policy::{BackendLimits, Connection, LoadBalancing, ProxyVersion};
use crate::ir::http2::Http2Windows;
use crate::ir::limit::KeyPart;

use crate::translate::duration;
use crate::translate::policy::inherited::key_part;
use crate::translate::policy::windows;
use crate::translate::reason::{Fault, all, invalid};
use crate::translate::size;

/// Permitted windows of slow start.
const SLOW_START: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(15 * 60);
/// Permitted limits.
const LIMITS: RangeInclusive<u32> = 1..=1_000_000;
/// Permitted sizes of response heads.
const HEAD: RangeInclusive<u32> = 1 << 10..=1 << 20;
/// Permitted streams of a connection.
const STREAMS: RangeInclusive<u32> = 1..=1000;
/// Window of a stream without a policy.
const DEFAULT_WINDOW: u32 = 256 << 10;
/// Maximum number of parts of a key.
const MAX_PARTS: usize = 4;

/// How an endpoint is chosen, the window of slow start, and whether endpoints in the own zone take precedence.
type Balancing = (LoadBalancing, Option<Duration>, bool);

/// Translates `spec.loadBalancing`.
pub(super) fn load_balancing(spec: &Spec) -> Result<Balancing, Fault> {
    const FIELD: &str = "spec.loadBalancing";
    let Spec {
        kind,
        consistent_hash,
        slow_start,
        topology,
    } = spec;
    let kind = kind.as_deref().unwrap_or("LeastRequest");
    let method = match kind {
        "LeastRequest" => LoadBalancing::LeastRequest,
        "RoundRobin" => LoadBalancing::RoundRobin,
        "Random" => LoadBalancing::Random,
        "ConsistentHash" => match consistent_hash {
            Some(ConsistentHash { key }) if (1..=MAX_PARTS).contains(&key.len()) => {
                let parts = key.iter().enumerate();
                let parts = parts.map(|(index, part)| {
                    key_part(part, &format!("{FIELD}.consistentHash.key[{index}]"))
                });
                LoadBalancing::ConsistentHash(all::<KeyPart, Vec<_>>(parts)?)
            }
            _ => {
                return invalid(format!(
                    "{FIELD}.consistentHash.key: type ConsistentHash needs 1 to {MAX_PARTS} parts"
                ));
            }
        },
        other => {
            return invalid(format!(
                "{FIELD}.type: {other:?} is none of LeastRequest, RoundRobin, Random and ConsistentHash"
            ));
        }
    };
    if consistent_hash.is_some() && kind != "ConsistentHash" {
        return invalid(format!(
            "{FIELD}.consistentHash: only with type ConsistentHash"
        ));
    }
    let prefers_zone = match topology.as_deref() {
        None | Some("Hints") => false,
        Some("PreferZone") if kind != "ConsistentHash" => true,
        Some("PreferZone") => {
            // A key has one endpoint for the pods of all zones.
            return invalid(format!(
                "{FIELD}.topology: PreferZone is not for type ConsistentHash"
            ));
        }
        Some(other) => {
            return invalid(format!(
                "{FIELD}.topology: {other:?} is none of Hints and PreferZone"
            ));
        }
    };
    let window = slow_start.as_deref();
    let window = window.map(|text| self::slow_start(text, &method));
    let window = window.transpose()?;
    Ok((method, window, prefers_zone))
}

fn slow_start(text: &str, method: &LoadBalancing) -> Result<Duration, Fault> {
    const FIELD: &str = "spec.loadBalancing.slowStart";
    if *method != LoadBalancing::LeastRequest {
        return invalid(format!("{FIELD}: only with type LeastRequest"));
    }
    let window = duration::parse(text, FIELD)?;
    match SLOW_START.contains(&window) {
        true => Ok(window),
        false => invalid(format!("{FIELD}: {text} is not 1s to 15m")),
    }
}

/// Translates `spec.limits`.
pub(super) fn limits(spec: &LimitsSpec) -> Result<BackendLimits, Fault> {
    let LimitsSpec {
        max_connections,
        max_pending,
        max_requests,
        per_endpoint,
    } = spec;
    let of_endpoint = per_endpoint.clone().unwrap_or_default();
    let EndpointLimits {
        max_connections: connections_of_endpoint,
        max_requests: requests_of_endpoint,
    } = of_endpoint;
    for (limit, field) in [
        (max_connections, "maxConnections"),
        (max_pending, "maxPending"),
        (max_requests, "maxRequests"),
        (&requests_of_endpoint, "perEndpoint.maxRequests"),
        (&connections_of_endpoint, "perEndpoint.maxConnections"),
    ] {
        if limit.is_some_and(|limit| !LIMITS.contains(&limit)) {
            return invalid(format!("spec.limits.{field}: is not 1 to 1000000"));
        }
    }
    Ok(BackendLimits {
        connections: *max_connections,
        pending: *max_pending,
        requests: *max_requests,
        requests_per_endpoint: requests_of_endpoint,
        connections_per_endpoint: connections_of_endpoint,
    })
}

/// Translates `spec.connection`.
pub(super) fn connection(spec: &ConnectionSpec) -> Result<Connection, Fault> {
    let ConnectionSpec {
        connect_timeout,
        idle,
        max_requests,
        keepalive,
        picker_timeout,
        proxy_protocol,
        http1,
        http2,
    } = spec;
    let time = |text: &Option<String>, permitted: RangeInclusive<Duration>, name: &str| {
        let Some(text) = text else {
            return Ok(None);
        };
        let field = format!("spec.connection.{name}");
        let time = duration::parse(text, &field)?;
        match permitted.contains(&time) {
            true => Ok(Some(time)),
            false => {
                let (least, most) = permitted.into_inner();
                invalid(format!("{field}: {text} is not {least:?} to {most:?}"))
            }
        }
    };
    if max_requests.is_some_and(|max| !LIMITS.contains(&max)) {
        return invalid("spec.connection.maxRequests: is not 1 to 1000000".to_owned());
    }
    let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
    let (max_streams, windows) = self::http2(http2.as_ref())?;
    Ok(Connection {
        max_header_bytes: max_header_bytes(http1.as_ref())?,
        max_streams,
        windows,
        connect_timeout: time(connect_timeout, second / 100..=minute, "connectTimeout")?,
        idle: time(idle, second..=minute * 60, "idle")?,
        max_requests: *max_requests,
        keepalive: time(keepalive, second..=minute * 120, "keepalive")?,
        picker_timeout: time(picker_timeout, second / 10..=minute * 60, "pickerTimeout")?,
        proxy_protocol: match proxy_protocol.as_deref() {
            None | Some("Off") => None,
            Some("V1") => Some(ProxyVersion::V1),
            Some("V2") => Some(ProxyVersion::V2),
            Some(other) => {
                return invalid(format!(
                    "spec.connection.proxyProtocol: {other:?} is none of Off, V1 and V2"
                ));
            }
        },
    })
}

/// Translates the maximum size of a response head of HTTP/1.1.
fn max_header_bytes(spec: Option<&Http1Connection>) -> Result<Option<u32>, Fault> {
    const FIELD: &str = "spec.connection.http1.maxHeaderBytes";
    let Some(Http1Connection {
        max_header_bytes: Some(size),
    }) = spec
    else {
        return Ok(None);
    };
    let bytes = u32::try_from(size::parse(size, FIELD)?).ok();
    match bytes.filter(|bytes| HEAD.contains(bytes)) {
        Some(bytes) => Ok(Some(bytes)),
        None => invalid(format!("{FIELD}: is not 1Ki to 1Mi")),
    }
}

/// Translates `spec.connection.http2`: the maximum number of streams of a connection, and its windows.
fn http2(spec: Option<&Http2Settings>) -> Result<(Option<u32>, Http2Windows), Fault> {
    const FIELD: &str = "spec.connection.http2";
    let Some(Http2Settings {
        max_concurrent_streams: streams,
        initial_stream_window: stream,
        initial_connection_window: connection,
    }) = spec
    else {
        return Ok((None, Http2Windows::default()));
    };
    if streams.is_some_and(|streams| !STREAMS.contains(&streams)) {
        return invalid(format!("{FIELD}.maxConcurrentStreams: is not 1 to 1000"));
    }
    let windows = windows::windows(FIELD, stream.as_ref(), connection.as_ref())?;
    let least = windows::sum(
        windows.stream.unwrap_or(DEFAULT_WINDOW),
        streams.unwrap_or(*STREAMS.end()),
    );
    if windows.connection.is_some_and(|window| window < least) {
        return invalid(format!(
            "{FIELD}.initialConnectionWindow: is less than the {least} bytes of maxConcurrentStreams (1000 by default) \
             times initialStreamWindow (256Ki by default), so that a client that does not read would delay others"
        ));
    }
    Ok((*streams, windows))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn fault(spec: Value) -> String {
        let spec = serde_json::from_value(spec).unwrap();
        let fault = load_balancing(&spec).err();
        fault.map(|fault| fault.message).unwrap_or_default()
    }

    #[test]
    fn values_beyond_those_of_the_crd_are_refused() {
        let key = json!({"key": [{"type": "ClientIP"}]});
        for spec in [
            json!({}),
            json!({"slowStart": "15m"}),
            json!({"type": "LeastRequest", "slowStart": "1s"}),
            json!({"type": "RoundRobin"}),
            json!({"type": "RoundRobin", "topology": "PreferZone"}),
            json!({"type": "ConsistentHash", "consistentHash": key, "topology": "Hints"}),
            json!({"type": "ConsistentHash", "consistentHash": key}),
        ] {
            assert_eq!(fault(spec), "");
        }
        let part = json!({"type": "ClientIP"});
        for (spec, field) in [
            (json!({"type": "Maglev"}), "type"),
            (json!({"type": "ConsistentHash"}), "consistentHash.key"),
            (
                json!({"type": "ConsistentHash", "consistentHash": {"key": []}}),
                "consistentHash.key",
            ),
            (
                json!({"type": "ConsistentHash", "consistentHash": {"key": [part, part, part, part, part]}}),
                "consistentHash.key",
            ),
            (
                json!({"type": "ConsistentHash", "consistentHash": {"key": [{"type": "Cookie"}]}}),
                "consistentHash.key[0].name",
            ),
            (
                json!({"type": "Random", "consistentHash": key}),
                "consistentHash",
            ),
            (json!({"type": "Random", "slowStart": "10s"}), "slowStart"),
            (json!({"slowStart": "999ms"}), "slowStart"),
            (json!({"slowStart": "16m"}), "slowStart"),
            (json!({"slowStart": "soon"}), "slowStart"),
            (json!({"topology": "Zone"}), "topology"),
            (
                json!({"type": "ConsistentHash", "consistentHash": key, "topology": "PreferZone"}),
                "topology",
            ),
        ] {
            let fault = fault(spec);
            let expected = format!("spec.loadBalancing.{field}: ");
            assert!(fault.starts_with(&expected), "{fault}");
        }
    }

    #[test]
    fn limits_and_connections_beyond_those_of_the_crd_are_refused() {
        let limits = |spec: Value| limits(&serde_json::from_value(spec).unwrap()).err();
        assert_eq!(limits(json!({"maxRequests": 1})), None);
        for spec in [
            json!({"maxRequests": 0}),
            json!({"maxConnections": 1_000_001}),
            json!({"perEndpoint": {"maxRequests": 0}}),
            json!({"perEndpoint": {"maxConnections": 0}}),
        ] {
            assert!(limits(spec).unwrap().message.starts_with("spec.limits."));
        }
        let connection = |spec: Value| connection(&serde_json::from_value(spec).unwrap()).err();
        assert_eq!(connection(json!({"idle": "1s", "keepalive": "2h"})), None);
        for time in ["100ms", "1h"] {
            assert_eq!(connection(json!({"pickerTimeout": time})), None);
        }
        for http2 in [
            json!({}),
            json!({"initialStreamWindow": "4Mi"}),
            json!({"initialConnectionWindow": "64Mi", "initialStreamWindow": "4Mi"}),
            json!({"initialConnectionWindow": "1Mi", "maxConcurrentStreams": 4}),
            json!({"initialConnectionWindow": 655_350, "initialStreamWindow": 65_535, "maxConcurrentStreams": 10}),
        ] {
            let spec = json!({"http2": http2, "http1": {"maxHeaderBytes": "8Ki"}});
            assert_eq!(connection(spec), None);
        }
        for spec in [
            json!({"connectTimeout": "9ms"}),
            json!({"idle": "999ms"}),
            json!({"maxRequests": 0}),
            json!({"keepalive": "3h"}),
            json!({"pickerTimeout": "99ms"}),
            json!({"pickerTimeout": "61m"}),
            json!({"proxyProtocol": "V3"}),
            json!({"http1": {"maxHeaderBytes": 1023}}),
            json!({"http1": {"maxHeaderBytes": "2Mi"}}),
            json!({"http1": {"maxHeaderBytes": "much"}}),
            json!({"http2": {"maxConcurrentStreams": 0}}),
            json!({"http2": {"maxConcurrentStreams": 1001}}),
            json!({"http2": {"initialStreamWindow": 65_534}}),
            json!({"http2": {"initialConnectionWindow": "1Mi"}}),
            json!({"http2": {"initialConnectionWindow": "1Mi", "maxConcurrentStreams": 5}}),
            json!({"http2": {"initialConnectionWindow": "63Mi", "initialStreamWindow": "4Mi"}}),
        ] {
            let fault = connection(spec).unwrap();
            assert!(fault.message.starts_with("spec.connection."), "{fault:?}");
        }
    }
}
