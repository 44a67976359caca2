//! A response body on its way to the client: updates the `Activity`, counts bytes, and closes the
//! request's record at its end.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use super::compressed_body::{CompressedBody, Frames};
use super::grpc_web_body::WebBody;
use super::page_body::PageBody;
use super::processed_body::{Process, ProcessedBody};
use super::request_body::RequestBody;
use super::trailers;
use super::tunnel::Tunnel;
use crate::byte_chain::{READ_BUFFER, leave_read_buffer};
use crate::http2::{SCARCE_READ, is_memory_scarce};
use crate::ir::grpc::WebFormat;
use crate::proxy::activity::Activity;
use crate::proxy::response::record::Record;
use crate::proxy::unwritten::Unwritten;
use crate::upstream::{self, BoxError};

/// Error of a response that breaks off.
const BROKEN_OFF: &str = "aborted: the backend failed during the response";

/// Source of a response body.
pub(crate) enum BodySource {
    /// No body.
    Empty,
    /// In memory: an error message or a filter's response.
    Memory(Bytes),
    /// A tunnel, which the connection or the stream relays instead of a body.
    Tunnel(Box<Tunnel>),
    /// A gRPC response of a backend, translated for a gRPC-Web client.
    GrpcWeb(Box<WebBody<Self>>),
    /// Another one, compressed.
    Compressed(Box<CompressedBody<Self>>),
    /// An error page of a backend.
    Page(Box<PageBody>),
    /// A backend, whose response a picker processes.
    Processed(Box<ProcessedBody>),
    /// A backend.
    Backend(upstream::ResponseBody<RequestBody>),
}

/// A response body with the record of its request.
pub(crate) struct ResponseBody {
    source: BodySource,
    record: Option<Box<Record>>,
    /// Whether `is_end_stream` and `size_hint` hide the end until the body is polled.
    is_end_hidden: bool,
    /// A failure that is reported by the next poll.
    failure: Option<BoxError>,
}

impl ResponseBody {
    /// Creates the body of a response whose head is about to be written.
    pub(crate) fn new(source: BodySource, mut record: Box<Record>) -> Self {
        if source.is_end_stream() {
            record.complete();
        } else {
            record.activity().on_response();
        }
        Self {
            source,
            record: Some(record),
            is_end_hidden: false,
            failure: None,
        }
    }

    /// Creates an empty body without a record.
    pub(crate) fn empty() -> Self {
        Self::without_record(BodySource::Empty)
    }

    /// Returns the body for a tunnel, which has the record.
    pub(crate) fn tunnel(tunnel: Box<Tunnel>) -> Self {
        Self::without_record(BodySource::Tunnel(tunnel))
    }

    /// Returns the tunnel, if this is one.
    pub(crate) fn take_tunnel(&mut self) -> Option<Box<Tunnel>> {
        match std::mem::replace(&mut self.source, BodySource::Empty) {
            BodySource::Tunnel(tunnel) => Some(tunnel),
            source => {
                self.source = source;
                None
            }
        }
    }

    fn without_record(source: BodySource) -> Self {
        Self {
            source,
            record: None,
            is_end_hidden: false,
            failure: None,
        }
    }

    /// Completes the response without its body, as for HEAD.
    pub(crate) fn skip(&mut self) {
        self.source = BodySource::Empty;
        if let Some(record) = &mut self.record {
            record.complete();
        }
    }

    /// Gives memory back while the client takes nothing. Returns the bytes that stay allocated.
    pub(crate) fn compact(&mut self) -> usize {
        self.source.compact()
    }

    /// Sends as much of the rest of the request as possible while the client takes nothing: neither direction of a stream
    /// waits for the other one.
    pub(crate) fn send_rest(&mut self, cx: &mut Context<'_>) {
        if self.failure.is_none()
            && let Some(record) = &mut self.record
            && let Err(failure) = self.source.send_rest(cx)
        {
            record.fail(BROKEN_OFF);
            self.failure = Some(failure);
        }
    }

    /// Records that the response is given up, since it takes memory that others need.
    pub(crate) fn give_up(&mut self) {
        if let Some(record) = &mut self.record {
            record.fail("aborted: the client read too slowly while too much memory was in use");
        }
    }

    /// Hides the end and length of the body until it is polled.
    pub(crate) fn hide_end(&mut self) {
        self.is_end_hidden = true;
    }
}

impl BodySource {
    /// Returns the body of a backend, and of what processes it if something does.
    #[inline]
    pub(in crate::proxy) fn of_backend(
        body: upstream::ResponseBody<RequestBody>,
        process: Option<Box<dyn Process>>,
    ) -> Self {
        match process {
            None => Self::Backend(body),
            Some(process) => Self::Processed(Box::new(ProcessedBody::new(body, process))),
        }
    }

