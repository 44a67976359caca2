//! One HTTP/2 exchange with a backend, driven by polling, without its own task or channel. Keeps
//! the request body until the response head arrives, so that an unprocessed request can be retried.

mod cancelled;
mod connection;
mod silence;
mod tunnel;

use std::future::Future;
use std::mem;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONTENT_LENGTH, HOST};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Method, Request, StatusCode, Uri, Version, uri};
use http_body::Frame;

pub(super) use self::connection::{ASSUMED_STREAMS, Http2Connection, Slot};
use self::tunnel::Handshake;
pub(super) use self::tunnel::Tunnel;
use super::exchange_error::ExchangeError;
use super::outgoing::{HeadLimits, Informational, Outgoing, Replay, Semantics};
use super::response_head::{Head, InformationalHeads};
use super::websocket;
use crate::http2::{Body, BodyError, Waiting};

/// An exchange in progress. After the head it is the response body.
pub(super) struct Exchange<B> {
    response: Option<ResponseFuture>,
    /// The response body, after the head.
    incoming: Option<Body>,
    /// The send half, until the request is complete or the backend needs no more of it.
    outgoing: Option<SendStream<Bytes>>,
    /// The WebSocket that the request opens.
    websocket: Option<Box<Handshake>>,
    /// Kept until the response head arrives, for a replay.
    body: Option<B>,
    keeps_body: bool,
    body_done: bool,
    /// A part of the body that waits for flow-control capacity.
    part: Bytes,
    /// Counts long trailers of the request.
    trailers: Option<Waiting>,
    informational: InformationalHeads,
    method: Method,
    semantics: Semantics,
    limits: HeadLimits,
    /// Remaining bytes of the response body, if known.
    remaining: Option<u64>,
    ended: bool,
    /// Id of the stream.
    stream: u32,
    /// The client whose request it is.
    client: Option<IpAddr>,
    slot: Slot,
}

/// The client reads slowly while memory is scarce.
pub(super) const READ_TOO_SLOWLY: ExchangeError =
    ExchangeError::Protocol("the response was read too slowly");
const INEXPRESSIBLE: ExchangeError =
    ExchangeError::Protocol("the request cannot be expressed in HTTP/2");
const NO_WEBSOCKET: ExchangeError = ExchangeError::Protocol(
    "the backend speaks HTTP/2 without WebSocket (RFC 8441), which HTTP/1.1 has: appProtocol kubernetes.io/ws",
);
const SETTINGS_LATE: ExchangeError =
    ExchangeError::Protocol("the backend has not sent its settings of HTTP/2 in time");
const TRAILERS_UNREAD: ExchangeError =
    ExchangeError::Protocol("the backend does not take the trailers of the request");
const MALFORMED: ExchangeError =
    ExchangeError::Protocol("a response with pseudo-header fields that HTTP/2 forbids there");

impl<B: Replay> Exchange<B> {
    /// Opens a stream and sends the request head. An error returns the body.
    pub(super) fn new(
        (slot, client): (Slot, Option<IpAddr>),
        request: &Outgoing<'_>,
        body: B,
        limits: HeadLimits,
    ) -> Result<Self, (ExchangeError, B)> {
        let Some(mut head) = request_head(request, slot.connection().is_tls) else {
            return Err((INEXPRESSIBLE, body));
        };
        let ended = body.is_end_stream();
        let mut sender = slot.sender();
        let accept = websocket::accept(request).filter(|_| ended);
        if accept.is_some() {
            if !sender.is_extended_connect_protocol_enabled() {
                let error = match slot.connection().knows_settings.get() {
                    true => NO_WEBSOCKET,
                    false => SETTINGS_LATE,
                };
                return Err((error, body));
            }
            Handshake::begin(&mut head);
        }
        slot.bodies().send_queue().count_head(head.headers());
        match sender.send_request(head, ended && accept.is_none()) {
            Ok((response, stream)) => {
                slot.on_opened();
                let (outgoing, websocket) = match accept {
                    Some(accept) => (None, Some(Box::new(Handshake { accept, stream }))),
                    None => ((!ended).then_some(stream), None),
                };
                Ok(Self {
                    stream: response.stream_id().as_u32(),
                    response: Some(response),
                    incoming: None,
                    outgoing,
                    websocket,
                    body: Some(body),
                    keeps_body: request.keeps_body,
                    body_done: ended,
                    part: Bytes::new(),
                    trailers: None,
                    informational: InformationalHeads::default(),
                    method: request.parts.method.clone(),
                    semantics: request.semantics,
                    limits,
                    remaining: None,
                    ended: false,
                    client,
                    slot,
                })
            }
            // No stream was opened: nothing was sent.
            Err(error) if error.is_io() || error.is_go_away() => {
                Err((ExchangeError::NotProcessed, body))
            }
            // A header is not valid in HTTP/2.
            Err(_) => Err((INEXPRESSIBLE, body)),
        }
    }

