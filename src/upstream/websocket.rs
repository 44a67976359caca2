//! The key of a WebSocket's opening handshake (RFC 6455), which HTTP/1.1 has and HTTP/2 has not.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::SEC_WEBSOCKET_KEY;
use http::{HeaderValue, Method};

use super::outgoing::Outgoing;

/// Constant of the opening handshake (RFC 6455, 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
pub(crate) const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

/// Returns the `Sec-WebSocket-Accept` for a key (RFC 6455, 4.2.2).
pub(crate) fn accept_of(key: &[u8]) -> String {
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, GUID].concat()))
}

/// Returns the `Sec-WebSocket-Accept` for a request; `None` if it opens no WebSocket.
pub(super) fn accept(request: &Outgoing<'_>) -> Option<HeaderValue> {
    // An extended CONNECT counts as a GET, and no other method opens a WebSocket (RFC 6455, 4.1).
    let is_get = request.parts.method == Method::GET;
    let upgrade = request.upgrade.filter(|_| is_get)?.as_bytes();
    let mut keys = request.parts.headers.get_all(SEC_WEBSOCKET_KEY).iter();
    match (keys.next(), keys.next()) {
        (Some(key), None) if upgrade.eq_ignore_ascii_case(WEBSOCKET.as_bytes()) => {
            HeaderValue::try_from(accept_of(key.as_bytes())).ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_the_example_of_the_rfc() {
        let accept = accept_of(b"dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
