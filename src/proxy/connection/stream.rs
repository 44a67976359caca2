//! One HTTP/2 stream: serves its request, sends the response within the client's flow-control
//! window, and handles resets and timeouts.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Method, Request, Response};

use super::body_sender::{BodySender, Unsent};
use super::http2_shared::Shared;
use super::relay::RelayEnd;
use super::request_heads::HeadMemory;
use super::{stream_response, upgrade};
use crate::header_memory;
use crate::http2::{self, StreamReader, StreamWriter, Waiting};
use crate::ir::grpc::is_grpc;
use crate::proxy::activity::{Activity, Phase};
use crate::proxy::body::incoming::Incoming;
use crate::proxy::body::response_body::ResponseBody;
use crate::proxy::body::tunnel::Tunnel;
use crate::proxy::request::request::Admitted;
use crate::proxy::request::{request, websocket};
use crate::proxy::response::interim::{HeadSender, Interim};

/// A stream whose request has arrived. Counts as a request of its connection until dropped.
pub(in crate::proxy) struct Stream {
    id: u32,
    connection: Rc<Shared>,
    activity: Rc<Activity>,
    respond: Rc<RefCell<HeadSender>>,
    /// The bytes that the client of an extended CONNECT sends.
    tunneled: Option<http2::Body>,
    is_grpc: bool,
    head: HeadMemory,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.heads.release(&self.head);
        self.connection.activity.on_request_end();
    }
}

/// Serves a stream until it ends.
pub(in crate::proxy) async fn serve(mut stream: Stream, request: Admitted, is_head: bool) {
    let handled = {
        let mut handling = pin!(request.serve());
        let mut head = None;
        poll_fn(|cx| {
            if stream.reset_malformed() {
                return Poll::Ready(None);
            }
            match handling.as_mut().poll(cx) {
                Poll::Ready(response) => Poll::Ready(Some(response)),
                Poll::Pending => {
                    if let HeadMemory::Counted(bytes) = stream.head {
                        let count = || Waiting::new(&stream.connection.bodies, bytes, cx);
                        head.get_or_insert_with(count);
                    }
                    stream.poll_end(cx, head.as_ref()).map(|()| None)
                }
            }
        })
        .await
    };
    let Some(mut response) = handled else {
        return;
    };
    if !stream.connection.bodies.send_queue().has_room() {
        let Some(later) = Box::pin(stream.wait_for_room(response)).await else {
            return;
        };
        response = later;
    }
    if let Some(tunnel) = response.body_mut().take_tunnel() {
        return Box::pin(stream.relay(response, *tunnel)).await;
    }
    // Unread bytes of an extended CONNECT must not keep the stream open.
    stream.tunneled = None;
    let (sender, body) = match stream.send_head(response, is_head) {
        Ok(Some(streaming)) => streaming,
        Ok(None) => return,
        Err(_) => return stream.on_lost(),
    };
    let mut body = pin!(body);
    let mut sending = BodySender::new(sender);
    let (bodies, activity) = (&stream.connection.bodies, &*stream.activity);
    poll_fn(
        // Sends before it checks the timeout, so that a response that ends at its deadline is
        // complete.
        |cx| match sending.poll(cx, body.as_mut(), bodies, activity) {
            _ if stream.reset_malformed() => Poll::Ready(()),
            Poll::Ready(outcome) => {
                match outcome {
                    Ok(()) => {}
                    Err(Unsent::Lost) => stream.on_lost(),
                    Err(Unsent::TooSlow) => stream.reset(),
                }
                Poll::Ready(())
            }
            Poll::Pending => stream.poll_due(cx).map(|phase| match phase {
                Phase::Exchange if stream.is_grpc => sending.exceed_deadline(),
                _ => stream.reset(),
            }),
        },
    )
    .await;
}

impl Stream {
    pub(in crate::proxy) fn new(
        connection: Rc<Shared>,
        request: &mut Request<RecvStream>,
        respond: SendResponse<Bytes>,
    ) -> Self {
        connection.activity.on_request();
        let received = connection.bodies.take_received();
        let head = connection.heads.take(request, received);
        let client = &connection.client;
        let is_grpc = *request.method() == Method::POST && is_grpc(request.headers());
        let has_body = !request.body().is_end_stream();
        let pace = stream_response::pace(request.headers(), is_grpc, has_body);
        let activity = Activity::stream(&client.worker.clock, &client.limits, pace);
        Self {
            id: respond.stream_id().as_u32(),
            connection,
            activity,
            respond: Rc::new(RefCell::new(HeadSender::new(respond))),
            tunneled: None,
            is_grpc,
            head,
        }
    }

    /// Opens the request before the task is spawned, since its head is expensive to move.
    pub(in crate::proxy) fn open(&mut self, request: Request<RecvStream>) -> Admitted {
        let interim = Interim::Http2(self.respond.clone(), self.connection.bodies.clone());
        let (parts, body) = request.into_parts();
        let bodies = &self.connection.bodies;
        let body = if websocket::is_extended_connect(&parts) {
            self.tunneled = Some(bodies.read(body));
            Incoming::Empty
        } else if body.is_end_stream() {
            Incoming::Empty
        } else {
            Incoming::http2(bodies.read(body), &parts.headers, &interim)
        };
        let client = self.connection.client.clone();
        request::open(client, self.activity.clone(), interim, parts, body)
    }

