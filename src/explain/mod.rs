//! What a configuration does with a request that nobody sends: the port, the listener, the rule with its filters and
//! backends, and why others do not match. Uses the table and the normalization of the proxy, so that both decide alike.
//! Must not know where the configuration comes from.

mod backends;
mod broken;
mod clients;
mod configuration;
mod describe;
mod explanation;
mod findings;
mod live;
mod matches;
mod names;
mod policies;
mod ports;
mod request;
mod traffic;

use std::sync::Arc;

pub use self::configuration::{Configuration, ListenerOnPort, State};
pub use self::explanation::{Explanation, Outcome};
pub use self::findings::Findings;
pub use self::matches::Values;
pub use self::names::{Names, advice};
pub use self::request::{ExplainedRequest, Header, MAX_HEADERS};

use self::broken::{Broken, Passage};
use self::explanation::nearest;
use self::ports::{candidates, no_listener, no_port, protocol};
use crate::ir::canonical_path::CanonicalPath;
use crate::ir::error_page::ErrorPage;
use crate::ir::grpc::is_call;
use crate::ir::route_defaults::RouteDefaults;
use crate::ir::{ObjectRef, PortProtocol, Protocol};
use crate::proxy::preview::{Preview, PreviewClient, Refusal};
use crate::table::{Considered, Listener, MatchVerdict, Port, RequestView, Rule};

/// Explains a request, with what is found about the objects that it concerns.
pub fn explain(
    configuration: Configuration<'_>,
    findings: Findings<'_>,
    request: &ExplainedRequest,
) -> Explanation {
    let table = configuration.table;
    let mut explanation = Explanation::new(request.to_string(), configuration.in_service());
    let unserved = findings.unserved(Some(request.number()), request);
    let ports = candidates(table, request, !unserved.is_empty());
    if ports.is_empty() {
        explanation.lines("port", no_port(table, request, !unserved.is_empty()));
        let unserved = match unserved.is_empty() && request.port.is_none() {
            true => findings.unserved(None, request),
            false => unserved,
        };
        explanation.conclude(Outcome {
            reason: unserved.first().cloned(),
            ..Outcome::refused(None)
        });
        explanation.lines("not served", unserved);
        explanation.lines("unattached", findings.unattached(request));
    }
    for port in ports {
        explanation.begin_port();
        let outcome = explain_port(&mut explanation, port, configuration, request);
        explanation.conclude(outcome);
        explanation.lines("certificate", findings.refused_certificate(port, request));
        let unserved = findings.unserved(Some(port.bind().port), request);
        explanation.lines("not served", unserved);
        explanation.lines("unattached", findings.unattached(request));
    }
    explanation.add_notes(&findings.report.notes);
    explanation
}

/// Describes a rule on a listener by the labels of an explanation: filters, timeouts, retries, backends with their endpoints,
/// and what policies require, for no request in particular.
pub fn describe_rule(
    configuration: Configuration<'_>,
    ListenerOnPort { port, listener }: ListenerOnPort<'_>,
    rule: &Rule,
) -> serde_json::Map<String, serde_json::Value> {
    let mut explanation = Explanation::default();
    let required = listener.policies(rule).map(|it| &it.ir);
    let defaults = required.and_then(|it| it.route.as_deref());
    explain_rule(
        &mut explanation,
        (rule, defaults),
        &[],
        (configuration, false),
    );
    let server = |policy: &ObjectRef| describe::auth_server(configuration.table, port, policy);
    policies::explain(&mut explanation, (required, &server), configuration.values);
    explanation.into_labels()
}

/// Returns why nothing of a rule on a listener reaches a backend, if nothing does, for no request in particular.
pub fn why_broken(
    configuration: Configuration<'_>,
    place: ListenerOnPort<'_>,
    rule: &Rule,
) -> Option<String> {
    match rule.forwards_bytes() {
        true => broken::of_connections(configuration, place, rule),
        false => broken::of_all(configuration, place, rule),
    }
}

