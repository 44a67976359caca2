//! Tests of header handling, one per rule.

use http::Request;
use http::header::FORWARDED;

use super::super::path;
use super::*;
use crate::ir::hop_by_hop::HOP_BY_HOP;
use crate::proxy::client::client_address::Origin;
use crate::proxy::client::forwarding::{
    Forwarding, X_FORWARDED_CLIENT_CERT, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO,
    X_REAL_IP,
};

fn parts(version: Version, target: &str, fields: &[(&str, &str)]) -> request::Parts {
    let mut builder = Request::builder().version(version).uri(target);
    for (name, value) in fields {
        builder = builder.header(*name, *value);
    }
    builder.body(()).unwrap().into_parts().0
}

fn http1(
    target: &str,
    fields: &[(&str, &str)],
) -> Result<(NormalizedRequest, request::Parts), Error> {
    let mut parts = parts(Version::HTTP_11, target, fields);
    let normal = normalize(&mut parts, &mut LastHost::default(), 100)?;
    path::normalize(&mut parts, None)?;
    Ok((normal, parts))
}

/// Normalizes a request of HTTP/2, and checks that the outcome is that of HTTP/3.
fn http2(
    target: &str,
    fields: &[(&str, &str)],
) -> Result<(NormalizedRequest, request::Parts), Error> {
    let normalized = |version| {
        let mut parts = parts(version, target, fields);
        let normal = normalize(&mut parts, &mut LastHost::default(), 100)?;
        path::normalize(&mut parts, None)?;
        Ok((normal, parts))
    };
    let outcome: Result<(NormalizedRequest, request::Parts), Error> = normalized(Version::HTTP_2);
    match (&outcome, normalized(Version::HTTP_3)) {
        (Ok((_, http2)), Ok((_, http3))) => assert_eq!(http2.headers, http3.headers),
        (Err(http2), Err(http3)) => assert_eq!(*http2, http3),
        (_, http3) => panic!("{target} {fields:?}: {:?} over HTTP/3", http3.err()),
    }
    outcome
}

#[test]
fn determines_the_host_once() {
    let (normal, parts) = http1("/x", &[("host", "A.Example:8080")]).unwrap();
    assert_eq!(normal.host.as_str(), "a.example");
    assert_eq!(parts.headers[HOST], "A.Example:8080");
    let (normal, parts) = http1("http://a/x?q", &[("host", "b")]).unwrap();
    assert_eq!(
        (normal.host.as_str(), parts.headers[HOST].as_bytes()),
        ("a", &b"a"[..])
    );
    assert_eq!(parts.uri, "/x?q");
    let (normal, _) = http1("/", &[("host", "[::1]:80")]).unwrap();
    assert_eq!(normal.host.as_str(), "[::1]");
}

#[test]
fn ignores_one_trailing_dot_of_the_host_for_matching() {
    for (host, matched) in [("A.Example.:80", "a.example"), ("a.", "a")] {
        let (normal, parts) = http1("/", &[("host", host)]).unwrap();
        assert_eq!(normal.host.as_str(), matched);
        assert_eq!(parts.headers[HOST], host);
    }
    assert!(http1("/", &[("host", ".")]).is_err());
    assert!(http1("/", &[("host", ".:80")]).is_err());
}

#[test]
fn rejects_http_1_1_target_that_differs_from_host() {
    assert_eq!(
        http1("http://a/x", &[]).unwrap_err(),
        Error::BadRequest("no Host")
    );
    let mut request = parts(Version::HTTP_10, "http://a/x", &[]);
    let normal = normalize(&mut request, &mut LastHost::default(), 100).unwrap();
    assert_eq!(normal.host.as_str(), "a");
}

#[test]
fn recognizes_every_hop_by_hop_request_header() {
    for name in HOP_BY_HOP {
        let mut headers = HeaderMap::new();
        headers.insert(&name, HeaderValue::from_static("x"));
        let present = HeaderPresence::of(&headers);
        assert_ne!(present, HeaderPresence::default(), "{name}");
    }
}

#[test]
fn no_header_that_is_acted_on_is_ordinary() {
    let long = format!("x-forwarded-{}", "a".repeat(64));
    let family = ["x-forwarded-ssl", "x-forwarded-client-cert", &long];
    for name in ACTED_ON.into_iter().chain(OTHERS).chain(family) {
        let mut headers = HeaderMap::new();
        let header = HeaderName::try_from(name).unwrap();
        headers.insert(header, HeaderValue::from_static("x"));
        let present = HeaderPresence::of(&headers);
        assert_ne!(present, HeaderPresence::default(), "{name}");
        let alias = name.replace('-', "_");
        assert!(!is_ordinary(&alias), "{name}");
        if alias != name {
            let alias = HeaderName::try_from(alias).unwrap();
            let headers = HeaderMap::from_iter([(alias, HeaderValue::from_static("x"))]);
            assert!(HeaderPresence::of(&headers).aliases, "{name}");
        }
    }
    for name in ["accept", "user-agent", "_x", "x-header-1", &"y".repeat(64)] {
        assert!(is_ordinary(name), "{name}");
    }
}

