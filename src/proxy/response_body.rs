//! A response's body on its way to the client: it moves the request's deadline, counts bytes, and closes the request's
//! record with the last of them.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::headers;
use super::record::Record;
use super::request_body::RequestBody;
use crate::upstream::{self, BoxError};

/// Where a response's body comes from.
pub(crate) enum Source {
    /// Nowhere: the head is all there is.
    Empty,
    /// From memory: an error's message, or a filter's response.
    Memory(Bytes),
    /// From a backend.
    Backend(upstream::ResponseBody<RequestBody>),
}

/// A response's body, with the record that it closes.
pub(crate) struct ResponseBody {
    source: Source,
    record: Option<Record>,
    /// Whether only a poll tells that the body is at its end.
    is_end_hidden: bool,
}

impl ResponseBody {
    /// The body of a response whose head is about to be written.
    pub(crate) fn new(source: Source, mut record: Record) -> Self {
        if source.is_end_stream() {
            record.complete();
        } else {
            record.activity().on_response();
        }
        Self {
            source,
            record: Some(record),
            is_end_hidden: false,
        }
    }

    /// No body, and no record to close with it.
    pub(crate) fn empty() -> Self {
        Self {
            source: Source::Empty,
            record: None,
            is_end_hidden: false,
        }
    }

    /// Completes the response without its body, which the client must not get.
    pub(crate) fn skip(&mut self) {
        self.source = Source::Empty;
        if let Some(record) = &mut self.record {
            record.complete();
        }
    }

    /// Says of the body's end and length nothing until it is polled.
    pub(crate) fn hide_end(&mut self) {
        self.is_end_hidden = true;
    }
}

impl Source {
    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Memory(bytes) => bytes.is_empty(),
            Self::Backend(body) => body.is_end_stream(),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self {
            Self::Empty => Poll::Ready(None),
            Self::Memory(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Memory(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Backend(body) => Pin::new(body).poll_frame(cx),
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        this.is_end_hidden = false;
        let Some(record) = &mut this.record else {
            return Poll::Ready(None);
        };
        record.activity().on_response_awaited();
        let mut polled = this.source.poll(cx);
        match &mut polled {
            Poll::Pending => {}
            Poll::Ready(Some(Ok(frame))) => {
                record.sent(frame.data_ref().map_or(0, Bytes::len));
                record.activity().on_response();
                if let Some(trailers) = frame.trailers_mut() {
                    headers::clean_trailers(trailers);
                }
                if this.source.is_end_stream() {
                    record.complete();
                }
            }
            Poll::Ready(Some(Err(_))) => record.fail("cut: the backend failed while it responded"),
            Poll::Ready(None) => record.complete(),
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        !self.is_end_hidden && self.source.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            _ if self.is_end_hidden => SizeHint::default(),
            Source::Empty => SizeHint::with_exact(0),
            Source::Memory(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Backend(body) => body.size_hint(),
        }
    }
}