fn explain_port(
    explanation: &mut Explanation,
    port: &Port,
    configuration: Configuration<'_>,
    request: &ExplainedRequest,
) -> Outcome {
    let place = format!(
        "{} ({}) of {}",
        port.bind(),
        protocol(port.protocol()),
        port.ir.gateway
    );
    explanation.line("port", place);
    let accepted = match port.protocol() {
        PortProtocol::Http => None,
        PortProtocol::Tls => port.listener_for_sni(request.sni()),
        PortProtocol::Tcp | PortProtocol::Udp => port.listeners().first(),
    };
    let is_http = |listener: &Arc<Listener>| {
        matches!(listener.ir.protocol, Protocol::Http | Protocol::Https(_))
    };
    match (port.protocol(), accepted) {
        (PortProtocol::Http, _) => explain_http(explanation, port, configuration, request),
        (_, None) => {
            let outcome = match port.protocol() {
                PortProtocol::Tls => "the handshake is refused",
                _ => "nothing is forwarded",
            };
            let lines = no_listener(port, &request.host, outcome);
            let reason = lines.first().cloned();
            explanation.lines("listener", lines);
            not_forwarded(reason)
        }
        (PortProtocol::Tls, Some(listener)) if is_http(listener) => {
            if listener.server.is_some() {
                return explain_http(explanation, port, configuration, request);
            }
            explain_listeners(explanation, port, listener, &request.host);
            let refused = "none: the handshake is refused, because the listener has no certificate that can be used";
            explanation.line("rule", refused);
            not_forwarded(Some(refused.to_owned()))
        }
        (_, Some(listener)) => {
            explain_forwarding(explanation, port, listener, configuration, request)
        }
    }
}

/// Explains a request of HTTP.
fn explain_http(
    explanation: &mut Explanation,
    port: &Port,
    configuration: Configuration<'_>,
    request: &ExplainedRequest,
) -> Outcome {
    let client = PreviewClient {
        port: port.bind().port,
        settings: port.connection_settings().map(|settings| &**settings),
        ..request.client()
    };
    let Ok(parts) = request.parts() else {
        explanation.line("response", "400: the URL is not that of a request");
        return Outcome::refused(Some(400));
    };
    let normalized = Preview::new(parts, client).and_then(|mut preview| {
        let found = preview.listener(port, client);
        preview.normalize_for(found.ok().map(|it| &**it))?;
        Ok((preview, found))
    });
    let (preview, found) = match normalized {
        Ok(normalized) => normalized,
        Err(refusal) => {
            explanation.line(
                "response",
                format!("{}: {}", response(refusal), refusal.message),
            );
            return outcome(refusal);
        }
    };
    let view = preview.view();
    if *view.path != *preview.forwarded_path() {
        explanation.line("canonical", view.path.as_str());
    }
    let listener = match found {
        Ok(listener) => listener,
        Err(refusal) => {
            let lines = match port.listener(view.host) {
                None => no_listener(port, view.host, &response(refusal)),
                Some(_) => vec![misdirected(port, refusal, view.host, request.sni())],
            };
            explanation.lines("listener", lines);
            return outcome(refusal);
        }
    };
    explain_listeners(explanation, port, listener, view.host);
    let found = preview.rule(listener);
    if let Ok((_, true)) = found {
        explanation.line("forwarded", view.path.as_str());
    }
    let found = found.map(|(rule, _)| rule);
    let place = ListenerOnPort { port, listener };
    let outcome = match found {
        Ok(rule) => of_rule(explanation, configuration, place, (rule, &preview)),
        Err(refusal) => {
            let policies = listener.policies_of_unmatched().map(|it| &it.ir);
            let pages = pages(policies.and_then(|it| it.route.as_deref()));
            outcome(refusal).with_status(preview.refused(refusal, pages))
        }
    };
    let none = |refusal| format!("none matches: {}", response(refusal));
    let served = found.map_err(none);
    explain_rules(explanation, place, served, &view, configuration);
    outcome
}

