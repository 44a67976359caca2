//! One HTTP/1.1 exchange with a backend, driven by polling, without a task or channel. Owns the connection from the
//! first byte of the request to the last byte of the response. Tracks what was written, which decides whether a retry
//! is safe.

mod body;
mod buffers;
mod head;
mod write_queue;

use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut, Bytes};
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Method, StatusCode, request};
use http_body::{Body, Frame};
use tokio::io::AsyncReadExt;
use tokio::time::{Sleep, sleep};

use self::body::{Decoder, Piece};
pub(super) use self::buffers::Buffers;
use self::buffers::{LARGE, ReadBuffer};
use self::head::{RequestFraming, ResponseFraming, ResponseHead};
use self::write_queue::WriteQueue;
pub use super::exchange_error::ExchangeError;
use super::io::Io;
use super::outgoing::{HeadLimits, Informational, Outgoing, Replay, Semantics};
use super::peer_watch::Reads;
use super::response_head::{Head, InformationalHeads};
use crate::byte_chain::READ_BUFFER;
use crate::http2::{SCARCE_READ, is_memory_scarce};

/// Time that a body waits for a backend that ignores `Expect: 100-continue` (RFC 9110, 10.1.1).
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum length of a request that the host of a backend has room for, whether the backend reads it or not.
const SHORT_REQUEST: u64 = 16 * 1024;

/// A connection to a backend and its read-ahead data.
pub(super) struct Connection {
    io: Io,
    buffer: ReadBuffer,
    /// Whether it has carried an exchange.
    pub(super) reused: bool,
}

impl Connection {
    /// Creates an unused connection.
    pub(super) fn new(io: Io, buffers: Rc<Buffers>) -> Self {
        Self {
            io,
            buffer: ReadBuffer::new(buffers),
            reused: false,
        }
    }

    /// Counts a request that the connection has carried. Returns whether it may carry another one.
    pub(super) fn count_request(&mut self) -> bool {
        self.io.count_request()
    }

    /// Returns its own idle timeout in milliseconds.
    pub(super) fn idle_timeout(&self) -> Option<u64> {
        self.io.idle_timeout()
    }

    /// Reports whether other connections of the backend were refused since this time, for want of slots.
    pub(super) fn is_wanted(&self, since: u64) -> bool {
        self.io.is_wanted(since)
    }

    /// Reports whether the connection is open and has received nothing, as an idle connection must.
    pub(super) fn is_idle(&mut self) -> bool {
        self.buffer.is_empty() && self.io.is_idle()
    }

    /// Returns the stream and the data read after the response head.
    pub(super) fn into_parts(self) -> (Io, Bytes) {
        (self.io, self.buffer.into_unread())
    }

    /// Reads more data, of which about `expected` bytes are expected, or little while other connections hold much.
    fn poll_fill(&mut self, cx: &mut Context<'_>, expected: usize) -> Poll<io::Result<usize>> {
        let (expected, most) = match is_memory_scarce() {
            true => (READ_BUFFER, SCARCE_READ),
            false => (expected, usize::MAX),
        };
        self.buffer.make_room(expected);
        let mut space = (&mut *self.buffer).limit(most);
        let read = pin!(self.io.read_buf(&mut space)).poll(cx);
        if read.is_pending() && self.buffer.is_empty() {
            self.buffer.release();
        }
        read
    }
}

/// An exchange in progress. After the head it is the response body.
pub(super) struct Exchange<B> {
    connection: Option<Connection>,
    queue: WriteQueue,
    /// Kept until the response head arrives, for a replay.
    body: Option<B>,
    /// The body after the response head, if it is kept but not sent any further.
    spare: Option<B>,
    keeps_body: bool,
    /// Whether the whole body, if any, was queued.
    body_done: bool,
    chunked: bool,
    /// Runs while the body waits for a 100.
    continue_timer: Option<Pin<Box<Sleep>>>,
    read_any: bool,
    informational: InformationalHeads,
    /// Bytes of the response body in the last read.
    last_read: usize,
    request_failed: Option<ExchangeError>,
    method: Method,
    semantics: Semantics,
    upgrade: Option<HeaderValue>,
    limits: HeadLimits,
    decoder: Decoder,
    keep_alive: bool,
    head_done: bool,
}

