//! The conditions of a match. Allocates only to match a pattern against an encoded or repeated value. Must not know
//! indexes or precedence.

use http::header::{AUTHORIZATION, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use memchr::memchr;

use crate::ir::Pattern;
use crate::ir::canonical_path::CanonicalPath;
use crate::ir::cors::is_preflight;
use crate::ir::grpc;
use crate::ir::header_list::{credentials, elements, has_hosts, hosts};
use crate::ir::route::{Conditions, HeaderMatch, Match, QueryMatch, ValueMatch};

/// Number of values of a query parameter that count for the matches of routes (Gateway API, HTTPQueryParamMatch).
const OF_ROUTE: usize = 1;
/// The same for policies: servers differ in which value they take, so that a further one must lead past no limit.
const OF_POLICY: usize = usize::MAX;

/// The parts of a request that conditions look at.
#[derive(Clone, Copy, Debug)]
pub struct RequestView<'a> {
    /// Host in lower case, without port.
    pub host: &'a str,
    /// Method.
    pub method: &'a Method,
    /// The path, which may be spelled otherwise where it is forwarded.
    pub path: CanonicalPath<'a>,
    /// Query, without `?`.
    pub query: Option<&'a str>,
    /// Headers.
    pub headers: &'a HeaderMap,
    /// Headers that the proxy adds when it forwards. Their names do not occur in `headers`.
    pub added: &'a [(HeaderName, HeaderValue)],
    /// The protocol of the upgrade that it asks for and that is forwarded, of WebSocket with any version of HTTP. `headers` has no
    /// `Upgrade`.
    pub upgrade: Option<&'a HeaderValue>,
}

impl<'a> RequestView<'a> {
    /// Returns the lines of a header, as backends get it.
    #[inline]
    pub(super) fn lines(&self, name: &HeaderName) -> impl Iterator<Item = &'a HeaderValue> {
        let added = self.added.iter().filter(move |(own, _)| own == name);
        let added = added.map(|(_, value)| value);
        self.headers.get_all(name).iter().chain(added)
    }
}

/// The first condition that a request does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch<'a> {
    /// The path.
    Path,
    /// It is not a gRPC request.
    Grpc,
    /// It is a preflight request for gRPC requests that no origin may send.
    Preflight,
    /// The method.
    Method,
    /// The header of this name.
    Header(&'a HeaderName),
    /// The query parameter of this name.
    Query(&'a str),
}

/// Reports whether a match has only a path condition.
pub(super) fn is_plain(condition: &Match) -> bool {
    condition.others.is_empty()
}

/// Reports whether a request meets all conditions of a match of a policy. Without one on the path, that may be `*`, which no rule
/// with a prefix matches, but a rule with a pattern may.
pub(super) fn fits(condition: &Match, request: &RequestView<'_>) -> bool {
    let path = &condition.path;
    let is_path = path.is_any() || path.matches(request.path);
    is_path && unmet(condition, request, OF_POLICY).is_none()
}

/// Returns the first condition of a match of a route, other than the path, that the request does not meet.
#[inline]
pub(super) fn mismatch<'a>(
    condition: &'a Match,
    request: &RequestView<'_>,
) -> Option<Mismatch<'a>> {
    unmet(condition, request, OF_ROUTE)
}

/// Returns the first condition, other than the path, that the request does not meet with so many values of query parameters.
fn unmet<'a>(
    condition: &'a Match,
    request: &RequestView<'_>,
    values: usize,
) -> Option<Mismatch<'a>> {
    let Conditions {
        grpc,
        method,
        headers,
        query,
    } = &*condition.others;
    let is_grpc = || {
        grpc::is_request(request.method, request.headers)
            || is_preflight(request.method, request.headers)
    };
    if grpc.is_some() && !is_grpc() {
        return Some(Mismatch::Grpc);
    }
    if method
        .as_ref()
        .is_some_and(|method| method != request.method)
    {
        return Some(Mismatch::Method);
    }
    let header = headers.iter().find(|it| !header_fits(it, request));
    if let Some(header) = header {
        return Some(Mismatch::Header(&header.name));
    }
    query
        .iter()
        .find(|it| !query_fits(it, request, values))
        .map(|query| Mismatch::Query(&query.name))
}

