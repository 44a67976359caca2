//! `/api/v1/`: what is in service as JSON, for the page, for the commands `status`, `config` and `top` and for other programs.
//! Has no key, no value of a header or query parameter, and no data of a request.

mod backends;
mod certificates;
mod conditions;
mod counters;
mod history;
mod query;
mod routes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use http::StatusCode;
use serde_json::{Value, json};

use self::counters::{by_class, duration_bounds, time};
use self::query::Query;
use super::background::compute;
use super::problems;
use super::response::{Reply, respond, text};
use super::state::AdminState;
use super::totals::Totals;
use crate::finding::Finding;
use crate::status::StatusPart;
use crate::table::{Endpoint, KeyUsage, Limiter, Listener, Port, Table};

/// The path of all documents.
pub(super) const PREFIX: &str = "/api/v1/";

const DOCUMENTS: &str = "see /api/v1/status, totals, history, ports, routes, route, backends, certificates, conditions, policies, limits, problems, \
                         events, tap and log-level\n";

/// Responds with a document. Computed on another thread, so that many routes do not delay a probe.
pub(super) async fn respond_to(name: &str, query: Option<&str>, state: &Arc<AdminState>) -> Reply {
    let query = match Query::parse(query.unwrap_or_default()) {
        Ok(query) => query,
        Err(wrong) => return text(StatusCode::BAD_REQUEST, &format!("{wrong}\n")),
    };
    let name = name.to_owned();
    let work = move |state: &AdminState| {
        let document = document(&name, &query, state)?;
        Some(document.to_string())
    };
    match compute(state, work).await {
        Some(Some(body)) => respond(StatusCode::OK, "application/json", body),
        Some(None) => text(StatusCode::NOT_FOUND, DOCUMENTS),
        None => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the document cannot be computed\n",
        ),
    }
}

/// Returns a document; `None` if there is none of this name.
fn document(name: &str, query: &Query, state: &AdminState) -> Option<Value> {
    let table = state.table.load();
    Some(match name {
        "status" => status(state, &table, query),
        "totals" => totals(state),
        "history" => history::lists(&state.history),
        "ports" => ports(state, &table, query),
        "routes" => routes::list(&table, query),
        "route" => return routes::one(state, &table, query),
        "backends" => backends::list(&table, &state.recent.before(), query),
        "certificates" => certificates::list(&table, query),
        "conditions" => conditions::all(&state.report.load(), query),
        "policies" => conditions::policies(&state.report.load(), query),
        "limits" => limits(&table, query),
        "problems" => {
            let (problems, total) = problems(state, &table, query);
            json!({"total": total, "problems": problems})
        }
        _ => return None,
    })
}

fn status(state: &AdminState, table: &Table, query: &Query) -> Value {
    let stats = &state.stats;
    let endpoints = || table.backends().map(|it| it.endpoints());
    let ejected = |it: &&Arc<Endpoint>| it.health.is_avoided();
    let (problems, total) = problems(state, table, query);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "ready": state.ready.load(Acquire),
        "waiting": state.waiting.load().as_deref(),
        "generation": table.generation,
        "revision": stats.stream.as_ref().map(|stream| stream.revision()),
        "controllerConnected": stats.stream.as_ref().map(|stream| stream.is_connected()),
        "loadedAt": stats.config.loaded_at().and_then(|at| time(at.as_secs() as i64)),
        "connections": stats.connections.open(),
        "ports": table.ports().len(),
        "routes": routes::count(table),
        "backends": table.backends().count(),
        "endpoints": endpoints().map(|it| it.len()).sum::<usize>(),
        "endpointsEjected": endpoints().map(|it| it.iter().filter(ejected).count()).sum::<usize>(),
        "problemsTotal": total,
        "problems": problems,
    })
}

