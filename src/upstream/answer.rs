//! A backend's answer: its head, and a body that holds the connection until its last byte. Gives the connection back
//! when it can carry another request. Knows nothing of who reads it.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::balance::InFlight;
use super::http1::{Connection, Exchange, Response};
use super::http2::Stream;
use super::pool::Pool;

/// A body or connection error, for whoever reads the body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The answer to a request.
pub struct Answer<B> {
    /// Status.
    pub status: StatusCode,
    /// End-to-end fields, `Upgrade` on a 101.
    pub headers: HeaderMap,
    /// Body.
    pub body: AnswerBody<B>,
}

/// The body of an [`Answer`]. Counts as a request in flight until dropped.
pub struct AnswerBody<B> {
    source: Source<B>,
    place: InFlight,
}

enum Source<B> {
    Http1 {
        exchange: Box<Exchange<B>>,
        pool: Rc<Pool>,
    },
    Http2 {
        incoming: Incoming,
        _stream: Stream<B>,
    },
}

impl<B> Answer<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    pub(super) fn http1(
        head: Response,
        exchange: Box<Exchange<B>>,
        pool: Rc<Pool>,
        place: InFlight,
    ) -> Self {
        let mut body = AnswerBody {
            source: Source::Http1 { exchange, pool },
            place,
        };
        body.release();
        Self {
            status: head.status,
            headers: head.headers,
            body,
        }
    }

    pub(super) fn http2(
        response: http::Response<Incoming>,
        stream: Stream<B>,
        place: InFlight,
    ) -> Self {
        let (head, incoming) = response.into_parts();
        let body = AnswerBody {
            source: Source::Http2 {
                incoming,
                _stream: stream,
            },
            place,
        };
        Self {
            status: head.status,
            headers: head.headers,
            body,
        }
    }
}

impl<B> AnswerBody<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    /// The endpoint that answered.
    pub fn endpoint(&self) -> std::net::SocketAddr {
        self.place.endpoint().address
    }

    /// The connection behind a 101, with what counts it in flight.
    pub fn into_upgraded(self) -> Option<(Connection, Box<dyn std::any::Any>)> {
        match self.source {
            Source::Http1 { exchange, .. } => {
                Some((exchange.into_upgraded()?, Box::new(self.place)))
            }
            Source::Http2 { .. } => None,
        }
    }

    /// Gives the connection back as soon as the exchange is complete.
    fn release(&mut self) {
        if let Source::Http1 { exchange, pool } = &mut self.source
            && exchange.is_end_stream()
            && let Some(connection) = exchange.take_idle()
        {
            pool.put(self.place.endpoint().id, connection);
        }
    }
}

impl<B> Body for AnswerBody<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = match &mut self.source {
            Source::Http1 { exchange, .. } => exchange.poll_frame(cx).map_err(BoxError::from),
            Source::Http2 { incoming, .. } => {
                Pin::new(incoming).poll_frame(cx).map_err(BoxError::from)
            }
        };
        if frame.is_ready() {
            self.release();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Http1 { exchange, .. } => exchange.is_end_stream(),
            Source::Http2 { incoming, .. } => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Http1 { exchange, .. } => exchange
                .remaining()
                .map_or_else(SizeHint::default, SizeHint::with_exact),
            Source::Http2 { incoming, .. } => incoming.size_hint(),
        }
    }
}
