//! A request body on its way to a backend: updates the `Activity`, counts bytes, and buffers the
//! beginning for replay in another attempt.

use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use super::activity::Activity;
use super::body_copy::{BodyCopy, Copies, CopyPermit};
use super::error::Error;
use super::headers;
use super::incoming::Incoming;
use crate::upstream::{BoxError, Replay, SendError};

/// Maximum bytes that are buffered for replay; a longer body is sent only once.
const MAX_REPLAY_BYTES: usize = 64 * 1024;

/// A request body.
#[derive(Default)]
pub(crate) enum RequestBody {
    /// No body.
    #[default]
    Empty,
    /// A body from the client.
    Client(Box<ClientBody>),
}

/// A body from the client.
pub(crate) struct ClientBody {
    incoming: Incoming,
    activity: Rc<Activity>,
    is_ended: bool,
    kept: ReplayBuffer,
    copies: Copies,
}

impl RequestBody {
    /// Creates the body of a request.
    pub(crate) fn new(incoming: Incoming, activity: &Rc<Activity>) -> Self {
        if incoming.is_end_stream() {
            return Self::Empty;
        }
        activity.on_body_begin();
        Self::Client(Box::new(ClientBody {
            incoming,
            activity: activity.clone(),
            is_ended: false,
            kept: ReplayBuffer::default(),
            copies: Copies::default(),
        }))
    }