fn header_fits(condition: &HeaderMatch, request: &RequestView<'_>) -> bool {
    if condition.name == UPGRADE {
        return upgrade_fits(&condition.value, request.upgrade);
    }
    let values = || request.lines(&condition.name);
    let mut others = values();
    let Some(first) = others.next() else {
        return false;
    };
    let second = others.next();
    match (&condition.value, second) {
        (ValueMatch::Exact(exact), None) if exact.as_bytes() == first.as_bytes() => true,
        (value, _) if has_hosts(&condition.name) => {
            let lines = std::iter::once(first).chain(second).chain(others);
            hosts_fit(value, lines.map(HeaderValue::as_bytes))
        }
        (ValueMatch::Exact(exact), _) if condition.name == AUTHORIZATION => {
            let lines = std::iter::once(first).chain(second).chain(others);
            let exact = std::iter::once(exact.as_bytes());
            credentials(exact).eq(credentials(lines.map(HeaderValue::as_bytes)))
        }
        (ValueMatch::Exact(exact), None) => {
            let (exact, first) = (exact.as_bytes(), first.as_bytes());
            is_list(exact, first) && is_same_list(exact, [first])
        }
        (ValueMatch::Exact(exact), Some(_)) => {
            is_same_list(exact.as_bytes(), values().map(HeaderValue::as_bytes))
        }
        (ValueMatch::Regex(pattern), None) => pattern_fits(pattern, first.as_bytes()),
        (ValueMatch::Regex(pattern), Some(_)) => {
            let parts: Vec<&[u8]> = values().map(HeaderValue::as_bytes).collect();
            pattern_fits(pattern, &parts.join(&b','))
        }
    }
}

/// Reports whether a value matches a pattern, which sees U+FFFD for bytes that are not UTF-8: a further byte keeps no value from a
/// pattern that permits others around it.
fn pattern_fits(pattern: &Pattern, value: &[u8]) -> bool {
    pattern.matches(&String::from_utf8_lossy(value))
}

/// Reports whether an upgrade meets a condition, whatever the case of its protocol (RFC 9110, 7.8).
fn upgrade_fits(condition: &ValueMatch, upgrade: Option<&HeaderValue>) -> bool {
    let protocol = upgrade.map(|protocol| protocol.as_bytes().to_ascii_lowercase());
    protocol.is_some_and(|protocol| match condition {
        ValueMatch::Exact(exact) => exact.as_bytes().eq_ignore_ascii_case(&protocol),
        ValueMatch::Regex(pattern) => pattern_fits(pattern, &protocol),
    })
}

/// Reports whether the lines of a header with hosts meet a condition, however these are written.
fn hosts_fit<'a>(condition: &ValueMatch, lines: impl Iterator<Item = &'a [u8]>) -> bool {
    match condition {
        ValueMatch::Exact(exact) => hosts(std::iter::once(exact.as_bytes())).eq(hosts(lines)),
        ValueMatch::Regex(pattern) => {
            let mut text: Vec<u8> = hosts(lines).collect();
            // The comma after the last one.
            text.pop();
            pattern_fits(pattern, &text)
        }
    }
}

/// Reports whether one of two values is a list. Few are.
#[inline]
fn is_list(one: &[u8], other: &[u8]) -> bool {
    memchr(b',', one).is_some() || memchr(b',', other).is_some()
}

/// Reports whether the lines of a header are the same list as a value.
fn is_same_list<'a>(value: &'a [u8], lines: impl IntoIterator<Item = &'a [u8]>) -> bool {
    elements(std::iter::once(value)).eq(elements(lines.into_iter()))
}