#[test]
fn rejects_malformed_hosts() {
    for fields in [
        &[][..],
        &[("host", "a"), ("host", "a")],
        &[("host", "a"), ("host", "b")],
        &[("host", "a, b")],
        &[("host", "")],
        &[("host", "user@a")],
        &[("host", "a..")],
        &[("host", ".a")],
        &[("host", "a..b")],
        &[("host", "a:0")],
        &[("host", "a:65536")],
        &[("host", "a:x")],
        &[("host", "a/b")],
        &[("host", "[::1")],
        &[("host", "[x]")],
        &[("host", "[::1]x")],
    ] {
        assert!(
            matches!(http1("/", fields), Err(Error::BadRequest(_))),
            "{fields:?}"
        );
    }
    assert!(http1("http://user@a/", &[("host", "a")]).is_err());
    assert!(http2("http://a/", &[("host", "b")]).is_err());
    assert!(http2("http://a/", &[("host", "a")]).is_ok());
    assert!(http2("/", &[("host", "a"), ("host", "a")]).is_err());
}

#[test]
fn rejects_ambiguous_framing() {
    for coding in [
        "chunked, chunked",
        "gzip, chunked",
        "identity",
        "xchunked",
        ",chunked",
    ] {
        assert!(
            http1("/", &[("host", "a"), ("transfer-encoding", coding)]).is_err(),
            "{coding}"
        );
    }
    let twice = [
        ("host", "a"),
        ("transfer-encoding", "chunked"),
        ("transfer-encoding", "chunked"),
    ];
    assert!(http1("/", &twice).is_err());
    assert!(http1("/", &[("host", "a"), ("transfer-encoding", "Chunked")]).is_ok());
}

#[test]
fn removes_connection_headers_except_protected_ones() {
    let fields = [
        ("host", "a"),
        ("connection", "x-secret, host, authorization, Keep-Alive"),
        ("connection", "te"),
        ("x-secret", "1"),
        ("authorization", "Basic x"),
        ("keep-alive", "5"),
        ("proxy-connection", "keep-alive"),
        ("te", "gzip, trailers"),
        ("http2-settings", "x"),
    ];
    let (normal, parts) = http1("/", &fields).unwrap();
    assert!(normal.upgrade.is_none());
    assert_eq!(normal.named.unwrap()["x-secret"], "1");
    let left: Vec<_> = parts.headers.keys().map(HeaderName::as_str).collect();
    assert_eq!(left, ["host", "authorization", "te"]);
    assert_eq!(parts.headers[TE], "trailers");
}

#[test]
fn relays_only_valid_upgrades() {
    let send = |connection: &str, protocol: &str, more: &[(&str, &str)]| {
        let mut fields = vec![
            ("host", "a"),
            ("connection", connection),
            ("upgrade", protocol),
        ];
        fields.extend(more);
        http1("/", &fields).unwrap().0.upgrade
    };
    assert_eq!(send("Upgrade", "websocket", &[]).unwrap(), "websocket");
    assert!(send("keep-alive", "websocket", &[]).is_none());
    assert!(send("upgrade", "h2c", &[("http2-settings", "x")]).is_none());
    assert!(send("upgrade", "HTTP/2.0", &[]).is_none());
    assert!(send("upgrade", "websocket, foo", &[]).is_none());
    assert!(send("upgrade", "websocket", &[("content-length", "5")]).is_none());
}

#[test]
fn converts_http2_requests_for_http1() {
    let fields = [("cookie", "a=1"), ("x", "y"), ("cookie", "b=2")];
    let (_, parts) = http2("https://a.example/p", &fields).unwrap();
    assert_eq!(parts.headers[COOKIE], "a=1; b=2");
    assert_eq!(parts.headers[HOST], "a.example");
    assert_eq!(parts.uri, "/p");
    // HTTP/2 backends reject a value that ends with a blank.
    let fields = [("cookie", "a=1"), ("cookie", "")];
    let (_, parts) = http2("https://a.example/p", &fields).unwrap();
    assert_eq!(parts.headers[COOKIE], "a=1");
    assert!(
        http2(
            "https://a/",
            &[("content-length", "5"), ("content-length", "5")]
        )
        .is_err()
    );
    let many: Vec<_> = (0..101).map(|_| ("x", "y")).collect();
    assert_eq!(
        http2("https://a/", &many).unwrap_err(),
        Error::TooManyHeaders
    );
}

#[test]
fn rejects_methods_of_http_in_other_letters() {
    for (method, is_valid) in [
        ("DELETE", true),
        ("delete", false),
        ("Post", false),
        ("cONNECT", false),
        ("PROPFIND", true),
        ("propfind", true),
    ] {
        let mut parts = parts(Version::HTTP_11, "/", &[("host", "a")]);
        parts.method = method.parse().unwrap();
        let normalized = normalize(&mut parts, &mut LastHost::default(), 100);
        assert_eq!(normalized.is_ok(), is_valid, "{method}");
    }
}