    /// Reads the whole body into the replay buffer and rewinds it. Fails if it has more than `max`
    /// bytes. `max` must be less than [`MAX_REPLAY_BYTES`].
    pub(super) async fn buffer(&mut self, max: usize) -> Result<Bytes, Error> {
        let mut read = BytesMut::new();
        if self.size_hint().lower() > max as u64 {
            return Err(Error::BodyTooLarge);
        }
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut *self).poll_frame(cx)).await {
            let frame = frame.map_err(|_| Error::Send(SendError::RequestBody))?;
            read.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
            if read.len() > max {
                return Err(Error::BodyTooLarge);
            }
        }
        match self.rewind() {
            true => Ok(read.freeze()),
            false => Err(Error::BodyTooLarge),
        }
    }

    /// Decodes the body from base64. Nothing of it may have been read.
    pub(super) fn decode_base64(&mut self) {
        if let Self::Client(body) = self {
            body.incoming.decode_base64();
        }
    }

    /// Returns a copy of the body for a mirror. The bytes read so far must be in the replay buffer.
    pub(super) fn copy(&mut self, permit: CopyPermit) -> BodyCopy {
        match self {
            Self::Empty => BodyCopy::empty(permit),
            Self::Client(body) => {
                let copy = body.copies.add(permit, body.size_hint().exact());
                body.kept.frames().for_each(|frame| copy.push(&frame));
                if body.is_ended || body.incoming.is_end_stream() {
                    body.copies.complete();
                }
                copy
            }
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Client(body) => match body.kept.next() {
                Some(frame) => Poll::Ready(Some(Ok(frame))),
                None => body.poll_incoming(cx),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Client(body) => {
                body.kept.is_at_end() && (body.is_ended || body.incoming.is_end_stream())
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Client(body) => body.size_hint(),
        }
    }
}

impl Replay for RequestBody {
    fn rewind(&mut self) -> bool {
        match self {
            Self::Empty => true,
            Self::Client(body) => body.kept.rewind(),
        }
    }

    fn forget(&mut self) {
        if let Self::Client(body) = self {
            body.kept.stop();
        }
    }
}

impl ClientBody {
    fn poll_incoming(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.is_ended {
            return Poll::Ready(None);
        }
        ready!(self.copies.poll_turn(cx));
        let polled = Pin::new(&mut self.incoming).poll_frame(cx);
        if polled.is_pending() {
            self.activity.on_body_awaited();
        }
        let Some(frame) = ready!(polled) else {
            self.copies.complete();
            self.end();
            return Poll::Ready(None);
        };
        let mut frame = match frame {
            Ok(frame) => frame,
            Err(error) => {
                // Without the rest of the body, no other attempt is possible.
                self.kept.stop();
                self.copies = Copies::default();
                self.end();
                return Poll::Ready(Some(Err(error)));
            }
        };
        if let Some(trailers) = frame.trailers_mut() {
            headers::remove_head_only_trailers(trailers);
        }
        let length = frame.data_ref().map_or(0, Bytes::len);
        self.activity.on_body(length);
        if self.incoming.is_end_stream() {
            self.activity.on_body_end();
        }
        self.kept.keep(&frame);
        self.copies.push(&frame);
        if frame.is_trailers() || self.incoming.is_end_stream() {
            self.copies.complete();
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn end(&mut self) {
        self.is_ended = true;
        self.activity.on_body_end();
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = if self.is_ended {
            SizeHint::with_exact(0)
        } else {
            self.incoming.size_hint()
        };
        let kept = self.kept.remaining();
        match hint.exact() {
            Some(exact) => SizeHint::with_exact(exact + kept),
            None => {
                hint.set_lower(hint.lower() + kept);
                hint
            }
        }
    }
}

/// The buffered beginning of a body.
#[derive(Default)]
struct ReplayBuffer {
    data: Vec<Bytes>,
    trailers: Option<HeaderMap>,
    bytes: usize,
    /// Index of the next frame of `data` to replay; `data.len()` when the replay is complete.
    next: usize,
    /// Whether to replay the trailers.
    repeats_trailers: bool,
    /// Whether a frame was read but not buffered.
    is_incomplete: bool,
}

impl ReplayBuffer {
    /// Buffers a frame that was just read, after any replay is complete.
    fn keep(&mut self, frame: &Frame<Bytes>) {
        if self.is_incomplete {
            return;
        }
        if let Some(data) = frame.data_ref() {
            self.bytes += data.len();
            self.data.push(data.clone());
            self.next = self.data.len();
        }
        self.trailers = frame.trailers_ref().cloned();
        if self.bytes > MAX_REPLAY_BYTES {
            self.stop();
        }
    }

    /// Returns the next frame to replay.
    fn next(&mut self) -> Option<Frame<Bytes>> {
        if let Some(data) = self.data.get_mut(self.next) {
            self.next += 1;
            let data = if self.is_incomplete {
                mem::take(data)
            } else {
                data.clone()
            };
            return Some(Frame::data(data));
        }
        if mem::take(&mut self.repeats_trailers) {
            return self.trailers.clone().map(Frame::trailers);
        }
        None
    }

    /// Returns all buffered frames.
    fn frames(&self) -> impl Iterator<Item = Frame<Bytes>> {
        let data = self.data.iter().cloned().map(Frame::data);
        data.chain(self.trailers.iter().cloned().map(Frame::trailers))
    }

    fn is_at_end(&self) -> bool {
        self.next == self.data.len() && !self.repeats_trailers
    }

    /// Returns the number of bytes left to replay.
    fn remaining(&self) -> u64 {
        let unsent = self.data.iter().skip(self.next);
        unsent.map(|data| data.len() as u64).sum()
    }

    /// Restarts the replay at the first byte. Returns false if that is not buffered.
    fn rewind(&mut self) -> bool {
        if !self.is_incomplete {
            self.next = 0;
            self.repeats_trailers = self.trailers.is_some();
        }
        !self.is_incomplete
    }

    /// Stops buffering. A replay in progress continues.
    fn stop(&mut self) {
        self.is_incomplete = true;
        self.data.drain(..self.next);
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(text: &'static str) -> Frame<Bytes> {
        Frame::data(Bytes::from_static(text.as_bytes()))
    }

    fn text(kept: &mut ReplayBuffer) -> String {
        let mut text = String::new();
        while let Some(frame) = kept.next() {
            match frame.into_data() {
                Ok(data) => text.push_str(std::str::from_utf8(&data).unwrap()),
                Err(_) => text.push('T'),
            }
        }
        text
    }

    #[test]
    fn replays_the_body_after_each_rewind() {
        let mut kept = ReplayBuffer::default();
        assert!(kept.rewind() && kept.is_at_end());
        kept.keep(&data("a"));
        kept.keep(&data("b"));
        kept.keep(&Frame::trailers(HeaderMap::new()));
        assert!(kept.is_at_end());
        for _ in 0..2 {
            assert!(kept.rewind() && !kept.is_at_end());
            assert_eq!(kept.remaining(), 2);
            assert_eq!(text(&mut kept), "abT");
            assert!(kept.is_at_end());
        }
    }

    #[test]
    fn bounds_the_replay_buffer() {
        let mut kept = ReplayBuffer::default();
        kept.keep(&Frame::data(vec![0; MAX_REPLAY_BYTES].into()));
        assert!(kept.rewind());
        assert_eq!(
            kept.next().unwrap().into_data().unwrap().len(),
            MAX_REPLAY_BYTES
        );
        kept.keep(&data("a"));
        assert!(!kept.rewind());
        assert!(kept.is_at_end() && kept.data.is_empty());
    }

    #[test]
    fn completes_a_replay_after_buffering_stops() {
        let mut kept = ReplayBuffer::default();
        kept.keep(&data("a"));
        kept.keep(&data("b"));
        assert!(kept.rewind());
        assert!(kept.next().is_some());
        kept.stop();
        assert_eq!(kept.remaining(), 1);
        assert_eq!(text(&mut kept), "b");
        assert!(!kept.rewind());
    }
}
