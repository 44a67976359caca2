//! `spec.healthCheck` of a BackendPolicy. Validates the same as the CRD: an API server with another version of the CRD may
//! accept other values.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::api::backend_policy::{
    ActiveCheck as ActiveSpec, GrpcCheck, HealthCheck, HttpCheck, PassiveCheck,
};
use crate::ir::backend_policy::{ActiveCheck, Passive, Probe};

use crate::translate::duration;
use crate::translate::reason::{Fault, invalid};

const FIELD: &str = "spec.healthCheck";
const HOUR: Duration = Duration::from_secs(3600);
/// Permitted intervals of checks.
const INTERVALS: RangeInclusive<Duration> = Duration::from_secs(1)..=HOUR;
/// Permitted timeouts of checks.
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);
/// Permitted times of the first ejection.
const EJECTIONS: RangeInclusive<Duration> = Duration::from_millis(100)..=HOUR;
const THRESHOLDS: RangeInclusive<u32> = 1..=16;

/// Translates `spec.healthCheck`.
pub(super) fn health_check(spec: &HealthCheck) -> Result<(Option<ActiveCheck>, Passive), Fault> {
    let HealthCheck { active, passive } = spec;
    let active = active.as_ref().map(active_check).transpose()?;
    let passive = passive.as_ref().map(passive_check).transpose()?;
    Ok((active, passive.unwrap_or(Passive::DEFAULT)))
}

fn active_check(spec: &ActiveSpec) -> Result<ActiveCheck, Fault> {
    let ActiveSpec {
        http,
        tcp,
        grpc,
        interval,
        timeout,
        healthy_threshold,
        unhealthy_threshold,
        jitter,
    } = spec;
    let field = |name: &str| format!("{FIELD}.active.{name}");
    let probe = match (http, tcp, grpc) {
        (Some(http), None, None) => http_probe(http)?,
        (None, Some(_), None) => Probe::Tcp,
        (None, None, Some(GrpcCheck { service })) => Probe::Grpc {
            service: service.as_deref().unwrap_or_default().into(),
        },
        _ => {
            return invalid(format!(
                "{FIELD}.active: needs exactly one of http, tcp and grpc"
            ));
        }
    };
    Ok(ActiveCheck {
        probe,
        interval: time(
            interval.as_deref().unwrap_or("10s"),
            &INTERVALS,
            &field("interval"),
        )?,
        timeout: time(
            timeout.as_deref().unwrap_or("2s"),
            &TIMEOUTS,
            &field("timeout"),
        )?,
        healthy: number(
            *healthy_threshold,
            2,
            THRESHOLDS,
            &field("healthyThreshold"),
        )?,
        unhealthy: number(
            *unhealthy_threshold,
            3,
            THRESHOLDS,
            &field("unhealthyThreshold"),
        )?,
        jitter: number(*jitter, 10, 0..=50, &field("jitter"))?,
    })
}

fn http_probe(spec: &HttpCheck) -> Result<Probe, Fault> {
    let HttpCheck {
        path,
        host,
        statuses,
    } = spec;
    let field = |name: &str| format!("{FIELD}.active.http.{name}");
    let path = path.as_deref().unwrap_or("/");
    if !path.starts_with('/') || path.parse::<http::Uri>().is_err() {
        return invalid(format!("{}: {path:?} is not a path", field("path")));
    }
    let host = host.as_deref().filter(|host| !host.is_empty());
    if let Some(host) = host.filter(|host| host.parse::<http::uri::Authority>().is_err()) {
        return invalid(format!("{}: {host:?} is not a host", field("host")));
    }
    if let Some(status) = statuses.iter().find(|it| !(100..=599).contains(*it)) {
        return invalid(format!("{}: {status} is not 100 to 599", field("statuses")));
    }
    Ok(Probe::Http {
        path: path.into(),
        host: host.map(Into::into),
        statuses: statuses.clone(),
    })
}