/// Reports whether one of the first `count` values of a parameter meets a condition. Some servers take a semicolon for the end of a
/// parameter, which must lead past no policy either.
fn query_fits(condition: &QueryMatch, request: &RequestView<'_>, count: usize) -> bool {
    let fits = |value: &str| match &condition.value {
        ValueMatch::Exact(exact) => decode(value).eq(exact.bytes()),
        ValueMatch::Regex(pattern) if value.contains(['%', '+']) => {
            let decoded: Vec<u8> = decode(value).collect();
            pattern_fits(pattern, &decoded)
        }
        ValueMatch::Regex(pattern) => pattern.matches(value),
    };
    let query = request.query.unwrap_or_default();
    let name = &condition.name;
    let with_semicolons = || split_parameters(query, name).any(fits);
    parameters(query, name).take(count).any(fits)
        || count > OF_ROUTE && query.contains(';') && with_semicolons()
}

/// Reports whether a backend may read another value of a query parameter than the one that decides about routes: there is a
/// further one, or one behind a semicolon.
pub(super) fn may_differ(name: &str, request: &RequestView<'_>) -> bool {
    let Some(query) = request.query else {
        return false;
    };
    let decided = parameters(query, name).next();
    let differs = |other: &str| decided.is_none_or(|it| !decode(it).eq(decode(other)));
    parameters(query, name).skip(1).any(differs)
        || query.contains(';') && split_parameters(query, name).any(differs)
}

/// Returns the values of the parameters of this name, still encoded.
fn parameters<'a>(query: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    named(query.split('&'), name)
}

/// The same where a semicolon ends a parameter, too.
fn split_parameters<'a>(query: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    named(query.split(['&', ';']), name)
}

fn named<'a>(pairs: impl Iterator<Item = &'a str>, name: &'a str) -> impl Iterator<Item = &'a str> {
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .filter(move |(key, _)| decode(key).eq(name.bytes()))
        .map(|(_, value)| value)
}

