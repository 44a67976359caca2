//! Tests of what clients accept, and of the heads of compressed responses.

use std::sync::Arc;

use http::HeaderName;
use http::header::VARY;

use super::*;
use crate::ir::compression::Level;

fn compression() -> Compression {
    Compression {
        encodings: Encoding::ALL.to_vec(),
        content_types: ["text/*", "application/json"].map(Arc::from).to_vec(),
        min_size: 1024,
        level: Level::Default,
    }
}

fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
    let all = all.iter().map(|(name, value)| {
        let name = HeaderName::from_static(name);
        (name, HeaderValue::from_static(value))
    });
    all.collect()
}

#[test]
fn highest_weight_wins_and_then_the_order_of_the_policy() {
    use Accepted::{Encoding as By, Identity};
    for (accept, expected) in [
        ("gzip, br, zstd", By(Encoding::Zstd)),
        ("gzip, br", By(Encoding::Brotli)),
        ("GZIP", By(Encoding::Gzip)),
        ("x-gzip", By(Encoding::Gzip)),
        ("gzip;q=1.0, br;q=0.9, zstd;q=0.8", By(Encoding::Gzip)),
        ("*", By(Encoding::Zstd)),
        ("zstd;q=0, *;q=0.5", By(Encoding::Brotli)),
        ("*;q=0", Identity),
        ("gzip, *;q=0", By(Encoding::Gzip)),
        ("gzip;q=0", Identity),
        ("identity", Identity),
        ("identity;q=0, gzip;q=0.1", By(Encoding::Gzip)),
        ("identity;q=0", Identity),
        ("identity;q=0.8, gzip;q=0.5", Identity),
        ("identity, gzip", By(Encoding::Gzip)),
        ("gzip;q=2, br;q=x", Identity),
        ("deflate", Identity),
        ("", Identity),
    ] {
        let headers = headers(&[("accept-encoding", accept)]);
        assert_eq!(accepted(&compression(), &headers), expected, "{accept}");
    }
}

#[test]
fn lines_are_one_list_and_silence_is_no_encoding() {
    let mut lines = HeaderMap::new();
    assert_eq!(accepted(&compression(), &lines), Accepted::Identity);
    for line in ["gzip;q=0.5", "br"] {
        lines.append(ACCEPT_ENCODING, HeaderValue::from_static(line));
    }
    let expected = Accepted::Encoding(Encoding::Brotli);
    assert_eq!(accepted(&compression(), &lines), expected);
    lines.insert(
        CACHE_CONTROL,
        HeaderValue::from_static("max-age=0, no-transform"),
    );
    assert_eq!(accepted(&compression(), &lines), Accepted::NoTransform);
}

fn prepared(status: u16, size: Option<u64>, others: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = headers(others);
    let facts = ResponseFacts {
        status: StatusCode::from_u16(status).unwrap(),
        size,
    };
    let accepted = Accepted::Encoding(Encoding::Gzip);
    if let Some(encoding) = prepare(&compression(), accepted, facts, &mut headers) {
        apply(encoding, &mut headers);
    }
    headers
}

#[test]
fn head_of_a_compressed_response_says_so() {
    let headers = prepared(
        200,
        Some(2048),
        &[
            ("content-type", "Text/HTML; charset=utf-8"),
            ("content-length", "2048"),
            ("accept-ranges", "bytes"),
            ("etag", "\"a\""),
            ("vary", "origin"),
        ],
    );
    assert_eq!(headers["content-encoding"], "gzip");
    assert_eq!(headers["etag"], "W/\"a\"");
    let vary: Vec<_> = headers.get_all(VARY).iter().collect();
    assert_eq!(vary, ["origin", "Accept-Encoding"]);
    assert!(!headers.contains_key(CONTENT_LENGTH) && !headers.contains_key(ACCEPT_RANGES));
}

#[test]
fn some_responses_are_never_compressed() {
    let html = ("content-type", "text/html");
    for (status, size, others) in [
        (204, None, vec![html]),
        (205, None, vec![html]),
        (304, None, vec![html]),
        (101, None, vec![html]),
        (200, Some(1023), vec![html]),
        (200, None, vec![]),
        (200, None, vec![("content-type", "image/png")]),
        (200, None, vec![("content-type", "application/grpc+json")]),
        (200, None, vec![html, ("content-encoding", "identity")]),
        (
            200,
            None,
            vec![html, ("cache-control", "public, No-Transform")],
        ),
        (200, None, vec![html, ("content-digest", "sha-256=:AA==:")]),
        (200, None, vec![html, ("trailer", "x-end, Repr-Digest")]),
    ] {
        let headers = prepared(status, size, &others);
        assert!(!headers.contains_key(VARY), "{status} {others:?}");
        assert_eq!(headers.len(), others.len());
    }
    assert!(prepared(404, Some(1024), &[html]).contains_key(CONTENT_ENCODING));
    assert!(prepared(200, None, &[html]).contains_key(CONTENT_ENCODING));
}

#[test]
fn eligible_response_varies_though_it_is_not_compressed() {
    for accepted in [Accepted::Identity, Accepted::NoTransform] {
        let mut headers = headers(&[("content-type", "text/plain"), ("vary", "*")]);
        let facts = ResponseFacts {
            status: StatusCode::OK,
            size: None,
        };
        assert_eq!(prepare(&compression(), accepted, facts, &mut headers), None);
        assert_eq!(headers.get_all(VARY).iter().count(), 1);
        headers.remove(VARY);
        prepare(&compression(), accepted, facts, &mut headers);
        assert_eq!(headers[VARY], "Accept-Encoding");
        prepare(&compression(), accepted, facts, &mut headers);
        assert_eq!(headers.get_all(VARY).iter().count(), 1);
    }
}

#[test]
fn part_has_the_vary_of_the_whole() {
    for (content_type, expected) in [("text/html", true), ("image/png", false)] {
        let others = [("content-type", content_type), ("etag", "\"a\"")];
        let headers = prepared(206, Some(10), &others);
        assert_eq!(headers.contains_key(VARY), expected, "{content_type}");
        assert!(!headers.contains_key(CONTENT_ENCODING));
        assert_eq!(headers[ETAG], "\"a\"");
    }
}

#[test]
fn not_modified_has_the_etag_that_the_client_asked_for() {
    for (asked, etag, expected) in [
        ("W/\"a\"", "\"a\"", "W/\"a\""),
        ("\"b\", W/\"a\"", "\"a\"", "W/\"a\""),
        ("\"a\"", "\"a\"", "\"a\""),
        ("W/\"a\"", "W/\"a\"", "W/\"a\""),
        ("W/\"b\"", "\"a\"", "\"a\""),
        ("*", "\"a\"", "\"a\""),
    ] {
        let mut response = headers(&[("etag", etag)]);
        apply_to_not_modified(&headers(&[("if-none-match", asked)]), &mut response);
        assert_eq!(response[ETAG], expected, "{asked}");
    }
}
