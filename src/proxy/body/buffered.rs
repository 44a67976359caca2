//! The body of a request that the proxy makes itself: bytes in memory.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::upstream::{BoxError, Replay};

/// A body in memory.
pub(in crate::proxy) struct Buffered {
    data: Bytes,
    is_sent: bool,
}

impl Buffered {
    pub(in crate::proxy) fn new(data: Bytes) -> Self {
        Self {
            data,
            is_sent: false,
        }
    }
}

impl Body for Buffered {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let is_ended = self.is_end_stream();
        self.is_sent = true;
        Poll::Ready((!is_ended).then(|| Ok(Frame::data(self.data.clone()))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_sent || self.data.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let remaining = if self.is_sent { 0 } else { self.data.len() };
        SizeHint::with_exact(remaining as u64)
    }
}

impl Replay for Buffered {
    fn rewind(&mut self) -> bool {
        self.is_sent = false;
        true
    }

    fn forget(&mut self) {}
}
