//! Informational responses (RFC 9110, 15.2) to a client, for all versions of HTTP.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
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
    Http2(Rc<RefCell<HeadSender>>, Rc<Bodies>),
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
                stream.borrow_mut().send_informational(response);
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

/// Sends the heads of responses on an HTTP/2 stream.
pub(crate) struct HeadSender {
    sender: SendResponse<Bytes>,
    /// Whether the final response was sent, or the stream was reset.
    is_final: bool,
}

impl HeadSender {
    /// Sends with `sender`, which has sent nothing.
    pub(crate) fn new(sender: SendResponse<Bytes>) -> Self {
        Self {
            sender,
            is_final: false,
        }
    }

    /// Sends an informational response, unless the final one was sent. h2 does not look at that, and a client takes what
    /// follows for malformed trailers (RFC 9113, 8.1).
    fn send_informational(&mut self, response: Response<()>) {
        if !self.is_final {
            // Fails only for headers that HTTP/2 forbids.
            let _ = self.sender.send_informational(response);
        }
    }

    /// Sends the final response.
    ///
    /// # Errors
    /// When the stream has ended.
    pub(crate) fn send_response(
        &mut self,
        response: Response<()>,
        is_end: bool,
    ) -> Result<SendStream<Bytes>, h2::Error> {
        self.is_final = true;
        self.sender.send_response(response, is_end)
    }

    /// Resets the stream.
    pub(crate) fn send_reset(&mut self, reason: Reason) {
        self.is_final = true;
        self.sender.send_reset(reason);
    }

    /// Becomes ready when the client has reset the stream, before the final response.
    pub(crate) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<Result<Reason, h2::Error>> {
        self.sender.poll_reset(cx)
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
    use http::header::LINK;
    use http::{HeaderValue, Request};

    use super::*;

    #[tokio::test]
    async fn nothing_informational_follows_the_final_response() -> Result<(), h2::Error> {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let server = async {
            let mut connection = h2::server::handshake(far).await?;
            let (_, sender) = connection.accept().await.expect("a request")?;
            let mut heads = HeadSender::new(sender);
            let mut stream = heads.send_response(Response::new(()), false)?;
            let mut late = Response::new(());
            *late.status_mut() = StatusCode::CONTINUE;
            heads.send_informational(late);
            stream.send_data(Bytes::new(), true)?;
            while connection.accept().await.is_some() {}
            Ok::<_, h2::Error>(())
        };
        let client = async {
            let (mut sender, connection) = h2::client::handshake(near).await?;
            let exchange = async {
                let request = Request::get("http://a.com/").body(());
                let (response, _) = sender.send_request(request.expect("a request"), true)?;
                drop(sender);
                let mut body = response.await?.into_body();
                while let Some(data) = body.data().await {
                    data?;
                }
                Ok::<_, h2::Error>(())
            };
            tokio::try_join!(exchange, connection)
        };
        tokio::try_join!(server, client).map(drop)
    }

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
