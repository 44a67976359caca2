//! One HTTP/1.1 exchange with a backend, driven by whoever polls it: no task of its own, no channel. Owns the
//! connection from the first byte of the request to the last of the response, and knows exactly what was written,
//! which is what makes replaying safe.

mod body;
mod buffers;
mod head;
mod write_queue;

use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body::{Body, Frame};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use self::body::{Decoder, Piece};
pub(super) use self::buffers::Buffers;
use self::buffers::{LARGE, ORDINARY, ReadBuffer};
use self::head::{RequestFraming, ResponseFraming};
use self::write_queue::WriteQueue;
use super::Outgoing;

/// Why an exchange failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The backend broke the protocol.
    #[error("{0}")]
    Protocol(&'static str),
    /// The connection ended before the response did.
    #[error("the connection ended before the response did")]
    Truncated,
    /// Reading or writing failed.
    #[error("the connection failed: {0}")]
    Io(io::ErrorKind),
    /// The request's own body failed: the client went away or broke the protocol.
    #[error("the request body failed")]
    RequestBody,
}

/// A connection to a backend with what was read ahead.
pub struct Connection {
    io: TcpStream,
    buffer: ReadBuffer,
    /// Whether it has carried an exchange before.
    pub reused: bool,
}

impl Connection {
    /// A connection that has carried nothing yet.
    pub(super) fn new(io: TcpStream, buffers: Rc<Buffers>) -> Self {
        Self {
            io,
            buffer: ReadBuffer::new(buffers),
            reused: false,
        }
    }

    /// Whether the connection is still silent and open, as an idle one must be. Asks the kernel only after an event.
    pub fn is_idle(&self) -> bool {
        let mut byte = [0];
        self.buffer.is_empty()
            && self
                .io
                .try_read(&mut byte)
                .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// The socket, and the bytes read from it beyond the response head.
    pub fn into_parts(self) -> (TcpStream, Bytes) {
        (self.io, self.buffer.into_unread())
    }

    /// Reads more, where about `expected` bytes are to come.
    fn poll_fill(&mut self, cx: &mut Context<'_>, expected: usize) -> Poll<io::Result<usize>> {
        self.buffer.make_room(expected);
        let read = pin!(self.io.read_buf(&mut *self.buffer)).poll(cx);
        if read.is_pending() && self.buffer.is_empty() {
            self.buffer.release();
        }
        read
    }
}

/// A response head as the backend sent it, without connection fields.
pub struct Response {
    /// Status.
    pub status: StatusCode,
    /// End-to-end fields, `Upgrade` on a 101.
    pub headers: HeaderMap,
}

/// An exchange under way. After the head has been read it is the response's body.
pub struct Exchange<B> {
    connection: Option<Connection>,
    queue: WriteQueue,
    body: Option<B>,
    chunked: bool,
    body_touched: bool,
    read_any: bool,
    /// Bytes that the last read of the response's body brought.
    last_read: usize,
    request_failed: Option<Fault>,
    method: Method,
    upgrade: Option<HeaderValue>,
    decoder: Decoder,
    keep_alive: bool,
    head_done: bool,
}

impl<B> Exchange<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    /// An exchange that has written nothing yet. The request must have end-to-end fields only.
    pub fn new(connection: Connection, request: &Outgoing<'_>, body: B) -> Self {
        let parts = request.parts;
        let ended = body.is_end_stream();
        let framing = match body.size_hint().exact() {
            // A body that is there but empty is announced as the client announced it.
            Some(0) if !parts.headers.contains_key(http::header::CONTENT_LENGTH) => {
                RequestFraming::None
            }
            Some(length) => RequestFraming::Length(length),
            None if ended => RequestFraming::None,
            None => RequestFraming::Chunked,
        };
        Self {
            connection: Some(connection),
            queue: WriteQueue::new(head::encode(request, framing)),
            chunked: framing == RequestFraming::Chunked,
            body: (!ended).then_some(body),
            body_touched: false,
            read_any: false,
            last_read: 0,
            request_failed: None,
            method: parts.method.clone(),
            upgrade: request.upgrade.cloned(),
            decoder: Decoder::Done,
            keep_alive: false,
            head_done: false,
        }
    }

    /// Sends the request, and waits for the response's head. The request's body goes on being sent afterwards, while
    /// the response is polled.
    pub fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response, Fault>> {
        self.drive_request(cx)?;
        let connection = self.connection.as_mut().ok_or(Fault::Truncated)?;
        loop {
            if !connection.buffer.is_empty()
                && let Some(head) =
                    head::parse(&mut connection.buffer, &self.method, self.upgrade.as_ref())?
            {
                self.head_done = true;
                self.keep_alive = head.keep_alive;
                self.decoder = Decoder::new(head.framing);
                if head.framing == ResponseFraming::Upgrade && self.body.is_some() {
                    return Poll::Ready(Err(Fault::Protocol("101 before the end of the request")));
                }
                return Poll::Ready(Ok(Response {
                    status: head.status,
                    headers: head.headers,
                }));
            }
            match ready!(connection.poll_fill(cx, ORDINARY)) {
                Ok(0) => return Poll::Ready(Err(self.request_failed.unwrap_or(Fault::Truncated))),
                Ok(_) => self.read_any = true,
                Err(error) => {
                    return Poll::Ready(Err(self
                        .request_failed
                        .unwrap_or(Fault::Io(error.kind()))));
                }
            }
        }
    }

