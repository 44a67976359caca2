//! The listener and rule of a request, found literally as specified: without an index, checking every condition.

use http::{HeaderValue, Method};
use portcullis::ir::route::{GrpcCall, HeaderMatch, Match, PathMatch, QueryMatch, ValueMatch};
use portcullis::ir::{Hostname, Ir, ListenerKey, RuleId};

use crate::precedence::{Ranked, by_hostname, by_text};
use crate::request::Request;

fn value_fits(condition: &ValueMatch, value: Option<Vec<u8>>) -> bool {
    let Some(value) = value else {
        return false;
    };
    match condition {
        ValueMatch::Exact(exact) => value == exact.as_bytes(),
        ValueMatch::Regex(pattern) => pattern.matches(&String::from_utf8_lossy(&value)),
    }
}

/// Reports whether a header is a list with the elements of the exact value of a condition.
fn is_list(condition: &ValueMatch, value: Option<Vec<u8>>) -> bool {
    let value = value.and_then(|value| String::from_utf8(value).ok());
    let (ValueMatch::Exact(exact), Some(value)) = (condition, value) else {
        return false;
    };
    let elements = |text: &str| {
        let elements = text.split(',').map(str::trim).filter(|it| !it.is_empty());
        elements.map(str::to_owned).collect::<Vec<_>>()
    };
    (exact.contains(',') || value.contains(',')) && elements(exact) == elements(&value)
}

fn decoded(text: &str) -> Vec<u8> {
    let (mut bytes, mut out) = (text.bytes(), Vec::new());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                u8::from_str_radix(str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            other => other,
        });
    }
    out
}

pub(crate) fn fits(condition: &Match, request: &Request) -> bool {
    let path = match &condition.path {
        PathMatch::Exact(exact) => **exact == *request.path,
        PathMatch::Regex(pattern) => pattern.matches(request.path),
        PathMatch::Call(call) => {
            let GrpcCall { service, method } = &**call;
            let parts = GrpcCall::parts(request.path);
            parts.is_some_and(|(called, of)| {
                let fits = |condition: &ValueMatch, text: &str| {
                    value_fits(condition, Some(text.as_bytes().to_vec()))
                };
                let is_service = match service {
                    Some(condition) => fits(condition, called),
                    None => !called.contains('/'),
                };
                is_service && method.as_ref().is_none_or(|it| fits(it, of))
            })
        }
        PathMatch::Prefix(prefix) => {
            *request.path == **prefix || request.path.starts_with(&format!("{prefix}/"))
        }
    };
    let header = |it: &HeaderMatch| {
        let all = request.headers.get_all(&it.name);
        let all: Vec<_> = all.iter().map(HeaderValue::as_bytes).collect();
        let value = (!all.is_empty()).then(|| all.join(&b','));
        value_fits(&it.value, value.clone()) || is_list(&it.value, value)
    };
    let query = |it: &QueryMatch| {
        let mut pairs = request.query.into_iter().flat_map(|query| query.split('&'));
        let value = pairs.find_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name) == it.name.as_bytes()).then(|| decoded(value))
        });
        value_fits(&it.value, value)
    };
    let method = condition.others.method.as_ref();
    let is_grpc = request.method == Method::POST
        && request
            .headers
            .get("content-type")
            .is_some_and(|value| value == "application/grpc");
    path && (condition.others.grpc.is_none() || is_grpc)
        && method.is_none_or(|method| *method == request.method)
        && condition.others.headers.iter().all(header)
        && condition.others.query.iter().all(query)
}

/// Reports whether a hostname matches. A wildcard matches one or more whole labels (Hostname).
fn contains(hostname: &Hostname, host: &str) -> bool {
    match hostname {
        Hostname::Exact(name) => **name == *host,
        Hostname::Wildcard(suffix) => {
            let below = host.strip_suffix(&format!(".{suffix}"));
            below.is_some_and(|labels| !labels.is_empty())
        }
        Hostname::Any => true,
    }
}

/// Returns the listener and rule of a request, as the specification words it.
pub(crate) fn scan<'a>(
    ir: &'a Ir,
    request: &Request,
) -> Option<(&'a ListenerKey, Option<&'a RuleId>)> {
    let listeners = ir.ports[0].listeners.iter();
    let listener = listeners
        .filter(|listener| contains(&listener.hostname, request.host))
        .min_by(|one, two| by_hostname(&one.hostname, &two.hostname))?;
    let mut fitting: Vec<Ranked<'_>> = Vec::new();
    for attached in listener.routes.iter() {
        let route = &*attached.route;
        let hostnames = attached.hostnames.iter();
        for hostname in hostnames.filter(|it| contains(it, request.host)) {
            for (rule, it) in route.rules.iter().enumerate() {
                for (index, condition) in it.matches.iter().enumerate() {
                    if fits(condition, request) {
                        fitting.push(Ranked {
                            hostname,
                            route,
                            rule,
                            index,
                        });
                    }
                }
            }
        }
    }
    let first = fitting.into_iter().min_by(|one, two| by_text(*one, *two));
    let rule = first.map(|it| &it.route.rules[it.rule].id);
    Some((&listener.key, rule))
}
