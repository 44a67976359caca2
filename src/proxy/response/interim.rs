//! Informational responses (RFC 9110, 15.2) to a client, for all versions of HTTP.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use h2::server::SendResponse;
use http::{HeaderMap, Response, StatusCode};

use super::outbound::Outbound;
use crate::header_memory;
use crate::http2::Bodies;
use crate::proxy::client::Client;

/// Sender of the informational responses of one request.
#[derive(Clone)]
pub(crate) enum Interim {
    /// HTTP/1.1 connection.
    Http1(Rc<Client>),
    /// HTTP/2 stream, and the bodies of its connection.
    Http2(Rc<RefCell<SendResponse<Bytes>>>, Rc<Bodies>),
    /// HTTP/3 stream.
    Http3(Rc<Outbound>),
    /// Sends nothing: HTTP/1.0 has no informational responses, and some requests need none.
    None,
}

impl Interim {
    /// Sends an informational response with these end-to-end headers, if the client can receive it
    /// now, and has read most of the earlier ones.
    pub(crate) fn send(&self, status: StatusCode, headers: &HeaderMap) {
        match self {
            // Behind an unwritten response to an earlier pipelined request, the informational
            // response could follow its own final response.
            Self::Http1(client) => _ = client.injection.push_next(&head(status, headers)),
            Self::Http2(stream, bodies) => {
                let size = header_memory::size(headers);
                let is_admitted = bodies.send_queue().admit_informational(size);
                // Clients wait for a 100, but not for its headers.
                if !is_admitted && status != StatusCode::CONTINUE {
                    return;
                }
                let mut response = Response::new(());
                *response.status_mut() = status;
                if is_admitted {
                    *response.headers_mut() = headers.clone();
                }
                // Fails if the stream has ended or has its final response. Then no informational
                // response is needed.
                let _ = stream.borrow_mut().send_informational(response);
            }
            Self::Http3(stream) => stream.push_interim(status, headers),
            Self::None => {}
        }
    }

    /// Reports whether nothing is ever sent.
    pub(crate) fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Sends `100 (Continue)` to a client that waits for it.
    pub(in crate::proxy) fn send_continue(&self) {
        self.send(StatusCode::CONTINUE, &HeaderMap::new());
    }
}

/// Encodes a response head (RFC 9112, 2.1).
fn head(status: StatusCode, headers: &HeaderMap) -> Vec<u8> {
    let reason = status.canonical_reason().unwrap_or_default();
    let mut bytes = format!("HTTP/1.1 {} {reason}\r\n", status.as_str()).into_bytes();
    for (name, value) in headers {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::LINK;

    use super::*;

    #[test]
    fn encodes_http1_heads() {
        let mut headers = HeaderMap::new();
        headers.append(LINK, HeaderValue::from_static("</a>"));
        headers.append(LINK, HeaderValue::from_static("</b>"));
        assert_eq!(
            head(StatusCode::EARLY_HINTS, &headers),
            b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\nlink: </b>\r\n\r\n"
        );
    }
}
