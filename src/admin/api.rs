//! `/api/v1/`: what is in service as JSON, for the commands `status`, `config` and `top` and for other programs. Has no key, no
//! value of a header or query parameter, and no data of a request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::state::AdminState;
use super::troubles;
use crate::status::{Condition, PlacedConditions, StatusReport};
use crate::table::{Backend, DURATION_BOUNDS_MICROS, Endpoint, Port, Table, UpstreamFault};

/// The path of all documents.
pub(super) const PREFIX: &str = "/api/v1/";

/// Returns a document; `None` if there is none of this name.
pub(super) fn document(name: &str, state: &AdminState) -> Option<Value> {
    let table = state.table.load();
    Some(match name {
        "status" => status(state, &table),
        "ports" => json!({"ports": ports(&table)}),
        "routes" => routes(&table),
        "backends" => {
            json!({"backends": table.backends().map(|it| backend(it)).collect::<Vec<_>>()})
        }
        "certificates" => json!({"certificates": certificates(&table)}),
        "policies" => json!({"policies": policies(&state.report.load())}),
        "problems" => json!({"problems": problems(state, &table)}),
        _ => return None,
    })
}

fn status(state: &AdminState, table: &Table) -> Value {
    let stats = &state.stats;
    let endpoints = || table.backends().map(|it| it.endpoints());
    let ejected = |it: &&Arc<Endpoint>| it.health.is_avoided();
    let routes: BTreeSet<_> = table.rules().map(|it| &it.ir.id.route).collect();
    let problems = problems(state, table);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "ready": state.ready.load(Ordering::Acquire),
        "waiting": state.waiting.load().as_deref(),
        "generation": table.generation,
        "revision": stats.stream.as_ref().map(|stream| stream.revision()),
        "controllerConnected": stats.stream.as_ref().map(|stream| stream.is_connected()),
        "loadedAt": time(stats.config.loaded_at().as_secs() as i64),
        "connections": stats.connections.open(),
        "ports": table.ports().len(),
        "routes": routes.len(),
        "backends": table.backends().count(),
        "endpoints": endpoints().map(|it| it.len()).sum::<usize>(),
        "endpointsEjected": endpoints().map(|it| it.iter().filter(ejected).count()).sum::<usize>(),
        "problems": problems,
    })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PortView {
    address: String,
    gateway: String,
    listeners: Vec<ListenerView>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ListenerView {
    name: String,
    declared_by: String,
    protocol: &'static str,
    hostname: String,
    routes: usize,
}

fn ports(table: &Table) -> Vec<PortView> {
    let port = |port: &Arc<Port>| PortView {
        address: port.ir.bind.to_string(),
        gateway: port.ir.gateway.to_string(),
        listeners: port
            .ir
            .listeners
            .iter()
            .map(|listener| ListenerView {
                name: listener.key.name.to_string(),
                declared_by: listener.key.origin.to_string(),
                protocol: listener.protocol.name(),
                hostname: listener.hostname.to_string(),
                routes: listener.routes.len(),
            })
            .collect(),
    };
    table.ports().iter().map(port).collect()
}

fn routes(table: &Table) -> Value {
    let mut routes: Vec<Value> = Vec::new();
    let mut rules: Vec<Value> = Vec::new();
    let mut all = table.rules().peekable();
    while let Some(rule) = all.next() {
        let stats = &rule.state.stats;
        let classes = ["1xx", "2xx", "3xx", "4xx", "5xx"];
        let requests: BTreeMap<_, _> = classes.into_iter().zip(stats.classes()).collect();
        let durations = stats.durations();
        let backend = |(name, weight)| json!({"backend": name, "weight": weight});
        rules.push(json!({
            "rule": rule.ir.id.index,
            "name": rule.ir.id.name,
            "matches": rule.match_texts().collect::<Vec<_>>(),
            "backends": rule.shares().into_iter().map(backend).collect::<Vec<_>>(),
            "requests": requests,
            "retries": stats.retries(),
            "inFlight": stats.in_flight(),
            "durations": durations.buckets,
        }));
        let route = &rule.ir.id.route;
        if all.peek().is_none_or(|next| next.ir.id.route != *route) {
            let rules = std::mem::take(&mut rules);
            routes.push(json!({
                "kind": route.kind, "namespace": route.namespace, "name": route.name, "rules": rules,
            }));
        }
    }
    let bounds = DURATION_BOUNDS_MICROS.map(|micros| micros as f64 / 1e6);
    json!({"durationBounds": bounds, "routes": routes})
}

fn backend(backend: &Backend) -> Value {
    let stats = &backend.stats;
    let faults = UpstreamFault::ALL.into_iter();
    let faults = faults.map(|fault| (fault.name(), stats.faults(fault)));
    let faults: BTreeMap<_, _> = faults.filter(|(_, count)| *count > 0).collect();
    let endpoint = |it: &Arc<Endpoint>| {
        let strikes = it.health.strikes.load(Ordering::Relaxed);
        json!({
            "address": it.address.to_string(),
            "hostname": it.hostname,
            "state": match it.health.is_avoided() {
                true if it.health.has_failed_checks() => "failed",
                true => "ejected",
                false => "healthy",
            },
            "failures": strikes,
            "inFlight": it.load.in_flight(),
        })
    };
    json!({
        "backend": backend.id.to_string(),
        "tls": backend.id.tls.is_some(),
        "endpoints": backend.endpoints().iter().map(endpoint).collect::<Vec<_>>(),
        "connections": stats.connects(),
        "responses": stats.response_times.histogram().count(),
        "errors": faults,
        "ejections": stats.ejections(),
    })
}

/// The certificates of listeners, in order of their ends; each once.
fn certificates(table: &Table) -> Vec<Value> {
    let now = Timestamp::now().as_second();
    let all = table.ir.ports.iter().flat_map(|port| port.certificates());
    let mut by_end: BTreeMap<_, (Value, usize)> = BTreeMap::new();
    for one in all {
        let key = (
            one.not_after,
            one.source.to_string(),
            one.fingerprint.clone(),
        );
        let known = by_end.entry(key);
        known.or_insert_with(|| (json!(one.names), 0)).1 += 1;
    }
    let view = |((end, source, fingerprint), (names, listeners))| {
        json!({
            "source": source,
            "expires": time(end),
            "expiresInSeconds": end - now,
            "names": names,
            "sha256": fingerprint,
            "listeners": listeners,
        })
    };
    by_end.into_iter().map(view).collect()
}

/// The policies with the Gateways, ListenerSets and Services for which they have conditions.
fn policies(report: &StatusReport) -> Vec<Value> {
    let condition = |it: &Condition| {
        json!({
            "type": it.kind, "status": it.status, "reason": it.reason, "message": it.message,
            "problem": it.is_problem(),
        })
    };
    let of_policies = report.conditions().into_iter();
    let of_policies = of_policies.filter(|it| report.policies.get(it.object).is_some());
    let view = |placed: PlacedConditions<'_>| {
        json!({
            "policy": placed.object.to_string(),
            "for": placed.place.to_string(),
            "conditions": placed.conditions.iter().map(condition).collect::<Vec<_>>(),
        })
    };
    of_policies.map(view).collect()
}

fn problems(state: &AdminState, table: &Table) -> Vec<Value> {
    let in_service = troubles::of(table, Timestamp::now()).into_iter();
    let in_service =
        in_service.map(|it| json!({"in": "service", "object": it.object, "message": it.message}));
    let report = state.report.load();
    let of_configuration = report.problems().map(|(object, message)| {
        json!({"in": "configuration", "object": object.to_string(), "message": message})
    });
    in_service.chain(of_configuration).collect()
}

fn time(seconds: i64) -> Option<String> {
    Some(Timestamp::from_second(seconds).ok()?.to_string())
}
