//! Lists the headers that only the proxy may say in the requests of a listener or a rule, or that it decides by. Must not know
//! how they are removed.

use std::sync::Arc;

use http::HeaderName;
use http::header::HOST;

use super::authentication::Authentication;
use crate::ir;
use crate::ir::Filter;
use crate::ir::auth_call::AuthCall;
use crate::ir::authentication::KeyPlace;
use crate::ir::client::{AddressSource, ClientPolicies};
use crate::ir::filter::HeaderChanges;
use crate::ir::hop_by_hop::HOP_BY_HOP;
use crate::ir::limit::KeyPart;
use crate::ir::policy::{Enforced, Policies};
use crate::ir::protected_headers::{ProtectedHeaders, Protection};
use crate::ir::request_match::Match;

type Headers = Vec<(HeaderName, Protection)>;

/// Headers from which frameworks take the method of a request, whatever its first line says.
const METHODS: [HeaderName; 3] = [
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-method-override"),
];

/// Returns the headers that policies on the clients of a listener protect: the one with the address.
pub(super) fn of_clients(clients: Option<&Arc<ClientPolicies>>) -> Option<Arc<ProtectedHeaders>> {
    let address = match clients?.address.as_ref()? {
        Enforced::Valid(address) => address,
        Enforced::Broken(_) => return None,
    };
    match &address.source {
        AddressSource::Header { name, .. } => list(vec![(name.clone(), Protection::Set)]),
        AddressSource::Connection | AddressSource::Hops(_) | AddressSource::Proxies(_) => None,
    }
}

/// Returns the headers that policies on requests protect.
pub(super) fn of_policies(
    ir: &Policies,
    authentication: Option<&Authentication>,
) -> Option<Arc<ProtectedHeaders>> {
    let mut headers = Headers::new();
    if let Some(authentication) = authentication {
        let keys = authentication.clients.iter().flat_map(|it| &it.ir.from);
        let tokens = authentication.tokens.iter();
        let tokens = tokens.flat_map(|it| &it.ir.providers);
        let places = keys.chain(tokens.flat_map(|it| &it.from));
        let read = places.filter_map(|place| match place {
            KeyPlace::Header(name) => Some((name.clone(), Protection::Read)),
            KeyPlace::Query(_) | KeyPlace::Cookie(_) => None,
        });
        let read: Headers = read.collect();
        let said = authentication.identity_headers.iter().map(|name| {
            // What the client sends may be a credential, too. It is removed once that was read.
            let is_read = read.iter().any(|(own, _)| own == name);
            let protection = match is_read {
                true => Protection::Set,
                false => Protection::Identity,
            };
            (name.clone(), protection)
        });
        headers.extend(said);
        if let Some(external) = &authentication.external {
            let is_read = |name: &HeaderName| read.iter().any(|(own, _)| own == name);
            let call = &external.call;
            // Limits count before the server is asked, so that what the client says must be gone.
            let by_server = call.response_headers().iter();
            let by_server =
                by_server.filter(|name| call.is_only_said_by_server(name) && !is_read(name));
            headers.extend(by_server.map(|name| (name.clone(), Protection::Identity)));
            add_call(call, &mut headers);
        }
        headers.extend(read);
    }
    let mut has_methods = false;
    if let Some(Enforced::Valid(authorization)) = &ir.authorization {
        let rules = authorization.rules.iter();
        has_methods |= rules.clone().any(|rule| rule.requests.methods.is_some());
        let matches = rules.flat_map(|rule| rule.requests.matches.iter().flatten());
        add_matches(matches, &mut headers);
    }
    if let Some(Enforced::Valid(limits)) = &ir.limits {
        for limit in &limits.limits {
            has_methods |= limit.condition.as_ref().is_some_and(names_method);
            add_matches(limit.condition.iter(), &mut headers);
            let keys = limit.key.iter().filter_map(|part| match part {
                KeyPart::Header(name) => Some((name.clone(), Protection::Compared)),
                KeyPart::ClientIp { .. } | KeyPart::Cookie(_) | KeyPart::Hostname => None,
            });
            headers.extend(keys);
        }
    }
    let defaults = ir.route.as_ref();
    if let Some(changes) = defaults.and_then(|it| it.request_headers.as_ref()) {
        add_changes(changes, &mut headers);
    }
    if has_methods {
        add_methods(&mut headers);
    }
    list(headers)
}