/// Decides how a request body is framed. A backend may wait for the content of a method that has some, so that its length
/// is said even if it is 0 (RFC 9110, 8.6). Otherwise a present but empty body is framed as the client framed it.
fn framing_of(parts: &request::Parts, body: &impl Body) -> RequestFraming {
    let has_content = || matches!(parts.method, Method::POST | Method::PUT | Method::PATCH);
    match body.size_hint().exact() {
        Some(0) if !has_content() && !parts.headers.contains_key(CONTENT_LENGTH) => {
            RequestFraming::None
        }
        Some(length) => RequestFraming::Length(length),
        None if !body.is_end_stream() => RequestFraming::Chunked,
        None if has_content() => RequestFraming::Length(0),
        None => RequestFraming::None,
    }
}

/// Reports whether a backend is expected to read a request promptly. It may leave a longer one unread, and what follows an upgrade,
/// for as long as other timeouts permit. `head` is the length of the head.
fn reads_of(head: usize, framing: RequestFraming, is_upgrade: bool) -> Reads {
    let body = match framing {
        RequestFraming::None => Some(0),
        RequestFraming::Length(length) => Some(length),
        RequestFraming::Chunked => None,
    };
    match body.map(|body| body.saturating_add(head as u64)) {
        Some(..=SHORT_REQUEST) if !is_upgrade => Reads::Promptly,
        _ => Reads::AtWill,
    }
}

impl<B: Replay> Exchange<B> {
    /// Creates an exchange that has written nothing. The request must have end-to-end headers only.
    pub(super) fn new(
        mut connection: Connection,
        request: &Outgoing<'_>,
        body: B,
        limits: HeadLimits,
    ) -> Box<Self> {
        let parts = request.parts;
        let ended = body.is_end_stream();
        let framing = framing_of(parts, &body);
        let expects = request.expect_continue && framing.announces_body();
        let head = head::encode(request, framing);
        let reads = reads_of(head.len(), framing, request.upgrade.is_some());
        connection.io.expect_reads(reads);
        // Written in place: `Box::new` would copy it.
        let place = Box::new_uninit();
        let exchange = Self {
            connection: Some(connection),
            queue: WriteQueue::new(head),
            chunked: framing == RequestFraming::Chunked,
            body: Some(body),
            spare: None,
            keeps_body: request.keeps_body,
            body_done: ended,
            continue_timer: expects.then(|| Box::pin(sleep(CONTINUE_TIMEOUT))),
            read_any: false,
            informational: InformationalHeads::default(),
            last_read: 0,
            request_failed: None,
            method: parts.method.clone(),
            semantics: request.semantics,
            upgrade: request.upgrade.cloned(),
            limits,
            decoder: Decoder::Done,
            keep_alive: false,
            head_done: false,
        };
        Box::write(place, exchange)
    }

