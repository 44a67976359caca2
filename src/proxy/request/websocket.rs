//! WebSocket over HTTP/2 (RFC 8441): translates an extended CONNECT into the equivalent GET of RFC
//! 6455, and the response of the backend back. Does no I/O.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use h2::ext::Protocol;
use http::header::{CONTENT_LENGTH, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, StatusCode, request};
use rand::RngExt;

use crate::proxy::error::Error;
use crate::table::UpstreamFault;
use crate::upstream::{SendError, WEBSOCKET, accept_of};

/// The opening handshake of a request that arrived as an extended CONNECT.
#[derive(Debug)]
pub(in crate::proxy) struct Handshake {
    /// The only valid `Sec-WebSocket-Accept` of the backend.
    accept: String,
}

/// Reports whether a request is an extended CONNECT (RFC 8441, 4), of any protocol.
pub(in crate::proxy) fn is_extended_connect(parts: &request::Parts) -> bool {
    parts.method == Method::CONNECT && parts.extensions.get::<Protocol>().is_some()
}

/// Translates an extended CONNECT into a GET with a new key. Leaves other requests unchanged.
pub(in crate::proxy) fn begin(parts: &mut request::Parts) -> Result<Option<Handshake>, Error> {
    if !is_extended_connect(parts) {
        return Ok(None);
    }
    let protocol = parts.extensions.remove::<Protocol>();
    if !protocol.is_some_and(|name| name.as_str().eq_ignore_ascii_case("websocket")) {
        return Err(Error::UnsupportedProtocol);
    }
    if parts.headers.contains_key(CONTENT_LENGTH) {
        // RFC 9110, 9.3.6: a CONNECT has no content.
        return Err(Error::BadRequest("a CONNECT with a Content-Length"));
    }
    parts.method = Method::GET;
    let key = STANDARD.encode(rand::rng().random::<[u8; 16]>());
    let accept = accept_of(key.as_bytes());
    let key = HeaderValue::try_from(key).map_err(|_| Error::UnsupportedProtocol)?;
    parts.headers.insert(SEC_WEBSOCKET_KEY, key);
    Ok(Some(Handshake { accept }))
}

impl Handshake {
    /// Returns the value of `Upgrade` in the request to the backend.
    pub(in crate::proxy) fn upgrade() -> HeaderValue {
        WEBSOCKET
    }

    /// Checks the response of the backend. A 2xx without the upgrade must not reach the client,
    /// which would take the tunnel as open.
    pub(in crate::proxy) fn check(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> Result<(), Error> {
        let protocol = |detail| Error::Send(SendError::Backend(UpstreamFault::Protocol, detail));
        if status.is_success() {
            return Err(protocol("the backend did not switch to WebSocket"));
        }
        if status != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(());
        }
        let mut accepts = headers.get_all(SEC_WEBSOCKET_ACCEPT).iter();
        match (accepts.next(), accepts.next()) {
            (Some(accept), None) if accept == self.accept.as_str() => Ok(()),
            _ => Err(protocol(
                "the backend's Sec-WebSocket-Accept does not fit the key",
            )),
        }
    }

    /// Removes the headers that the handshake of HTTP/2 does not have (RFC 8441, 5).
    pub(super) fn remove_headers(headers: &mut HeaderMap) {
        headers.remove(SEC_WEBSOCKET_ACCEPT);
        headers.remove(UPGRADE);
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn connect(protocol: &str) -> request::Parts {
        let mut request = Request::connect("https://a.com/chat");
        if !protocol.is_empty() {
            request = request.extension(Protocol::from(protocol));
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn translates_extended_connect_to_get_with_a_fresh_key() {
        let mut keys = Vec::new();
        for protocol in ["websocket", "WebSocket"] {
            let mut parts = connect(protocol);
            parts
                .headers
                .insert(SEC_WEBSOCKET_KEY, HeaderValue::from_static("of the client"));
            let handshake = begin(&mut parts).unwrap().unwrap();
            assert_eq!(parts.method, Method::GET);
            let key = parts.headers[SEC_WEBSOCKET_KEY].clone();
            assert_eq!(STANDARD.decode(&key).unwrap().len(), 16);
            assert_eq!(handshake.accept, accept_of(key.as_bytes()));
            assert!(!is_extended_connect(&parts));
            keys.push(key);
        }
        assert_ne!(keys[0], keys[1]);
    }

    #[test]
    fn refuses_other_protocols_and_content() {
        let refused = begin(&mut connect("connect-udp")).unwrap_err();
        assert_eq!(refused, Error::UnsupportedProtocol);
        let mut parts = connect("websocket");
        parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
        assert!(matches!(begin(&mut parts), Err(Error::BadRequest(_))));
        assert!(begin(&mut connect("")).unwrap().is_none());
    }

    #[test]
    fn checks_the_accept_header() {
        let handshake = Handshake {
            accept: accept_of(b"key"),
        };
        let right = HeaderValue::try_from(accept_of(b"key")).unwrap();
        let wrong = HeaderValue::from_static("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        for (values, is_valid) in [
            (vec![&right], true),
            (vec![&wrong], false),
            (vec![&right, &wrong], false),
            (vec![], false),
        ] {
            let mut headers = HeaderMap::new();
            for value in &values {
                headers.append(SEC_WEBSOCKET_ACCEPT, (*value).clone());
            }
            let checked = handshake.check(StatusCode::SWITCHING_PROTOCOLS, &headers);
            assert_eq!(checked.is_ok(), is_valid, "{values:?}");
        }
        let check = |status| handshake.check(status, &HeaderMap::new());
        assert!(check(StatusCode::OK).is_err());
        assert!(check(StatusCode::FORBIDDEN).is_ok());
    }
}