    /// Waits until h2 may get the head of the response, which counts meanwhile. `None` if the stream has ended before.
    async fn wait_for_room(
        &self,
        mut response: Response<ResponseBody>,
    ) -> Option<Response<ResponseBody>> {
        let bodies = &self.connection.bodies;
        self.activity.on_response();
        header_memory::detach(response.headers_mut());
        let head = header_memory::allocated(response.headers());
        let body = response.body_mut().compact();
        let mut unsent = None;
        let has_room = poll_fn(|cx| {
            if bodies.send_queue().poll_room(cx).is_ready() {
                return Poll::Ready(true);
            }
            if self.reset_malformed() {
                return Poll::Ready(false);
            }
            let count = || Waiting::for_response(bodies, (head, body), cx);
            let unsent = unsent.get_or_insert_with(count);
            self.poll_end(cx, Some(&*unsent)).map(|()| false)
        })
        .await;
        if !has_room && unsent.as_ref().is_some_and(Waiting::has_failed) {
            response.body_mut().give_up();
        }
        has_room.then_some(response)
    }

    /// Becomes ready when the stream has ended before its response begins, or has to: `waiting` counts what it keeps.
    fn poll_end(&self, cx: &mut Context<'_>, waiting: Option<&Waiting>) -> Poll<()> {
        if waiting.is_some_and(Waiting::has_failed) {
            self.reset();
            return Poll::Ready(());
        }
        if self.respond.borrow_mut().poll_reset(cx).is_ready() {
            self.on_lost();
            return Poll::Ready(());
        }
        self.poll_timeout(cx)
    }

    /// Sends the head of a tunnel and relays until the tunnel ends.
    async fn relay(&mut self, response: Response<ResponseBody>, tunnel: Tunnel) {
        let Some(input) = self.tunneled.take() else {
            return self.reset();
        };
        let (mut head, _) = response.into_parts();
        let client = self.connection.client.clone();
        stream_response::complete_headers(&client, &mut head.headers);
        self.count_headers(&mut head.headers);
        let head = Response::from_parts(head, ());
        let Ok(sender) = self.respond.borrow_mut().send_response(head, false) else {
            return self.on_lost();
        };
        let _open = self.connection.open_tunnel();
        let mut writer = StreamWriter::new(sender, self.connection.bodies.clone());
        let reader = StreamReader::new(input);
        let (idle, clock) = (tunnel.idle_timeout(), &client.worker.clock);
        let relayed = upgrade::relay_stream(tunnel, reader, &mut writer, clock, idle);
        match relayed.await {
            RelayEnd::ClientClosed | RelayEnd::BackendClosed => {}
            RelayEnd::ClientFailed => self.on_lost(),
            RelayEnd::BackendFailed | RelayEnd::Stopped(_) => writer.reset(),
        }
    }

    fn poll_timeout(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_due(cx).map(|_| self.reset())
    }

    /// Becomes ready when a timeout has passed.
    fn poll_due(&self, cx: &mut Context<'_>) -> Poll<Phase> {
        let mut due = self.activity.poll_due(cx);
        // Then the stream waits for its connection, whose write timeout ends both.
        if due == Poll::Ready(Phase::Write) && self.connection.activity.was_write_blocked() {
            self.activity.extend();
            due = self.activity.poll_due(cx);
        }
        due.map(|phase| {
            self.connection.client.timed_out(phase);
            phase
        })
    }

    /// Resets the stream if the trailers of its request are malformed (RFC 9113, 8.1.1). Counts it
    /// as cancelled, since the backend may have got most of it. Returns whether it was reset.
    fn reset_malformed(&self) -> bool {
        let connection = &self.connection;
        let is_malformed = connection.bodies.are_trailers_malformed(self.id);
        if is_malformed {
            self.respond.borrow_mut().send_reset(Reason::PROTOCOL_ERROR);
            let clock = &connection.client.worker.clock;
            connection.cancelled.count(clock);
        }
        is_malformed
    }

    fn reset(&self) {
        // Another owner of the request body would keep the stream open.
        self.respond.borrow_mut().send_reset(Reason::CANCEL);
    }

    /// Records that the client has reset the stream, or that its connection has ended.
    fn on_lost(&self) {
        let connection = &self.connection;
        match connection.activity.ended_by() {
            None => connection.cancelled.count(&connection.client.worker.clock),
            ended_by => self.activity.on_connection_end(ended_by),
        }
    }

    fn count_headers(&self, headers: &mut HeaderMap) {
        self.connection.bodies.send_queue().count_headers(headers);
    }

    /// Sends a response head. Returns the sender of the body, if the response has one.
    fn send_head(
        &self,
        response: Response<ResponseBody>,
        is_head: bool,
    ) -> Result<Option<(SendStream<Bytes>, ResponseBody)>, h2::Error> {
        let (mut head, mut body) = response.into_parts();
        let client = &self.connection.client;
        let is_empty = !stream_response::begin(client, &mut head, &mut body, is_head);
        self.count_headers(&mut head.headers);
        let head = Response::from_parts(head, ());
        let sender = self.respond.borrow_mut().send_response(head, is_empty)?;
        Ok((!is_empty).then_some((sender, body)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::in_place::in_place;
    use super::*;

    #[test]
    fn stream_state_is_small() {
        let parts = size_of::<(Stream, Admitted)>();
        assert!(parts < 128, "{parts} bytes to begin with");
        let task = size_of_val(&in_place(std::future::pending::<()>));
        assert!(task < 512, "{task} bytes to spawn");
        let response = size_of::<Response<ResponseBody>>();
        assert!(response < 512, "{response} bytes of a response");
    }
}
