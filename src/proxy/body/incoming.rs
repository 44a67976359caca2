//! The body of a client's request, for all versions of HTTP. The only module that reads bodies from hyper and h2.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame, SizeHint};

use super::inbound::{Http3Body, Inbound};
use crate::http2;
use crate::proxy::grpc_web::Decoder;
use crate::proxy::response::interim::Interim;
use crate::upstream::BoxError;

/// A request body that the client is sending.
pub(crate) enum Incoming {
    /// No body.
    Empty,
    /// HTTP/1 request body.
    Http1(hyper::body::Incoming),
    /// HTTP/2 stream body.
    Http2(StreamBody),
    /// HTTP/3 stream body.
    Http3(Box<Http3Body>),
    /// Another body, decoded from base64.
    Base64(Box<Base64Body>),
    /// What becomes of another body.
    Derived(DerivedBody),
}

/// A body that something makes of the body of a client.
pub(in crate::proxy) type DerivedBody = Box<dyn Body<Data = Bytes, Error = BoxError> + Unpin>;

/// Receiving half of an HTTP/2 stream.
pub(crate) struct StreamBody {
    stream: http2::Body,
    /// Remaining bytes according to its `Content-Length`.
    remaining: Option<u64>,
    data_ended: bool,
    /// Sends a `100 (Continue)` when the body is first polled.
    continue_sender: Interim,
}

impl From<hyper::body::Incoming> for Incoming {
    fn from(body: hyper::body::Incoming) -> Self {
        Self::Http1(body)
    }
}

impl Incoming {
    /// Creates the body of an HTTP/2 request with these headers. Uses `continue_sender` if they contain `Expect:
    /// 100-continue`.
    pub(crate) fn http2(
        stream: http2::Body,
        headers: &HeaderMap,
        continue_sender: &Interim,
    ) -> Self {
        let remaining = headers.get(CONTENT_LENGTH).and_then(length);
        Self::Http2(StreamBody {
            stream,
            remaining,
            data_ended: false,
            continue_sender: awaited_continue(remaining, headers, continue_sender),
        })
    }

    /// Does the same for an HTTP/3 request.
    pub(crate) fn http3(
        stream: Rc<Inbound>,
        headers: &HeaderMap,
        continue_sender: &Interim,
    ) -> Self {
        let remaining = headers.get(CONTENT_LENGTH).and_then(length);
        let continue_sender = awaited_continue(remaining, headers, continue_sender);
        Self::Http3(Box::new(Http3Body::new(stream, remaining, continue_sender)))
    }
}

/// Returns the sender of the `100 (Continue)` that the client of a request waits for.
fn awaited_continue(remaining: Option<u64>, headers: &HeaderMap, sender: &Interim) -> Interim {
    let expects = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"100-continue");
    let has_content = remaining != Some(0);
    match has_content && headers.get(http::header::EXPECT).is_some_and(expects) {
        true => sender.clone(),
        false => Interim::None,
    }
}

fn length(value: &HeaderValue) -> Option<u64> {
    value.to_str().ok()?.parse().ok()
}

impl Incoming {
    /// Decodes the body from base64.
    pub(in crate::proxy) fn decode_base64(&mut self) {
        let text = std::mem::replace(self, Self::Empty);
        *self = Self::Base64(Box::new(Base64Body::new(text)));
    }
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Http1(body) => Pin::new(body).poll_frame(cx).map_err(BoxError::from),
            Self::Http2(body) => body.poll_frame(cx),
            Self::Http3(body) => body.poll_frame(cx),
            Self::Base64(body) => body.poll_frame(cx),
            Self::Derived(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.stream.is_end_stream(),
            Self::Http3(body) => body.is_end_stream(),
            // The end may be inside a group.
            Self::Base64(_) => false,
            Self::Derived(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Http1(body) => body.size_hint(),
            Self::Base64(_) => SizeHint::default(),
            Self::Derived(body) => body.size_hint(),
            Self::Http3(body) => body.size_hint(),
            Self::Http2(body) => body
                .remaining
                .map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

impl StreamBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        std::mem::replace(&mut self.continue_sender, Interim::None).send_continue();
        if !self.data_ended {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    if let Some(remaining) = &mut self.remaining {
                        *remaining = remaining.saturating_sub(data.len() as u64);
                    }
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => self.data_ended = true,
            }
        }
        Poll::Ready(match ready!(self.stream.poll_trailers(cx)) {
            Ok(trailers) => trailers.map(|trailers| Ok(Frame::trailers(trailers))),
            // A reset ends the request early, with any code: the body is incomplete.
            Err(error) => Some(Err(error.into())),
        })
    }
}

/// A request body in base64.
pub(crate) struct Base64Body {
    incoming: Incoming,
    decoder: Decoder,
}

impl Base64Body {
    /// Decodes `incoming`.
    pub(in crate::proxy) fn new(incoming: Incoming) -> Self {
        Self {
            incoming,
            decoder: Decoder::default(),
        }
    }

    /// Returns the next frame, decoded.
    pub(in crate::proxy) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            let frame = match ready!(Pin::new(&mut self.incoming).poll_frame(cx)) {
                Some(frame) => frame?,
                None => {
                    let finished = std::mem::take(&mut self.decoder).finish();
                    return Poll::Ready(finished.err().map(|error| Err(error.into())));
                }
            };
            match frame.into_data() {
                Ok(text) => {
                    let data = self.decoder.decode(&text)?;
                    if !data.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                }
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
    }
}