    /// Whether a failed exchange left no trace: it may be tried again on another connection. A backend that closes an
    /// idle connection just as a request is written cannot have acted on it when the method is idempotent or no byte
    /// left, and a body that was not touched is still whole (RFC 9110, 9.2.2).
    pub fn is_replayable(&self) -> bool {
        let reused = self
            .connection
            .as_ref()
            .is_some_and(|connection| connection.reused);
        reused
            && !self.read_any
            && !self.body_touched
            && (!self.queue.wrote() || self.method.is_idempotent())
    }

    /// The request's body, for a replay.
    pub fn into_body(self) -> Option<B> {
        self.body
    }

    /// The connection, once the response is whole and if it can carry another exchange.
    pub fn take_idle(&mut self) -> Option<Connection> {
        let reusable =
            self.keep_alive && self.head_done && self.decoder.is_done() && self.body.is_none();
        let clean = self.queue.is_empty() && self.request_failed.is_none();
        let mut connection = self
            .connection
            .take_if(|connection| reusable && clean && connection.buffer.is_empty())?;
        connection.reused = true;
        connection.buffer.release();
        Some(connection)
    }

    /// The connection behind a 101.
    pub fn into_upgraded(self) -> Option<Connection> {
        self.connection
    }

    /// Whether the response's body is whole.
    pub fn is_end_stream(&self) -> bool {
        self.head_done && self.decoder.is_done()
    }

    /// Bytes of the response's body still to come, where that is known.
    pub fn remaining(&self) -> Option<u64> {
        self.decoder.remaining()
    }

    /// The next frame of the response's body.
    pub fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        if self.body.is_some() || !self.queue.is_empty() {
            self.drive_request(cx)?;
        }
        let Some(connection) = self.connection.as_mut() else {
            return Poll::Ready(None);
        };
        loop {
            match self.decoder.decode(&mut connection.buffer)? {
                Piece::Data(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Piece::Trailers(trailers) => {
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                Piece::End => return Poll::Ready(None),
                Piece::NeedMore => {}
            }
            let expected = match self.decoder.remaining() {
                Some(left) => usize::try_from(left).unwrap_or(LARGE),
                None if self.last_read >= ORDINARY => LARGE,
                None => ORDINARY,
            };
            match ready!(connection.poll_fill(cx, expected)) {
                Ok(0) if self.decoder == Decoder::Close => self.decoder = Decoder::Done,
                Ok(0) => return Poll::Ready(Some(Err(Fault::Truncated))),
                Ok(count) => self.last_read = count,
                Err(error) => return Poll::Ready(Some(Err(Fault::Io(error.kind())))),
            }
        }
    }

    /// Sends as much of the request as can be sent now. A failed write is kept, since the backend may have answered
    /// before it stopped reading; a failed body ends the exchange.
    fn drive_request(&mut self, cx: &mut Context<'_>) -> Result<(), Fault> {
        if self.request_failed.is_some() {
            return Ok(());
        }
        match self.poll_request(cx) {
            Poll::Pending | Poll::Ready(Ok(())) => Ok(()),
            Poll::Ready(Err(Fault::RequestBody)) => {
                self.connection = None;
                Err(Fault::RequestBody)
            }
            Poll::Ready(Err(fault)) => {
                self.request_failed = Some(fault);
                self.body = None;
                Ok(())
            }
        }
    }

    fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        let Some(connection) = &mut self.connection else {
            return Poll::Ready(Ok(()));
        };
        loop {
            if let Some(body) = &mut self.body
                && self.queue.has_room()
            {
                match Pin::new(body).poll_frame(cx) {
                    Poll::Ready(Some(Ok(frame))) => {
                        self.body_touched = true;
                        let last = frame.is_trailers();
                        self.queue.push(frame, self.chunked);
                        if last {
                            self.body = None;
                        }
                    }
                    Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(Fault::RequestBody)),
                    Poll::Ready(None) => {
                        self.body_touched = true;
                        self.body = None;
                        if self.chunked {
                            self.queue.push_end();
                        }
                    }
                    Poll::Pending if self.queue.is_empty() => return Poll::Pending,
                    Poll::Pending => {}
                }
            }
            if self.queue.is_empty() {
                if self.body.is_none() {
                    return Poll::Ready(Ok(()));
                }
            } else {
                ready!(self.queue.poll_write(cx, &mut connection.io))
                    .map_err(|error| Fault::Io(error.kind()))?;
            }
        }
    }
}
