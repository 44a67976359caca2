//! One HTTP/3 stream: serves its request, sends the response as fast as QUIC takes it, and handles resets and timeouts.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, EXPECT};
use http::{HeaderValue, Method, Response};
use http_body::Body;
use quinn::{RecvStream, SendStream};

use super::body_sender::count_unsent;
use super::http3_head::{Arrived, code_of};
use super::http3_limits::stream_window;
use super::http3_shared::{OpenStream, Shared};
use super::http3_tunnel::TunnelWriter;
use super::relay::RelayEnd;
use super::request_heads::HeadMemory;
use super::{http3_head, stream_response, upgrade};
use crate::http2::{StreamReader, Waiting};
use crate::http3::{self, Code};
use crate::ir::grpc::is_grpc;
use crate::proxy::activity::{Activity, Phase};
use crate::proxy::body::inbound::{Failure, Inbound};
use crate::proxy::body::incoming::Incoming;
use crate::proxy::body::response_body::ResponseBody;
use crate::proxy::body::tunnel::Tunnel;
use crate::proxy::request::request;
use crate::proxy::request::request::Admitted;
use crate::proxy::response::interim::Interim;
use crate::proxy::response::outbound::{Lost, Outbound};

/// A stream whose request has arrived. Counts as a request of its connection until dropped.
struct Stream {
    connection: Rc<Shared>,
    activity: Rc<Activity>,
    outbound: Rc<Outbound>,
    inbound: Rc<Inbound>,
    is_grpc: bool,
    head: HeadMemory,
}

impl Drop for Stream {
    fn drop(&mut self) {
        // After the response, nobody needs the rest of the request (RFC 9114, 4.1).
        self.inbound.stop(Code::NoError);
        self.connection.heads.release(&self.head);
        self.connection.activity.on_request_end();
    }
}

/// Serves a stream until it ends.
pub(super) async fn serve(connection: Rc<Shared>, send: SendStream, receive: RecvStream) {
    let _open = OpenStream::new(&connection);
    let outbound = Rc::new(Outbound::new(send, &connection.bodies));
    let window = stream_window(&connection.client.limits) as usize;
    let inbound = {
        let limits = connection.inbound_limits(window);
        Rc::new(Inbound::new(connection.quic.clone(), receive, limits))
    };
    let Some(mut request) = Box::pin(http3_head::read(&connection, &outbound, &inbound)).await
    else {
        return;
    };
    let is_head = request.method() == Method::HEAD;
    let stream = Stream::new(connection, (outbound, inbound), &mut request);
    if may_end_later(&request) && !Box::pin(stream.await_body(&mut request)).await {
        return;
    }
    let admitted = stream.open(request);
    let Some(mut response) = Box::pin(stream.handle(admitted)).await else {
        return;
    };
    if let Some(tunnel) = response.body_mut().take_tunnel() {
        return Box::pin(stream.relay(response, *tunnel)).await;
    }
    stream.respond(response, is_head).await;
}

/// Reports whether a request that has not ended has no content, as far as its head tells: HTTP does not define what content
/// of these methods means (RFC 9110, 9.3), and nothing announces it.
fn may_end_later(request: &Arrived) -> bool {
    let has_method = matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::DELETE
    );
    let headers = request.headers();
    let is_announced = headers.contains_key(CONTENT_LENGTH) || headers.contains_key(EXPECT);
    *request.body() && has_method && !is_announced
}

impl Stream {
    fn new(
        connection: Rc<Shared>,
        (outbound, inbound): (Rc<Outbound>, Rc<Inbound>),
        request: &mut Arrived,
    ) -> Self {
        connection.activity.on_request();
        let priorities = request.headers().get_all("priority").iter();
        outbound.set_urgency(http3::urgency(priorities.map(HeaderValue::as_bytes)));
        // The fields are not in a buffer that others share.
        let head = connection.heads.take(request, 0);
        let client = &connection.client;
        let is_grpc = *request.method() == Method::POST && is_grpc(request.headers());
        let pace = stream_response::pace(request.headers(), is_grpc, *request.body());
        let activity = Activity::stream(&client.worker.clock, &client.limits, pace);
        Self {
            connection,
            activity,
            outbound,
            inbound,
            is_grpc,
            head,
        }
    }

