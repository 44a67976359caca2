//! What a client sends on one stream of HTTP/3, and the body of its request. What nobody reads counts as memory of the worker
//! and of the client, like bodies of HTTP/2.

use std::cell::{Cell, RefCell};
use std::mem;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body::{Frame, SizeHint};
use quinn::{Connection, RecvStream};
use thiserror::Error;

use crate::http2::{Bodies, Waiting};
use crate::http3::{self, Code, ContentLength, RequestFrame, RequestReader};
use crate::proxy::response::interim::Interim;
use crate::proxy::response::outbound::wire_code;
use crate::upstream::BoxError;

/// Why nothing more can be read.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The client has reset the stream, or the connection has ended.
    #[error("the client has reset the stream")]
    Reset,
    /// What the client has sent ends the stream with this code.
    #[error("the request is malformed")]
    Malformed(Code),
    /// Fields exceed the limits.
    #[error("fields of the request are too large")]
    TooLarge,
    /// The worker holds too much.
    #[error("it was read too slowly while too much memory was in use")]
    TooSlow,
}

/// A part of a request after its head.
pub(crate) enum Part {
    /// Content, never empty.
    Content(Bytes),
    /// Trailers. Nothing follows.
    Trailers(HeaderMap),
}

/// The connection of a stream as its readers need it.
#[derive(Clone)]
pub(crate) struct InboundLimits {
    /// Limits of fields.
    pub(crate) fields: http3::Limits,
    /// Bytes of a stream that QUIC may hold unread.
    pub(crate) window: usize,
    /// Counts what the connection holds.
    pub(crate) bodies: Rc<Bodies>,
}

/// The receiving half of a stream, which the task of the stream and the reader of a body share.
pub(crate) struct Inbound {
    connection: Connection,
    limits: InboundLimits,
    state: RefCell<State>,
    failure: Cell<Option<Failure>>,
    /// Counts what may be unread, unless a reader waits for more.
    unread: RefCell<Option<Waiting>>,
    /// The task of the stream.
    task: RefCell<Option<Waker>>,
}

struct State {
    stream: RecvStream,
    reader: RequestReader,
    /// Received bytes that `reader` has not taken.
    input: Bytes,
    /// What was read before someone has asked for it.
    next: Option<RequestFrame>,
    /// `None` before the head of the request, and of a tunnel.
    content: Option<ContentLength>,
}

impl Inbound {
    /// Reads a stream.
    pub(crate) fn new(connection: Connection, stream: RecvStream, limits: InboundLimits) -> Self {
        Self {
            connection,
            state: RefCell::new(State {
                stream,
                reader: RequestReader::new(limits.fields.bytes),
                input: Bytes::new(),
                next: None,
                content: None,
            }),
            limits,
            failure: Cell::new(None),
            unread: RefCell::default(),
            task: RefCell::default(),
        }
    }

    /// Reads the head of the request.
    pub(crate) fn poll_head(&self, cx: &mut Context<'_>) -> Poll<Result<Request<()>, Failure>> {
        let frame = ready!(self.poll_frame(cx))?;
        let Some(RequestFrame::Head(section)) = frame else {
            // Others come before the head only as errors.
            return Poll::Ready(Err(self.fail(Failure::Malformed(Code::RequestIncomplete))));
        };
        let head = http3::request(&section, self.limits.fields).and_then(|request| {
            let content = ContentLength::of(request.headers())?;
            self.state.borrow_mut().content = Some(content);
            Ok(request)
        });
        Poll::Ready(head.map_err(|error| self.on_error(error)))
    }

    /// Permits nothing but content, after the head of a CONNECT.
    pub(crate) fn become_tunnel(&self) {
        let mut state = self.state.borrow_mut();
        state.reader.become_tunnel();
        state.content = None;
    }

    /// Reports whether the request has ended with what has arrived. Otherwise, counts what may arrive before its body is read.
    /// To be called by the task of the stream.
    pub(crate) fn has_ended(&self, cx: &mut Context<'_>) -> Result<bool, Failure> {
        self.set_task(cx);
        if let Poll::Ready(has_ended) = self.poll_body(cx) {
            return has_ended;
        }
        self.count_unread();
        Ok(false)
    }

