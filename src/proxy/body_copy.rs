//! Copies of a request body for mirrors: a bounded queue between the body that the client sends and
//! the task that sends the copy. The client's body never waits for a copy; a copy that is too slow
//! fails.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use crate::upstream::{BoxError, Replay};

/// Maximum bytes by which a copy may lag behind the client.
pub(super) const MAX_QUEUED: usize = 256 * 1024;
/// Maximum number of copies of a worker that are in progress.
const MAX_COPIES: usize = 1024;
/// Maximum bytes in all queues of a worker.
const MAX_QUEUED_BY_WORKER: usize = 16 * 1024 * 1024;

/// Copies of one worker that are in progress.
#[derive(Default)]
pub(crate) struct CopiesInProgress {
    count: Cell<usize>,
    queued: Cell<usize>,
}

/// A copy in progress; counted until dropped.
pub(super) struct CopyPermit(Rc<CopiesInProgress>);

impl CopiesInProgress {
    /// Counts a copy. `None` if there are too many.
    pub(super) fn begin(self: &Rc<Self>) -> Option<CopyPermit> {
        if self.count.get() >= MAX_COPIES {
            return None;
        }
        self.count.set(self.count.get() + 1);
        Some(CopyPermit(self.clone()))
    }
}

impl Drop for CopyPermit {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
    }
}