#[test]
fn rejects_unsupported_methods_and_expectations() {
    for method in [Method::CONNECT, Method::TRACE] {
        let mut parts = parts(Version::HTTP_11, "/", &[("host", "a")]);
        parts.method = method;
        assert_eq!(
            normalize(&mut parts, &mut LastHost::default(), 100).unwrap_err(),
            Error::MethodNotAllowed
        );
    }
    assert_eq!(
        http1("/", &[("host", "a"), ("expect", "tea")]).unwrap_err(),
        Error::ExpectationFailed
    );
    let (normal, parts) = http1("/", &[("host", "a"), ("expect", "100-Continue")]).unwrap();
    assert!(normal.expects_continue);
    assert!(!parts.headers.contains_key(EXPECT));
}

#[test]
fn http_1_0_request_with_content_needs_a_length() {
    let mut request = parts(Version::HTTP_10, "/", &[]);
    assert_eq!(
        normalize(&mut request, &mut LastHost::default(), 100)
            .unwrap()
            .host
            .as_str(),
        ""
    );
    request.method = Method::POST;
    assert!(normalize(&mut request, &mut LastHost::default(), 100).is_err());
}

/// A request of 10.0.0.1.
fn from(is_trusted: bool) -> Origin {
    Origin {
        is_trusted,
        ..Origin::direct([10, 0, 0, 1].into())
    }
}

#[test]
fn accepts_forwarding_headers_from_trusted_clients_only() {
    let headers = [
        ("host", "a"),
        ("x-forwarded-for", "6.6.6.6"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "evil"),
        ("forwarded", "for=6.6.6.6"),
        ("x-real-ip", "6.6.6.6"),
        ("x-request-id", "known"),
    ];
    let apply = |trusted| {
        let (normal, parts) = http1("/", &headers).unwrap();
        let mut headers = parts.headers;
        let address = HeaderValue::from_static("10.0.0.1");
        let forwarding = Forwarding {
            address,
            proto: HeaderValue::from_static("http"),
            certificate: None,
            rules: None,
        };
        let mut added = forwarding.sanitize(
            &mut headers,
            normal.host_header,
            (&from(trusted), normal.has_forwarding),
            || HeaderValue::from_static("new"),
        );
        assert_eq!(added.id(), if trusted { "known" } else { "new" });
        added.insert_into(&mut headers);
        assert!(added.as_slice().is_empty());
        headers
    };
    let headers = apply(false);
    assert_eq!(headers[X_FORWARDED_FOR], "10.0.0.1");
    assert_eq!(headers[X_FORWARDED_PROTO], "http");
    assert_eq!(headers[X_FORWARDED_HOST], "a");
    assert_eq!(headers[X_REQUEST_ID], "new");
    assert!(!headers.contains_key(FORWARDED) && !headers.contains_key(X_REAL_IP));
    let headers = apply(true);
    assert_eq!(headers[X_FORWARDED_FOR], "6.6.6.6, 10.0.0.1");
    assert_eq!(headers[X_FORWARDED_PROTO], "https");
    assert_eq!(headers[X_FORWARDED_HOST], "evil");
    assert_eq!(headers[X_REQUEST_ID], "known");
    assert!(headers.contains_key(FORWARDED));
}

#[test]
fn client_certificates_are_claimed_by_trusted_clients_only() {
    let claims = [
        ("host", "a"),
        ("connection", "x-forwarded-client-cert"),
        ("x-forwarded-client-cert", "Hash=11"),
        ("x-forwarded-client-cert", "Hash=22"),
    ];
    let apply = |claims: &[(&str, &str)], own: Option<&'static str>, trusted| {
        let (normal, parts) = http1("/", claims).unwrap();
        let mut headers = parts.headers;
        let forwarding = Forwarding {
            address: HeaderValue::from_static("10.0.0.1"),
            proto: HeaderValue::from_static("https"),
            certificate: own.map(|own| Box::new(HeaderValue::from_static(own))),
            rules: None,
        };
        let id = || HeaderValue::from_static("new");
        forwarding.sanitize(
            &mut headers,
            normal.host_header,
            (&from(trusted), normal.has_forwarding),
            id,
        );
        let values = headers.get_all(X_FORWARDED_CLIENT_CERT).iter();
        values.cloned().collect::<Vec<_>>()
    };
    assert!(apply(&claims, None, false).is_empty());
    assert!(apply(&claims[..1], None, false).is_empty());
    assert_eq!(apply(&claims, Some("Hash=00"), false), ["Hash=00"]);
    assert_eq!(apply(&claims[..1], Some("Hash=00"), false), ["Hash=00"]);
    assert_eq!(apply(&claims, None, true), ["Hash=11", "Hash=22"]);
    let joined = apply(&claims, Some("Hash=00"), true);
    assert_eq!(joined, ["Hash=11,Hash=22,Hash=00"]);
}