    /// Waits for the body of the request, or for the end of the request, and reports whether it has ended. Frames of unknown
    /// types may follow a request without a body.
    pub(crate) fn poll_body(&self, cx: &mut Context<'_>) -> Poll<Result<bool, Failure>> {
        let Poll::Ready(frame) = self.poll_frame(cx) else {
            // Nothing is unread while someone waits for it.
            drop(self.unread.take());
            return Poll::Pending;
        };
        let Some(frame) = frame? else {
            return Poll::Ready(self.finish().map(|()| true));
        };
        self.state.borrow_mut().next = Some(frame);
        self.count_unread();
        Poll::Ready(Ok(false))
    }

    /// Counts what arrives of a tunnel before it is open. Wakes the task of the stream, which calls it, when something does.
    pub(crate) fn poll_early(&self, cx: &mut Context<'_>) {
        let is_awaited = {
            let state = self.state.borrow();
            state.content.is_none() && state.next.is_none()
        };
        if is_awaited && let Poll::Ready(Ok(Some(frame))) = self.poll_frame(cx) {
            self.state.borrow_mut().next = Some(frame);
            self.count_unread();
        }
    }

    /// Returns the bytes of a field section that is not complete.
    pub(crate) fn held(&self) -> usize {
        self.state.borrow().reader.held()
    }

    /// Reads the next part of the body. `None` after all of them.
    pub(crate) fn poll_part(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Part>, Failure>> {
        let Poll::Ready(frame) = self.poll_frame(cx) else {
            // Nothing is unread while someone waits for it.
            drop(self.unread.take());
            return Poll::Pending;
        };
        let part = match frame? {
            None => self.finish().map(|()| None),
            Some(RequestFrame::Data(data)) => {
                self.count_unread();
                self.receive(data.len()).map(|()| Some(Part::Content(data)))
            }
            Some(RequestFrame::Head(section) | RequestFrame::Trailers(section)) => {
                // No other frame may follow (RFC 9114, 4.1), so that the request is complete at the end of the stream.
                let Poll::Ready(end) = self.poll_frame(cx) else {
                    drop(self.unread.take());
                    self.state.borrow_mut().next = Some(RequestFrame::Trailers(section));
                    return Poll::Pending;
                };
                end?;
                let trailers = self.finish().and_then(|()| {
                    let trailers = http3::trailers(&section, self.limits.fields);
                    trailers.map_err(|error| self.on_error(error))
                });
                trailers.map(|trailers| Some(Part::Trailers(trailers)))
            }
        };
        Poll::Ready(part)
    }

    /// Ready when reading has failed, so that the stream has to end. To be called by the task of the stream.
    pub(crate) fn poll_failure(&self, cx: &Context<'_>) -> Poll<Failure> {
        self.set_task(cx);
        if self
            .unread
            .borrow()
            .as_ref()
            .is_some_and(Waiting::has_failed)
        {
            self.fail(Failure::TooSlow);
        }
        match self.failure.get() {
            Some(failure) => Poll::Ready(failure),
            None => Poll::Pending,
        }
    }

    fn set_task(&self, cx: &Context<'_>) {
        let mut task = self.task.borrow_mut();
        let task = task.get_or_insert_with(|| cx.waker().clone());
        task.clone_from(cx.waker());
    }

    /// Asks the client to send no more.
    pub(crate) fn stop(&self, code: Code) {
        drop(self.unread.take());
        // Fails only if the stream has ended.
        let _ = self.state.borrow_mut().stream.stop(wire_code(code));
    }

    /// Reads the next frame, or a part of one. `None` at the end of the stream.
    fn poll_frame(&self, cx: &mut Context<'_>) -> Poll<Result<Option<RequestFrame>, Failure>> {
        if let Some(failure) = self.failure.get() {
            return Poll::Ready(Err(failure));
        }
        let next = self.state.borrow_mut().next.take();
        if next.is_some() {
            return Poll::Ready(Ok(next));
        }
        loop {
            let read = {
                let State { reader, input, .. } = &mut *self.state.borrow_mut();
                reader.read(input)
            };
            match read {
                Ok(Some(frame)) => return Poll::Ready(Ok(Some(frame))),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Err(self.on_error(error))),
            }
            if !ready!(self.poll_input(cx))? {
                let end = self.state.borrow().reader.finish();
                return Poll::Ready(end.map(|()| None).map_err(|error| self.on_error(error)));
            }
        }
    }

