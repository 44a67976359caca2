//! Feeds request heads to what makes a request fit to be matched and forwarded, as HTTP/1 and as HTTP/2, and paths to
//! what normalises them. Checks that nothing panics, that a normal request is normal already, and that it has one host,
//! a path without dot segments, also without doubled slashes where it decides, and no field of a connection.

use http::request::Parts;
use http::{Method, Version};
use portcullis::ir;
use portcullis::ir::canonical_path::CanonicalPath;
use portcullis::ir::client::{DotSegments, DuplicateSlashes, EscapedSlashes, PathSettings};

use crate::proxy::request::normalize;
use crate::proxy::request::target::{self, normalize_with, readings};
use crate::request;

/// Fields that a request may have, as the settings would say.
const MAX_FIELDS: usize = 100;

/// Checks one input.
pub fn check(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        check_path(text);
    }
    let Some(parts) = request::read(data) else {
        return;
    };
    check_request(parts.clone());
    if let Some(parts) = request::as_http2(parts) {
        check_request(parts);
    }
}

fn check_path(text: &str) {
    let path = format!("/{text}");
    for settings in all_settings() {
        if let Ok(normal) = normalize_with(&path, Some(&settings)) {
            let readings = readings(normal.canonical());
            assert!(normal.path.starts_with('/'), "{path:?} {settings:?}");
            assert!(CanonicalPath::new(normal.canonical()).is_some(), "{path:?}");
            assert!(readings.iter().all(|it| it.starts_with('/')), "{path:?}");
            let keeps = settings.duplicate_slashes == DuplicateSlashes::Keep;
            if settings.dot_segments != DotSegments::Keep && !keeps {
                assert_safe(normal.canonical());
            }
        }
    }
    if let Ok(normal) = target::normalize(&path) {
        assert_safe(&normal);
        assert_eq!(target::normalize(&normal), Ok((&*normal).into()));
    }
}

/// What a policy can say of paths.
fn all_settings() -> impl Iterator<Item = PathSettings> {
    EscapedSlashes::ALL.into_iter().flat_map(|escaped_slashes| {
        DotSegments::ALL.into_iter().flat_map(move |dot_segments| {
            DuplicateSlashes::ALL.map(|duplicate_slashes| PathSettings {
                escaped_slashes,
                duplicate_slashes,
                dot_segments,
                policy: ir::ObjectRef::new("portcullis.dev", "ClientPolicy", "a", "b"),
            })
        })
    })
}

/// A path that every reader takes for the same one.
fn assert_safe(path: &str) {
    assert!(path.starts_with('/'), "{path:?}");
    assert!(!path.contains("//"), "{path:?}");
    let decoded = path.to_ascii_lowercase().replace("%2e", ".");
    let decoded = decoded
        .replace("%2f", "/")
        .replace("%5c", "/")
        .replace('\\', "/");
    for element in decoded.replace("%3b", ";").split('/') {
        let name = element.split(';').next();
        assert!(!matches!(name, Some("." | "..")), "{path:?}");
    }
}

fn check_request(mut parts: Parts) {
    let Ok((normal, path)) = normalize(&mut parts, MAX_FIELDS) else {
        return;
    };
    let host = normal.host.as_str();
    let may_be_without = parts.version == Version::HTTP_10 && !parts.headers.contains_key("host");
    assert!(may_be_without || !host.is_empty(), "no host: {parts:?}");
    assert_eq!(host, host.to_ascii_lowercase());
    assert!(host.starts_with('[') || !host.contains(':'), "{host:?}");
    assert!(
        host.chars()
            .all(|char| char.is_ascii_graphic() && !"/?#@".contains(char)),
        "{host:?}"
    );
    if parts.method != Method::OPTIONS || parts.uri.path() != "*" {
        assert!(parts.uri.path().starts_with('/'));
        assert_safe(&path.canonical(parts.uri.path()));
        assert!(parts.uri.authority().is_none(), "{}", parts.uri);
    }
    for name in [
        "connection",
        "keep-alive",
        "proxy-connection",
        "transfer-encoding",
        "upgrade",
        "expect",
    ] {
        assert!(!parts.headers.contains_key(name), "{name}: {parts:?}");
    }
    assert!(
        parts.headers.get_all("host").iter().count() <= 1,
        "{parts:?}"
    );

    let mut again = parts.clone();
    // A target with an authority has brought a `Host`.
    let second = normalize(&mut again, MAX_FIELDS + 1);
    let (second, _) = second.unwrap_or_else(|error| panic!("{error:?}: {parts:?}"));
    assert_eq!(second.host.as_str(), host);
    assert_eq!(again.uri, parts.uri);
    assert_eq!(again.headers, parts.headers);
    assert_eq!(second.has_forwarding, normal.has_forwarding);
}
