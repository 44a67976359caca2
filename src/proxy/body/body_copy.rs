//! Copies of a request body for mirrors: a bounded queue between the body that the client sends and
//! the task that sends the copy. The client's body never waits for a copy; a copy that is too slow
//! fails.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use crate::byte_chain::ByteChain;
use crate::header_memory;
use crate::proxy::worker_state::budget::{Held, Share};
use crate::upstream::{BoxError, Replay};

/// Maximum memory of what a copy lags behind the client.
const MAX_QUEUED: usize = 256 * 1024;
/// Memory of a copy apart from its body: its head with the read buffer that this is a part of, its
/// task and its exchange.
const COPY: usize = 16 * 1024;

/// A copy in progress; its memory counts as kept by the client until dropped.
pub(in crate::proxy) struct CopyPermit(Held);

impl CopyPermit {
    /// Admits a copy. `None` if the client may not keep that much.
    pub(in crate::proxy) fn new(share: &Rc<Share>) -> Option<Self> {
        let mut permit = Self(Held::none(share));
        permit.hold(0).then_some(permit)
    }

    /// Changes the memory of the body. Returns false if the client may not keep that much.
    fn hold(&mut self, bytes: usize) -> bool {
        self.0.resize(COPY + bytes)
    }
}

/// Why a copy of a body is not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::proxy) enum CopyFailure {
    /// The mirror reads more slowly than the client sends.
    #[error("the mirror reads more slowly than the client sends")]
    Overflow,
    /// The client's request body ended early.
    #[error("the client's request body was not read to its end")]
    Aborted,
}

/// State of the client's request body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Open,
    Complete,
    Failed(CopyFailure),
}

struct Queue {
    permit: CopyPermit,
    data: ByteChain,
    trailers: Option<HeaderMap>,
    /// Bytes of the body that are still to be sent to the mirror, if known.
    remaining: Option<u64>,
    progress: Progress,
    /// Whether the mirror has read a frame.
    is_read: bool,
    /// Whether the client's body has yielded to the copy's task since the mirror's last read.
    has_yielded: bool,
    reader: Option<Waker>,
}

impl Queue {
    fn push(&mut self, frame: &Frame<Bytes>) {
        if self.progress != Progress::Open {
            return;
        }
        if let Some(data) = frame.data_ref() {
            if self.data.allocated() >= MAX_QUEUED {
                return self.end(Progress::Failed(CopyFailure::Overflow));
            }
            self.data.push(data);
        } else if let Some(trailers) = frame.trailers_ref() {
            self.trailers = Some(trailers.clone());
        }
        if !self.hold() {
            return self.end(Progress::Failed(CopyFailure::Overflow));
        }
        self.wake();
    }

    /// Counts the memory of the queue. Returns false if the client may not keep that much.
    fn hold(&mut self) -> bool {
        let trailers = self.trailers.as_ref().map_or(0, header_memory::size);
        self.permit.hold(self.data.allocated() + trailers)
    }

    fn end(&mut self, progress: Progress) {
        if self.progress == Progress::Open {
            self.progress = progress;
            if progress != Progress::Complete {
                self.data = ByteChain::default();
                self.trailers = None;
                self.hold();
            }
            self.wake();
        }
    }

    fn pop(&mut self) -> Option<Frame<Bytes>> {
        let frame = match self.data.pop() {
            Some(data) => {
                let length = data.len() as u64;
                self.remaining = self.remaining.map(|left| left.saturating_sub(length));
                Frame::data(data)
            }
            None => Frame::trailers(self.trailers.take()?),
        };
        self.hold();
        self.is_read = true;
        self.has_yielded = false;
        Some(frame)
    }

    fn wake(&mut self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }
}

/// The copies of one body. Allocates nothing while there are none.
#[derive(Default)]
pub(in crate::proxy) struct Copies(Vec<CopySender>);

/// Fails its copy on drop, unless the body is complete.
struct CopySender(Rc<RefCell<Queue>>);

impl Copies {
    /// Adds a copy of a body whose length is `length`, if known.
    pub(in crate::proxy) fn add(&mut self, permit: CopyPermit, length: Option<u64>) -> BodyCopy {
        let copy = BodyCopy::new(permit, length, Progress::Open);
        self.0.push(CopySender(copy.0.clone()));
        copy
    }

