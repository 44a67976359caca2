//! Trailers that are forwarded.

use http::HeaderMap;
use http::header::{
    AUTHORIZATION, CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, HOST, HeaderName, TRAILER,
};

use crate::filter;
use crate::ir::hop_by_hop::HOP_BY_HOP;
use crate::proxy::client::forwarding::{
    SET_BY_PROXY, X_FORWARDED_CLIENT_CERT, X_FORWARDED_PORT, X_REAL_IP,
};

/// Removes trailers that must not be merged into the head (RFC 9110, 6.5.1).
pub(crate) fn remove_head_only(trailers: &mut HeaderMap) {
    const HEAD_ONLY: [HeaderName; 7] = [
        AUTHORIZATION,
        CONTENT_LENGTH,
        COOKIE,
        EXPECT,
        HOST,
        TRAILER,
        X_FORWARDED_CLIENT_CERT,
    ];
    for name in HOP_BY_HOP.iter().chain(&HEAD_ONLY) {
        trailers.remove(name);
    }
}

/// Removes trailers of a request that only the proxy decides, in every spelling: servers that merge trailers into the
/// head would take them for the origin of the request.
pub(crate) fn remove_claims(trailers: &mut HeaderMap) {
    let (set, others) = (SET_BY_PROXY, [FORWARDED, X_FORWARDED_PORT, X_REAL_IP]);
    let names = || set.iter().chain(&others);
    for name in names() {
        trailers.remove(name);
    }
    filter::remove_aliases(trailers, |alias| {
        names().any(|name| filter::is_alias(alias, name))
    });
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn forwarding_headers_of_a_request_are_removed_in_every_spelling() {
        let mut trailers = HeaderMap::new();
        for name in [
            "x-forwarded-for",
            "x_forwarded_for",
            "forwarded",
            "x-real_ip",
            "x-ok",
            "x_ok",
        ] {
            trailers.insert(name, HeaderValue::from_static("9.9.9.9"));
        }
        remove_claims(&mut trailers);
        let mut left: Vec<_> = trailers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["x-ok", "x_ok"]);
    }
}
