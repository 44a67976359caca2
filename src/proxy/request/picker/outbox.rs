//! The messages for a picker on their way to it: the body of the request that carries them. Its owner adds messages and then
//! polls the call, so that nobody has to be woken.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};

use crate::upstream::{BoxError, Replay};

/// Bytes that may wait before the sender of a body has to wait.
const WINDOW: usize = 64 * 1024;
/// Maximum bytes that are kept until the picker responds, so that another connection may carry them.
const MAX_KEPT: usize = 64 * 1024;

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Bytes>,
    /// Bytes of these.
    bytes: usize,
    /// What was taken already, in order.
    kept: Vec<Bytes>,
    kept_bytes: usize,
    /// Whether something was taken that is not kept.
    is_incomplete: bool,
    /// Whether a connection carries the call.
    has_begun: bool,
    is_ended: bool,
}

/// Where messages for the picker are put.
#[derive(Default)]
pub(super) struct Outbox(Rc<RefCell<Queue>>);

/// The body of the request that carries them.
pub(super) struct OutboxBody(Rc<RefCell<Queue>>);

impl Outbox {
    /// Returns the body that carries the messages.
    pub(super) fn body(&self) -> OutboxBody {
        OutboxBody(self.0.clone())
    }

    /// Adds a message with its prefix.
    pub(super) fn push(&self, message: Bytes) {
        let mut queue = self.0.borrow_mut();
        queue.bytes += message.len();
        queue.waiting.push_back(message);
    }

    /// Ends the body after the messages that wait.
    pub(super) fn end(&self) {
        self.0.borrow_mut().is_ended = true;
    }

    /// Returns the bytes that no connection has taken yet.
    pub(super) fn waiting(&self) -> usize {
        self.0.borrow().bytes
    }

    /// Reports whether the sender of a body may go on.
    pub(super) fn has_room(&self) -> bool {
        self.waiting() < WINDOW
    }

    /// Reports whether a connection carries the call.
    pub(super) fn has_begun(&self) -> bool {
        self.0.borrow().has_begun
    }
}

impl Body for OutboxBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut queue = self.0.borrow_mut();
        queue.has_begun = true;
        let Some(message) = queue.waiting.pop_front() else {
            return match queue.is_ended {
                true => Poll::Ready(None),
                false => Poll::Pending,
            };
        };
        queue.bytes -= message.len();
        queue.keep(&message);
        Poll::Ready(Some(Ok(Frame::data(message))))
    }

    fn is_end_stream(&self) -> bool {
        let queue = self.0.borrow();
        queue.is_ended && queue.waiting.is_empty()
    }
}

impl Replay for OutboxBody {
    fn rewind(&mut self) -> bool {
        let mut queue = self.0.borrow_mut();
        if !queue.is_incomplete {
            let kept = mem::take(&mut queue.kept);
            let again = mem::take(&mut queue.kept_bytes);
            queue.bytes += again;
            kept.into_iter()
                .rev()
                .for_each(|message| queue.waiting.push_front(message));
        }
        !queue.is_incomplete
    }

    fn forget(&mut self) {
        self.0.borrow_mut().stop();
    }
}

impl Queue {
    fn keep(&mut self, message: &Bytes) {
        if self.is_incomplete {
            return;
        }
        if self.kept_bytes + message.len() > MAX_KEPT {
            return self.stop();
        }
        self.kept_bytes += message.len();
        self.kept.push(message.clone());
    }

    fn stop(&mut self) {
        self.is_incomplete = true;
        self.kept = Vec::new();
        self.kept_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn taken(body: &mut OutboxBody) -> Option<Bytes> {
        let mut cx = Context::from_waker(Waker::noop());
        match Pin::new(body).poll_frame(&mut cx) {
            Poll::Ready(Some(frame)) => frame.unwrap().into_data().ok(),
            Poll::Ready(None) => Some(Bytes::from_static(b"end")),
            Poll::Pending => None,
        }
    }

    #[test]
    fn messages_can_be_sent_again_until_the_picker_responds() {
        let outbox = Outbox::default();
        let mut body = outbox.body();
        assert!(!outbox.has_begun() && taken(&mut body).is_none() && outbox.has_begun());
        for text in ["a", "b", "c"] {
            outbox.push(Bytes::from_static(text.as_bytes()));
        }
        assert_eq!(taken(&mut body).unwrap(), "a");
        assert_eq!(taken(&mut body).unwrap(), "b");
        assert!(body.rewind());
        for text in ["a", "b", "c"] {
            assert_eq!(taken(&mut body).unwrap(), text);
        }
        assert!(taken(&mut body).is_none() && body.rewind());
        body.forget();
        assert!(!body.rewind());
        outbox.end();
        assert!(!body.is_end_stream());
        for text in ["a", "b", "c", "end"] {
            assert_eq!(taken(&mut body).unwrap(), text);
        }
        assert!(body.is_end_stream());
    }

    #[test]
    fn what_waits_and_what_is_kept_is_bounded() {
        let outbox = Outbox::default();
        let mut body = outbox.body();
        let part = Bytes::from(vec![0; MAX_KEPT / 2 + 1]);
        let mut count = 0;
        while outbox.has_room() {
            outbox.push(part.clone());
            count += 1;
        }
        assert!(count * part.len() < WINDOW + part.len());
        assert!(taken(&mut body).is_some() && body.rewind());
        assert!(taken(&mut body).is_some() && taken(&mut body).is_some());
        assert!(!body.rewind() && body.0.borrow().kept.is_empty());
        assert!(outbox.has_room());
    }
}
