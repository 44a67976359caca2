//! Sends the body of a response on an HTTP/2 stream, within the client's flow-control window.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, SendStream};
use http::HeaderMap;
use http_body::Body;

use super::stream_response;
use crate::byte_chain::leave_read_buffer;
use crate::header_memory;
use crate::http2::{self, Bodies, SendQueue, USUAL_TRAILERS, Waiting};
use crate::proxy::activity::Activity;
use crate::proxy::body::response_body::ResponseBody;

/// Size up to which the last part of a body goes to h2 before the client's window allows it. With h2's limit of streams, it
/// bounds what a connection holds for a client that grants no window.
const SMALL_END: usize = 1024;

/// Why a body was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsent {
    /// The stream was reset, or its connection has ended.
    Lost,
    /// The client reads too slowly while memory is scarce: the stream has to be reset.
    TooSlow,
}

impl From<h2::Error> for Unsent {
    fn from(_: h2::Error) -> Self {
        Self::Lost
    }
}

/// Counts what stays allocated of a body, and of the data that was taken from it, while the client takes nothing.
pub(super) fn count_unsent(
    (unsent, data): (&mut Option<Waiting>, &mut Bytes),
    mut body: Pin<&mut ResponseBody>,
    bodies: &Rc<Bodies>,
    cx: &Context<'_>,
) {
    if unsent.is_none() {
        let bytes = leave_read_buffer(data) + body.compact();
        *unsent = (bytes > 0).then(|| Waiting::new(bodies, bytes, cx));
    }
}

/// A response body being sent.
pub(super) struct BodySender {
    sender: SendStream<Bytes>,
    /// Data waiting for flow-control capacity.
    data: Bytes,
    /// Whether it is the last data.
    is_last: bool,
    /// Trailers that are to be sent.
    trailers: Option<Box<HeaderMap>>,
    /// Counts what is allocated for a client that takes nothing.
    unsent: Option<Waiting>,
}

impl BodySender {
    pub(super) fn new(sender: SendStream<Bytes>) -> Self {
        Self {
            sender,
            data: Bytes::new(),
            is_last: false,
            trailers: None,
            unsent: None,
        }
    }

    /// Ends a gRPC response whose deadline has passed. Drops the rest of the body.
    pub(super) fn exceed_deadline(&mut self) {
        // Fails only if the stream has ended.
        let _ = self
            .sender
            .send_trailers(stream_response::deadline_trailers());
    }

    /// Sends until the body has ended. What waits counts for the connection, whose `bodies` these are.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut body: Pin<&mut ResponseBody>,
        bodies: &Rc<Bodies>,
        activity: &Activity,
    ) -> Poll<Result<(), Unsent>> {
        match self.poll_body(cx, body.as_mut(), bodies, activity) {
            // Sending fails after a reset. Only a stream that waits has to learn of it.
            Poll::Pending if self.sender.poll_reset(cx).is_ready() => {
                Poll::Ready(Err(Unsent::Lost))
            }
            Poll::Pending if self.unsent.as_ref().is_some_and(Waiting::has_failed) => {
                body.give_up();
                Poll::Ready(Err(Unsent::TooSlow))
            }
            outcome => outcome,
        }
    }

    /// Passes h2 no more data than the client's window allows, so that a blocked write is visible here and not hidden in
    /// h2's buffer. Only a [`SMALL_END`] may wait there.
    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        mut body: Pin<&mut ResponseBody>,
        bodies: &Rc<Bodies>,
        activity: &Activity,
    ) -> Poll<Result<(), Unsent>> {
        let queue = bodies.send_queue();
        loop {
            while !self.data.is_empty() {
                let Poll::Ready(sent) = self.poll_send(cx, queue) else {
                    body.send_rest(cx);
                    count_unsent((&mut self.unsent, &mut self.data), body, bodies, cx);
                    return Poll::Pending;
                };
                sent?;
                activity.restart();
            }
            if self.is_last {
                return Poll::Ready(Ok(()));
            }
            if self.trailers.is_some() {
                return self.poll_trailers(cx, bodies);
            }
            let Poll::Ready(room) = self.poll_room(cx, queue) else {
                body.send_rest(cx);
                count_unsent((&mut self.unsent, &mut self.data), body, bodies, cx);
                return Poll::Pending;
            };
            room?;
            self.unsent = None;
            match ready!(body.as_mut().poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.accept(data, body.is_end_stream(), queue)?,
                    Err(frame) => {
                        let trailers = frame.into_trailers();
                        self.trailers = trailers.ok().map(Box::new);
                    }
                },
                Some(Err(_)) => {
                    self.sender.send_reset(Reason::INTERNAL_ERROR);
                    return Poll::Ready(Ok(()));
                }
                None => self.accept(Bytes::new(), true, queue)?,
            }
        }
    }

    fn accept(&mut self, data: Bytes, is_last: bool, queue: &SendQueue) -> Result<(), Unsent> {
        self.is_last = is_last;
        if is_last && data.len() <= SMALL_END {
            self.sender.send_data(queue.count(data), true)?;
        } else {
            self.data = data;
        }
        Ok(())
    }

    /// Sends the trailers. h2 keeps them while a client has taken back the window of data before them: long ones wait here
    /// for window, where they count.
    fn poll_trailers(
        &mut self,
        cx: &mut Context<'_>,
        bodies: &Rc<Bodies>,
    ) -> Poll<Result<(), Unsent>> {
        let size = self.trailers.as_deref().map_or(0, header_memory::size);
        if size > USUAL_TRAILERS && self.poll_capacity(cx, 1).is_pending() {
            if let Some(trailers) = self.trailers.as_deref_mut()
                && self.unsent.is_none()
            {
                header_memory::detach(trailers);
                self.unsent = Some(Waiting::new(bodies, size, cx));
            }
            return Poll::Pending;
        }
        if let Some(mut trailers) = self.trailers.take() {
            bodies.send_queue().count_headers(&mut trailers);
            self.sender.send_trailers(*trailers)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Becomes ready when the next part of the body should be read.
    fn poll_room(&mut self, cx: &mut Context<'_>, queue: &SendQueue) -> Poll<Result<(), Unsent>> {
        ready!(queue.poll_room(cx));
        match http2::is_memory_scarce() {
            true => self.poll_capacity(cx, 1),
            false => Poll::Ready(Ok(())),
        }
    }

    fn poll_capacity(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<Result<(), Unsent>> {
        while self.sender.capacity() == 0 {
            self.sender.reserve_capacity(wanted);
            match ready!(self.sender.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Poll::Ready(Err(Unsent::Lost)),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, queue: &SendQueue) -> Poll<Result<(), Unsent>> {
        // Windows that are granted to many streams at once must not fill the queue at once.
        ready!(queue.poll_room(cx));
        ready!(self.poll_capacity(cx, self.data.len()))?;
        let count = self.sender.capacity().min(self.data.len());
        let part = queue.count(self.data.split_to(count));
        let is_last = self.is_last && self.data.is_empty();
        Poll::Ready(self.sender.send_data(part, is_last).map_err(Unsent::from))
    }
}