    /// Sends the request and waits for the final response head. Afterwards, polling the response continues to send the
    /// request body.
    pub(super) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        informational: Option<Informational<'_>>,
    ) -> Poll<Result<Head, ExchangeError>> {
        self.drive_request(cx)?;
        loop {
            while let Some(head) = self.parse_head()? {
                if head.framing != ResponseFraming::Upgrade && head.status.is_informational() {
                    self.informational
                        .forward(head.status, &head.headers, informational)?;
                    if head.status == StatusCode::CONTINUE {
                        self.continue_timer = None;
                        self.drive_request(cx)?;
                    }
                } else {
                    return Poll::Ready(self.accept(head));
                }
            }
            let connection = self.connection.as_mut().ok_or(ExchangeError::Truncated)?;
            match ready!(connection.poll_fill(cx, READ_BUFFER)) {
                Ok(0) => {
                    return Poll::Ready(Err(self
                        .request_failed
                        .unwrap_or(ExchangeError::Truncated)));
                }
                Ok(_) => self.read_any = true,
                Err(error) => {
                    return Poll::Ready(Err(self
                        .request_failed
                        .unwrap_or(ExchangeError::Io(error.kind()))));
                }
            }
        }
    }

    /// Parses the next head in the buffer.
    fn parse_head(&mut self) -> Result<Option<ResponseHead>, ExchangeError> {
        match &mut self.connection {
            Some(connection) if !connection.buffer.is_empty() => head::parse(
                &mut connection.buffer,
                &self.method,
                self.upgrade.as_ref(),
                self.limits,
            ),
            _ => Ok(None),
        }
    }

    fn accept(&mut self, head: ResponseHead) -> Result<Head, ExchangeError> {
        if head.framing == ResponseFraming::Upgrade && !self.body_done {
            return Err(ExchangeError::Protocol("101 before the end of the request"));
        }
        self.head_done = true;
        self.keep_alive = head.keep_alive;
        self.decoder = Decoder::new(head.framing);
        // The backend may respond without reading the announced body, which is then not sent. Its connection cannot be
        // reused, since the framing still promises a body.
        let is_withheld = self.continue_timer.take().is_some();
        self.keep_alive &= !is_withheld;
        if is_withheld || self.body_done {
            self.spare = self.body.take();
        }
        if !self.keeps_body {
            self.forget_body();
        }
        Ok(Head {
            status: head.status,
            headers: head.headers,
        })
    }

    /// Reports whether a retry on another connection is safe, apart from the body. A backend may close an idle
    /// connection just as a request is written. The request may then be sent again if no byte of it was written or its
    /// semantics are idempotent (RFC 9110, 9.2.2).
    pub(super) fn is_replayable(&self) -> bool {
        self.is_reused()
            && !self.read_any
            && (!self.queue.wrote() || self.semantics != Semantics::Other)
    }

    /// Reports whether a byte of the request was written.
    pub(super) fn has_written(&self) -> bool {
        self.queue.wrote()
    }

    /// Reports whether the request is safe and no byte of a response has arrived.
    pub(super) fn is_safe_without_response(&self) -> bool {
        self.semantics == Semantics::Safe && !self.read_any
    }

    /// Reports whether the connection was reused.
    pub(super) fn is_reused(&self) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|connection| connection.reused)
    }

    /// Reports whether the whole request was sent.
    pub(super) fn is_request_sent(&self) -> bool {
        self.body_done && self.queue.is_empty()
    }

    /// Returns the request body, before the response head.
    pub(super) fn into_body(self) -> Option<B> {
        self.body
    }

    /// Returns the request body, rewound, if it is still kept.
    pub(super) fn take_rewound(&mut self) -> Option<B> {
        let body = self.body.as_mut().or(self.spare.as_mut());
        let is_rewound = body.is_some_and(Replay::rewind);
        let body = is_rewound.then(|| self.body.take().or_else(|| self.spare.take()));
        body.flatten()
    }

    /// Stops keeping the request body for a replay.
    pub(super) fn forget_body(&mut self) {
        self.spare = None;
        if let Some(body) = &mut self.body {
            body.forget();
        }
    }

    /// Returns the connection, if the response is complete and the connection can be reused.
    pub(super) fn take_idle(&mut self) -> Option<Connection> {
        let reusable =
            self.keep_alive && self.head_done && self.decoder.is_done() && self.body_done;
        let clean = self.queue.is_empty() && self.request_failed.is_none();
        let mut connection = self
            .connection
            .take_if(|connection| reusable && clean && connection.buffer.is_empty())?;
        connection.reused = true;
        connection.buffer.release();
        Some(connection)
    }

    /// Returns the connection after a 101.
    pub(super) fn into_upgraded(self) -> Option<Connection> {
        self.connection
    }

    /// Gives back what it can of the read buffer. Returns the allocated bytes that it keeps.
    pub(super) fn compact(&mut self) -> usize {
        let connection = self.connection.as_mut();
        connection.map_or(0, |connection| connection.buffer.compact())
    }

    /// Reports whether the response body is complete.
    pub(super) fn is_end_stream(&self) -> bool {
        self.head_done && self.decoder.is_done()
    }

    /// Returns the remaining bytes of the response body, if known.
    pub(super) fn remaining(&self) -> Option<u64> {
        self.decoder.remaining()
    }

    /// Returns the next frame of the response body.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ExchangeError>>> {
        self.send_rest(cx)?;
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
                None if self.last_read >= READ_BUFFER => LARGE,
                None => READ_BUFFER,
            };
            match ready!(connection.poll_fill(cx, expected)) {
                Ok(0) if self.decoder == Decoder::Close => self.decoder = Decoder::Done,
                Ok(0) => return Poll::Ready(Some(Err(ExchangeError::Truncated))),
                Ok(count) => self.last_read = count,
                Err(error) => return Poll::Ready(Some(Err(ExchangeError::Io(error.kind())))),
            }
        }
    }

    /// Sends as much of the request as possible, if any is left.
    pub(super) fn send_rest(&mut self, cx: &mut Context<'_>) -> Result<(), ExchangeError> {
        if (self.body_done || self.body.is_none()) && self.queue.is_empty() {
            return Ok(());
        }
        self.drive_request(cx)
    }

    /// Sends as much of the request as possible. Keeps a write error for later, since the backend may have responded
    /// before it stopped reading. A body error ends the exchange.
    fn drive_request(&mut self, cx: &mut Context<'_>) -> Result<(), ExchangeError> {
        if self.request_failed.is_some() {
            return Ok(());
        }
        match self.poll_request(cx) {
            Poll::Pending | Poll::Ready(Ok(())) => Ok(()),
            Poll::Ready(Err(ExchangeError::RequestBody)) => {
                self.connection = None;
                Err(ExchangeError::RequestBody)
            }
            Poll::Ready(Err(cause)) => {
                self.request_failed = Some(cause);
                if self.head_done {
                    self.body = None;
                }
                Ok(())
            }
        }
    }

    fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ExchangeError>> {
        let Some(connection) = &mut self.connection else {
            return Poll::Ready(Ok(()));
        };
        loop {
            if let Some(timer) = &mut self.continue_timer {
                if timer.as_mut().poll(cx).is_ready() {
                    self.continue_timer = None;
                } else if self.queue.is_empty() {
                    return Poll::Pending;
                }
            }
            if let Some(body) = &mut self.body
                && !self.body_done
                && self.continue_timer.is_none()
                && self.queue.has_room()
            {
                match Pin::new(body).poll_frame(cx) {
                    Poll::Ready(Some(Ok(frame))) => {
                        self.body_done = frame.is_trailers();
                        self.queue.push(frame, self.chunked);
                    }
                    Poll::Ready(Some(Err(_))) => {
                        return Poll::Ready(Err(ExchangeError::RequestBody));
                    }
                    Poll::Ready(None) => {
                        self.body_done = true;
                        if self.chunked {
                            self.queue.push_end();
                        }
                    }
                    Poll::Pending if self.queue.is_empty() => return Poll::Pending,
                    Poll::Pending => {}
                }
            }
            if self.queue.is_empty() {
                if self.body_done || self.body.is_none() {
                    return Poll::Ready(Ok(()));
                }
            } else {
                ready!(self.queue.poll_write(cx, &mut connection.io))
                    .map_err(|error| ExchangeError::Io(error.kind()))?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backend_may_leave_long_requests_and_tunnels_unread() {
        use RequestFraming::{Chunked, Length, None};
        const HEAD: usize = 400;
        const SHORT_BODY: u64 = SHORT_REQUEST - HEAD as u64;
        for (head, framing, is_upgrade, reads) in [
            (HEAD, None, false, Reads::Promptly),
            (HEAD, Length(0), false, Reads::Promptly),
            (HEAD, Length(SHORT_BODY), false, Reads::Promptly),
            (HEAD, Length(SHORT_BODY + 1), false, Reads::AtWill),
            (HEAD, Length(u64::MAX), false, Reads::AtWill),
            (HEAD, Chunked, false, Reads::AtWill),
            (HEAD, None, true, Reads::AtWill),
            (64 * 1024, None, false, Reads::AtWill),
        ] {
            assert_eq!(reads_of(head, framing, is_upgrade), reads, "{framing:?}");
        }
    }
}
