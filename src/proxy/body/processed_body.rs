//! A response body of a backend that something processes on its way, which is not known here.

use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;

use super::request_body::RequestBody;
use crate::upstream::{BoxError, ResponseBody};

/// What processes a response body. It polls the body itself, which also sends the rest of the request.
pub(in crate::proxy) trait Process {
    /// Returns the next frame of what becomes of `body`. An error unless that is whole.
    fn poll_frame(
        &mut self,
        body: &mut ResponseBody<RequestBody>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>>;

    /// Reports whether nothing follows.
    fn is_ended(&self, body: &ResponseBody<RequestBody>) -> bool;

    /// Returns the bytes that wait for those who take the body.
    fn waiting(&self) -> usize;
}

/// A processed body.
pub(crate) struct ProcessedBody {
    body: ResponseBody<RequestBody>,
    process: Box<dyn Process>,
}

impl ProcessedBody {
    /// Processes `body`.
    pub(in crate::proxy) fn new(
        body: ResponseBody<RequestBody>,
        process: Box<dyn Process>,
    ) -> Self {
        Self { body, process }
    }

    /// Reports whether nothing follows.
    pub(in crate::proxy) fn is_ended(&self) -> bool {
        self.process.is_ended(&self.body)
    }

    /// Gives memory back while nobody takes the body. Returns the bytes that stay allocated.
    pub(in crate::proxy) fn compact(&mut self) -> usize {
        self.body.compact() + self.process.waiting()
    }

    /// Sends as much of the rest of the request as possible while nobody takes the body.
    ///
    /// # Errors
    /// The body of the request has failed.
    pub(in crate::proxy) fn send_rest(&mut self, cx: &mut Context<'_>) -> Result<(), BoxError> {
        self.body.send_rest(cx)
    }

    /// Returns the next frame.
    pub(in crate::proxy) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.process.poll_frame(&mut self.body, cx)
    }
}
