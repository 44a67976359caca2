//! An error page on its way from its server to the client. Limits its size and its time, and counts its end. Must not know
//! which response it replaces.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};

use super::buffered::Buffered;
use super::compressed_body::Frames;
use crate::proxy::worker_state::budget::Held;
use crate::table::{Backend, PageResult};
use crate::upstream::{self, BoxError};

/// Maximum bytes of a page.
pub(in crate::proxy) const MAX_PAGE: u64 = 1024 * 1024;
/// Maximum time from the head of a page to its end.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The body of a page. Takes a place among the pages of its policy until dropped.
pub(crate) struct PageBody {
    body: upstream::ResponseBody<Buffered>,
    left: u64,
    deadline: Pin<Box<Sleep>>,
    backend: Arc<Backend>,
    is_counted: bool,
    _slot: Held,
}

impl PageBody {
    /// Takes the body of a response whose head has just arrived.
    pub(in crate::proxy) fn new(
        body: upstream::ResponseBody<Buffered>,
        backend: Arc<Backend>,
        slot: Held,
    ) -> Self {
        let mut page = Self {
            body,
            left: MAX_PAGE,
            deadline: Box::pin(sleep(TIMEOUT)),
            backend,
            is_counted: false,
            _slot: slot,
        };
        if page.is_ended() {
            page.count(PageResult::Fetched);
        }
        page
    }

    /// Reports whether there is nothing more to send.
    pub(super) fn is_ended(&self) -> bool {
        self.body.is_end_stream()
    }

    /// Returns the bounds of the number of bytes.
    pub(super) fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }

    fn count(&mut self, result: PageResult) {
        if !self.is_counted {
            self.is_counted = true;
            self.backend.stats.paged(result);
        }
    }

    fn fail(&mut self, result: PageResult) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.count(result);
        let why = format!("the error page of {}: {}", self.backend.id, result.name());
        Poll::Ready(Some(Err(why.into())))
    }
}

impl Frames for PageBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.deadline.as_mut().poll(cx).is_ready() {
            return self.fail(PageResult::Timeout);
        }
        loop {
            let frame = match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => {
                    self.count(PageResult::Fetched);
                    return Poll::Ready(None);
                }
                Poll::Ready(Some(Err(_))) => return self.fail(PageResult::Failed),
                Poll::Ready(Some(Ok(frame))) => frame,
            };
            // Trailers of a page mean nothing to a client that has asked for something else.
            let Ok(data) = frame.into_data() else {
                continue;
            };
            let Some(left) = self.left.checked_sub(data.len() as u64) else {
                return self.fail(PageResult::TooLarge);
            };
            self.left = left;
            if self.is_ended() {
                self.count(PageResult::Fetched);
            }
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
    }

    fn compact(&mut self) -> usize {
        self.body.compact()
    }
}