/// Returns what the rule does with a request, and explains the response if something that the rule needs is broken. The status is
/// that of an error page, if one replaces the response.
fn of_rule(
    explanation: &mut Explanation,
    configuration: Configuration<'_>,
    place: ListenerOnPort<'_>,
    (rule, preview): (&Rule, &Preview),
) -> Outcome {
    let forwarded = Outcome::rule(&rule.ir.id);
    let policies = place.listener.policies(rule).map(|it| &it.ir);
    let pages = pages(policies.and_then(|it| it.route.as_deref()));
    match broken::first(configuration, place, (rule, preview)) {
        Ok(Passage::On) => forwarded,
        Ok(Passage::Response(response)) => forwarded.with_status(preview.response(response, pages)),
        Err(Broken { fault, why }) => {
            let refusal = preview.refusal(fault);
            explanation.line("response", format!("{}: {why}", response(refusal)));
            Outcome {
                reason: Some(why),
                ..forwarded.with_status(preview.refused(refusal, pages))
            }
        }
    }
}

fn pages(defaults: Option<&RouteDefaults>) -> &[ErrorPage] {
    match defaults {
        Some(defaults) => &defaults.error_pages,
        None => &[],
    }
}

/// Explains a connection, or a session of UDP, that is forwarded.
fn explain_forwarding(
    explanation: &mut Explanation,
    port: &Port,
    listener: &Arc<Listener>,
    configuration: Configuration<'_>,
    request: &ExplainedRequest,
) -> Outcome {
    let host = match port.protocol() {
        PortProtocol::Tls => request.sni().unwrap_or_default(),
        _ => "",
    };
    explain_listeners(explanation, port, listener, host);
    let is_terminated = matches!(listener.ir.protocol, Protocol::TlsTerminate(_));
    let found = listener
        .find_for_host(host)
        .filter(|_| !is_terminated || listener.server.is_some());
    let view = RequestView {
        host,
        method: &http::Method::GET,
        path: CanonicalPath::ROOT,
        query: None,
        headers: &http::HeaderMap::new(),
        added: &[],
        upgrade: None,
    };
    let place = ListenerOnPort { port, listener };
    let none = without_rule(port.protocol());
    let why = found.and_then(|rule| broken::of_connections(configuration, place, rule));
    if let Some(why) = &why {
        let effect = match port.protocol() {
            PortProtocol::Udp => "every datagram is dropped",
            _ => "every connection is closed",
        };
        explanation.line("response", format!("none: {effect}: {why}"));
    }
    let served = found.ok_or_else(|| none.to_owned());
    explain_rules(explanation, place, served, &view, configuration);
    match found {
        Some(rule) => Outcome {
            reason: why,
            ..Outcome::rule(&rule.ir.id)
        },
        None => not_forwarded(Some(none.to_owned())),
    }
}

/// The outcome of a connection or a datagram that no rule gets.
fn not_forwarded(reason: Option<String>) -> Outcome {
    Outcome {
        reason,
        ..Outcome::refused(None)
    }
}

/// The status of a response: that of gRPC for a call.
fn response(refusal: Refusal) -> String {
    match refusal.grpc_status {
        Some(status) => format!("gRPC status {status}"),
        None => refusal.status.to_string(),
    }
}

fn outcome(refusal: Refusal) -> Outcome {
    Outcome {
        grpc_status: refusal.grpc_status,
        reason: Some(refusal.message.to_owned()),
        ..Outcome::refused(Some(refusal.status))
    }
}

/// Says that the host belongs to another listener than the connection.
fn misdirected(port: &Port, refusal: Refusal, host: &str, sni: Option<&str>) -> String {
    let agreed = port.listener_for_sni(sni).map(|it| &*it.ir.key.name);
    let other = port.listener(host).map(|it| &*it.ir.key.name);
    let (agreed, other) = (agreed.unwrap_or_default(), other.unwrap_or_default());
    format!(
        "{agreed} for the handshake, but {host} is of listener {other}: {}: {}",
        response(refusal),
        refusal.message
    )
}