/// Reports whether which rule of a route a request gets depends on its method.
pub(super) fn depends_on_methods(route: &ir::Route) -> bool {
    let mut matches = route.rules.iter().flat_map(|rule| &rule.matches);
    matches.any(names_method)
}

fn names_method(condition: &Match) -> bool {
    condition.others.method.is_some()
}

/// Returns the headers that filters of a rule and of its backendRefs protect. If its rules may be protected in different ways,
/// which one a request gets is part of the decision. Methods always are: a route may serve some and no others.
pub(super) fn of_rule<'a>(
    route: &ir::Route,
    ir: &'a ir::Rule,
    of_backends: impl Iterator<Item = &'a Filter>,
) -> Option<Arc<ProtectedHeaders>> {
    let mut headers = Headers::new();
    if route.protects_by_rule() {
        let matches = route.rules.iter().flat_map(|rule| &rule.matches);
        add_matches(matches, &mut headers);
    }
    for filter in ir.filters.iter().chain(of_backends) {
        match filter {
            Filter::RequestHeaders(changes) => add_changes(changes, &mut headers),
            Filter::ExternalAuth(auth) => add_call(&auth.call, &mut headers),
            Filter::ResponseHeaders(_)
            | Filter::Redirect(_)
            | Filter::Rewrite(_)
            | Filter::Cors(_)
            | Filter::Preflight(_)
            | Filter::Mirror(_)
            | Filter::RewritePath(_)
            | Filter::Respond(_) => {}
        }
    }
    if depends_on_methods(route) {
        let matches = route.rules.iter().flat_map(|rule| &rule.matches);
        let mut conditions = matches.flat_map(|condition| &condition.others.headers);
        // A route that decides by such a header forwards it.
        if !conditions.any(|condition| METHODS.contains(&condition.name)) {
            add_methods(&mut headers);
        }
    }
    list(headers)
}

/// Adds the headers with methods that the configuration does not name.
fn add_methods(headers: &mut Headers) {
    let is_named = |name: &HeaderName| headers.iter().any(|(own, _)| own == name);
    let unnamed: Vec<_> = METHODS.into_iter().filter(|it| !is_named(it)).collect();
    let unnamed = unnamed.into_iter();
    headers.extend(unnamed.map(|name| (name, Protection::Method)));
}

fn list(headers: Headers) -> Option<Arc<ProtectedHeaders>> {
    ProtectedHeaders::new(headers).map(Arc::new)
}

/// Adds the headers that only an authorization server says, and those that it decides by. Without a list of the former, these are
/// known with its response, and without one of the latter, it sees all.
fn add_call(call: &AuthCall, headers: &mut Headers) {
    let asked = call.request_headers().iter();
    headers.extend(asked.map(|name| (name.clone(), Protection::Compared)));
    let names = call.response_headers().iter();
    let names = names.filter(|name| **name != HOST && !HOP_BY_HOP.contains(name));
    headers.extend(names.map(|name| (name.clone(), Protection::Set)));
}

/// Adds the headers that are set or removed. To one that is added, the client may say something, too.
fn add_changes(changes: &HeaderChanges, headers: &mut Headers) {
    let HeaderChanges {
        set,
        add: _,
        remove,
    } = changes;
    headers.extend(set.iter().map(|(name, _)| (name.clone(), Protection::Set)));
    headers.extend(
        remove
            .iter()
            .map(|name| (name.clone(), Protection::Removed)),
    );
}

fn add_matches<'a>(matches: impl Iterator<Item = &'a Match>, headers: &mut Headers) {
    let conditions = matches.flat_map(|condition| &condition.others.headers);
    let compared = conditions.map(|condition| (condition.name.clone(), Protection::Compared));
    headers.extend(compared);
}