    fn open(&self, request: Arrived) -> Admitted {
        let interim = Interim::Http3(self.outbound.clone());
        let (parts, has_body) = request.into_parts();
        let body = match has_body {
            true => Incoming::http3(self.inbound.clone(), &parts.headers, &interim),
            false => Incoming::Empty,
        };
        let client = self.connection.client.clone();
        request::open(client, self.activity.clone(), interim, parts, body)
    }

    /// Waits for the body of a request, or for its end, which QUIC may bring after its head: a backend must not get a body
    /// because of that. Waits no longer than for a head. Returns false if the stream has ended before.
    async fn await_body(&self, request: &mut Arrived) -> bool {
        let client = &self.connection.client;
        let deadline = client.worker.clock.deadline();
        deadline.set(client.limits.header_timeout);
        let mut head = None;
        poll_fn(|cx| {
            if let Poll::Ready(Ok(has_ended)) = self.inbound.poll_body(cx) {
                *request.body_mut() = !has_ended;
                return Poll::Ready(true);
            }
            if let HeadMemory::Counted(bytes) = self.head {
                head.get_or_insert_with(|| Waiting::new(&self.connection.bodies, bytes, cx));
            }
            if self.poll_ended(cx, head.as_ref()).is_ready() {
                return Poll::Ready(false);
            }
            ready!(deadline.poll_due(cx));
            self.inbound.count_unread();
            Poll::Ready(true)
        })
        .await
    }

    /// Waits for the response. `None` if the stream has ended before.
    async fn handle(&self, admitted: Admitted) -> Option<Response<ResponseBody>> {
        let mut handling = pin!(admitted.serve());
        let mut head = None;
        poll_fn(|cx| match handling.as_mut().poll(cx) {
            // What the backend has made of a malformed request must not look like a response to it.
            Poll::Ready(_) if self.poll_failure(cx).is_ready() => Poll::Ready(None),
            Poll::Ready(response) => Poll::Ready(Some(response)),
            Poll::Pending => {
                if let HeadMemory::Counted(bytes) = self.head {
                    head.get_or_insert_with(|| Waiting::new(&self.connection.bodies, bytes, cx));
                }
                self.poll_ended(cx, head.as_ref()).map(|()| None)
            }
        })
        .await
    }

    /// Becomes ready when the stream has ended before its response begins, or has to: `waiting` counts what it keeps.
    fn poll_ended(&self, cx: &mut Context<'_>, waiting: Option<&Waiting>) -> Poll<()> {
        if waiting.is_some_and(Waiting::has_failed) {
            self.reset(Code::ExcessiveLoad);
            return Poll::Ready(());
        }
        if self.poll_failure(cx).is_ready() {
            return Poll::Ready(());
        }
        self.inbound.poll_early(cx);
        let is_lost = matches!(self.outbound.poll_flush(cx), Poll::Ready(Err(Lost)));
        if is_lost || self.outbound.poll_end(cx).is_ready() {
            self.on_lost();
            return Poll::Ready(());
        }
        self.poll_due(cx)
            .map(|_| self.reset(Code::RequestCancelled))
    }

    /// Ends the stream if its request has failed, or if what waits of its response holds too much memory. A malformed request
    /// counts as cancelled, since the backend may have got most of it.
    fn poll_failure(&self, cx: &Context<'_>) -> Poll<()> {
        if self.outbound.has_failed() {
            self.reset(Code::ExcessiveLoad);
            return Poll::Ready(());
        }
        self.inbound.poll_failure(cx).map(|failure| {
            self.outbound.reset(code_of(failure));
            match failure {
                Failure::Reset => self.on_lost(),
                Failure::Malformed(_) | Failure::TooLarge => self.connection.count_cancelled(),
                Failure::TooSlow => {}
            }
        })
    }