    /// Translates the body of a gRPC response, with this status in its head.
    pub(in crate::proxy) fn for_grpc_web(self, format: WebFormat, status: HeaderMap) -> Self {
        Self::GrpcWeb(Box::new(WebBody::new(self, format, status)))
    }

    /// Reports whether there is nothing more to send.
    pub(in crate::proxy) fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty | Self::Tunnel(_) => true,
            Self::Memory(bytes) => bytes.is_empty(),
            Self::GrpcWeb(body) => body.is_ended(),
            Self::Compressed(body) => body.is_ended(),
            Self::Page(body) => body.is_ended(),
            Self::Processed(body) => body.is_ended(),
            Self::Backend(body) => body.is_end_stream(),
        }
    }

    /// Returns what is known about the number of bytes.
    pub(in crate::proxy) fn size_hint(&self) -> SizeHint {
        match self {
            Self::Processed(body) if body.is_ended() => SizeHint::with_exact(0),
            Self::GrpcWeb(_) | Self::Compressed(_) | Self::Processed(_) => SizeHint::default(),
            Self::Empty | Self::Tunnel(_) => SizeHint::with_exact(0),
            Self::Memory(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Page(body) => body.size_hint(),
            Self::Backend(body) => body.size_hint(),
        }
    }
}

impl Frames for BodySource {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self {
            Self::Empty | Self::Tunnel(_) => Poll::Ready(None),
            Self::Memory(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Memory(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::GrpcWeb(body) => body.poll_frame(cx),
            Self::Compressed(body) => body.poll_frame(cx),
            Self::Page(body) => body.poll_frame(cx),
            Self::Processed(body) => body.poll_frame(cx),
            Self::Backend(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn compact(&mut self) -> usize {
        match self {
            Self::Empty | Self::Tunnel(_) => 0,
            Self::Memory(bytes) => bytes.len(),
            Self::GrpcWeb(body) => body.compact(),
            Self::Compressed(body) => body.compact(),
            Self::Page(body) => body.compact(),
            Self::Processed(body) => body.compact(),
            Self::Backend(body) => body.compact(),
        }
    }

    fn send_rest(&mut self, cx: &mut Context<'_>) -> Result<(), BoxError> {
        match self {
            Self::Empty | Self::Tunnel(_) | Self::Memory(_) | Self::Page(_) => Ok(()),
            Self::GrpcWeb(body) => body.send_rest(cx),
            Self::Compressed(body) => body.send_rest(cx),
            Self::Processed(body) => body.send_rest(cx),
            Self::Backend(body) => body.send_rest(cx),
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
        if let Some(failure) = this.failure.take() {
            return Poll::Ready(Some(Err(failure)));
        }
        let Some(record) = &mut this.record else {
            return Poll::Ready(None);
        };
        if awaits_client(record.activity()) {
            record.activity().unwritten.wait(cx);
            return Poll::Pending;
        }
        record.activity().on_response_awaited();
        let mut polled = this.source.poll_frame(cx);
        match &mut polled {
            Poll::Pending => {}
            Poll::Ready(Some(Ok(frame))) => {
                record.sent(frame.data_ref().map_or(0, Bytes::len));
                let activity = record.activity();
                activity.on_response();
                if let (false, Some(data)) = (activity.multiplexed, frame.data_mut()) {
                    hand_over(data, &mut this.source, &activity.unwritten);
                }
                if let Some(trailers) = frame.trailers_mut() {
                    record.grpc_status(trailers);
                    trailers::remove_head_only(trailers);
                }
                if this.source.is_end_stream() {
                    record.complete();
                }
            }
            Poll::Ready(Some(Err(_))) => record.fail(BROKEN_OFF),
            Poll::Ready(None) => record.complete(),
        }
        if let Poll::Ready(Some(Err(failure))) = polled {
            // hyper and h2 discard what is not written yet. Without a head, clients repeat requests, even those that
            // were processed.
            this.failure = Some(failure);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        !self.is_end_hidden && self.source.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.is_end_hidden {
            true => SizeHint::default(),
            false => self.source.size_hint(),
        }
    }
}

/// Reports whether an HTTP/1.1 client has to read before more of a response is read for it: one that does not read, and any
/// after a small part while the worker holds much. Streams of HTTP/2 have windows instead.
fn awaits_client(activity: &Activity) -> bool {
    let bytes = activity.unwritten.bytes();
    bytes > 0 && activity.is_write_blocked() || bytes >= SCARCE_READ / 2 && is_memory_scarce()
}

/// Counts a part of a body for an HTTP/1.1 client. While the worker holds much, it keeps no larger buffer allocated.
fn hand_over(part: &mut Bytes, source: &mut BodySource, unwritten: &Unwritten) {
    if is_memory_scarce() {
        unwritten.add(leave_read_buffer(part));
        unwritten.set_source(source.compact());
    } else {
        // The number of larger buffers is bounded.
        unwritten.add(part.len().min(READ_BUFFER));
    }
}
