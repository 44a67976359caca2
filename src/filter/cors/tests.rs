//! Origins, preflight requests and responses of the CORS filter.

use http::Request;

use super::*;
use crate::ir::cors::is_preflight;

fn fixed(value: &'static str) -> Option<CorsValue> {
    Some(CorsValue::Fixed(HeaderValue::from_static(value)))
}

fn listed(origins: Vec<AllowedOrigin>) -> Cors {
    Cors {
        origins: AllowedOrigins::Listed(origins),
        credentials: false,
        methods: fixed("GET, PUT"),
        headers: fixed("x-a, x-b"),
        expose: fixed("x-c"),
        max_age: HeaderValue::from_static("5"),
        preflight_vary: Some(HeaderValue::from_static("Origin")),
    }
}

fn any(credentials: bool) -> Cors {
    Cors {
        origins: AllowedOrigins::Any,
        credentials,
        preflight_vary: None,
        ..listed(Vec::new())
    }
}

fn https(host: AllowedHost, port: u16) -> AllowedOrigin {
    AllowedOrigin {
        scheme: Scheme::Https,
        host,
        port,
    }
}

fn exact() -> Cors {
    listed(vec![https(AllowedHost::Exact("a.com".into()), 443)])
}

fn request(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(*name, HeaderValue::from_static(value));
    }
    headers
}

fn preflight(cors: Cors, fields: &[(&'static str, &'static str)]) -> Vec<String> {
    let request = request(fields);
    let sharing = sharing(&Arc::new(cors), &request);
    let response = sharing.preflight(&request).unwrap();
    assert_eq!(response.status(), 204);
    assert!(response.body().is_empty());
    lines(response.headers())
}

fn after(cors: Cors, origin: Option<&'static str>, headers: &mut HeaderMap) -> Vec<String> {
    let fields: Vec<_> = origin
        .map(|origin| ("origin", origin))
        .into_iter()
        .collect();
    sharing(&Arc::new(cors), &request(&fields)).apply(headers);
    lines(headers)
}

fn lines(headers: &HeaderMap) -> Vec<String> {
    let line = |(name, value): (&HeaderName, &HeaderValue)| {
        let name = name.as_str();
        let name = name.strip_prefix("access-control-").unwrap_or(name);
        format!("{name}: {}", value.to_str().unwrap())
    };
    let mut lines: Vec<_> = headers.iter().map(line).collect();
    lines.sort();
    lines
}

#[test]
fn origins_match_scheme_host_and_port() {
    let exact = https(AllowedHost::Exact("a.com".into()), 443);
    let suffix = https(AllowedHost::Suffix(".b.com".into()), 443);
    let port = https(AllowedHost::Exact("a.com".into()), 8443);
    let every = https(AllowedHost::Any, 443);
    let rows = [
        ("https://a.com", true, false, false, true),
        ("https://a.com:443", true, false, false, true),
        ("HTTPS://A.com", true, false, false, true),
        ("https://a.com:8443", false, false, true, false),
        ("http://a.com", false, false, false, false),
        ("http://a.com:443", false, false, false, false),
        ("https://x.a.com", false, false, false, true),
        ("https://xa.com", false, false, false, true),
        ("https://x.b.com", false, true, false, true),
        ("https://x.y.b.com", false, true, false, true),
        ("https://X.B.com", false, true, false, true),
        ("https://b.com", false, false, false, true),
        ("https://.b.com", false, false, false, true),
        ("https://xb.com", false, false, false, true),
        ("https://b.com.evil.org", false, false, false, true),
        ("https://[::1]", false, false, false, true),
        ("https://[::1]:443", false, false, false, true),
        ("https://evil.org/.b.com", false, false, false, false),
        ("https://evil.org:1.b.com", false, false, false, false),
        ("https://evil.org:1.b.com:443", false, false, false, false),
        ("https://evil.org@x.b.com", false, false, false, false),
        ("https://[x].b.com", false, false, false, false),
        ("https://x.b.com https://c.com", false, false, false, false),
        ("https://", false, false, false, false),
        ("https://a.com:", false, false, false, false),
        ("https://a.com:x", false, false, false, false),
        ("null", false, false, false, false),
        ("", false, false, false, false),
    ];
    for (text, by_exact, by_suffix, by_port, by_every) in rows {
        let matches = |allowed| Origin::parse(text).is_some_and(|origin| origin.matches(allowed));
        assert_eq!(
            [&exact, &suffix, &port, &every].map(matches),
            [by_exact, by_suffix, by_port, by_every],
            "{text}"
        );
    }
}

#[test]
fn preflight_needs_method_origin_and_requested_method() {
    let rows = [
        ("OPTIONS", true, true, true),
        ("GET", true, true, false),
        ("OPTIONS", false, true, false),
        ("OPTIONS", true, false, false),
    ];
    for (method, has_origin, has_requested, expected) in rows {
        let mut request = Request::builder().method(method);
        if has_origin {
            request = request.header(ORIGIN, "https://a.com");
        }
        if has_requested {
            request = request.header(ACCESS_CONTROL_REQUEST_METHOD, "PUT");
        }
        let parts = request.body(()).unwrap().into_parts().0;
        let case = format!("{method} {has_origin} {has_requested}");
        assert_eq!(
            is_preflight(&parts.method, &parts.headers),
            expected,
            "{case}"
        );
    }
}

