//! The messages for a picker on their way to it: the body of the request that carries them. Its owner adds messages and then
//! polls the call, so that nobody has to be woken. They are memory of the client: one that holds too much loses the copies that
//! another connection needs, and has one part of each body wait instead of a window.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};

use crate::proxy::worker_state::budget::{Held, Share};
use crate::upstream::{BoxError, Replay};

/// Bytes that may wait before the sender of a body has to wait.
const WINDOW: usize = 64 * 1024;
/// Maximum bytes that are kept until the picker responds, so that another connection may carry them.
const MAX_KEPT: usize = 64 * 1024;

struct Queue {
    /// Memory of all of it, as far as the client may hold that.
    held: Held,
    /// Whether the client may not hold what waits.
    is_short: bool,
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
pub(super) struct Outbox(Rc<RefCell<Queue>>);

/// The body of the request that carries them.
pub(super) struct OutboxBody(Rc<RefCell<Queue>>);

impl Outbox {
    /// Creates an empty one. `share` is that of the client.
    pub(super) fn new(share: &Rc<Share>) -> Self {
        Self(Rc::new(RefCell::new(Queue {
            held: Held::none(share),
            is_short: false,
            waiting: VecDeque::new(),
            bytes: 0,
            kept: Vec::new(),
            kept_bytes: 0,
            is_incomplete: false,
            has_begun: false,
            is_ended: false,
        })))
    }

    /// Returns the body that carries the messages.
    pub(super) fn body(&self) -> OutboxBody {
        OutboxBody(self.0.clone())
    }

    /// Adds a message with its prefix.
    pub(super) fn push(&self, message: Bytes) {
        let mut queue = self.0.borrow_mut();
        queue.bytes += message.len();
        queue.waiting.push_back(message);
        queue.count();
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
        let queue = self.0.borrow();
        match queue.is_short {
            true => queue.waiting.is_empty(),
            false => queue.bytes < WINDOW,
        }
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
        queue.count();
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
        let mut queue = self.0.borrow_mut();
        queue.stop();
        queue.count();
    }
}

impl Queue {
    /// Counts what waits and what is kept, which is given up if the client may not hold both.
    fn count(&mut self) {
        if self.held.resize(self.bytes + self.kept_bytes) {
            self.is_short = false;
            return;
        }
        if self.kept_bytes > 0 {
            self.stop();
        }
        self.is_short = !self.held.resize(self.bytes);
    }

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
    use std::net::IpAddr;
    use std::task::Waker;

    use super::*;
    use crate::proxy::worker_state::budget::Budget;

    fn share(budget: &Rc<Budget>) -> Rc<Share> {
        budget.share(IpAddr::from([192, 0, 2, 1]))
    }

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
        let outbox = Outbox::new(&share(&Budget::of_worker(1)));
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
        let outbox = Outbox::new(&share(&Budget::of_worker(1)));
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

    #[test]
    fn what_waits_and_what_is_kept_is_memory_of_the_client() {
        const PART: usize = 1000;
        let budget = Budget::of_worker(1);
        let outbox = Outbox::new(&share(&budget));
        let mut body = outbox.body();
        let part = Bytes::from(vec![0; PART]);
        outbox.push(part.clone());
        outbox.push(part.clone());
        assert_eq!(budget.held(), 2 * PART);
        assert!(taken(&mut body).is_some());
        assert_eq!((outbox.waiting(), budget.held()), (PART, 2 * PART));
        assert!(body.rewind() && outbox.waiting() == 2 * PART);
        assert_eq!(budget.held(), 2 * PART);
        assert!(taken(&mut body).is_some() && taken(&mut body).is_some());
        assert_eq!((outbox.waiting(), budget.held()), (0, 2 * PART));
        body.forget();
        assert_eq!(budget.held(), 0);
        outbox.push(part);
        drop((outbox, body));
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn client_that_holds_too_much_has_one_part_wait_and_none_kept() {
        const PART: usize = 1000;
        let budget = Budget::of_worker(1);
        let share = share(&budget);
        let (mut others, mut bytes) = (Held::none(&share), 0);
        while others.resize(bytes + PART) {
            bytes += PART;
        }
        let outbox = Outbox::new(&share);
        let mut body = outbox.body();
        let part = Bytes::from(vec![0; PART]);
        assert!(outbox.has_room());
        outbox.push(part.clone());
        outbox.push(part.clone());
        assert!(!outbox.has_room());
        assert!(taken(&mut body).is_some() && !outbox.has_room());
        assert!(!body.rewind(), "nothing is kept");
        assert!(taken(&mut body).is_some() && outbox.has_room());
        // Of what others free, the next part takes its memory.
        drop(others);
        outbox.push(part);
        assert!(outbox.has_room());
        assert_eq!(budget.held(), PART);
    }
}
