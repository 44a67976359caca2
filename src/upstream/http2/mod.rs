//! One HTTP/2 exchange with a backend, driven by its reader: no task of its own, no channel. The request's body
//! stays here until the response head is there, so that a request that the backend did not process can be sent again.

mod connection;

use std::future::Future;
use std::mem;
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
use super::exchange::{Head, InformationalHeads};
use super::fault::Fault;
use super::{HeadLimits, Informational, Outgoing, Replay};

/// An exchange under way. After the head has been read it is the response's body.
pub(super) struct Exchange<B> {
    response: Option<ResponseFuture>,
    /// The response's body, once its head was read.
    incoming: Option<RecvStream>,
    /// The sending side, until the request is complete or the backend wants no more of it.
    outgoing: Option<SendStream<Bytes>>,
    /// Kept until the response head is there, so that it can be sent again.
    body: Option<B>,
    body_done: bool,
    /// A part of the body that waits for room in the windows.
    part: Bytes,
    informational: InformationalHeads,
    method: Method,
    limits: HeadLimits,
    /// Bytes of the response's body still to come, where that is known.
    remaining: Option<u64>,
    ended: bool,
    slot: Slot,
}

impl<B: Replay> Exchange<B> {
    /// Opens a stream and sends the request's head. A failure comes with the body.
    pub(super) fn new(
        slot: Slot,
        request: &Outgoing<'_>,
        body: B,
        limits: HeadLimits,
    ) -> Result<Self, (Fault, B)> {
        const INEXPRESSIBLE: Fault = Fault::Protocol("the request cannot be expressed in HTTP/2");
        let Some(head) = request_head(request, slot.connection().is_tls) else {
            return Err((INEXPRESSIBLE, body));
        };
        let ended = body.is_end_stream();
        match slot.sender().send_request(head, ended) {
            Ok((response, outgoing)) => Ok(Self {
                response: Some(response),
                incoming: None,
                outgoing: (!ended).then_some(outgoing),
                body: Some(body),
                body_done: ended,
                part: Bytes::new(),
                informational: InformationalHeads::default(),
                method: request.parts.method.clone(),
                limits,
                remaining: None,
                ended: false,
                slot,
            }),
            // No connection, no stream: nothing was sent.
            Err(error) if error.is_io() || error.is_go_away() => Err((Fault::LeftOut, body)),
            // A header that HTTP/2 does not have.
            Err(_) => Err((INEXPRESSIBLE, body)),
        }
    }

