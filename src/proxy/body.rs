//! The bodies of a request and its response on their way through: they move the request's deadline, count bytes, and
//! close its record with the last one. Neither holds more than one piece at a time.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::activity::Activity;
use super::headers;
use super::record::Record;
use crate::upstream::AnswerBody;
use crate::upstream::answer::BoxError;

/// A request's body. The default is an empty one.
#[derive(Default)]
pub(crate) struct RequestBody(Option<Client>);

struct Client {
    incoming: Incoming,
    activity: Rc<Activity>,
    /// Whether silence of the client counts against it: its request is not a stream in both directions.
    one_way: bool,
}

impl RequestBody {
    /// The body that arrives with a request.
    pub(crate) fn new(incoming: Incoming, activity: Rc<Activity>, one_way: bool) -> Self {
        Self(Some(Client {
            incoming,
            activity,
            one_way,
        }))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(client) = &mut self.0 else {
            return Poll::Ready(None);
        };
        let mut polled = Pin::new(&mut client.incoming).poll_frame(cx);
        match &mut polled {
            Poll::Pending if client.one_way => client.activity.on_body_awaited(),
            Poll::Pending => {}
            Poll::Ready(Some(Ok(frame))) => {
                client
                    .activity
                    .on_body(frame.data_ref().map_or(0, Bytes::len));
                if let Some(trailers) = frame.trailers_mut() {
                    headers::clean_trailers(trailers);
                }
            }
            Poll::Ready(_) => client.activity.on_body(0),
        }
        polled.map_err(BoxError::from)
    }

    fn is_end_stream(&self) -> bool {
        self.0
            .as_ref()
            .is_none_or(|client| client.incoming.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(
            || SizeHint::with_exact(0),
            |client| client.incoming.size_hint(),
        )
    }
}

/// Where a response's body comes from.
pub(crate) enum Source {
    /// Nowhere: the head is all there is.
    None,
    /// A text of the proxy's own.
    Own(&'static str),
    /// A backend.
    Backend(AnswerBody<RequestBody>),
}

/// A response's body, with the record that it closes.
pub(crate) struct ResponseBody {
    source: Source,
    record: Option<Record>,
    /// When the whole exchange must be over.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl ResponseBody {
    /// The body of a response whose head is about to be written.
    pub(crate) fn new(
        source: Source,
        mut record: Record,
        deadline: Option<Pin<Box<Sleep>>>,
    ) -> Self {
        if source.is_done() {
            record.complete();
        } else {
            record.activity().on_response();
        }
        Self {
            source,
            record: Some(record),
            deadline,
        }
    }

    /// No body, and no record to close with it.
    pub(crate) fn none() -> Self {
        Self {
            source: Source::None,
            record: None,
            deadline: None,
        }
    }
}

impl Source {
    fn is_done(&self) -> bool {
        match self {
            Self::None => true,
            Self::Own(text) => text.is_empty(),
            Self::Backend(body) => body.is_end_stream(),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self {
            Self::None | Self::Own("") => Poll::Ready(None),
            Self::Own(text) => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(
                std::mem::take(text).as_bytes(),
            ))))),
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
        let Some(record) = &mut this.record else {
            return Poll::Ready(None);
        };
        record.activity().on_response_awaited();
        let mut polled = this.source.poll(cx);
        match &mut polled {
            Poll::Pending => {
                if let Some(deadline) = &mut this.deadline
                    && deadline.as_mut().poll(cx).is_ready()
                {
                    record.fail("cut: no complete answer within the route's request timeout");
                    return Poll::Ready(Some(Err("the route's request timeout is over".into())));
                }
            }
            Poll::Ready(Some(Ok(frame))) => {
                record.sent(frame.data_ref().map_or(0, Bytes::len));
                record.activity().on_response();
                if let Some(trailers) = frame.trailers_mut() {
                    headers::clean_trailers(trailers);
                }
                if this.source.is_done() {
                    record.complete();
                }
            }
            Poll::Ready(Some(Err(_))) => record.fail("cut: the backend failed while it answered"),
            Poll::Ready(None) => record.complete(),
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.source.is_done()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::None => SizeHint::with_exact(0),
            Source::Own(text) => SizeHint::with_exact(text.len() as u64),
            Source::Backend(body) => body.size_hint(),
        }
    }
}
