//! What h2 has got to send on one connection. h2 bounds the data of each stream, but neither the sum nor informational
//! responses, and a peer that does not read would make it keep all of that. If h2 bounded the sum, or reported what it has not
//! written, this count would not be needed. Does no I/O.

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use crate::byte_chain::MIN_SLICE;

/// Unwritten bytes of bodies above which streams wait with more.
const MAX: usize = 128 * 1024;
/// Unwritten bytes of informational responses above which no further one is sent. RFC 9110, 15.2 asks a proxy to forward
/// all of them, but no window bounds what they take.
const MAX_INFORMATIONAL: usize = 64 * 1024;
/// Memory of a frame in h2 apart from its data.
const FRAME: usize = 320;

/// Bytes that h2 got since it wrote the last time all that the windows of the peer permit. What waits for window is not
/// counted after that, so that it delays no other stream.
#[derive(Default)]
pub(crate) struct SendQueue {
    bodies: Cell<usize>,
    informational: Cell<usize>,
    /// Whether the socket has taken less than it got.
    is_blocked: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

impl SendQueue {
    /// Becomes ready when a stream may send more of its body.
    pub(crate) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.bodies.get() < MAX {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Counts a part of a body that h2 gets next. While the peer does not read, a small part is moved out of the read
    /// buffer, which it would keep allocated.
    pub(crate) fn count(&self, part: Bytes) -> Bytes {
        self.bodies.set(self.bodies.get() + part.len() + FRAME);
        match self.is_blocked.get() && part.len() < MIN_SLICE {
            true => Bytes::copy_from_slice(&part),
            false => part,
        }
    }

    /// Counts an informational response. Returns false if too much waits, so that it must not be sent.
    pub(crate) fn admit_informational(&self, bytes: usize) -> bool {
        let before = self.informational.get();
        let is_admitted = before < MAX_INFORMATIONAL;
        if is_admitted {
            self.informational.set(before + bytes + FRAME);
        }
        is_admitted
    }

    /// Records whether the socket takes what it gets.
    pub(super) fn set_blocked(&self, is_blocked: bool) {
        self.is_blocked.set(is_blocked);
    }

    /// Records that h2 has written all that it could.
    pub(super) fn on_driven(&self) {
        if self.is_blocked.get() {
            return;
        }
        self.bodies.set(0);
        self.informational.set(0);
        if !self.waiting.borrow().is_empty() {
            self.waiting.take().into_iter().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::task::Wake;

    use bytes::BytesMut;

    use super::*;

    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn streams_wait_until_everything_is_written() {
        let queue = SendQueue::default();
        let task = Arc::<Task>::default();
        let waker = task.clone().into();
        let mut cx = Context::from_waker(&waker);
        let mut sent = 0;
        queue.set_blocked(true);
        while queue.poll_room(&mut cx).is_ready() {
            queue.count(Bytes::from_static(&[0; 100]));
            sent += 100 + FRAME;
        }
        assert!((MAX..MAX + 100 + FRAME).contains(&sent));
        assert!(queue.poll_room(&mut cx).is_pending());
        queue.on_driven();
        assert_eq!(task.0.load(Relaxed), 0, "the socket is full");
        queue.set_blocked(false);
        queue.on_driven();
        assert_eq!(task.0.load(Relaxed), 1);
        assert!(queue.poll_room(&mut cx).is_ready());
    }

    #[test]
    fn small_parts_leave_their_read_buffer_while_the_peer_does_not_read() {
        const BUFFER: usize = 64 * 1024;
        let queue = SendQueue::default();
        for (length, is_blocked, is_free) in [
            (1, false, false),
            (1, true, true),
            (MIN_SLICE - 1, true, true),
            (MIN_SLICE, true, false),
        ] {
            queue.set_blocked(is_blocked);
            let mut buffer = BytesMut::with_capacity(BUFFER);
            buffer.resize(length, b'x');
            let part = queue.count(buffer.split().freeze());
            assert_eq!(part.len(), length);
            assert_eq!(buffer.try_reclaim(BUFFER), is_free, "{length} {is_blocked}");
        }
    }

    #[test]
    fn informational_responses_wait_up_to_a_limit() {
        let queue = SendQueue::default();
        queue.set_blocked(true);
        assert!(queue.admit_informational(MAX_INFORMATIONAL - 2 * FRAME));
        assert!(queue.admit_informational(1000), "less is waiting");
        assert!(!queue.admit_informational(0));
        queue.on_driven();
        assert!(!queue.admit_informational(0));
        queue.set_blocked(false);
        queue.on_driven();
        assert!(queue.admit_informational(0));
    }
}