/// Why a copy of a body is not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CopyFailure {
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
    data: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    /// Cost of `data`.
    queued: usize,
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
        if let Some(data) = frame.data_ref().filter(|data| !data.is_empty()) {
            let total = &self.permit.0.queued;
            if self.queued >= MAX_QUEUED || total.get() >= MAX_QUEUED_BY_WORKER {
                return self.end(Progress::Failed(CopyFailure::Overflow));
            }
            self.queued += cost(data);
            total.set(total.get() + cost(data));
            self.data.push_back(data.clone());
        } else if let Some(trailers) = frame.trailers_ref() {
            self.trailers = Some(trailers.clone());
        }
        self.wake();
    }

    fn end(&mut self, progress: Progress) {
        if self.progress == Progress::Open {
            self.progress = progress;
            if progress != Progress::Complete {
                self.clear();
            }
            self.wake();
        }
    }

    fn pop(&mut self) -> Option<Frame<Bytes>> {
        let frame = match self.data.pop_front() {
            Some(data) => {
                self.queued -= cost(&data);
                let total = &self.permit.0.queued;
                total.set(total.get() - cost(&data));
                let length = data.len() as u64;
                self.remaining = self.remaining.map(|left| left.saturating_sub(length));
                Frame::data(data)
            }
            None => Frame::trailers(self.trailers.take()?),
        };
        self.is_read = true;
        self.has_yielded = false;
        Some(frame)
    }

    fn clear(&mut self) {
        let total = &self.permit.0.queued;
        total.set(total.get() - self.queued);
        self.queued = 0;
        self.data = VecDeque::new();
        self.trailers = None;
    }

    fn wake(&mut self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Memory that a part of a body takes in a queue.
fn cost(data: &Bytes) -> usize {
    data.len() + size_of::<Bytes>()
}

/// The copies of one body. Allocates nothing while there are none.
#[derive(Default)]
pub(super) struct Copies(Vec<CopySender>);

/// Fails its copy on drop, unless the body is complete.
struct CopySender(Rc<RefCell<Queue>>);

impl Copies {
    /// Adds a copy of a body whose length is `length`, if known.
    pub(super) fn add(&mut self, permit: CopyPermit, length: Option<u64>) -> BodyCopy {
        let copy = BodyCopy::new(permit, length, Progress::Open);
        self.0.push(CopySender(copy.0.clone()));
        copy
    }

    /// Yields once to the tasks of the copies when their queues fill up. Without this, reading the
    /// client's body can starve them, since all run on one thread.
    pub(super) fn poll_turn(&self, cx: &Context<'_>) -> Poll<()> {
        let is_due = |CopySender(queue): &CopySender| {
            let mut queue = queue.borrow_mut();
            let is_filling = queue.queued >= MAX_QUEUED / 2 && queue.progress == Progress::Open;
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
    pub(super) fn push(&mut self, frame: &Frame<Bytes>) {
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
    pub(super) fn complete(&mut self) {
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
pub(super) struct BodyCopy(Rc<RefCell<Queue>>);

/// Observes the client's side of a copy.
pub(super) struct BodyWatch(Rc<RefCell<Queue>>);

impl BodyCopy {
    /// Returns the copy of an empty body.
    pub(super) fn empty(permit: CopyPermit) -> Self {
        Self::new(permit, Some(0), Progress::Complete)
    }

    fn new(permit: CopyPermit, length: Option<u64>, progress: Progress) -> Self {
        Self(Rc::new(RefCell::new(Queue {
            permit,
            data: VecDeque::new(),
            trailers: None,
            queued: 0,
            remaining: length,
            progress,
            is_read: false,
            has_yielded: false,
            reader: None,
        })))
    }

    /// Adds a part of the body that was read before the copy was made.
    pub(super) fn push(&self, frame: &Frame<Bytes>) {
        self.0.borrow_mut().push(frame);
    }

    /// Returns a watch of the client's side. The same task must poll the watch and the body, since
    /// the queue holds one waker.
    pub(super) fn watch(&self) -> BodyWatch {
        BodyWatch(self.0.clone())
    }
}

impl BodyWatch {
    /// Returns why the copy cannot complete. Otherwise registers the task to be woken when that
    /// changes.
    pub(super) fn poll_failure(&self, cx: &Context<'_>) -> Option<CopyFailure> {
        let mut queue = self.0.borrow_mut();
        queue.reader = Some(cx.waker().clone());
        match queue.progress {
            Progress::Failed(failure) => Some(failure),
            Progress::Open | Progress::Complete => None,
        }
    }

    /// Reports whether the client's body has ended completely.
    pub(super) fn is_complete(&self) -> bool {
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
    use super::*;

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
        let copies = Rc::<CopiesInProgress>::default();
        let mut body = Copies::default();
        let mut whole = body.add(copies.begin().unwrap(), Some(3));
        let mut cut = body.add(copies.begin().unwrap(), None);
        assert!(poll(&mut whole).is_pending());
        body.push(&data(3));
        assert_eq!(copies.queued.get(), 2 * (3 + size_of::<Bytes>()));
        assert!(matches!(poll(&mut whole), Poll::Ready(Some(Ok(_)))));
        let aborted = body.0.pop();
        body.complete();
        assert!(matches!(poll(&mut whole), Poll::Ready(None)));
        drop(aborted);
        assert_eq!(failure(&cut), Some(CopyFailure::Aborted));
        assert!(matches!(poll(&mut cut), Poll::Ready(Some(Err(_)))));
        drop((whole, cut));
        assert_eq!((copies.count.get(), copies.queued.get()), (0, 0));
    }

    #[test]
    fn slow_copy_fails_alone_after_one_turn() {
        let copies = Rc::<CopiesInProgress>::default();
        let mut body = Copies::default();
        let slow = body.add(copies.begin().unwrap(), None);
        let mut fast = body.add(copies.begin().unwrap(), None);
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
        assert_eq!(copies.queued.get(), 0);
    }

    #[test]
    fn copies_of_a_worker_are_bounded() {
        let copies = Rc::<CopiesInProgress>::default();
        let permits: Vec<_> = std::iter::from_fn(|| copies.begin()).collect();
        assert_eq!(permits.len(), MAX_COPIES);
        let mut body = Copies::default();
        let all = permits.into_iter().map(|permit| body.add(permit, None));
        let all: Vec<_> = all.collect();
        for _ in 0..MAX_QUEUED_BY_WORKER / MAX_COPIES / 4096 + 2 {
            body.push(&data(4096));
        }
        assert!(copies.queued.get() <= MAX_QUEUED_BY_WORKER + 2 * 4096);
        assert!(all.iter().any(|one| failure(one).is_some()));
    }
}
