//! The hop-by-hop headers, which a proxy never forwards. This is the only list of them.

use http::HeaderName;
use http::header::{CONNECTION, EXPECT, TE, TRANSFER_ENCODING, UPGRADE};

/// `Keep-Alive` (RFC 2068, 19.7.1.1; obsolete, still sent).
pub const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
/// `Proxy-Connection` (RFC 9110, 7.6.1: not standardized, still sent).
pub const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
/// `HTTP2-Settings` (RFC 7540, 3.2.1).
pub const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Hop-by-hop headers (RFC 9110, 7.6.1; RFC 9113, 8.2.2). Headers that `Connection` names are hop-by-hop as well.
pub const HOP_BY_HOP: [HeaderName; 7] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    HTTP2_SETTINGS,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Whether a header is in [`HOP_BY_HOP`]. Cheaper than a search of the list, for every header of every response.
#[inline]
pub fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "http2-settings"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Reports whether a header is removed from all requests before conditions see it. `TE: trailers` stays, and conditions on `Upgrade`
/// see the protocol of an upgrade.
pub fn is_never_seen(name: &HeaderName) -> bool {
    *name == EXPECT || is_hop_by_hop(name) && ![TE, UPGRADE].contains(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_is_hop_by_hop_if_it_is_in_the_list() {
        assert!(HOP_BY_HOP.iter().all(is_hop_by_hop));
        assert!(!is_hop_by_hop(&http::header::TRAILER));
    }
}
