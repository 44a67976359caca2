//! The documents of routes: the list, and one route from its listeners to the endpoints of its backends.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::backends::backend;
use super::conditions::conditions;
use super::counters::{by_class, duration_bounds};
use super::query::{Query, Sort};
use crate::admin::state::AdminState;
use crate::explain::{Configuration, ListenerOnPort, State, Values, describe_rule, why_broken};
use crate::status::PlacedConditions;
use crate::table::{BackendTarget, ForwardTotals, Listener, Port, Rule, Table};

/// The rules of a route.
type Rules<'a> = Vec<&'a Arc<Rule>>;

/// The list of routes.
pub(super) fn list(table: &Table, query: &Query) -> Value {
    let mut all = by_route(table);
    match query.sort {
        Sort::Name => {}
        Sort::Requests => all.sort_by_cached_key(|route| Reverse(sum(route, requests))),
        Sort::Errors => all.sort_by_cached_key(|route| Reverse(sum(route, errors))),
    }
    let hostnames = Hostnames::of(table);
    let text = |route: &Rules<'_>| {
        let mut text = route
            .first()
            .map_or_else(String::new, |rule| rule.ir.id.route.to_string());
        let matches = route.iter().flat_map(|rule| rule.match_texts());
        for part in hostnames.of_route(route).into_iter().chain(matches) {
            text.push(' ');
            text.push_str(&part);
        }
        text
    };
    let view = |route: Rules<'_>| {
        let rules: Vec<_> = route
            .iter()
            .map(|rule| Value::from(self::rule(rule)))
            .collect();
        let mut view = name(&route);
        view.insert("hostnames".to_owned(), json!(hostnames.of_route(&route)));
        view.insert("rules".to_owned(), rules.into());
        Value::from(view)
    };
    let part = query.part(all.into_iter(), text, view);
    json!({"durationBounds": duration_bounds(), "total": part.total, "routes": part.items})
}

fn sum(route: &Rules<'_>, count: fn(&Rule) -> u64) -> u64 {
    route.iter().map(|rule| count(rule)).sum()
}

/// Returns the number of requests of a rule, or of what it has forwarded.
fn requests(rule: &Rule) -> u64 {
    match rule.forwards_bytes() {
        true => rule.state.forwarded.totals().total,
        false => rule.state.stats.classes().iter().sum(),
    }
}

/// Returns the number of those that failed.
fn errors(rule: &Rule) -> u64 {
    match rule.forwards_bytes() {
        true => rule.state.forwarded.totals().failed,
        false => rule.state.stats.classes()[4],
    }
}

/// The route of the name that the query has, such as `HTTPRoute shop/web`, with its rules as on its first listener; `None` if neither the table nor the report has it.
pub(super) fn one(state: &AdminState, table: &Table, query: &Query) -> Option<Value> {
    let rules: Rules<'_> = table
        .rules()
        .filter(|rule| rule.ir.id.route.to_string() == query.name)
        .collect();
    let report = state.report.load();
    let all = report.conditions().into_iter();
    let own: Vec<Value> = all
        .filter(|placed| placed.object.to_string() == query.name)
        .map(|placed: PlacedConditions<'_>| {
            json!({"for": placed.place.to_string(), "conditions": conditions(&placed)})
        })
        .collect();
    if rules.is_empty() && own.is_empty() {
        return None;
    }
    let places = places(table, &rules);
    let first = places.first().zip(rules.first());
    let rules: Rules<'_> = first.map_or_else(Vec::new, |((_, listener, _), rule)| {
        let here = listener.rules_of(&rule.ir.id.route);
        here.iter().collect()
    });
    let configuration = Configuration {
        table,
        state: State::InService {
            revision: state.stats.stream.as_ref().map(|it| it.revision()),
        },
        values: Values::Redacted,
    };
    let before = state.recent.before();
    let detailed = |rule: &&Arc<Rule>| {
        let mut view = self::rule(rule);
        let details = places.first().map(|(port, listener, _)| {
            describe_rule(configuration, ListenerOnPort { port, listener }, rule)
        });
        let broken = places.first().and_then(|(port, listener, _)| {
            why_broken(configuration, ListenerOnPort { port, listener }, rule)
        });
        view.insert("details".to_owned(), json!(details));
        view.insert("broken".to_owned(), json!(broken));
        let targets = rule.backends().iter().map(|it| match &it.target {
            BackendTarget::Backend(node) => backend(node, &before),
            BackendTarget::Invalid(_) => Value::Null,
        });
        view.insert("targets".to_owned(), targets.collect());
        Value::from(view)
    };
    let place = |(port, listener, hostnames): &(&Arc<Port>, &Arc<Listener>, Vec<String>)| {
        json!({
            "port": port.ir.bind.to_string(),
            "gateway": port.ir.gateway.to_string(),
            "listener": listener.ir.key.name.to_string(),
            "protocol": listener.ir.protocol.name(),
            "hostnames": hostnames,
        })
    };
    Some(json!({
        "route": query.name,
        "durationBounds": duration_bounds(),
        "listeners": places.iter().map(place).collect::<Vec<_>>(),
        "rules": rules.iter().map(detailed).collect::<Vec<_>>(),
        "conditions": own,
    }))
}

