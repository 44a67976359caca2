//! Trailers that are forwarded.

use http::HeaderMap;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderName, TRAILER};

use crate::ir::hop_by_hop::HOP_BY_HOP;
use crate::ir::picker;
use crate::proxy::client::forwarding_names::{self, X_FORWARDED_CLIENT_CERT};

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

/// Removes from the trailers of a request what clients do not say in any: servers merge these into the head.
pub(super) fn remove_claims(trailers: &mut HeaderMap) {
    forwarding_names::remove_all(trailers);
    picker::remove_claims(trailers);
}
