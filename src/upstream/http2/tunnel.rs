//! A WebSocket on a stream of a backend's connection (RFC 8441): an extended CONNECT in place of the upgrade of HTTP/1.1, whose
//! response becomes that of the upgrade.

use bytes::Bytes;
use h2::SendStream;
use h2::ext::Protocol;
use http::header::{CONTENT_LENGTH, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, Request};
use tokio::io::{Join, join};

use super::connection::Slot;
use crate::http2::{Body, StreamReader, StreamWriter};
use crate::upstream::websocket::WEBSOCKET;

/// A WebSocket that was asked for.
pub(super) struct Handshake {
    /// The value of `Sec-WebSocket-Accept` for the key of the request, which the backend does not get.
    pub(super) accept: HeaderValue,
    /// The send half of its stream.
    pub(super) stream: SendStream<Bytes>,
}

impl Handshake {
    /// Turns a request for an upgrade into an extended CONNECT, which has no content (RFC 9110, 9.3.6): bytes of the tunnel would
    /// be more of it than a length of 0 permits.
    pub(super) fn begin(head: &mut Request<()>) {
        *head.method_mut() = Method::CONNECT;
        head.extensions_mut()
            .insert(Protocol::from_static("websocket"));
        head.headers_mut().remove(SEC_WEBSOCKET_KEY);
        head.headers_mut().remove(CONTENT_LENGTH);
    }

    /// Adds to the headers of a 2xx what those of a 101 have. It has no content (RFC 9110, 9.3.6).
    pub(super) fn complete(&self, headers: &mut HeaderMap) {
        headers.remove(CONTENT_LENGTH);
        headers.insert(UPGRADE, WEBSOCKET);
        headers.insert(SEC_WEBSOCKET_ACCEPT, self.accept.clone());
    }

    /// Ends the request: the backend has refused the WebSocket.
    pub(super) fn end(mut self) {
        // Fails if the backend has reset the stream.
        let _ = self.stream.send_data(Bytes::new(), true);
    }

    /// Returns the tunnel with the data of a 2xx.
    pub(super) fn into_tunnel(self, incoming: Body, slot: &Slot) -> Tunnel {
        let writer = StreamWriter::new(self.stream, slot.bodies().clone());
        join(StreamReader::new(incoming), writer)
    }
}

/// The bytes of a WebSocket. The drop of a stream that has not ended resets it.
pub(in crate::upstream) type Tunnel = Join<StreamReader, StreamWriter>;
