//! The sections of a BackendPolicy. Validates the same as the CRD: an API server with another version of the CRD may accept
//! other values.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::api::backend_policy::{
    BackendLimits as LimitsSpec, Connection as ConnectionSpec, ConsistentHash,
    LoadBalancing as Spec,
};
use crate::ir::backend_policy::{BackendLimits, Connection, LoadBalancing, ProxyVersion};
use crate::ir::limit::KeyPart;

use crate::translate::duration;
use crate::translate::policy::inherited::key_part;
use crate::translate::reason::{Fault, Reason};

/// Permitted windows of slow start.
const SLOW_START: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(15 * 60);
/// Permitted limits.
const LIMITS: RangeInclusive<u32> = 1..=1_000_000;
/// Maximum number of parts of a key.
const MAX_PARTS: usize = 4;

pub(super) fn invalid<T>(message: String) -> Result<T, Fault> {
    Err(Fault::new(Reason::Invalid, message))
}

/// Translates `spec.loadBalancing`: how an endpoint is chosen, and the window of slow start.
pub(super) fn load_balancing(spec: &Spec) -> Result<(LoadBalancing, Option<Duration>), Fault> {
    const FIELD: &str = "spec.loadBalancing";
    let Spec {
        kind,
        consistent_hash,
        slow_start,
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
                LoadBalancing::ConsistentHash(parts.collect::<Result<Vec<KeyPart>, _>>()?)
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
    let Some(text) = slow_start else {
        return Ok((method, None));
    };
    if method != LoadBalancing::LeastRequest {
        return invalid(format!("{FIELD}.slowStart: only with type LeastRequest"));
    }
    let field = format!("{FIELD}.slowStart");
    let window = duration::parse(text, &field)?;
    match SLOW_START.contains(&window) {
        true => Ok((method, Some(window))),
        false => invalid(format!("{field}: {text} is not 1s to 15m")),
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
    let of_endpoint = per_endpoint.as_ref().and_then(|it| it.max_requests);
    for (limit, field) in [
        (max_connections, "maxConnections"),
        (max_pending, "maxPending"),
        (max_requests, "maxRequests"),
        (&of_endpoint, "perEndpoint.maxRequests"),
    ] {
        if limit.is_some_and(|limit| !LIMITS.contains(&limit)) {
            return invalid(format!("spec.limits.{field}: is not 1 to 1000000"));
        }
    }
    Ok(BackendLimits {
        connections: *max_connections,
        pending: *max_pending,
        requests: *max_requests,
        requests_per_endpoint: of_endpoint,
    })
}

/// Translates `spec.connection`.
pub(super) fn connection(spec: &ConnectionSpec) -> Result<Connection, Fault> {
    let ConnectionSpec {
        connect_timeout,
        idle,
        max_requests,
        keepalive,
        proxy_protocol,
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
    Ok(Connection {
        connect_timeout: time(connect_timeout, second / 100..=minute, "connectTimeout")?,
        idle: time(idle, second..=minute * 60, "idle")?,
        max_requests: *max_requests,
        keepalive: time(keepalive, second..=minute * 120, "keepalive")?,
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
        ] {
            assert!(limits(spec).unwrap().message.starts_with("spec.limits."));
        }
        let connection = |spec: Value| connection(&serde_json::from_value(spec).unwrap()).err();
        assert_eq!(connection(json!({"idle": "1s", "keepalive": "2h"})), None);
        for spec in [
            json!({"connectTimeout": "9ms"}),
            json!({"idle": "999ms"}),
            json!({"maxRequests": 0}),
            json!({"keepalive": "3h"}),
            json!({"proxyProtocol": "V3"}),
        ] {
            let fault = connection(spec).unwrap();
            assert!(fault.message.starts_with("spec.connection."), "{fault:?}");
        }
    }
}
