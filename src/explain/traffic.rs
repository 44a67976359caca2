//! Text for the traffic policy of a backend.

use crate::ir::backend_policy::{
    ActiveCheck, BackendLimits, BackendPolicy, Connection, LoadBalancing, Passive, Probe,
};
use crate::ir::http2::Http2Windows;
use crate::ir::limit::KeyPart;
use crate::ir::session::{Carrier, SessionPersistence};
use crate::ir::traffic::{RetryBudget, TrafficPolicy};

/// Describes the policy, one line per setting. A rule with `sessionPersistence` does not use the policy's sessions.
pub(super) fn policy(policy: &TrafficPolicy, has_rule_session: bool) -> Vec<String> {
    let TrafficPolicy {
        policy: name,
        session_policy,
        retry_budget,
        session,
    } = policy;
    let budget = retry_budget.as_ref().map(budget);
    let of_session = session_policy.as_ref().unwrap_or(name);
    let session = session.as_ref().map(|session| match has_rule_session {
        true => "sessions: not used, because the rule has sessionPersistence".to_owned(),
        false => sessions(session),
    });
    let budget = budget.map(|setting| format!("{name}: {setting}"));
    let session = session.map(|setting| format!("{of_session}: {setting}"));
    budget.into_iter().chain(session).collect()
}

/// Describes how requests are sent to a backend by its policy, one line per setting.
pub(super) fn backend_policy(policy: &BackendPolicy) -> Vec<String> {
    let BackendPolicy {
        policy: name,
        load_balancing,
        prefers_zone,
        limits,
        active,
        passive,
        connection,
    } = policy;
    let balancing = match load_balancing {
        LoadBalancing::LeastRequest => "endpoints by requests in flight".to_owned(),
        LoadBalancing::RoundRobin => "endpoints in turn".to_owned(),
        LoadBalancing::Random => "endpoints at random".to_owned(),
        LoadBalancing::ConsistentHash(key) => {
            let parts: Vec<_> = key.iter().map(key_part).collect();
            format!("endpoints by the hash of {}", parts.join(" and "))
        }
    };
    let BackendLimits {
        connections,
        pending,
        requests,
        requests_per_endpoint,
        connections_per_endpoint,
    } = limits;
    let limits = [
        (connections, "connections"),
        (pending, "requests that wait for a connection"),
        (requests, "requests"),
        (requests_per_endpoint, "requests at each endpoint"),
        (connections_per_endpoint, "connections to each endpoint"),
    ];
    let limits = limits.into_iter().filter_map(|(limit, what)| {
        limit.map(|limit| format!("at most {limit} {what} at the same time"))
    });
    let active = active.as_ref().map(|active| health_check(active));
    let passive = (*passive != Passive::DEFAULT).then(|| ejection(passive));
    let zone = prefers_zone.then(|| "those in the own zone first".to_owned());
    let settings = std::iter::once(balancing).chain(zone).chain(limits);
    let settings = settings.chain(active).chain(passive);
    let settings = settings.chain(connection_settings(connection));
    settings
        .map(|setting| format!("{name}: {setting}"))
        .collect()
}

fn health_check(check: &ActiveCheck) -> String {
    let ActiveCheck {
        probe,
        interval,
        timeout,
        healthy,
        unhealthy,
        jitter,
    } = check;
    let probe = match probe {
        Probe::Http { path, .. } => format!("GET {path}"),
        Probe::Tcp => "a connection".to_owned(),
        Probe::Grpc { service } if service.is_empty() => "gRPC".to_owned(),
        Probe::Grpc { service } => format!("gRPC for {service}"),
    };
    format!(
        "health checks by {probe} every {interval:?} (±{jitter} %), with timeout {timeout:?}: failed after {unhealthy}, healthy after {healthy}"
    )
}