fn explain_listeners(
    explanation: &mut Explanation,
    port: &Port,
    chosen: &Arc<Listener>,
    name: &str,
) {
    let hostname = &chosen.ir.hostname;
    let line = format!("{}, hostname {hostname}", chosen.ir.key.name);
    explanation.line("listener", line);
    let others = port.listeners().iter();
    let others = others.filter(|other| !Arc::ptr_eq(other, chosen)).collect();
    let matches = |other: &Listener| other.ir.hostname.contains(name);
    let passed = |other: &&Arc<Listener>| {
        let why = match matches(other) {
            true => "is less specific",
            false => "does not match",
        };
        let name = &other.ir.key.name;
        format!("not {name}: hostname {} {why}", other.ir.hostname)
    };
    let distance = |other: &&Arc<Listener>| usize::from(!matches(other));
    explanation.lines_after(nearest(others, distance, passed, "listeners"));
    if let Some(tls) = chosen.ir.tls() {
        explanation.line("TLS", describe::tls(tls));
    }
    clients::explain(explanation, port.bind().port, chosen.ir.clients.as_ref());
}

/// Explains the rule that was found, or says what happens without one, and why others were not.
fn explain_rules(
    explanation: &mut Explanation,
    place: ListenerOnPort<'_>,
    found: Result<&Arc<Rule>, String>,
    view: &RequestView<'_>,
    configuration: Configuration<'_>,
) {
    let ListenerOnPort { port, listener } = place;
    let considered = listener.explain(view);
    let is_call = is_call(view.headers);
    let rule = found.as_ref().ok().copied();
    match found {
        Ok(rule) => {
            let required = listener.policies(rule).map(|it| &it.ir);
            let defaults = required.and_then(|it| it.route.as_deref());
            let rule = (&**rule, defaults);
            explain_rule(explanation, rule, &considered, (configuration, is_call));
            let server =
                |policy: &ObjectRef| describe::auth_server(configuration.table, port, policy);
            policies::explain(explanation, (required, &server), configuration.values);
        }
        Err(none) => explanation.line("rule", none),
    }
    let others = all_matches(listener).saturating_sub(considered.len());
    let passed = considered.into_iter();
    let passed = passed
        .filter(|one| one.verdict != MatchVerdict::Chosen)
        .collect();
    let distance = |one: &Considered<'_>| matches::distance(one, &view.path);
    let shown = |one: &Considered<'_>| matches::considered(one, configuration.values);
    let mut lines = nearest(passed, distance, shown, "matches of this hostname");
    lines.extend((others > 0).then(|| format!("{others} matches of routes for other hostnames")));
    explanation.lines("not chosen", lines);
    if let (State::Offline { policies }, Some(rule)) = (configuration.state, rule) {
        explanation.lines("TLS policy", policies(&rule.ir.id, port, listener));
    }
}

fn without_rule(protocol: PortProtocol) -> &'static str {
    match protocol {
        PortProtocol::Tls => "none: the handshake is refused",
        PortProtocol::Http | PortProtocol::Tcp | PortProtocol::Udp => "none: nothing is forwarded",
    }
}

/// Number of matches on a listener. Counts a match once for each hostname, like [`Listener::explain`].
fn all_matches(listener: &Listener) -> usize {
    let routes = listener.ir.routes.iter();
    routes
        .map(|attached| {
            let rules = attached.route.rules.iter();
            attached.hostnames.len() * rules.map(|rule| rule.matches.len()).sum::<usize>()
        })
        .sum()
}

fn explain_rule(
    explanation: &mut Explanation,
    (rule, defaults): (&Rule, Option<&RouteDefaults>),
    considered: &[Considered<'_>],
    (configuration, is_call): (Configuration<'_>, bool),
) {
    let is_chosen = |one: &&Considered<'_>| one.verdict == MatchVerdict::Chosen;
    let line = match considered.iter().find(is_chosen) {
        Some(one) => matches::considered(one, configuration.values),
        None => matches::rule_name(&rule.ir.id),
    };
    explanation.line("rule", line);
    let (table, live) = (configuration.table, configuration.is_in_service());
    explanation.lines("filters", describe::filters(&rule.ir.filters, &table.ir));
    explanation.lines("timeouts", describe::timeouts(&rule.ir, defaults));
    explanation.lines("retry", describe::retry(rule.ir.retries(defaults)));
    let action = backends::action(&rule.ir, (table, live), is_call);
    explanation.lines("backends", action);
}
