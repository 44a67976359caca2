//! The response of a backend on its way through a picker: what the backend sends goes to the picker, and what the picker
//! returns goes to the client.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};

use super::original::MAX_REPLAY;
use super::protocol::{Part, Side};
use super::session::{Outcome, Shared};
use crate::byte_chain::ByteChain;
use crate::header_memory;
use crate::proxy::body::processed_body::Process;
use crate::proxy::body::request_body::RequestBody;
use crate::proxy::worker_state::budget::{Held, Share};
use crate::upstream::{BoxError, ResponseBody};

const NOT_WHOLE: &str = "the picker ended before it had returned the whole response";
const BACKEND_FAILED: &str = "the backend failed during the response";

type Source = ResponseBody<RequestBody>;
type Next = Poll<Option<Result<Frame<Bytes>, BoxError>>>;

/// A response in progress.
pub(super) struct PickedResponse {
    session: Shared,
    /// Whether the backend sends nothing more.
    is_source_ended: bool,
    has_source_failed: bool,
    /// What the backend has sent after the picker has ended.
    pending: Option<Frame<Bytes>>,
    /// Memory of what was received and is not read while the picker has no room, as far as the client may hold it.
    unread: Held,
    sent: SentCopy,
}

/// A copy of what was sent to the picker: the response goes on with it if the picker ends before it returns anything.
struct SentCopy {
    data: ByteChain,
    trailers: Option<HeaderMap>,
    /// Memory of both.
    held: Held,
    is_incomplete: bool,
}

impl PickedResponse {
    /// Begins a response whose head was sent. `share` is that of the client.
    pub(super) fn new(session: &Shared, has_body: bool, share: &Rc<Share>) -> Self {
        let mut response = Self {
            session: session.clone(),
            is_source_ended: false,
            has_source_failed: false,
            pending: None,
            unread: Held::none(share),
            sent: SentCopy::new(&share.of_picked()),
        };
        if !has_body {
            response.end_source();
        }
        response
    }

    /// Returns what becomes of the head.
    ///
    /// # Errors
    /// The backend has failed before.
    pub(super) fn poll_head(
        &mut self,
        body: &mut Source,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Outcome, BoxError>> {
        loop {
            if let Some(outcome) = self.outcome(cx) {
                return Poll::Ready(Ok(outcome));
            }
            match self.advance(body, cx) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                // A request that the picker or the client has broken off is not the fault of the backend.
                Err(error) => return Poll::Ready(self.outcome(cx).ok_or(error)),
            }
        }
    }

    fn outcome(&self, cx: &mut Context<'_>) -> Option<Outcome> {
        let mut session = self.session.borrow_mut();
        let outcome = session.outcome(Side::Response)?;
        if session.is_response_ended() {
            // There is no body.
            session.finish(cx);
        }
        Some(outcome)
    }

    /// Reports whether the response cannot go on as the backend sends it, since what was read of it is not kept, or the exchange
    /// with the backend has failed.
    pub(super) fn is_incomplete(&self) -> bool {
        self.sent.is_incomplete || self.has_source_failed
    }

    /// Reports whether the backend is where the rest of the response is.
    pub(super) fn holds_nothing(&self) -> bool {
        self.sent.is_empty() && !self.sent.is_incomplete && self.pending.is_none()
    }

    /// Moves what can be moved. Returns whether anything was, be it by the backend, which polls the body of the request.
    fn advance(&mut self, body: &mut Source, cx: &mut Context<'_>) -> Result<bool, BoxError> {
        let before = self.session.borrow().moves();
        let has_read = self.read(body, cx)?;
        let mut session = self.session.borrow_mut();
        session.advance(cx);
        Ok(has_read || session.moves() != before)
    }

    /// Reads what the backend sends, which also sends it the rest of the request. What the picker has no room for stays in the
    /// connection to the backend.
    fn read(&mut self, body: &mut Source, cx: &mut Context<'_>) -> Result<bool, BoxError> {
        if self.has_source_failed {
            return Err(BACKEND_FAILED.into());
        }
        let mut has_read = false;
        while !self.is_source_ended {
            if self.is_held_up() {
                // The picker may take the response only after the rest of the request.
                let sent = body.send_rest(cx);
                self.has_source_failed = sent.is_err();
                sent?;
                self.unread.resize(body.compact());
                break;
            }
            self.unread.resize(0);
            match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Pending => break,
                Poll::Ready(Some(Ok(frame))) => {
                    if body.is_end_stream() {
                        self.end_source();
                    }
                    self.send(frame);
                }
                Poll::Ready(Some(Err(error))) => {
                    self.has_source_failed = true;
                    return Err(error);
                }
                Poll::Ready(None) => {
                    self.end_source();
                    self.session.borrow_mut().response_end(None);
                }
            }
            has_read = true;
        }
        Ok(has_read)
    }

    /// Reports whether what was read before has to be taken first, by the picker or by the client.
    fn is_held_up(&self) -> bool {
        let session = self.session.borrow();
        self.pending.is_some() || session.is_read() && !session.has_room()
    }

    /// Sends a frame to the picker. One that has ended while the backend was read leaves it to the client.
    fn send(&mut self, frame: Frame<Bytes>) {
        let mut session = self.session.borrow_mut();
        if !session.is_read() {
            self.pending = Some(frame);
            return;
        }
        self.sent.keep(&frame);
        match frame.into_data() {
            Ok(data) => session.response_data(data, self.is_source_ended),
            Err(frame) => session.response_end(frame.into_trailers().ok()),
        }
    }

    fn end_source(&mut self) {
        self.is_source_ended = true;
        // The backend takes no more of it, and the answers to the response are behind it in the stream.
        self.session.borrow_mut().forget_request();
    }

    /// Returns the next frame of the response as the backend sends it, from its first byte.
    fn poll_original(&mut self, body: &mut Source, cx: &mut Context<'_>) -> Next {
        self.unread.resize(0);
        if self.sent.is_incomplete {
            return Poll::Ready(Some(Err(NOT_WHOLE.into())));
        }
        let again = self.sent.next().or_else(|| self.pending.take());
        if let Some(frame) = again {
            return Poll::Ready(Some(Ok(frame)));
        }
        if self.is_source_ended {
            return Poll::Ready(None);
        }
        if self.has_source_failed {
            return Poll::Ready(Some(Err(BACKEND_FAILED.into())));
        }
        let frame = Pin::new(body).poll_frame(cx);
        self.has_source_failed = matches!(frame, Poll::Ready(Some(Err(_))));
        frame
    }

    /// Returns a frame of the picker, and ends the call if it is the last one.
    fn returned(&self, frame: Frame<Bytes>, cx: &mut Context<'_>) -> Next {
        let mut session = self.session.borrow_mut();
        if session.is_response_ended() {
            session.finish(cx);
        }
        Poll::Ready(Some(Ok(frame)))
    }
}