fn connection_settings(connection: &Connection) -> Vec<String> {
    let Connection {
        connect_timeout,
        idle,
        max_requests,
        keepalive,
        picker_timeout,
        proxy_protocol,
        max_header_bytes,
        max_streams,
        windows: Http2Windows { stream, connection },
    } = connection;
    let times = [
        (connect_timeout, "connections established within"),
        (idle, "idle connections closed after"),
        (keepalive, "keepalive of TCP after"),
        (picker_timeout, "answers of an endpoint picker within"),
    ];
    let times = times.into_iter();
    let times = times.filter_map(|(time, what)| time.map(|time| format!("{what} {time:?}")));
    let requests = max_requests.map(|max| format!("at most {max} requests on each connection"));
    let proxy = proxy_protocol.map(|version| format!("PROXY protocol {version:?}"));
    let counts = [
        (max_header_bytes, "bytes in a response head of HTTP/1.1"),
        (max_streams, "streams of a connection of HTTP/2"),
    ];
    let counts = counts.into_iter();
    let counts = counts.filter_map(|(max, what)| max.map(|max| format!("at most {max} {what}")));
    let windows = [(stream, "stream"), (connection, "connection")];
    let windows = windows.into_iter().filter_map(|(window, what)| {
        window.map(|window| format!("window of a {what} of HTTP/2: {window} bytes"))
    });
    let others = requests.into_iter().chain(proxy);
    times.chain(others).chain(counts).chain(windows).collect()
}

fn ejection(passive: &Passive) -> String {
    let Passive {
        consecutive_errors,
        ejection,
        max_ejected_percent,
        panic_percent,
    } = passive;
    format!(
        "ejection after {consecutive_errors} failed requests for {ejection:?} at first, of at most {max_ejected_percent} % of the \
         endpoints; all are used if fewer than {panic_percent} % are healthy"
    )
}

fn key_part(part: &KeyPart) -> String {
    match part {
        KeyPart::ClientIp { v4, v6 } => format!("the client's network (/{v4}, /{v6})"),
        KeyPart::Header(name) => format!("header {name}"),
        KeyPart::Cookie(name) => format!("cookie {name}"),
        KeyPart::Hostname => "the hostname".to_owned(),
    }
}

fn budget(budget: &RetryBudget) -> String {
    let RetryBudget {
        percent,
        interval,
        min_retries,
        min_interval,
    } = budget;
    format!(
        "retries up to {percent} % of the requests in {interval:?}, but always at least {min_retries} in {min_interval:?}"
    )
}

fn sessions(session: &SessionPersistence) -> String {
    match &session.carrier {
        Carrier::Cookie { name, .. } => format!("sessions by cookie {name}"),
        Carrier::Header(name) => format!("sessions by header {name}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::ir::ObjectRef;

    #[test]
    fn describes_each_setting_of_a_policy() {
        let second = Duration::from_secs(1);
        let policy = BackendPolicy {
            policy: ObjectRef::core("BackendPolicy", "ns", "one"),
            load_balancing: LoadBalancing::ConsistentHash(vec![
                KeyPart::Cookie("id".into()),
                KeyPart::ClientIp { v4: 32, v6: 64 },
            ]),
            prefers_zone: true,
            limits: BackendLimits {
                requests: Some(9),
                connections_per_endpoint: Some(5),
                ..BackendLimits::default()
            },
            active: Some(Arc::new(ActiveCheck {
                probe: Probe::Tcp,
                interval: second * 5,
                timeout: second,
                healthy: 2,
                unhealthy: 3,
                jitter: 10,
            })),
            passive: Passive {
                panic_percent: 30,
                ..Passive::DEFAULT
            },
            connection: Connection {
                idle: Some(second),
                picker_timeout: Some(second * 9),
                max_header_bytes: Some(8192),
                max_streams: Some(10),
                windows: Http2Windows {
                    stream: Some(70_000),
                    connection: None,
                },
                ..Connection::default()
            },
        };
        let of = "BackendPolicy ns/one: ";
        assert_eq!(
            backend_policy(&policy),
            [
                "endpoints by the hash of cookie id and the client's network (/32, /64)",
                "those in the own zone first",
                "at most 9 requests at the same time",
                "at most 5 connections to each endpoint at the same time",
                "health checks by a connection every 5s (±10 %), with timeout 1s: failed after 3, healthy after 2",
                "ejection after 3 failed requests for 1s at first, of at most 50 % of the endpoints; all are used if fewer than 30 % are healthy",
                "idle connections closed after 1s",
                "answers of an endpoint picker within 9s",
                "at most 8192 bytes in a response head of HTTP/1.1",
                "at most 10 streams of a connection of HTTP/2",
                "window of a stream of HTTP/2: 70000 bytes",
            ]
            .map(|setting| format!("{of}{setting}"))
        );
    }
}