/// The counters of all routes together.
pub(super) fn totals(state: &AdminState) -> Value {
    let table = state.table.load();
    let totals = Totals::of(&table, &state.stats);
    json!({
        "ready": state.ready.load(Acquire),
        "generation": table.generation,
        "revision": state.stats.stream.as_ref().map(|stream| stream.revision()),
        "problemsTotal": problems::count(state, &table),
        "connections": totals.connections,
        "requests": by_class(totals.classes),
        "inFlight": totals.in_flight,
        "durationBounds": duration_bounds(),
        "durations": totals.durations.buckets,
    })
}

fn ports(state: &AdminState, table: &Table, query: &Query) -> Value {
    let report = state.report.load();
    let mut states: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for placed in report.conditions() {
        if let StatusPart::Listener(listener) = placed.place {
            let problems = placed.problems().into_iter().map(ToString::to_string);
            let key = (placed.object.to_string(), listener.name.to_string());
            states.entry(key).or_default().extend(problems);
        }
    }
    let view = |listener: &Arc<Listener>| {
        let key = &listener.ir.key;
        let problems = states.get(&(key.origin.to_string(), key.name.to_string()));
        let requests = listener
            .is_http()
            .then(|| by_class(listener.responses.classes()));
        let clients = listener.ir.clients.as_deref();
        let http3 = clients.and_then(|clients| clients.http3.as_ref());
        let http3 = http3.map(
            |it| json!({"advertisedPort": it.advertised_port, "maxAge": it.max_age.as_secs()}),
        );
        json!({
            "name": key.name.to_string(),
            "declaredBy": key.origin.to_string(),
            "protocol": listener.ir.protocol.name(),
            "http3": http3,
            "hostname": listener.ir.hostname.to_string(),
            "routes": listener.ir.routes.len(),
            "requests": requests,
            "problems": problems.map_or(&[][..], Vec::as_slice),
        })
    };
    let text = |port: &&Arc<Port>| {
        let mut text = format!("{} {}", port.ir.bind, port.ir.gateway);
        for listener in port.listeners() {
            let ir = &listener.ir;
            text.push_str(&format!(
                " {} {} {}",
                ir.key,
                ir.hostname,
                ir.protocol.name()
            ));
        }
        text
    };
    let port = |port: &Arc<Port>| {
        json!({
            "address": port.ir.bind.to_string(),
            "gateway": port.ir.gateway.to_string(),
            "listeners": port.listeners().iter().map(view).collect::<Vec<_>>(),
        })
    };
    let part = query.part(table.ports().iter(), text, port);
    json!({"total": part.total, "ports": part.items})
}

/// The limits of requests. Their keys are data of requests: the document has digests of those that use most.
fn limits(table: &Table, query: &Query) -> Value {
    let text = |it: &Arc<Limiter>| format!("{} {}", it.policy, it.ir.name);
    let view = |it: Arc<Limiter>| {
        let (usage, has_key) = (it.usage(), it.ir.has_key());
        let key = |it: &KeyUsage| {
            let digest = has_key.then(|| format!("{:08x}", it.digest));
            json!({"digest": digest, "percent": it.percent})
        };
        json!({
            "keys": usage.keys,
            "most": usage.most.iter().map(key).collect::<Vec<_>>(),
            "policy": it.policy.to_string(),
            "limit": it.ir.name.to_string(),
            "mode": if it.ir.is_audit { "Audit" } else { "Enforce" },
            "exceeded": it.exceeded.load(Relaxed),
            "keysEvicted": it.evicted(),
        })
    };
    let part = query.part(table.limiters().into_iter(), text, view);
    json!({"total": part.total, "limits": part.items})
}

fn problems(state: &AdminState, table: &Table, query: &Query) -> (Vec<Value>, usize) {
    let all = problems::of(state, table);
    let text = |it: &Finding| match &it.location {
        Some(location) => format!("{location} {} {}", it.object, it.message()),
        None => format!("{} {}", it.object, it.message()),
    };
    let part = query.part(all.into_iter(), text, |it| json!(it));
    (part.items, part.total)
}