    /// Yields once to the tasks of the copies when their queues fill up. Without this, reading the
    /// client's body can starve them, since all run on one thread.
    pub(super) fn poll_turn(&self, cx: &Context<'_>) -> Poll<()> {
        let is_due = |CopySender(queue): &CopySender| {
            let mut queue = queue.borrow_mut();
            let is_filling =
                queue.data.allocated() >= MAX_QUEUED / 2 && queue.progress == Progress::Open;
            is_filling && !std::mem::replace(&mut queue.has_yielded, true)
        };
        // Polls every queue, so that one yield serves all of them.
        if self.0.iter().filter(|one| is_due(one)).count() == 0 {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Copies a part of the body.
    pub(in crate::proxy) fn push(&mut self, frame: &Frame<Bytes>) {
        if self.0.is_empty() {
            return;
        }
        // Drops copies whose task has ended.
        self.0
            .retain(|CopySender(queue)| Rc::strong_count(queue) > 1);
        for CopySender(queue) in &self.0 {
            queue.borrow_mut().push(frame);
        }
    }

    /// Completes all copies: the body has ended.
    pub(in crate::proxy) fn complete(&mut self) {
        for CopySender(queue) in &std::mem::take(&mut self.0) {
            queue.borrow_mut().end(Progress::Complete);
        }
    }
}

impl Drop for CopySender {
    fn drop(&mut self) {
        let aborted = Progress::Failed(CopyFailure::Aborted);
        self.0.borrow_mut().end(aborted);
    }
}

/// The copy of a request body.
pub(in crate::proxy) struct BodyCopy(Rc<RefCell<Queue>>);

/// Observes the client's side of a copy.
pub(in crate::proxy) struct BodyWatch(Rc<RefCell<Queue>>);

impl BodyCopy {
    /// Returns the copy of an empty body.
    pub(in crate::proxy) fn empty(permit: CopyPermit) -> Self {
        Self::new(permit, Some(0), Progress::Complete)
    }

    fn new(permit: CopyPermit, length: Option<u64>, progress: Progress) -> Self {
        Self(Rc::new(RefCell::new(Queue {
            permit,
            data: ByteChain::default(),
            trailers: None,
            remaining: length,
            progress,
            is_read: false,
            has_yielded: false,
            reader: None,
        })))
    }

    /// Adds a part of the body that was read before the copy was made.
    pub(in crate::proxy) fn push(&self, frame: &Frame<Bytes>) {
        self.0.borrow_mut().push(frame);
    }

    /// Returns a watch of the client's side. The same task must poll the watch and the body, since
    /// the queue holds one waker.
    pub(in crate::proxy) fn watch(&self) -> BodyWatch {
        BodyWatch(self.0.clone())
    }
}

impl BodyWatch {
    /// Returns why the copy cannot complete. Otherwise registers the task to be woken when that
    /// changes.
    pub(in crate::proxy) fn poll_failure(&self, cx: &Context<'_>) -> Option<CopyFailure> {
        let mut queue = self.0.borrow_mut();
        queue.reader = Some(cx.waker().clone());
        match queue.progress {
            Progress::Failed(failure) => Some(failure),
            Progress::Open | Progress::Complete => None,
        }
    }

    /// Reports whether the client's body has ended completely.
    pub(in crate::proxy) fn is_complete(&self) -> bool {
        self.0.borrow().progress == Progress::Complete
    }
}

impl Body for BodyCopy {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut queue = self.0.borrow_mut();
        if let Some(frame) = queue.pop() {
            return Poll::Ready(Some(Ok(frame)));
        }
        match queue.progress {
            Progress::Complete => Poll::Ready(None),
            Progress::Failed(failure) => Poll::Ready(Some(Err(failure.into()))),
            Progress::Open => {
                queue.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let queue = self.0.borrow();
        let is_empty = queue.data.is_empty() && queue.trailers.is_none();
        is_empty && queue.progress == Progress::Complete
    }

    fn size_hint(&self) -> SizeHint {
        let remaining = self.0.borrow().remaining;
        remaining.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Replay for BodyCopy {
    fn rewind(&mut self) -> bool {
        !self.0.borrow().is_read
    }

    fn forget(&mut self) {}
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::proxy::worker_state::budget::Budget;

    fn share(budget: &Rc<Budget>) -> Rc<Share> {
        budget.share(IpAddr::from([192, 0, 2, 1]))
    }

    fn add(body: &mut Copies, share: &Rc<Share>, length: Option<u64>) -> BodyCopy {
        body.add(CopyPermit::new(share).unwrap(), length)
    }

    fn data(length: usize) -> Frame<Bytes> {
        Frame::data(vec![0; length].into())
    }

    fn poll(copy: &mut BodyCopy) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(copy).poll_frame(&mut Context::from_waker(Waker::noop()))
    }

    fn failure(copy: &BodyCopy) -> Option<CopyFailure> {
        let cx = Context::from_waker(Waker::noop());
        copy.watch().poll_failure(&cx)
    }

    #[test]
    fn copy_ends_as_the_body_does() {
        let budget = Budget::of_worker(1);
        let share = share(&budget);
        let mut body = Copies::default();
        let mut whole = add(&mut body, &share, Some(3));
        let mut cut = add(&mut body, &share, None);
        assert!(poll(&mut whole).is_pending());
        body.push(&data(3));
        assert!((2 * COPY + 6..2 * COPY + 1024).contains(&budget.held()));
        assert!(matches!(poll(&mut whole), Poll::Ready(Some(Ok(_)))));
        let aborted = body.0.pop();
        body.complete();
        assert!(matches!(poll(&mut whole), Poll::Ready(None)));
        drop(aborted);
        assert_eq!(failure(&cut), Some(CopyFailure::Aborted));
        assert!(matches!(poll(&mut cut), Poll::Ready(Some(Err(_)))));
        drop((whole, cut));
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn slow_copy_fails_alone_after_one_turn() {
        let budget = Budget::of_worker(1);
        let share = share(&budget);
        let mut body = Copies::default();
        let slow = add(&mut body, &share, None);
        let mut fast = add(&mut body, &share, None);
        let cx = Context::from_waker(Waker::noop());
        let (mut pushed, mut turns) = (0, 0);
        while failure(&slow).is_none() {
            body.push(&data(16 * 1024));
            pushed += 16 * 1024;
            turns += usize::from(body.poll_turn(&cx).is_pending());
            assert!(matches!(poll(&mut fast), Poll::Ready(Some(Ok(_)))));
        }
        assert_eq!((turns, failure(&slow)), (1, Some(CopyFailure::Overflow)));
        assert!((MAX_QUEUED..MAX_QUEUED + 32 * 1024).contains(&pushed));
        assert_eq!(failure(&fast), None);
        assert_eq!(budget.held(), 2 * COPY);
    }

    #[test]
    fn many_small_parts_cost_little_more_than_their_bytes() {
        let budget = Budget::of_worker(1);
        let (share, mut body) = (share(&budget), Copies::default());
        let copies: Vec<_> = (0..6).map(|_| add(&mut body, &share, None)).collect();
        for _ in 0..6000 {
            body.push(&data(1));
        }
        assert!(copies.iter().all(|copy| failure(copy).is_none()));
        assert!(budget.held() < 6 * (COPY + 2 * 6000 + 2048));
    }

    #[test]
    fn copies_of_a_client_are_bounded() {
        let budget = Budget::of_worker(1);
        let client = share(&budget);
        let permits: Vec<_> = std::iter::from_fn(|| CopyPermit::new(&client)).collect();
        assert!((100..1000).contains(&permits.len()), "{}", permits.len());
        let neighbour = budget.share(IpAddr::from([192, 0, 2, 2]));
        assert!(CopyPermit::new(&neighbour).is_some());
        drop(permits);
        let mut body = Copies::default();
        let all: Vec<_> = (0..100).map(|_| add(&mut body, &client, None)).collect();
        for _ in 0..32 {
            body.push(&data(4096));
        }
        let before = budget.held();
        assert!(all.iter().any(|one| failure(one).is_some()));
        let mut body = Copies::default();
        let mut copy = add(&mut body, &neighbour, None);
        body.push(&data(4096));
        assert!(matches!(poll(&mut copy), Poll::Ready(Some(Ok(_)))));
        assert!(budget.held() > before);
    }
}
