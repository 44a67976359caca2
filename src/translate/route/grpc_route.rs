//! GRPCRoutes: their rules, from matches, filters and backendRefs.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE,
};
use http::{HeaderName, Method};

use crate::api::filter::{CorsFilter, HttpFilter};
use crate::api::grpc_route::{GrpcMatch as ApiMatch, GrpcMethodMatch, GrpcRoute, GrpcRule};
use crate::ir::cors::Cors;
use crate::ir::route::{
    Conditions, GrpcCall, GrpcMatch, Match, PathMatch, RuleOptions, ValueMatch,
};
use crate::ir::{Filter, RouteKind, Rule, RuleId};

use super::route::{RouteBuilder, RouteObject, RuleParts, RuleSettings};
use crate::translate::filter;
use crate::translate::filter::cors;
use crate::translate::http_match::headers;
use crate::translate::patterns::RoutePatterns;
use crate::translate::policy::session_persistence;
use crate::translate::protocol::Protocol;
use crate::translate::reason::{Fault, all, both, unsupported};

/// The headers of gRPC-Web calls that browsers ask for.
const GRPC_WEB_HEADERS: &str = "content-type, grpc-timeout, x-grpc-web, x-user-agent";

/// The filter types that a GRPCRoute may have (GRPCRouteFilterType).
const FILTERS: [&str; 4] = [
    "RequestHeaderModifier",
    "ResponseHeaderModifier",
    "RequestMirror",
    "ExtensionRef",
];

impl RouteObject for GrpcRoute {
    const ROUTE_KIND: RouteKind = RouteKind::Grpc;
    const PROTOCOLS: &'static [Protocol] = &[Protocol::Http, Protocol::Https];

    fn rules(&self, builder: &mut RouteBuilder<'_>) -> Vec<Arc<Rule>> {
        let rules = self.spec.rules.iter().enumerate();
        rules
            .filter_map(|(index, spec)| rule(builder, index, spec).map(Arc::new))
            .collect()
    }
}

fn rule(builder: &mut RouteBuilder<'_>, index: usize, spec: &GrpcRule) -> Option<Rule> {
    let field = format!("spec.rules[{index}]");
    let matches = match matches(&spec.matches, &field, &mut builder.patterns) {
        Ok(matches) => matches,
        Err(fault) => {
            builder.drop_rule(fault);
            return None;
        }
    };
    let name = spec.name.as_deref();
    let of_share = |builder: &mut RouteBuilder<'_>, list: &[HttpFilter], field: &str| {
        filters(builder, list, field, name)
    };
    let forward = builder.forward(&spec.backend_refs, &field, name, of_share);
    let id = builder.rule_id(index, name);
    let mut settings = settings(builder, spec, &id, &field);
    if let Ok(RuleSettings { filters, .. }) = &mut settings
        && let Some(cors) = preflight(filters)
    {
        filters.insert(0, Filter::Preflight(Arc::new(cors)));
    }
    Some(builder.rule(RuleParts {
        id,
        matches,
        forward,
        settings,
    }))
}

fn settings(
    builder: &mut RouteBuilder<'_>,
    spec: &GrpcRule,
    id: &RuleId,
    field: &str,
) -> Result<RuleSettings, Fault> {
    let GrpcRule {
        filters: list,
        session_persistence,
        name,
        matches: _,
        backend_refs: _,
    } = spec;
    builder.check_fields(id.index)?;
    let session = session_persistence.as_ref();
    let session = session.map(|spec| session_persistence::of_rule(spec, id, field));
    let filters = filters(builder, list, field, name.as_deref());
    let (filters, session) = both(filters, session.transpose())?;
    Ok(RuleSettings {
        filters,
        options: RuleOptions {
            session,
            ..RuleOptions::default()
        },
    })
}

/// Translates the filters of a rule or of one of its backendRefs. `rule` is the name of the rule.
fn filters(
    builder: &mut RouteBuilder<'_>,
    filters: &[HttpFilter],
    field: &str,
    rule: Option<&str>,
) -> Result<Vec<Filter>, Fault> {
    let checked = filters.iter().enumerate().map(|(index, filter)| {
        if FILTERS.contains(&filter.kind.as_str()) {
            return Ok(());
        }
        let (kind, known) = (&filter.kind, FILTERS.join(", "));
        let message = format!("filter type {kind} is not for GRPCRoutes; use one of {known}");
        Err(unsupported(&format!("{field}.filters[{index}]"), &message))
    });
    let () = all(checked)?;
    let extensions = BTreeMap::new();
    let resolve =
        &mut |reference: &_, field: &_, requests| builder.resolve(reference, field, rule, requests);
    filter::translate(filters, field, None, &extensions, resolve)
}