    /// Sends the request, and waits for the final head of the response. The request's body goes on being sent
    /// afterwards, while the response is polled.
    pub(super) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        informational: Option<Informational<'_>>,
    ) -> Poll<Result<Head, Fault>> {
        self.drive_request(cx)?;
        let response = self.response.as_mut().ok_or(Fault::Truncated)?;
        while let Some(head) = ready!(response.poll_informational(cx)) {
            let head = head.map_err(|error| fault(&error))?;
            if head.status() == StatusCode::SWITCHING_PROTOCOLS {
                return Poll::Ready(Err(Fault::Protocol("101 over HTTP/2")));
            }
            self.informational
                .forward(head.status(), head.headers(), informational)?;
        }
        let response = ready!(Pin::new(response).poll(cx)).map_err(|error| fault(&error))?;
        Poll::Ready(self.accept(response))
    }

    fn accept(&mut self, response: http::Response<RecvStream>) -> Result<Head, Fault> {
        self.response = None;
        self.slot.on_response();
        let (parts, incoming) = response.into_parts();
        let mut headers = parts.headers;
        if headers.len() > self.limits.headers {
            return Err(Fault::Protocol(
                "the response has more headers than --max-headers allows",
            ));
        }
        let length = single_length(&mut headers);
        self.ended = incoming.is_end_stream();
        let is_described = self.method == Method::HEAD || parts.status == StatusCode::NOT_MODIFIED;
        self.remaining = match length {
            _ if self.ended => Some(0),
            // The length of what a GET would get.
            _ if is_described => None,
            length => length,
        };
        self.incoming = Some(incoming);
        if self.body_done {
            self.body = None;
        } else if let Some(body) = &mut self.body {
            body.forget();
        }
        Ok(Head {
            status: parts.status,
            headers,
        })
    }

    /// Whether the exchange, which failed by `fault`, may be tried again on another connection, its body aside: the
    /// backend did not process it, or the method is idempotent and a connection that worked before ended (RFC 9110,
    /// 9.2.2).
    pub(super) fn is_replayable(&self, fault: Fault) -> bool {
        !self.informational.any()
            && match fault {
                Fault::Refused | Fault::LeftOut => true,
                Fault::Io(_) | Fault::Truncated => self.is_reused() && self.method.is_idempotent(),
                _ => false,
            }
    }

    /// Whether the method is safe and nothing of a response has come.
    pub(super) fn is_safe_and_unanswered(&self) -> bool {
        self.method.is_safe() && !self.informational.any()
    }

    /// Whether the connection has carried an exchange before.
    pub(super) fn is_reused(&self) -> bool {
        self.slot.is_reused()
    }

    /// The connection's id.
    pub(super) fn connection(&self) -> u64 {
        self.slot.connection().id
    }

    /// Whether the whole request has been handed to the connection.
    pub(super) fn is_request_sent(&self) -> bool {
        self.body_done
    }

    /// The request's body, while there is no response head.
    pub(super) fn into_body(self) -> Option<B> {
        self.body
    }

    /// Whether the response's body is whole.
    pub(super) fn is_end_stream(&self) -> bool {
        self.ended
    }

    /// Bytes of the response's body still to come, where that is known.
    pub(super) fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// The next frame of the response's body.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        self.drive_request(cx)?;
        let Some(incoming) = &mut self.incoming else {
            return Poll::Ready(None);
        };
        if self.ended {
            return Poll::Ready(None);
        }
        while let Some(data) = ready!(incoming.poll_data(cx)) {
            let data = data.map_err(|error| fault(&error))?;
            // The reader takes one part at a time, so a part that is read is room for the next one.
            let _ = incoming.flow_control().release_capacity(data.len());
            self.ended = incoming.is_end_stream();
            if let Some(remaining) = &mut self.remaining {
                *remaining = remaining.saturating_sub(data.len() as u64);
            }
            if !data.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
        }
        let trailers = ready!(incoming.poll_trailers(cx)).map_err(|error| fault(&error))?;
        self.ended = true;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    /// Sends as much of the request as can be sent now. That the backend takes no more is not a failure, since it may
    /// have answered.
    fn drive_request(&mut self, cx: &mut Context<'_>) -> Result<(), Fault> {
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

    fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        let (Some(outgoing), Some(body)) = (&mut self.outgoing, &mut self.body) else {
            return Poll::Ready(Ok(()));
        };
        loop {
            if !self.part.is_empty() {
                if outgoing.capacity() == 0
                    && !matches!(ready!(outgoing.poll_capacity(cx)), Some(Ok(_)))
                {
                    return Poll::Ready(Ok(()));
                }
                self.body_done = body.is_end_stream();
                let sent = outgoing.send_data(mem::take(&mut self.part), self.body_done);
                if self.body_done || sent.is_err() {
                    return Poll::Ready(Ok(()));
                }
            }
            match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        // The least claim on the connection's window, which other streams share, until the windows
                        // have room; then the part counts in full.
                        outgoing.reserve_capacity(1);
                        self.part = data;
                    }
                    Err(frame) => {
                        if let Ok(trailers) = frame.into_trailers() {
                            self.body_done = true;
                            outgoing.reserve_capacity(0);
                            if outgoing.send_trailers(trailers).is_err() {
                                // A stream that has ended, or trailers that HTTP/2 does not have.
                                let _ = outgoing.send_data(Bytes::new(), true);
                            }
                            return Poll::Ready(Ok(()));
                        }
                    }
                },
                Some(Err(_)) => {
                    outgoing.send_reset(Reason::CANCEL);
                    return Poll::Ready(Err(Fault::RequestBody));
                }
                None => {
                    self.body_done = true;
                    // When it fails, the response says why.
                    let _ = outgoing.send_data(Bytes::new(), true);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

/// What an error of h2 says of a stream that has no response yet.
fn fault(error: &h2::Error) -> Fault {
    if let Some(io) = error.get_io() {
        return Fault::Io(io.kind());
    }
    if !error.is_remote() {
        return Fault::Protocol(if error.is_reset() {
            "a response that breaks HTTP/2, or whose head exceeds --max-header-bytes"
        } else {
            "the backend broke HTTP/2"
        });
    }
    // Only streams above the last one that a GOAWAY names fail by it (RFC 9113, 6.8).
    if error.is_go_away() {
        Fault::LeftOut
    } else if error.reason() == Some(Reason::REFUSED_STREAM) {
        Fault::Refused
    } else {
        Fault::Reset
    }
}

/// The value of `Content-Length`; equal lines, which are one value (RFC 9110, 8.6), become one.
fn single_length(headers: &mut HeaderMap) -> Option<u64> {
    let mut lines = headers.get_all(CONTENT_LENGTH).iter();
    let first = lines.next()?.clone();
    if lines.next().is_some() {
        headers.insert(CONTENT_LENGTH, first.clone());
    }
    first.to_str().ok()?.parse().ok()
}

/// The request's head in HTTP/2's terms: the authority comes from `Host`, which is not sent.
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