    /// Becomes ready when a timeout has passed.
    fn poll_due(&self, cx: &mut Context<'_>) -> Poll<Phase> {
        self.activity.poll_due(cx).map(|phase| {
            self.connection.client.timed_out(phase);
            phase
        })
    }

    fn reset(&self, code: Code) {
        self.outbound.reset(code);
        self.inbound.stop(code);
    }

    /// Records that the client has ended the stream, or that its connection has ended.
    fn on_lost(&self) {
        self.connection.count_cancelled();
        let ended_by = self.connection.activity.ended_by();
        self.activity.on_connection_end(ended_by);
        self.inbound.stop(Code::RequestCancelled);
    }

    /// Sends the head of a tunnel and relays until the tunnel ends.
    async fn relay(&self, response: Response<ResponseBody>, tunnel: Tunnel) {
        let (mut head, _) = response.into_parts();
        let client = &self.connection.client;
        stream_response::complete_headers(client, &mut head.headers);
        self.outbound.push_head(head.status, &head.headers);
        let reader = StreamReader::new(self.inbound.clone());
        let writer = TunnelWriter::new(self.outbound.clone());
        let (idle, clock) = (tunnel.idle_timeout(), &client.worker.clock);
        let mut relayed = pin!(upgrade::relay_stream(tunnel, reader, writer, clock, idle));
        // While the backend takes nothing, the relay does not read, and so does not learn that what waits has to go.
        let end = poll_fn(|cx| match self.poll_failure(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => relayed.as_mut().poll(cx).map(Some),
        })
        .await;
        match end {
            Some(RelayEnd::ClientClosed | RelayEnd::BackendClosed) => self.finish().await,
            Some(RelayEnd::ClientFailed) => {
                self.outbound.reset(Code::RequestCancelled);
                self.on_lost();
            }
            // RFC 9220, 3.
            Some(RelayEnd::BackendFailed | RelayEnd::Stopped(_)) => {
                self.reset(Code::RequestCancelled);
            }
            None => {}
        }
    }

    /// Sends a response.
    async fn respond(&self, response: Response<ResponseBody>, is_head: bool) {
        let (mut head, mut body) = response.into_parts();
        let client = &self.connection.client;
        let has_content = stream_response::begin(client, &mut head, &mut body, is_head);
        self.outbound.push_head(head.status, &head.headers);
        drop(head);
        let mut sending = BodySender::new(has_content);
        let mut body = pin!(body);
        // Sends before it checks the timeout, so that a response that ends at its deadline is complete.
        let sent = poll_fn(|cx| match sending.poll(cx, body.as_mut(), self) {
            Poll::Ready(outcome) => Poll::Ready(outcome),
            Poll::Pending if self.poll_failure(cx).is_ready() => Poll::Ready(Sent::Aborted),
            Poll::Pending => match ready!(self.poll_due(cx)) {
                Phase::Exchange if self.is_grpc && sending.exceed_deadline(self) => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                _ => {
                    self.reset(Code::RequestCancelled);
                    Poll::Ready(Sent::Aborted)
                }
            },
        })
        .await;
        if sent == Sent::Complete {
            self.finish().await;
        }
    }

    /// Ends the stream, and waits until the client has got all of it.
    async fn finish(&self) {
        self.outbound.finish();
        // What is complete has no deadline but that for the client to read it.
        self.activity.await_backend();
        self.activity.on_response();
        let mut sent = self.connection.sent();
        poll_fn(|cx| match self.outbound.poll_end(cx) {
            Poll::Ready(end) => {
                if end == Err(Lost) {
                    self.on_lost();
                }
                Poll::Ready(())
            }
            Poll::Pending => {
                ready!(self.activity.poll_due(cx));
                let now = self.connection.sent();
                if now == std::mem::replace(&mut sent, now) {
                    self.connection.client.timed_out(Phase::Write);
                    self.reset(Code::RequestCancelled);
                    return Poll::Ready(());
                }
                // The client reads slowly.
                self.activity.extend();
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        })
        .await;
    }
}

/// How the sending of a response has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// QUIC has taken all of it.
    Complete,
    /// The stream was reset.
    Aborted,
}