/// Returns what preflight requests for calls of a rule may ask for: what the CORS headers that it sets in responses say.
/// `None` if it sets no origin, or none that a request can have.
fn preflight(filters: &[Filter]) -> Option<Cors> {
    let set = |name: HeaderName| {
        let changes = filters.iter().filter_map(|filter| match filter {
            Filter::ResponseHeaders(changes) => Some(changes),
            _ => None,
        });
        let mut set = changes.flat_map(|changes| &changes.set);
        let (_, value) = set.find(|(known, _)| *known == name)?;
        value.to_str().ok().map(str::trim)
    };
    let headers = set(ACCESS_CONTROL_ALLOW_HEADERS).unwrap_or(GRPC_WEB_HEADERS);
    let names = headers.split(',').map(|name| name.trim().to_owned());
    let filter = CorsFilter {
        allow_origins: vec![set(ACCESS_CONTROL_ALLOW_ORIGIN)?.to_owned()],
        allow_credentials: Some(set(ACCESS_CONTROL_ALLOW_CREDENTIALS) == Some("true")),
        allow_methods: vec![Method::POST.to_string()],
        allow_headers: names.filter(|name| !name.is_empty()).collect(),
        expose_headers: Vec::new(),
        max_age: set(ACCESS_CONTROL_MAX_AGE).and_then(|seconds| seconds.parse().ok()),
    };
    cors::translate(&filter, "").ok()
}

/// Translates the matches of a rule. Without matches, every gRPC request matches.
fn matches(
    matches: &[ApiMatch],
    field: &str,
    patterns: &mut RoutePatterns,
) -> Result<Vec<Match>, Fault> {
    if matches.is_empty() {
        return Ok(vec![one(&ApiMatch::default(), field, patterns)?]);
    }
    let numbered = matches.iter().enumerate();
    all(numbered
        .map(|(index, condition)| one(condition, &format!("{field}.matches[{index}]"), patterns)))
}

fn one(condition: &ApiMatch, field: &str, patterns: &mut RoutePatterns) -> Result<Match, Fault> {
    let path = match &condition.method {
        Some(method) => path(method, &format!("{field}.method"), patterns),
        None => Ok((PathMatch::Prefix("".into()), GrpcMatch::default())),
    };
    let headers = headers(&condition.headers, field, patterns);
    let ((path, grpc), headers) = both(path, headers)?;
    let others = Conditions {
        grpc: Some(grpc),
        headers,
        ..Conditions::default()
    };
    Ok(Match {
        path,
        others: others.into(),
    })
}

/// Translates a condition on service and method into one on the path `/service/method`. An exact service is a path or
/// a prefix, which the router finds in an index.
fn path(
    condition: &GrpcMethodMatch,
    field: &str,
    patterns: &mut RoutePatterns,
) -> Result<(PathMatch, GrpcMatch), Fault> {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let (service, method) = (given(&condition.service), given(&condition.method));
    if service.is_none() && method.is_none() {
        let message = "set service, method or both; to match every call, remove this field";
        return Err(unsupported(field, message));
    }
    let length = |text: &Option<String>| text.as_deref().map_or(0, |text| text.chars().count());
    let grpc = GrpcMatch {
        service: length(&service),
        method: length(&method),
    };
    let parts = [("service", &service), ("method", &method)];
    let path = match condition.kind.as_deref().unwrap_or("Exact") {
        "Exact" => {
            let parts = parts.map(|(name, text)| match text {
                Some(text) if text.contains('/') => {
                    let message =
                        format!("{text:?} contains a /, which is not allowed in a {name}");
                    Err(unsupported(&format!("{field}.{name}"), &message))
                }
                _ => Ok(()),
            });
            let () = all(parts)?;
            exact(service.as_deref(), method.as_deref())
        }
        "RegularExpression" => {
            let [service, method] = parts.map(|(name, text)| {
                let text = text.as_deref();
                let parsed = text.map(|text| patterns.parse(text, &format!("{field}.{name}")));
                parsed.transpose()
            });
            let (service, method) = both(service, method)?;
            PathMatch::Call(Box::new(GrpcCall {
                service: service.map(ValueMatch::Regex),
                method: method.map(ValueMatch::Regex),
            }))
        }
        kind => {
            let message = format!("type {kind} is not supported");
            return Err(unsupported(field, &message));
        }
    };
    Ok((path, grpc))
}

fn exact(service: Option<&str>, method: Option<&str>) -> PathMatch {
    match (service, method) {
        (Some(service), Some(method)) => PathMatch::Exact(format!("/{service}/{method}").into()),
        (Some(service), None) => PathMatch::Prefix(format!("/{service}").into()),
        (None, Some(method)) => PathMatch::Call(Box::new(GrpcCall {
            service: None,
            method: Some(ValueMatch::Exact(method.into())),
        })),
        (None, None) => PathMatch::Prefix("".into()),
    }
}
