//! The names of headers about the origin of a request, in every spelling: which of them a client cannot say unless it is
//! trusted. Must not know their values.

use http::{HeaderMap, HeaderName};

use crate::ir::protected_headers::{has_symbol, is_spelled_like, remove};

pub(in crate::proxy) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(in crate::proxy) const X_FORWARDED_PROTO: HeaderName =
    HeaderName::from_static("x-forwarded-proto");
pub(in crate::proxy) const X_FORWARDED_HOST: HeaderName =
    HeaderName::from_static("x-forwarded-host");
pub(in crate::proxy) const X_FORWARDED_PORT: HeaderName =
    HeaderName::from_static("x-forwarded-port");
pub(in crate::proxy) const X_FORWARDED_CLIENT_CERT: HeaderName =
    HeaderName::from_static("x-forwarded-client-cert");
pub(in crate::proxy) const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
pub(in crate::proxy) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// How the names of most of them begin. Frameworks and authorization servers trust `X-Forwarded-Prefix`, `-Ssl`, `-Scheme`,
/// `-Server`, `-Uri`, `-Path`, `-Method`, `-User` and others.
const PREFIX: &str = "x-forwarded-";

/// The others. Those that have a hyphen are also read with another symbol.
pub(in crate::proxy) const OTHERS: [&str; 17] = [
    "client-ip",
    "forwarded",
    "forwarded-for",
    "front-end-https",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-forwarded",
    "x-original-forwarded-for",
    "x-original-host",
    "x-original-method",
    "x-original-uri",
    "x-original-url",
    "x-real-ip",
    "x-rewrite-url",
    "x-scheme",
    "x-script-name",
    "x-url-scheme",
];

/// Headers that are no claim about the origin, and that no client says under another spelling.
const UNALIASED: [&str; 3] = ["content-length", "transfer-encoding", "x-request-id"];

/// Reports whether a header is about the origin of a request, in whatever spelling. Names are in lower case.
pub(in crate::proxy) fn is_about_origin(name: &str) -> bool {
    let has_prefix = || {
        let start = name.get(..PREFIX.len());
        start.is_some_and(|start| is_spelled_like(start, PREFIX))
    };
    has_prefix() || OTHERS.iter().any(|other| is_spelled_like(name, other))
}

/// Removes the headers about the origin of a request, except for other spellings, which are removed before.
pub(super) fn remove_claims(headers: &mut HeaderMap) {
    remove(headers, |name| is_about_origin(name.as_str()));
}

/// Removes other spellings of all of these headers, whoever the client is.
pub(in crate::proxy) fn remove_aliases(headers: &mut HeaderMap) {
    remove(headers, |name| {
        let name = name.as_str();
        has_symbol(name) && (is_about_origin(name) || is_unaliased(name))
    });
}

/// Removes all of these headers, in every spelling, from the trailers of a request.
pub(in crate::proxy) fn remove_all(trailers: &mut HeaderMap) {
    remove(trailers, |name| {
        let name = name.as_str();
        is_about_origin(name) || is_unaliased(name)
    });
}

fn is_unaliased(name: &str) -> bool {
    let mut names = UNALIASED.iter();
    names.any(|other| is_spelled_like(name, other))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn left(remove: fn(&mut HeaderMap), names: &[&'static str]) -> Vec<String> {
        let mut headers: HeaderMap = names
            .iter()
            .map(|name| {
                let value = HeaderValue::from_static("1");
                (HeaderName::from_static(name), value)
            })
            .collect();
        remove(&mut headers);
        let mut names: Vec<_> = headers.keys().map(ToString::to_string).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn headers_about_the_origin_have_many_names_and_spellings() {
        for name in [
            "x-forwarded-prefix",
            "x_forwarded_ssl",
            "x.forwarded-anything-else",
            "x-forwarded",
            "forwarded",
            "client_ip",
            "x_original_url",
        ] {
            assert!(is_about_origin(name), "{name}");
        }
        for name in [
            "x-forwarder",
            "x-original-name",
            "x-request-id",
            "cf-connecting-ip",
            "host",
            "x-forwarded\u{e9}",
        ] {
            assert!(!is_about_origin(name), "{name}");
        }
    }

    #[test]
    fn other_spellings_are_removed_and_nothing_else() {
        let names = [
            "x_forwarded_prefix",
            "x-forwarded-prefix",
            "x.request.id",
            "x-request-id",
            "content_length",
            "x_user",
        ];
        let expected = ["x-forwarded-prefix", "x-request-id", "x_user"];
        assert_eq!(left(remove_aliases, &names), expected);
        assert_eq!(left(remove_all, &names), ["x_user"]);
    }
}