/// Decodes a name or value of `application/x-www-form-urlencoded`. Keeps a `%` without two hexadecimal digits.
pub(super) fn decode(text: &(impl AsRef<[u8]> + ?Sized)) -> impl Iterator<Item = u8> {
    let mut rest = text.as_ref();
    std::iter::from_fn(move || {
        let (first, tail) = rest.split_first()?;
        rest = tail;
        Some(match (first, tail) {
            (b'+', _) => b' ',
            (b'%', [high, low, after @ ..]) => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => {
                    rest = after;
                    high << 4 | low
                }
                _ => b'%',
            },
            _ => *first,
        })
    })
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::route::PathMatch;

    fn headers(values: &[&[u8]]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("x-a", HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    fn exact(value: &str) -> ValueMatch {
        ValueMatch::Exact(value.into())
    }

    fn regex(value: &str) -> ValueMatch {
        ValueMatch::Regex(Pattern::new(value).unwrap())
    }

    fn view<'a>(headers: &'a HeaderMap, added: &'a [(HeaderName, HeaderValue)]) -> RequestView<'a> {
        RequestView {
            host: "a",
            method: &Method::GET,
            path: CanonicalPath::ROOT,
            query: None,
            headers,
            added,
            upgrade: None,
        }
    }

    #[test]
    fn conditions_on_upgrade_see_the_one_that_is_forwarded_in_any_letters() {
        let headers = HeaderMap::new();
        let fits = |value, protocol: Option<&'static str>| {
            let protocol = protocol.map(HeaderValue::from_static);
            let request = RequestView {
                upgrade: protocol.as_ref(),
                ..view(&headers, &[])
            };
            let name = UPGRADE;
            header_fits(&HeaderMatch { name, value }, &request)
        };
        for protocol in ["websocket", "WebSocket"] {
            assert!(fits(exact("websocket"), Some(protocol)));
            assert!(fits(exact("WEBSOCKET"), Some(protocol)));
            assert!(fits(regex("web.*"), Some(protocol)));
        }
        assert!(!fits(exact("websocket"), Some("spdy/3.1")));
        assert!(!fits(regex(".*"), None));
    }

    #[test]
    fn matches_headers_that_the_proxy_adds() {
        let (name, added) = (
            HeaderName::from_static("x-a"),
            HeaderValue::from_static("b"),
        );
        let added = [(name.clone(), added)];
        let condition = |value| HeaderMatch {
            name: name.clone(),
            value,
        };
        let empty = HeaderMap::new();
        assert!(header_fits(&condition(exact("b")), &view(&empty, &added)));
        assert!(header_fits(
            &condition(regex("[ab]")),
            &view(&empty, &added)
        ));
        assert!(!header_fits(&condition(exact("a")), &view(&empty, &added)));
        assert!(!header_fits(&condition(exact("b")), &view(&empty, &[])));
    }

    #[test]
    fn repeated_headers_are_one_value_joined_by_commas() {
        let fits = |value, fields: &[&[u8]]| {
            let name = HeaderName::from_static("x-a");
            header_fits(&HeaderMatch { name, value }, &view(&headers(fields), &[]))
        };
        assert!(fits(exact("a"), &[b"a"]));
        assert!(fits(exact("a,b"), &[b"a", b"b"]));
        assert!(fits(exact("a,b"), &[b"a,b"]));
        assert!(fits(exact("a,b"), &[b"a, b"]));
        assert!(fits(exact("a, b"), &[b"a ,,b"]));
        assert!(fits(exact("a, b"), &[b"a", b"", b"b"]));
        assert!(fits(exact("a"), &[b"", b"a"]));
        assert!(fits(exact("a"), &[b",a"]));
        assert!(!fits(exact("a"), &[b"a", b"b"]));
        assert!(!fits(exact("a,"), &[b"a", b"b"]));
        assert!(!fits(exact("a,b"), &[b"b,a"]));
        assert!(!fits(exact("ab"), &[b"a,b"]));
        assert!(!fits(exact(""), &[b"a"]));
        assert!(!fits(exact("a"), &[]));
        assert!(fits(exact(""), &[b""]));
        assert!(fits(regex("a,b"), &[b"a", b"b"]));
        assert!(!fits(regex("a"), &[b"a", b"b"]));
        assert!(!fits(regex("a"), &[b"a\xff"]));
        assert!(fits(regex("a.*"), &[b"a\xff"]));
        assert!(fits(regex(".*a"), &[b"\xff", b"a"]));
    }

    #[test]
    fn every_spelling_of_a_host_meets_a_condition_on_it() {
        for name in ["host", "x-forwarded-host"] {
            let name = HeaderName::from_static(name);
            let fits = |value: ValueMatch, host: &'static str| {
                let (sent, empty) = (HeaderValue::from_static(host), HeaderMap::new());
                let condition = HeaderMatch {
                    name: name.clone(),
                    value,
                };
                let headers = HeaderMap::from_iter([(name.clone(), sent.clone())]);
                let is_met = header_fits(&condition, &view(&headers, &[]));
                let added = [(name.clone(), sent)];
                assert_eq!(header_fits(&condition, &view(&empty, &added)), is_met);
                is_met
            };
            for host in [
                "a.com",
                "A.com",
                "a.com:80",
                "a.com:8080",
                "a.com.",
                "A.COM.:443",
            ] {
                assert!(fits(exact("a.com"), host), "{host}");
                assert!(fits(exact("A.com:8080"), host), "{host}");
                assert!(fits(regex("a[.]com"), host), "{host}");
            }
            assert!(!fits(exact("a.com"), "b.a.com"));
            assert!(!fits(regex("a[.]com"), "a.com.b"));
        }
        let headers = headers(&[b"A"]);
        let name = HeaderName::from_static("x-a");
        let condition = HeaderMatch {
            name,
            value: exact("a"),
        };
        assert!(!header_fits(&condition, &view(&headers, &[])));
    }

    #[test]
    fn every_spelling_of_credentials_meets_a_condition_on_them() {
        let fits = |sent: &'static str| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(sent))]);
            let condition = HeaderMatch {
                name: AUTHORIZATION,
                value: exact("Bearer aB"),
            };
            header_fits(&condition, &view(&headers, &[]))
        };
        for sent in ["Bearer aB", "bearer aB", "BEARER  \t aB"] {
            assert!(fits(sent), "{sent}");
        }
        for sent in [
            "Bearer ab",
            "BeareraB",
            "Basic aB",
            "Bearer aB c",
            "Bearer aB, x",
        ] {
            assert!(!fits(sent), "{sent}");
        }
    }

    #[test]
    fn conditions_without_a_path_decide_about_requests_for_the_server() {
        let headers = headers(&[b"a"]);
        let request = RequestView {
            path: CanonicalPath::new("*").unwrap(),
            ..view(&headers, &[])
        };
        let on = |path: &str| Match::from(PathMatch::Prefix(path.into()));
        assert!(!fits(&on("/admin"), &request));
        assert!(fits(&on(""), &request));
    }

    #[test]
    fn query_parameters_are_decoded_and_the_first_counts() {
        let fits = |name: &str, value, query| {
            let name = name.into();
            let headers = HeaderMap::new();
            let request = RequestView {
                query,
                ..view(&headers, &[])
            };
            query_fits(&QueryMatch { name, value }, &request, OF_ROUTE)
        };
        assert!(fits("a", exact("1"), Some("b=2&a=1&a=2")));
        assert!(!fits("a", exact("2"), Some("b=2&a=1&a=2")));
        assert!(fits("a b", exact("c d"), Some("a%20b=c+d")));
        assert!(fits("a", exact(""), Some("a")));
        assert!(fits("a", exact("b=c"), Some("a=b=c")));
        assert!(!fits("A", exact("1"), Some("a=1")));
        assert!(!fits("a", exact("1"), None));
        assert!(fits("a", exact("%zz%4"), Some("a=%zz%4")));
        assert!(fits("a", regex("é+"), Some("a=%C3%A9")));
        assert!(fits("a", regex("é+"), Some("a=é")));
        assert!(fits("a", regex("b.*"), Some("a=b%ff")));
        assert!(!fits("a", regex("b"), Some("a=b%ff")));
    }

    /// Servers differ in which value of a parameter they take.
    #[test]
    fn further_value_of_a_query_parameter_leads_past_no_policy() {
        let name = "a".into();
        let value = exact("2");
        let conditions = Conditions {
            query: vec![QueryMatch { name, value }],
            ..Conditions::default()
        };
        let condition = Match {
            path: PathMatch::Prefix("".into()),
            others: conditions.into(),
        };
        let headers = HeaderMap::new();
        for (query, by_policy, by_route) in [
            ("a=2", true, true),
            ("a=2&a=1", true, true),
            ("a=1&a=2", true, false),
            ("a=1&%61=%32", true, false),
            ("a&b=2", false, false),
            ("b=1;a=2", true, false),
            ("a=1;%61=2&b", true, false),
            ("b=a=2", false, false),
        ] {
            let request = RequestView {
                query: Some(query),
                ..view(&headers, &[])
            };
            assert_eq!(fits(&condition, &request), by_policy, "{query}");
            let is_of_route = mismatch(&condition, &request).is_none();
            assert_eq!(is_of_route, by_route, "{query}");
        }
    }

    #[test]
    fn values_that_differ_from_the_one_that_decides_are_found() {
        let headers = HeaderMap::new();
        for (query, expected) in [
            ("a=1", false),
            ("a=1&a=%31&b=2", false),
            ("a=1&a=2", true),
            ("a=1&%61", true),
            ("b=1;a=2", true),
            ("a=1;b=2", true),
            ("b=1;c=2&a=1", false),
            ("b=1", false),
        ] {
            let request = RequestView {
                query: Some(query),
                ..view(&headers, &[])
            };
            assert_eq!(may_differ("a", &request), expected, "{query}");
        }
    }
}
