//! What the proxy sends on one stream of HTTP/3: frames, no faster than QUIC takes them. What QUIC does not take counts as memory
//! of the client. Must not know requests.

use std::cell::RefCell;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::slice;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use quinn::{SendStream, VarInt};

use crate::byte_chain::MIN_SLICE;
use crate::http2::{Bodies, Waiting};
use crate::http3::{self, Code};

/// Bytes that QUIC has not taken, above which no informational response is added.
const MAX_WAITING: usize = 64 * 1024;

/// Returns a code as QUIC takes it.
pub(crate) fn wire_code(code: Code) -> VarInt {
    // All of them are small.
    VarInt::from_u32(code.value() as u32)
}

/// The client has stopped the stream, or the connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost;

/// The sending half of a stream.
pub(crate) struct Outbound(RefCell<State>);

struct State {
    stream: SendStream,
    /// Whole frames, and headers of frames whose content follows, that QUIC has not taken.
    unsent: BytesMut,
    /// Counts these while QUIC does not take them, and how many it counts.
    waiting: Option<(Waiting, usize)>,
    bodies: Rc<Bodies>,
    /// Whether the head of the response was added.
    has_head: bool,
    end: End,
    /// The task of the stream.
    task: Option<Waker>,
}

enum End {
    /// Completes with whether the client has received everything.
    Awaited(Pin<Box<dyn Future<Output = bool>>>),
    Acknowledged,
    Lost,
}

impl Outbound {
    /// Sends on a stream of the connection that has these bodies.
    pub(crate) fn new(stream: SendStream, bodies: &Rc<Bodies>) -> Self {
        let stopped = stream.stopped();
        // Without a code of the client, it has acknowledged the end of the stream.
        let end = Box::pin(async move { matches!(stopped.await, Ok(None)) });
        Self(RefCell::new(State {
            stream,
            unsent: BytesMut::new(),
            waiting: None,
            bodies: bodies.clone(),
            has_head: false,
            end: End::Awaited(end),
            task: None,
        }))
    }

    /// Adds bytes of frames.
    pub(crate) fn push(&self, frames: &[u8]) {
        self.0.borrow_mut().unsent.extend_from_slice(frames);
    }

    /// Adds an informational response, unless the response has begun or much waits already. Clients wait for a 100.
    pub(crate) fn push_interim(&self, status: StatusCode, headers: &HeaderMap) {
        let state = &mut *self.0.borrow_mut();
        let has_room = state.unsent.len() < MAX_WAITING || status == StatusCode::CONTINUE;
        if state.has_head || !has_room {
            return;
        }
        let mut frame = Vec::new();
        http3::write_response(status, headers, &mut frame);
        state.unsent.extend_from_slice(&frame);
        let task = state.task.clone();
        let mut cx = Context::from_waker(task.as_ref().unwrap_or(Waker::noop()));
        // The task of the stream sends what is not taken now, and learns of errors.
        let _ = state.poll_flush(&mut cx);
    }

    /// Adds the head of the response.
    pub(crate) fn push_head(&self, status: StatusCode, headers: &HeaderMap) {
        let state = &mut *self.0.borrow_mut();
        state.has_head = true;
        let mut frame = Vec::new();
        http3::write_response(status, headers, &mut frame);
        state.unsent.extend_from_slice(&frame);
    }

    /// Adds the beginning of a frame with content of this length, which [`Self::poll_content`] sends.
    pub(crate) fn push_content_header(&self, length: usize) {
        let mut header = Vec::new();
        http3::write_data_header(length, &mut header);
        self.push(&header);
    }

    /// Adds trailers.
    pub(crate) fn push_trailers(&self, trailers: &HeaderMap) {
        let mut frame = Vec::new();
        http3::write_trailers(trailers, &mut frame);
        self.push(&frame);
    }

    /// Ready when QUIC has taken everything that was added. Wakes the same task from then on.
    pub(crate) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        let state = &mut *self.0.borrow_mut();
        let task = state.task.get_or_insert_with(|| cx.waker().clone());
        task.clone_from(cx.waker());
        state.poll_flush(cx)
    }

    /// Reports whether what waits holds too much memory, so that the stream has to end.
    pub(crate) fn has_failed(&self) -> bool {
        self.0.borrow().has_failed()
    }

    /// Sends at least one byte of content. QUIC keeps the memory of large parts until they are acknowledged, and copies of
    /// small ones.
    pub(crate) fn poll_content(
        &self,
        cx: &mut Context<'_>,
        content: &mut Bytes,
    ) -> Poll<Result<(), Lost>> {
        let state = &mut *self.0.borrow_mut();
        ready!(state.poll_flush(cx))?;
        if content.len() < MIN_SLICE {
            let written = ready!(Pin::new(&mut state.stream).poll_write(cx, content));
            content.advance(written.map_err(|_| Lost)?);
            return Poll::Ready(Ok(()));
        }
        let parts = slice::from_mut(content);
        let written = pin!(state.stream.write_chunks(parts)).as_mut().poll(cx);
        written.map(|written| written.map(|_| ()).map_err(|_| Lost))
    }

    /// Ends the stream after what was added. To be called once QUIC has taken that.
    pub(crate) fn finish(&self) {
        // Fails only if the stream has ended.
        let _ = self.0.borrow_mut().stream.finish();
    }

    /// Ready when the client has acknowledged all of a finished stream, or when the stream is lost.
    pub(crate) fn poll_end(&self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        let state = &mut *self.0.borrow_mut();
        if let End::Awaited(end) = &mut state.end {
            state.end = match ready!(end.as_mut().poll(cx)) {
                true => End::Acknowledged,
                false => End::Lost,
            };
        }
        Poll::Ready(match state.end {
            End::Acknowledged => Ok(()),
            End::Awaited(_) | End::Lost => Err(Lost),
        })
    }

    /// Ends the stream early.
    pub(crate) fn reset(&self, code: Code) {
        // Fails only if the stream has ended.
        let _ = self.0.borrow_mut().stream.reset(wire_code(code));
    }
}

impl State {
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        while !self.unsent.is_empty() {
            let polled = Pin::new(&mut self.stream).poll_write(cx, &self.unsent);
            let Poll::Ready(written) = polled else {
                self.count(cx);
                return Poll::Pending;
            };
            self.unsent.advance(written.map_err(|_| Lost)?);
        }
        self.waiting = None;
        Poll::Ready(Ok(()))
    }

    /// Counts what waits, unless as much counts already.
    fn count(&mut self, cx: &Context<'_>) {
        let bytes = self.unsent.capacity();
        let counted = self.waiting.as_ref().map_or(0, |(_, counted)| *counted);
        if counted < bytes && !self.has_failed() {
            self.waiting = None;
            self.waiting = Some((Waiting::new(&self.bodies, bytes, cx), bytes));
        }
    }

    fn has_failed(&self) -> bool {
        let waiting = self.waiting.as_ref();
        waiting.is_some_and(|(waiting, _)| waiting.has_failed())
    }
}