impl Process for PickedResponse {
    fn poll_frame(&mut self, body: &mut Source, cx: &mut Context<'_>) -> Next {
        loop {
            let part = self.session.borrow_mut().response_part();
            match part {
                Part::Data(data) => {
                    // The original can no longer follow.
                    self.sent.stop();
                    return self.returned(Frame::data(data), cx);
                }
                Part::Trailers(trailers) => return self.returned(Frame::trailers(trailers), cx),
                Part::Ended => {
                    self.session.borrow_mut().finish(cx);
                    return Poll::Ready(None);
                }
                Part::Failed => return Poll::Ready(Some(Err(NOT_WHOLE.into()))),
                Part::Passed => return self.poll_original(body, cx),
                Part::Waiting => {}
            }
            match self.advance(body, cx) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }

    fn is_ended(&self, body: &Source) -> bool {
        let session = self.session.borrow();
        match session.is_response_passed() {
            false => session.is_response_ended(),
            true => self.holds_nothing() && (self.is_source_ended || body.is_end_stream()),
        }
    }

    fn waiting(&self) -> usize {
        let pending = self.pending.as_ref().and_then(Frame::data_ref);
        pending.map_or(0, Bytes::len) + self.session.borrow().returned()
    }
}

impl SentCopy {
    fn new(share: &Rc<Share>) -> Self {
        Self {
            data: ByteChain::default(),
            trailers: None,
            held: Held::none(share),
            is_incomplete: false,
        }
    }

    fn keep(&mut self, frame: &Frame<Bytes>) {
        if self.is_incomplete {
            return;
        }
        if let Some(data) = frame.data_ref() {
            if self.data.len() + data.len() > MAX_REPLAY {
                return self.stop();
            }
            self.data.push(data);
        }
        self.trailers = frame.trailers_ref().cloned();
        let trailers = self.trailers.as_ref().map_or(0, header_memory::size);
        if !self.held.resize(self.data.allocated() + trailers) {
            self.stop();
        }
    }

    fn next(&mut self) -> Option<Frame<Bytes>> {
        let data = self.data.pop().map(Frame::data);
        data.or_else(|| self.trailers.take().map(Frame::trailers))
    }

    fn stop(&mut self) {
        self.is_incomplete = true;
        self.data = ByteChain::default();
        self.trailers = None;
        self.held.resize(0);
    }

    fn is_empty(&self) -> bool {
        self.data.is_empty() && self.trailers.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::proxy::worker_state::budget::Budget;

    /// A slice of a buffer of 64 KiB, as the parts of a stream of events are.
    fn event() -> Frame<Bytes> {
        Frame::data(Bytes::from(vec![b'a'; 64 * 1024]).slice(..100))
    }

    #[test]
    fn copy_takes_the_memory_that_is_counted() {
        let client = IpAddr::from([192, 0, 2, 1]);
        let budget = Budget::of_worker(1);
        let mut sent = SentCopy::new(&budget.share(client));
        for _ in 0..1000 {
            sent.keep(&event());
        }
        sent.keep(&Frame::trailers(HeaderMap::new()));
        assert!((100_000..200_000).contains(&sent.data.allocated()));
        assert_eq!(budget.held(), sent.data.allocated());
        let mut length = 0;
        while let Some(Ok(data)) = sent.next().map(Frame::into_data) {
            length += data.len();
        }
        assert_eq!(length, 100_000);
        assert!(sent.is_empty() && !sent.is_incomplete);
    }

    #[test]
    fn copy_is_whole_or_given_up() {
        let client = IpAddr::from([192, 0, 2, 1]);
        let share = Budget::of_worker(1).share(client);
        let mut sent = SentCopy::new(&share);
        sent.keep(&Frame::data(Bytes::from(vec![0; MAX_REPLAY])));
        assert!(!sent.is_incomplete && !sent.is_empty());
        sent.keep(&Frame::data(Bytes::from_static(b"a")));
        assert!(sent.is_incomplete && sent.is_empty());
        sent.keep(&Frame::trailers(HeaderMap::new()));
        assert!(sent.is_empty() && sent.next().is_none());
    }
}