    /// Waits for bytes. False at the end of the stream.
    fn poll_input(&self, cx: &mut Context<'_>) -> Poll<Result<bool, Failure>> {
        let state = &mut *self.state.borrow_mut();
        let chunk = pin!(state.stream.read_chunk(usize::MAX, true))
            .as_mut()
            .poll(cx);
        Poll::Ready(match ready!(chunk) {
            Ok(Some(chunk)) => {
                state.input = chunk.bytes;
                Ok(true)
            }
            Ok(None) => Ok(false),
            // Of the client, or with the connection: streams are read in order, and have no early data.
            Err(_) => Err(self.note(Failure::Reset)),
        })
    }

    /// Counts content that was received.
    fn receive(&self, length: usize) -> Result<(), Failure> {
        let received = match &mut self.state.borrow_mut().content {
            Some(content) => content.receive(length),
            None => Ok(()),
        };
        received.map_err(|error| self.on_error(error))
    }

    /// Checks that the content may end.
    fn finish(&self) -> Result<(), Failure> {
        let finished = match &self.state.borrow().content {
            Some(content) => content.finish(),
            None => Ok(()),
        };
        finished.map_err(|error| self.on_error(error))
    }

    /// Counts what may arrive before the reader comes back.
    pub(crate) fn count_unread(&self) {
        if self.unread.borrow().is_some() {
            return;
        }
        let task = self.task.borrow();
        let Some(task) = &*task else { return };
        let InboundLimits { window, bodies, .. } = &self.limits;
        let left = self
            .state
            .borrow()
            .content
            .as_ref()
            .and_then(|it| it.left());
        let left = left.map_or(*window, |left| usize::try_from(left).unwrap_or(usize::MAX));
        let waiting = Waiting::new(bodies, left.min(*window), &Context::from_waker(task));
        self.unread.replace(Some(waiting));
    }

    fn on_error(&self, error: http3::Error) -> Failure {
        match error {
            http3::Error::Connection(code, description) => {
                self.connection
                    .close(wire_code(code), description.as_bytes());
                self.note(Failure::Reset)
            }
            http3::Error::Stream(code, _) => self.fail(Failure::Malformed(code)),
            http3::Error::TooLarge => self.fail(Failure::TooLarge),
        }
    }

    /// Stops the stream for a failure.
    fn fail(&self, failure: Failure) -> Failure {
        self.stop(match failure {
            Failure::Malformed(code) => code,
            // The response tells it.
            Failure::TooLarge => Code::NoError,
            Failure::TooSlow => Code::ExcessiveLoad,
            Failure::Reset => Code::RequestCancelled,
        });
        self.note(failure)
    }

    /// Records a failure, of which the task of the stream learns.
    fn note(&self, failure: Failure) -> Failure {
        let failure = self.failure.get().unwrap_or(failure);
        self.failure.set(Some(failure));
        if let Some(task) = &*self.task.borrow() {
            task.wake_by_ref();
        }
        failure
    }
}

/// The body of a request.
pub(crate) struct Http3Body {
    inbound: Rc<Inbound>,
    /// Remaining bytes according to its `Content-Length`.
    remaining: Option<u64>,
    has_ended: bool,
    /// Sends a `100 (Continue)` when the body is first polled.
    continue_sender: Interim,
}

impl Http3Body {
    /// Reads the body of a stream whose head was read.
    pub(super) fn new(
        inbound: Rc<Inbound>,
        remaining: Option<u64>,
        continue_sender: Interim,
    ) -> Self {
        Self {
            inbound,
            remaining,
            has_ended: false,
            continue_sender,
        }
    }

    /// Returns the next frame.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        mem::replace(&mut self.continue_sender, Interim::None).send_continue();
        if self.has_ended {
            return Poll::Ready(None);
        }
        Poll::Ready(match ready!(self.inbound.poll_part(cx)) {
            Ok(Some(Part::Content(data))) => {
                if let Some(remaining) = &mut self.remaining {
                    *remaining = remaining.saturating_sub(data.len() as u64);
                }
                Some(Ok(Frame::data(data)))
            }
            Ok(Some(Part::Trailers(trailers))) => {
                self.has_ended = true;
                Some(Ok(Frame::trailers(trailers)))
            }
            Ok(None) => {
                self.has_ended = true;
                None
            }
            Err(failure) => {
                self.has_ended = true;
                Some(Err(failure.into()))
            }
        })
    }

    /// Reports whether the whole body was read.
    pub(super) fn is_end_stream(&self) -> bool {
        self.has_ended
    }

    /// Returns what is known about the number of bytes.
    pub(super) fn size_hint(&self) -> SizeHint {
        let remaining = self.remaining;
        remaining.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