#[test]
fn preflight_of_allowed_origin_gets_all_headers() {
    let fields = [
        ("origin", "https://a.com"),
        ("access-control-request-method", "DELETE"),
        ("access-control-request-headers", "x-other"),
    ];
    let mut expected = [
        "allow-headers: x-a, x-b",
        "allow-methods: GET, PUT",
        "allow-origin: https://a.com",
        "expose-headers: x-c",
        "max-age: 5",
        "vary: Origin",
    ]
    .to_vec();
    assert_eq!(preflight(exact(), &fields), expected);
    let credentials = Cors {
        credentials: true,
        ..exact()
    };
    expected.insert(0, "allow-credentials: true");
    assert_eq!(preflight(credentials, &fields), expected);
}

#[test]
fn preflight_of_other_origin_gets_no_headers() {
    let method = ("access-control-request-method", "PUT");
    let other = [("origin", "https://b.com"), method];
    assert_eq!(preflight(exact(), &other), ["vary: Origin"]);
    let two = [
        ("origin", "https://a.com"),
        ("origin", "https://a.com"),
        method,
    ];
    assert_eq!(preflight(exact(), &two), ["vary: Origin"]);
    let none = listed(Vec::new());
    assert_eq!(preflight(none, &other), ["vary: Origin"]);
}

#[test]
fn preflight_echoes_requested_names_instead_of_a_wildcard() {
    let named = || Cors {
        methods: Some(CorsValue::Named),
        headers: Some(CorsValue::Named),
        expose: Some(CorsValue::Named),
        ..any(true)
    };
    let fields = [
        ("origin", "https://b.com:99"),
        ("access-control-request-method", "PUT"),
        ("access-control-request-headers", "x-1, x-2"),
        ("access-control-request-headers", "x-3"),
    ];
    let expected = [
        "allow-credentials: true",
        "allow-headers: x-1, x-2",
        "allow-headers: x-3",
        "allow-methods: PUT",
        "allow-origin: https://b.com:99",
        "max-age: 5",
    ];
    assert_eq!(preflight(named(), &fields), expected);
    let without = preflight(named(), &fields[..2]);
    assert!(!without.iter().any(|line| line.starts_with("allow-headers")));
}

#[test]
fn response_headers_of_the_backend_are_replaced() {
    let backend = || {
        request(&[
            ("access-control-allow-origin", "*"),
            ("access-control-allow-origin", "https://evil.org"),
            ("access-control-allow-credentials", "true"),
            ("access-control-allow-methods", "DELETE"),
            ("access-control-allow-headers", "x-z"),
            ("access-control-expose-headers", "x-z"),
            ("access-control-max-age", "999"),
            ("x-kept", "1"),
        ])
    };
    let allowed = [
        "allow-origin: https://a.com",
        "expose-headers: x-c",
        "vary: Origin",
        "x-kept: 1",
    ];
    let denied = ["vary: Origin", "x-kept: 1"];
    let origin = Some("https://a.com");
    assert_eq!(after(exact(), origin, &mut backend()), allowed);
    let origin = Some("https://b.com");
    assert_eq!(after(exact(), origin, &mut backend()), denied);
    assert_eq!(after(exact(), None, &mut backend()), denied);
}

#[test]
fn public_responses_do_not_vary() {
    let expected = ["allow-origin: *", "expose-headers: x-c"];
    for origin in [Some("https://a.com"), Some("null"), None] {
        assert_eq!(after(any(false), origin, &mut HeaderMap::new()), expected);
    }
    let expected = [
        "allow-credentials: true",
        "allow-origin: null",
        "expose-headers: x-c",
        "vary: Origin",
    ];
    let mut headers = HeaderMap::new();
    assert_eq!(after(any(true), Some("null"), &mut headers), expected);
}

#[test]
fn vary_names_the_origin_once() {
    let rows: [(&'static str, &[&str]); 4] = [
        ("Accept", &["vary: Accept", "vary: Origin"]),
        ("Accept, origin", &["vary: Accept, origin"]),
        ("*", &["vary: *"]),
        ("X-Origin", &["vary: Origin", "vary: X-Origin"]),
    ];
    for (vary, expected) in rows {
        let mut headers = request(&[("vary", vary)]);
        let found = after(exact(), None, &mut headers);
        assert_eq!(found, expected, "{vary}");
    }
}

#[test]
fn credentials_expose_all_headers_by_name() {
    let cors = || Cors {
        expose: Some(CorsValue::Named),
        ..any(true)
    };
    let mut headers = request(&[
        ("content-type", "a/b"),
        ("set-cookie", "a=b"),
        ("x-one", "1"),
        ("x-one", "2"),
        ("vary", "origin"),
    ]);
    let found = after(cors(), Some("https://a.com"), &mut headers);
    assert!(
        found.contains(&"expose-headers: x-one, vary".to_owned()),
        "{found:?}"
    );
    let mut plain = request(&[("content-type", "a/b"), ("vary", "*")]);
    plain.remove("vary");
    plain.insert("cache-control", HeaderValue::from_static("no-cache"));
    let found = after(cors(), None, &mut plain);
    assert!(!found.iter().any(|line| line.starts_with("expose")));
}