/// A response being sent.
struct BodySender {
    /// Content of the present frame that QUIC has not taken.
    data: Bytes,
    /// Whether nothing follows.
    is_last: bool,
    /// Counts what is allocated for a client that takes nothing.
    unsent: Option<Waiting>,
}

impl BodySender {
    fn new(has_content: bool) -> Self {
        Self {
            data: Bytes::new(),
            is_last: !has_content,
            unsent: None,
        }
    }

    /// Ends a gRPC response whose deadline has passed, unless a frame is not complete. Drops the rest of the body.
    fn exceed_deadline(&mut self, stream: &Stream) -> bool {
        let can_end = self.data.is_empty() && !self.is_last;
        if can_end {
            stream.activity.await_backend();
            let trailers = stream_response::deadline_trailers();
            stream.outbound.push_trailers(&trailers);
            self.is_last = true;
        }
        can_end
    }

    /// Sends until the response has ended.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut body: Pin<&mut ResponseBody>,
        stream: &Stream,
    ) -> Poll<Sent> {
        match self.poll_body(cx, body.as_mut(), stream) {
            Poll::Ready(Ok(())) => Poll::Ready(Sent::Complete),
            Poll::Ready(Err(Ended::Lost)) => {
                stream.on_lost();
                Poll::Ready(Sent::Aborted)
            }
            Poll::Ready(Err(Ended::Failed)) => {
                stream.reset(Code::InternalError);
                Poll::Ready(Sent::Aborted)
            }
            // Only a stream that waits has to learn of it here.
            Poll::Pending if stream.outbound.poll_end(cx).is_ready() => {
                stream.on_lost();
                Poll::Ready(Sent::Aborted)
            }
            Poll::Pending if self.unsent.as_ref().is_some_and(Waiting::has_failed) => {
                body.give_up();
                stream.reset(Code::ExcessiveLoad);
                Poll::Ready(Sent::Aborted)
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        mut body: Pin<&mut ResponseBody>,
        stream: &Stream,
    ) -> Poll<Result<(), Ended>> {
        loop {
            let Poll::Ready(sent) = self.poll_sent(cx, stream) else {
                if stream.connection.grow_send_window() {
                    continue;
                }
                body.send_rest(cx);
                let unsent = (&mut self.unsent, &mut self.data);
                count_unsent(unsent, body, &stream.connection.bodies, cx);
                return Poll::Pending;
            };
            sent?;
            self.unsent = None;
            if self.is_last {
                return Poll::Ready(Ok(()));
            }
            match ready!(body.as_mut().poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        self.is_last = body.is_end_stream();
                        self.begin_frame(data, stream);
                    }
                    Err(frame) => {
                        if let Ok(trailers) = frame.into_trailers() {
                            stream.outbound.push_trailers(&trailers);
                            self.is_last = true;
                        }
                    }
                },
                Some(Err(_)) => return Poll::Ready(Err(Ended::Failed)),
                None => self.is_last = true,
            }
        }
    }

    fn begin_frame(&mut self, data: Bytes, stream: &Stream) {
        if !data.is_empty() {
            stream.outbound.push_content_header(data.len());
            self.data = data;
        }
    }

    /// Sends what is to be sent so far.
    fn poll_sent(&mut self, cx: &mut Context<'_>, stream: &Stream) -> Poll<Result<(), Ended>> {
        while !self.data.is_empty() {
            let sent = ready!(stream.outbound.poll_content(cx, &mut self.data));
            sent.map_err(|Lost| Ended::Lost)?;
            stream.activity.restart();
        }
        let flushed = stream.outbound.poll_flush(cx);
        flushed.map_err(|Lost| Ended::Lost)
    }
}

/// Why a response is not complete.
enum Ended {
    /// The client has stopped the stream, or its connection has ended.
    Lost,
    /// The backend has failed.
    Failed,
}
