//! What h2 has got to send on one connection. h2 bounds the data of each stream, but neither the sum nor heads and trailers,
//! and a peer that does not read would make it keep all of that. If h2 bounded the sum, or reported what it has not
//! written, this count would not be needed. Does no I/O.

use std::cell::{Cell, RefCell};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::HeaderMap;

use crate::byte_chain::MIN_SLICE;
use crate::header_memory;

/// Unwritten bytes of bodies above which streams wait with more.
const MAX: usize = 128 * 1024;
/// The same for heads and trailers, while the peer takes what it gets, and while it does not.
const MAX_HEADERS: usize = 256 * 1024;
const MAX_UNREAD_HEADERS: usize = 32 * 1024;
/// Unwritten bytes of heads above which requests go elsewhere while the peer takes none.
const MAX_UNREAD_REQUESTS: usize = 64 * 1024;
/// Unwritten bytes of heads and trailers up to which none is measured, and what one counts then: few are long, and most are
/// written at once.
const NOT_MEASURED: usize = 16 * 1024;
const USUAL_HEADERS: usize = 2 * 1024;
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
    headers: Cell<usize>,
    informational: Cell<usize>,
    /// Whether the socket has taken less than it got.
    is_blocked: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

impl SendQueue {
    /// Reports whether a stream may send its head, or more of its body.
    pub(crate) fn has_room(&self) -> bool {
        let headers = match self.is_blocked.get() {
            false => MAX_HEADERS,
            true => MAX_UNREAD_HEADERS,
        };
        self.bodies.get() < MAX && self.headers.get() < headers
    }

    /// Reports whether heads of requests that the peer does not read leave room for another one.
    pub(crate) fn has_room_for_head(&self) -> bool {
        !self.is_blocked.get() || self.headers.get() < MAX_UNREAD_REQUESTS
    }

    /// Becomes ready when there is room.
    pub(crate) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.has_room() {
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

    /// Counts a head or trailers that h2 gets next. While the peer does not read, they are copied out of the read buffer.
    #[inline]
    pub(crate) fn count_headers(&self, headers: &mut HeaderMap) {
        if self.is_blocked.get() {
            header_memory::detach(headers);
        }
        self.count_head(headers);
    }

    /// Counts the head of a request that h2 gets next. Its values are those of the request that waits for the response.
    #[inline]
    pub(crate) fn count_head(&self, headers: &HeaderMap) {
        let before = self.headers.get();
        let bytes = match self.is_blocked.get() || before >= NOT_MEASURED {
            false => USUAL_HEADERS,
            true => measure(headers),
        };
        self.headers.set(before + bytes);
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
        self.headers.set(0);
        self.informational.set(0);
        if !self.waiting.borrow().is_empty() {
            self.waiting.take().into_iter().for_each(Waker::wake);
        }
    }
}

#[cold]
fn measure(headers: &HeaderMap) -> usize {
    header_memory::size(headers) + FRAME
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::task::Wake;

    use bytes::BytesMut;
    use http::HeaderValue;

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

    /// Headers of this length, in the buffer that they were read into.
    fn headers(length: usize) -> HeaderMap {
        let value = HeaderValue::from_maybe_shared(Bytes::from(vec![b'x'; length]));
        HeaderMap::from_iter([(http::header::LINK, value.unwrap())])
    }

    #[test]
    fn heads_wait_for_a_peer_that_does_not_read() {
        const LONG: usize = 60_000;
        let queue = SendQueue::default();
        let count = |length| {
            let begin = || {
                queue
                    .has_room()
                    .then(|| queue.count_headers(&mut headers(length)))
            };
            std::iter::from_fn(begin).count()
        };
        let usual = count(1000);
        assert!(usual > 100, "{usual} usual heads at once");
        queue.on_driven();
        let at_once = count(LONG);
        assert!((4..16).contains(&at_once), "{at_once} long heads at once");
        queue.set_blocked(true);
        assert!(!queue.has_room());
        queue.on_driven();
        assert!(!queue.has_room(), "the socket is full");
        queue.set_blocked(false);
        queue.on_driven();
        // Not measured: h2 encodes it, and only then the socket is full.
        queue.count_headers(&mut headers(LONG));
        queue.set_blocked(true);
        assert_eq!(count(LONG), 1);
    }

    #[test]
    fn requests_go_elsewhere_once_a_peer_leaves_heads_unread() {
        let queue = SendQueue::default();
        let count = |length| {
            let begin = || {
                queue
                    .has_room_for_head()
                    .then(|| queue.count_head(&headers(length)))
            };
            std::iter::from_fn(begin).take(1000).count()
        };
        assert_eq!(count(1000), 1000, "the peer reads");
        queue.on_driven();
        queue.set_blocked(true);
        let unread = count(1000);
        assert!((40..64).contains(&unread), "{unread} usual heads");
        queue.set_blocked(false);
        queue.on_driven();
        queue.set_blocked(true);
        assert_eq!(count(60_000), 2);
    }

    #[test]
    fn headers_leave_their_read_buffer_while_the_peer_does_not_read() {
        let queue = SendQueue::default();
        for is_blocked in [false, true] {
            queue.set_blocked(is_blocked);
            let mut headers = headers(100);
            let before = headers[http::header::LINK].as_bytes().as_ptr();
            queue.count_headers(&mut headers);
            let after = headers[http::header::LINK].as_bytes().as_ptr();
            assert_eq!(before != after, is_blocked);
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