/// Returns the rules by route, in order of the routes.
fn by_route(table: &Table) -> Vec<Rules<'_>> {
    let mut routes: Vec<Rules<'_>> = Vec::new();
    for rule in table.rules() {
        match routes.last_mut() {
            Some(last) if last[0].ir.id.route == rule.ir.id.route => last.push(rule),
            _ => routes.push(vec![rule]),
        }
    }
    routes
}

/// Returns the number of routes.
pub(super) fn count(table: &Table) -> usize {
    let routes: BTreeSet<_> = table.rules().map(|it| &it.ir.id.route).collect();
    routes.len()
}

fn name(route: &Rules<'_>) -> Map<String, Value> {
    let mut name = Map::new();
    if let Some(rule) = route.first() {
        let route = &rule.ir.id.route;
        name.insert("kind".to_owned(), json!(route.kind));
        name.insert("namespace".to_owned(), json!(route.namespace));
        name.insert("name".to_owned(), json!(route.name));
    }
    name
}

fn rule(rule: &Arc<Rule>) -> Map<String, Value> {
    let stats = &rule.state.stats;
    let backend = |(name, weight)| json!({"backend": name, "weight": weight});
    let backends: Vec<_> = rule.shares().into_iter().map(backend).collect();
    let members = [
        ("rule", json!(rule.ir.id.index)),
        ("name", json!(rule.ir.id.name)),
        ("matches", json!(rule.match_texts().collect::<Vec<_>>())),
        ("backends", json!(backends)),
        ("requests", json!(by_class(stats.classes()))),
        ("retries", json!(stats.retries())),
        ("inFlight", json!(stats.in_flight())),
        ("durations", json!(stats.durations().buckets)),
        (
            "forwarded",
            json!(rule.forwards_bytes().then(|| forwarded(rule))),
        ),
    ];
    members
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// The connections of a rule, or the sessions of one of a UDPRoute.
fn forwarded(rule: &Rule) -> Value {
    let ForwardTotals {
        open,
        total,
        failed,
        received,
        sent,
    } = rule.state.forwarded.totals();
    json!({
        "open": open,
        "total": total,
        "failed": failed,
        "bytesReceived": received,
        "bytesSent": sent,
    })
}

/// Returns the listeners that a route is attached to, with the hostnames that both permit.
fn places<'a>(
    table: &'a Table,
    rules: &Rules<'_>,
) -> Vec<(&'a Arc<Port>, &'a Arc<Listener>, Vec<String>)> {
    let Some(rule) = rules.first() else {
        return Vec::new();
    };
    let mut places = Vec::new();
    for port in table.ports() {
        for listener in port.listeners() {
            if let Some(attached) = listener.ir.routes.get(&rule.ir.id.route) {
                let hostnames = attached.hostnames.iter().map(ToString::to_string);
                places.push((port, listener, hostnames.collect()));
            }
        }
    }
    places
}

/// The hostnames of all routes, each as on the listeners that it is attached to. Routes are looked up by their names.
struct Hostnames<'a>(HashMap<[&'a str; 3], BTreeSet<String>>);

impl<'a> Hostnames<'a> {
    fn of(table: &'a Table) -> Self {
        let mut all = HashMap::<_, BTreeSet<String>>::new();
        let ports = table.ir.ports.iter();
        for listener in ports.flat_map(|port| &port.listeners) {
            for attached in listener.routes.iter() {
                let route = &attached.route.object;
                let key = [&*route.kind, &*route.namespace, &*route.name];
                let hostnames = attached.hostnames.iter().map(ToString::to_string);
                all.entry(key).or_default().extend(hostnames);
            }
        }
        Self(all)
    }

    fn of_route(&self, route: &Rules<'_>) -> Vec<String> {
        let Some(rule) = route.first() else {
            return Vec::new();
        };
        let route = &rule.ir.id.route;
        let key = [&*route.kind, &*route.namespace, &*route.name];
        let hostnames = self.0.get(&key).into_iter().flatten();
        hostnames.cloned().collect()
    }
}
