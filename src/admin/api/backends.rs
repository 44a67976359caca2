//! The document of backends: their endpoints with health, and what has failed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use serde_json::{Value, json};

use super::counters::duration_bounds;
use super::query::Query;
use crate::admin::recent::Counters;
use crate::table::{Backend, Endpoint, Table, TlsFailure, UpstreamFault};

/// The list of backends.
pub(super) fn list(table: &Table, before: &Counters, query: &Query) -> Value {
    let text = |it: &&Arc<Backend>| {
        let endpoints = it.endpoints();
        let mut text = it.id.to_string();
        for endpoint in endpoints.iter() {
            let state = state(endpoint, before.endpoint_fault(endpoint).is_some());
            text.push_str(&format!(" {} {state}", endpoint.address));
        }
        if endpoints.is_empty() {
            text.push_str(" no endpoint");
        }
        text
    };
    let part = query.part(table.backends(), text, |it| backend(it, before));
    json!({"durationBounds": duration_bounds(), "total": part.total, "backends": part.items})
}

/// A backend.
pub(super) fn backend(backend: &Backend, before: &Counters) -> Value {
    let stats = &backend.stats;
    let faults = UpstreamFault::ALL.into_iter();
    let faults = faults.map(|fault| (fault.name(), stats.faults(fault)));
    let faults: BTreeMap<_, _> = faults.filter(|(_, count)| *count > 0).collect();
    let failures = TlsFailure::ALL.into_iter();
    let failures = failures.map(|failure| (failure.name(), stats.tls_failures(failure)));
    let failures: BTreeMap<_, _> = failures.filter(|(_, count)| *count > 0).collect();
    let times = stats.response_times();
    let endpoints = backend.endpoints();
    let endpoints = endpoints.iter().map(|it| endpoint(it, before));
    json!({
        "backend": backend.id.to_string(),
        "tls": backend.id.tls.is_some(),
        "tlsPolicy": backend.id.tls.as_ref().map(|used| used.policy.to_string()),
        "endpoints": endpoints.collect::<Vec<_>>(),
        "connections": stats.connects(),
        "responses": times.count(),
        "durations": times.buckets,
        "errors": faults,
        "tlsErrors": failures,
        "ejections": stats.ejections(),
    })
}

fn endpoint(endpoint: &Endpoint, before: &Counters) -> Value {
    let fault = before.endpoint_fault(endpoint);
    let left = endpoint.health.time_left();
    json!({
        "address": endpoint.address.to_string(),
        "hostname": endpoint.hostname,
        "state": state(endpoint, fault.is_some()),
        "cause": fault.map(|(fault, _)| fault.cause()),
        "ejectedForSeconds": left.map(|left| left.as_secs_f64().ceil()),
        "recentFailures": fault.map_or(0, |(_, failed)| failed),
        "failures": endpoint.health.strikes.load(Relaxed),
        "inFlight": endpoint.load.in_flight(),
    })
}

fn state(endpoint: &Endpoint, is_failing: bool) -> &'static str {
    match endpoint.health.is_avoided() {
        true if endpoint.health.has_failed_checks() => "failed",
        true => "ejected",
        false if is_failing => "failing",
        false => "healthy",
    }
}