    /// Sends the request and waits for the final response head. Afterwards, polling the response
    /// continues to send the request body.
    pub(super) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        informational: Option<Informational<'_>>,
    ) -> Poll<Result<Head, ExchangeError>> {
        self.send_rest(cx)?;
        let response = self.response.as_mut().ok_or(ExchangeError::Truncated)?;
        // Informational heads first: h2 requires this order of its caller.
        while let Some(head) = ready!(response.poll_informational(cx)) {
            let mut head = head.map_err(|error| {
                before_head(exchange_error(&error, &self.slot), &self.informational)
            })?;
            if head.status() == StatusCode::SWITCHING_PROTOCOLS {
                return Poll::Ready(Err(ExchangeError::Protocol("101 over HTTP/2")));
            }
            // RFC 9110, 8.6: there is no content that the length could describe.
            head.headers_mut().remove(CONTENT_LENGTH);
            self.informational
                .forward(head.status(), head.headers(), informational)?;
        }
        let response = ready!(Pin::new(response).poll(cx)).map_err(|error| {
            before_head(exchange_error(&error, &self.slot), &self.informational)
        })?;
        Poll::Ready(self.accept(response))
    }

    fn accept(&mut self, response: http::Response<RecvStream>) -> Result<Head, ExchangeError> {
        self.response = None;
        self.slot.on_response();
        if self.slot.bodies().is_head_malformed(self.stream) {
            return Err(MALFORMED);
        }
        let (parts, incoming) = response.into_parts();
        let mut headers = parts.headers;
        if headers.len() > self.limits.headers {
            return Err(ExchangeError::Protocol(
                "the response has more headers than --max-headers allows",
            ));
        }
        if let Some(websocket) = self.websocket.take_if(|_| !parts.status.is_success()) {
            websocket.end();
        }
        if let Some(websocket) = &self.websocket {
            websocket.complete(&mut headers);
            self.incoming = Some(self.slot.read(incoming, self.client));
            return Ok(Head {
                status: StatusCode::SWITCHING_PROTOCOLS,
                headers,
            });
        }
        let is_bare = matches!(parts.status.as_u16(), 204 | 304);
        let announces = headers.get(CONTENT_LENGTH).is_some_and(|it| it != "0");
        if parts.status == StatusCode::NO_CONTENT {
            // RFC 9110, 8.6: the same goes for a response without content.
            headers.remove(CONTENT_LENGTH);
        }
        let length = single_length(&mut headers)?;
        self.ended = incoming.is_end_stream();
        let is_described = self.method == Method::HEAD || parts.status == StatusCode::NOT_MODIFIED;
        self.remaining = match length {
            _ if self.ended => Some(0),
            // The length describes the response to a GET.
            _ if is_described => None,
            length => length,
        };
        if self.remaining == Some(0) {
            self.slot.on_end();
        }
        if !self.ended && announces && is_bare {
            // RFC 9110, 15.3.5 and 15.4.5. h2 counts the end of the stream as malformed, since it misses the content.
            self.slot.on_malformed();
            (self.ended, self.remaining) = (true, Some(0));
        }
        self.incoming = (!self.ended).then(|| self.slot.read(incoming, self.client));
        if !self.keeps_body {
            self.forget_body();
        }
        Ok(Head {
            status: parts.status,
            headers,
        })
    }

    /// Reports whether a retry on another connection is safe after `cause`, apart from the body:
    /// the backend did not process the request, or the request is idempotent and a reused connection
    /// has closed (RFC 9110, 9.2.2).
    pub(super) fn is_replayable(&self, cause: ExchangeError) -> bool {
        !self.informational.any()
            && match cause {
                ExchangeError::Refused | ExchangeError::NotProcessed => true,
                ExchangeError::Io(_) | ExchangeError::Truncated => {
                    self.is_reused() && self.semantics != Semantics::Other
                }
                _ => false,
            }
    }

    /// Reports whether the request is safe and no part of a response has arrived.
    pub(super) fn is_safe_without_response(&self) -> bool {
        self.semantics == Semantics::Safe && !self.informational.any()
    }

    /// Reports whether the connection was reused.
    pub(super) fn is_reused(&self) -> bool {
        self.slot.is_reused()
    }

    /// Returns the id of the connection.
    pub(super) fn connection(&self) -> u64 {
        self.slot.connection().id
    }

    /// Reports whether the whole request was passed to the connection.
    pub(super) fn is_request_sent(&self) -> bool {
        self.body_done
    }

    /// Returns the request body, before the response head.
    pub(super) fn into_body(self) -> Option<B> {
        self.body
    }

    /// Returns the request body, rewound, if it is still kept.
    pub(super) fn take_rewound(&mut self) -> Option<B> {
        let is_rewound = self.body.as_mut().is_some_and(Replay::rewind);
        self.body.take_if(|_| is_rewound)
    }

    /// Returns the WebSocket after its 101, and what has to be kept as long.
    pub(super) fn into_tunnel(self) -> Option<(Tunnel, Slot)> {
        let tunnel = self.websocket?.into_tunnel(self.incoming?, &self.slot);
        Some((tunnel, self.slot))
    }

    /// Stops keeping the request body for a replay.
    pub(super) fn forget_body(&mut self) {
        if self.body_done {
            self.body = None;
        } else if let Some(body) = &mut self.body {
            body.forget();
        }
    }

    /// Reports whether the response body is complete.
    pub(super) fn is_end_stream(&self) -> bool {
        self.ended
    }

    /// Returns the remaining bytes of the response body, if known.
    pub(super) fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// Returns the next frame of the response body.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ExchangeError>>> {
        self.send_rest(cx)?;
        let Some(incoming) = &mut self.incoming else {
            return Poll::Ready(None);
        };
        if self.ended {
            return Poll::Ready(None);
        }
        while let Some(data) = ready!(incoming.poll_data(cx)) {
            let data = data.map_err(|error| body_error(&error, &self.slot))?;
            self.ended = incoming.is_end_stream();
            if let Some(remaining) = &mut self.remaining {
                *remaining = remaining.saturating_sub(data.len() as u64);
            }
            if self.ended || self.remaining == Some(0) {
                self.slot.on_end();
            }
            if !data.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
        }
        let trailers =
            ready!(incoming.poll_trailers(cx)).map_err(|error| body_error(&error, &self.slot))?;
        self.ended = true;
        self.slot.on_end();
        let is_malformed = self.slot.bodies().are_trailers_malformed(self.stream);
        Poll::Ready(trailers.map(|trailers| match is_malformed {
            true => Err(MALFORMED),
            false => Ok(Frame::trailers(trailers)),
        }))
    }

    /// Sends as much of the request as possible. A backend that stops reading is not an error,
    /// since it may have responded.
    pub(super) fn send_rest(&mut self, cx: &mut Context<'_>) -> Result<(), ExchangeError> {
        if self.trailers.as_ref().is_some_and(Waiting::has_failed) {
            return Err(TRAILERS_UNREAD);
        }
        if self.outgoing.is_none() {
            return Ok(());
        }
        match self.poll_request(cx) {
            Poll::Pending => Ok(()),
            Poll::Ready(outcome) => {
                self.outgoing = None;
                if self.response.is_none() {
                    self.body = None;
                }
                outcome
            }
        }
    }

    fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ExchangeError>> {
        let (Some(outgoing), Some(body)) = (&mut self.outgoing, &mut self.body) else {
            return Poll::Ready(Ok(()));
        };
        let queue = self.slot.bodies().send_queue();
        loop {
            ready!(queue.poll_room(cx));
            if !self.part.is_empty() {
                if outgoing.capacity() == 0
                    && !matches!(ready!(outgoing.poll_capacity(cx)), Some(Ok(_)))
                {
                    return Poll::Ready(Ok(()));
                }
                self.body_done = body.is_end_stream();
                let part = queue.count(mem::take(&mut self.part));
                let sent = outgoing.send_data(part, self.body_done);
                if self.body_done || sent.is_err() {
                    return Poll::Ready(Ok(()));
                }
            }
            match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        // Reserves the minimum, since the streams share the connection window. Once
                        // there is capacity, h2 accepts the whole part and buffers the excess.
                        outgoing.reserve_capacity(1);
                        self.part = data;
                    }
                    Err(frame) => {
                        if let Ok(trailers) = frame.into_trailers() {
                            self.body_done = true;
                            let (bodies, client) = (self.slot.bodies(), self.client);
                            self.trailers = Waiting::for_trailers(bodies, client, &trailers, cx);
                            // Returns unused capacity to the other streams of the connection.
                            outgoing.reserve_capacity(0);
                            if outgoing.send_trailers(trailers).is_err() {
                                // Fails if the stream has ended or if the trailers are not valid in
                                // HTTP/2.
                                let _ = outgoing.send_data(Bytes::new(), true);
                            }
                            return Poll::Ready(Ok(()));
                        }
                    }
                },
                Some(Err(_)) => {
                    outgoing.send_reset(Reason::CANCEL);
                    return Poll::Ready(Err(ExchangeError::RequestBody));
                }
                None => {
                    self.body_done = true;
                    // If this fails, the response contains the reason.
                    let _ = outgoing.send_data(Bytes::new(), true);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

/// Classifies an error of a response body.
fn body_error(error: &BodyError, slot: &Slot) -> ExchangeError {
    match error {
        BodyError::Http2(error) => exchange_error(error, slot),
        BodyError::TooSlow => READ_TOO_SLOWLY,
        BodyError::EmptyFrames => ExchangeError::Protocol("too many empty DATA frames"),
    }
}

/// Classifies an h2 error of a stream, and records it if h2 counts it.
fn exchange_error(error: &h2::Error, slot: &Slot) -> ExchangeError {
    if let Some(io) = error.get_io() {
        return ExchangeError::Io(io.kind());
    }
    if !error.is_remote() {
        if error.is_reset() {
            slot.on_malformed();
        }
        return ExchangeError::Protocol(if error.is_reset() {
            "a response that violates HTTP/2 or whose head exceeds --max-header-bytes"
        } else {
            "the backend violated HTTP/2"
        });
    }
    slot.on_end();
    // A GOAWAY fails only the streams above its last stream id (RFC 9113, 6.8).
    if error.is_go_away() {
        ExchangeError::NotProcessed
    } else if error.reason() == Some(Reason::REFUSED_STREAM) {
        ExchangeError::Refused
    } else {
        ExchangeError::Reset
    }
}

/// Returns why there is no response. A backend that has sent an informational one has processed the request, although it
/// denies that (RFC 9113, 6.8 and 8.7).
fn before_head(cause: ExchangeError, informational: &InformationalHeads) -> ExchangeError {
    match cause {
        ExchangeError::Refused if informational.any() => ExchangeError::Reset,
        ExchangeError::NotProcessed if informational.any() => ExchangeError::Truncated,
        cause => cause,
    }
}

/// Parses `Content-Length` and merges equal values into one (RFC 9110, 8.6). h2 accepts an empty
/// value.
fn single_length(headers: &mut HeaderMap) -> Result<Option<u64>, ExchangeError> {
    let mut lines = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = lines.next().cloned() else {
        return Ok(None);
    };
    let is_single = lines.next().is_none();
    let length = first.to_str().ok().and_then(|text| text.parse().ok());
    let length = length.filter(|_| first.as_bytes().iter().all(u8::is_ascii_digit));
    let malformed = ExchangeError::Protocol("malformed Content-Length in a response");
    if !is_single {
        let all = headers.get_all(CONTENT_LENGTH);
        if all.iter().any(|line| line != first) {
            return Err(malformed);
        }
        headers.insert(CONTENT_LENGTH, first);
    }
    length.map(Some).ok_or(malformed)
}

/// Builds the request head in HTTP/2 form: `:authority` replaces `Host`.
fn request_head(outgoing: &Outgoing<'_>, is_tls: bool) -> Option<Request<()>> {
    let parts = outgoing.parts;
    let mut target = uri::Parts::default();
    target.scheme = Some(if is_tls { Scheme::HTTPS } else { Scheme::HTTP });
    target.authority = Some(Authority::try_from(parts.headers.get(HOST)?.as_bytes()).ok()?);
    let path = parts.uri.path_and_query();
    target.path_and_query = Some(
        path.cloned()
            .unwrap_or_else(|| PathAndQuery::from_static("/")),
    );
    let mut request = Request::new(());
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = Uri::from_parts(target).ok()?;
    *request.version_mut() = Version::HTTP_2;
    let headers = request.headers_mut();
    *headers = parts.headers.clone();
    headers.remove(HOST);
    for (name, value) in outgoing.added {
        headers.insert(name, value.clone());
    }
    Some(request)
}