fn passive_check(spec: &PassiveCheck) -> Result<Passive, Fault> {
    let PassiveCheck {
        consecutive_errors,
        ejection,
        max_ejected_percent,
        panic_percent,
    } = spec;
    let field = |name: &str| format!("{FIELD}.passive.{name}");
    let Passive {
        consecutive_errors: errors,
        max_ejected_percent: ejected,
        panic_percent: panic,
        ejection: first,
    } = Passive::DEFAULT;
    let ejection = ejection.as_deref();
    let ejection = ejection.map(|text| time(text, &EJECTIONS, &field("ejection")));
    Ok(Passive {
        consecutive_errors: number(
            *consecutive_errors,
            errors,
            1..=1000,
            &field("consecutiveErrors"),
        )?,
        ejection: ejection.transpose()?.unwrap_or(first),
        max_ejected_percent: number(
            *max_ejected_percent,
            ejected,
            0..=100,
            &field("maxEjectedPercent"),
        )?,
        panic_percent: number(*panic_percent, panic, 0..=100, &field("panicPercent"))?,
    })
}

fn time(text: &str, permitted: &RangeInclusive<Duration>, field: &str) -> Result<Duration, Fault> {
    let time = duration::parse(text, field)?;
    match permitted.contains(&time) {
        true => Ok(time),
        false => invalid(format!(
            "{field}: {text} is not {:?} to {:?}",
            permitted.start(),
            permitted.end()
        )),
    }
}

fn number(
    value: Option<u32>,
    default: u32,
    permitted: RangeInclusive<u32>,
    field: &str,
) -> Result<u32, Fault> {
    let value = value.unwrap_or(default);
    match permitted.contains(&value) {
        true => Ok(value),
        false => invalid(format!(
            "{field}: {value} is not {} to {}",
            permitted.start(),
            permitted.end()
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn fault(spec: Value) -> String {
        let spec = serde_json::from_value(spec).unwrap();
        let fault = health_check(&spec).err();
        fault.map(|fault| fault.message).unwrap_or_default()
    }

    #[test]
    fn values_beyond_those_of_the_crd_are_refused() {
        let active = |mut spec: Value| {
            spec["tcp"] = json!({});
            fault(json!({"active": spec}))
        };
        assert_eq!(
            active(json!({"interval": "1s", "timeout": "100ms", "jitter": 0})),
            ""
        );
        for (spec, field) in [
            (json!({"http": {}}), ": needs"),
            (json!({"interval": "999ms"}), ".interval: "),
            (json!({"timeout": "61s"}), ".timeout: "),
            (json!({"healthyThreshold": 0}), ".healthyThreshold: "),
            (json!({"unhealthyThreshold": 17}), ".unhealthyThreshold: "),
            (json!({"jitter": 51}), ".jitter: "),
        ] {
            let fault = active(spec);
            let expected = format!("spec.healthCheck.active{field}");
            assert!(fault.starts_with(&expected), "{fault}");
        }
        for (http, field) in [
            (json!({"path": "x"}), "path"),
            (json!({"path": "/ "}), "path"),
            (json!({"host": "a b"}), "host"),
            (json!({"statuses": [200, 600]}), "statuses"),
        ] {
            let fault = fault(json!({"active": {"http": http}}));
            let expected = format!("spec.healthCheck.active.http.{field}: ");
            assert!(fault.starts_with(&expected), "{fault}");
        }
        for (passive, field) in [
            (json!({"consecutiveErrors": 0}), "consecutiveErrors"),
            (json!({"ejection": "99ms"}), "ejection"),
            (json!({"maxEjectedPercent": 101}), "maxEjectedPercent"),
            (json!({"panicPercent": 101}), "panicPercent"),
        ] {
            let fault = fault(json!({"passive": passive}));
            let expected = format!("spec.healthCheck.passive.{field}: ");
            assert!(fault.starts_with(&expected), "{fault}");
        }
    }
}
