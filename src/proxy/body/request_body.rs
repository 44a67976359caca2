//! A request body on its way to a backend: updates the `Activity`, counts bytes, and buffers the
//! beginning for replay in another attempt.

use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use thin_vec::ThinVec;

use super::body_copy::{BodyCopy, Copies, CopyPermit};
use super::incoming::{DerivedBody, Incoming};
use super::trailers;
use crate::byte_chain::ByteChain;
use crate::header_memory;
use crate::ir::client::Underscores;
use crate::ir::grpc::WebFormat;
use crate::ir::protected_headers::ProtectedHeaders;
use crate::proxy::activity::Activity;
use crate::proxy::client::spelling;
use crate::proxy::error::Error;
use crate::proxy::grpc_web;
use crate::proxy::worker_state::budget::{Held, Share};
use crate::upstream::{BoxError, Replay, SendError};

/// Maximum bytes that are buffered for replay, unless the body is read as a whole; a longer one is sent only once.
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
    /// `None` if another body has it, of which this one is made.
    activity: Option<Rc<Activity>>,
    is_ended: bool,
    /// Number of bytes that may follow.
    room: u64,
    /// Headers that a client must not say in trailers.
    protected: ThinVec<Arc<ProtectedHeaders>>,
    /// What happens to trailers with an underscore in their names.
    underscores: Underscores,
    kept: ReplayBuffer,
    copies: Copies,
}

impl RequestBody {
    /// Creates the body of a request.
    pub(crate) fn new(incoming: Incoming, activity: &Rc<Activity>, share: &Rc<Share>) -> Self {
        if incoming.is_end_stream() {
            return Self::Empty;
        }
        activity.on_body_begin();
        Self::Client(Box::new(ClientBody::new(
            incoming,
            Some(activity.clone()),
            share,
        )))
    }

    /// Creates a body that is made of another one.
    pub(in crate::proxy) fn derived(body: DerivedBody, share: &Rc<Share>) -> Self {
        let incoming = Incoming::Derived(body);
        Self::Client(Box::new(ClientBody::new(incoming, None, share)))
    }

    /// Keeps up to `max` bytes for a replay, if no byte is lost yet.
    pub(in crate::proxy) fn keep_up_to(&mut self, max: usize) {
        if let Self::Client(body) = self {
            body.kept.max = body.kept.max.max(max);
        }
    }

    /// Does what [`Self::keep_up_to`] does. What is kept is memory of `share`, another one of the same client.
    pub(in crate::proxy) fn keep_in(&mut self, max: usize, share: &Rc<Share>) {
        self.keep_up_to(max);
        if let Self::Client(body) = self {
            body.kept.move_to(share);
        }
    }

    /// Reports whether `part` follows the first `offset` bytes of the body, and all of these are kept.
    pub(in crate::proxy) fn has_kept_at(&self, offset: usize, part: &[u8]) -> bool {
        match self {
            Self::Empty => false,
            Self::Client(body) => !body.kept.is_incomplete && body.kept.data.has_at(offset, part),
        }
    }

    /// Removes headers from the trailers, also from those that are buffered.
    pub(in crate::proxy) fn protect(&mut self, headers: &Arc<ProtectedHeaders>) {
        if let Self::Client(body) = self {
            if let Some(trailers) = &mut body.kept.trailers {
                headers.remove_all(trailers);
            }
            body.protected.push(headers.clone());
        }
    }

    /// Applies what a policy says of headers with an underscore in their names to the trailers. The body fails at those that are
    /// rejected.
    pub(in crate::proxy) fn spell(&mut self, underscores: Underscores) {
        if let Self::Client(body) = self {
            body.underscores = underscores;
        }
    }

    /// Limits the number of bytes, if `max` says it. The body fails before the first frame with more.
    pub(in crate::proxy) fn limited(mut self, max: Option<u64>) -> Self {
        if let (Self::Client(body), Some(max)) = (&mut self, max) {
            body.room = max;
        }
        self
    }

    /// Reads the whole body into the replay buffer, rewinds it and returns its bytes.
    ///
    /// # Errors
    /// As [`Self::keep_whole`].
    pub(in crate::proxy) async fn buffer(&mut self, max: usize) -> Result<Bytes, Error> {
        self.keep_whole(max).await?;
        match self {
            Self::Empty => Ok(Bytes::new()),
            Self::Client(body) => body.kept.join().ok_or(Error::KeptBytes),
        }
    }

    /// Reads the whole body into the replay buffer, and rewinds it.
    ///
    /// # Errors
    /// If it has more than `max` bytes, or more than the client may keep, or if it fails.
    pub(in crate::proxy) async fn keep_whole(&mut self, max: usize) -> Result<(), Error> {
        let mut read = 0;
        if self.size_hint().lower() > max as u64 {
            return Err(Error::BodyTooLarge);
        }
        self.keep_up_to(max);
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut *self).poll_frame(cx)).await {
            let frame = frame.map_err(|_| Error::Send(SendError::RequestBody))?;
            read += frame.data_ref().map_or(0, Bytes::len);
            if read > max {
                return Err(Error::BodyTooLarge);
            }
            // The rest would be read for nothing.
            self.check_kept()?;
        }
        self.check_kept()?;
        self.rewind();
        Ok(())
    }

    /// Fails if the client may not keep what was read.
    fn check_kept(&self) -> Result<(), Error> {
        match self {
            Self::Client(body) if body.kept.is_incomplete => Err(Error::KeptBytes),
            Self::Empty | Self::Client(_) => Ok(()),
        }
    }

    /// Decodes the body of a gRPC-Web call. Nothing of it may have been read, and the head is that of the client. Returns
    /// the format of its response; `None` if it is no such call.
    pub(in crate::proxy) fn decode_grpc_web(&mut self, headers: &HeaderMap) -> Option<WebFormat> {
        let format = grpc_web::response_format(headers)?;
        if grpc_web::is_text(headers)
            && let Self::Client(body) = self
        {
            body.incoming.decode_base64();
        }
        Some(format)
    }

    /// Returns a copy of the body for a mirror. The bytes read so far must be in the replay buffer.
    pub(in crate::proxy) fn copy(&mut self, permit: CopyPermit) -> BodyCopy {
        match self {
            Self::Empty => BodyCopy::empty(permit),
            Self::Client(body) => {
                let copy = body.copies.add(permit, body.size_hint().exact());
                body.kept.copy_to(&copy);
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
    fn new(incoming: Incoming, activity: Option<Rc<Activity>>, share: &Rc<Share>) -> Self {
        Self {
            incoming,
            activity,
            is_ended: false,
            room: u64::MAX,
            protected: ThinVec::new(),
            underscores: Underscores::Allow,
            kept: ReplayBuffer::new(share),
            copies: Copies::default(),
        }
    }

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
            self.notify(Activity::on_body_awaited);
        }
        let Some(frame) = ready!(polled) else {
            self.copies.complete();
            self.end();
            return Poll::Ready(None);
        };
        let mut frame = match frame {
            Ok(frame) => frame,
            Err(error) => {
                self.notify(Activity::on_body_end);
                return self.fail(error);
            }
        };
        let length = frame.data_ref().map_or(0, Bytes::len);
        let Some(room) = self.room.checked_sub(length as u64) else {
            self.notify(Activity::on_body_too_large);
            return self.fail("the request body is too large".into());
        };
        self.room = room;
        if let Some(trailers) = frame.trailers_mut() {
            if spelling::apply(self.underscores, trailers).is_err() {
                self.notify(Activity::on_body_end);
                return self.fail("a trailer has an underscore in its name".into());
            }
            trailers::remove_head_only(trailers);
            trailers::remove_claims(trailers);
            for headers in &self.protected {
                headers.remove_all(trailers);
            }
        }
        self.notify(|activity| activity.on_body(length));
        if self.incoming.is_end_stream() {
            self.notify(Activity::on_body_end);
        }
        self.kept.keep(&frame);
        self.copies.push(&frame);
        if frame.is_trailers() || self.incoming.is_end_stream() {
            self.copies.complete();
        }
        Poll::Ready(Some(Ok(frame)))
    }

    /// Ends the body with an error. Without the rest of it, no other attempt is possible.
    fn fail(&mut self, error: BoxError) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.kept.stop();
        self.copies = Copies::default();
        self.is_ended = true;
        Poll::Ready(Some(Err(error)))
    }

    fn end(&mut self) {
        self.is_ended = true;
        self.notify(Activity::on_body_end);
    }

    #[inline]
    fn notify(&self, what: impl FnOnce(&Activity)) {
        if let Some(activity) = &self.activity {
            what(activity);
        }
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = if self.is_ended {
            SizeHint::with_exact(0)
        } else {
            self.incoming.size_hint()
        };
        let kept = self.kept.unsent as u64;
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
struct ReplayBuffer {
    data: ByteChain,
    trailers: Option<HeaderMap>,
    /// Memory of both.
    held: Held,
    /// Maximum bytes of `data`.
    max: usize,
    /// Index of the next part of `data` to replay.
    next: usize,
    /// Number of bytes left to replay.
    unsent: usize,
    /// Whether to replay the trailers.
    repeats_trailers: bool,
    /// Whether a frame was read but not buffered. Parts are removed as they are replayed.
    is_incomplete: bool,
}

impl ReplayBuffer {
    fn new(share: &Rc<Share>) -> Self {
        Self {
            data: ByteChain::default(),
            trailers: None,
            held: Held::none(share),
            max: MAX_REPLAY_BYTES,
            next: 0,
            unsent: 0,
            repeats_trailers: false,
            is_incomplete: false,
        }
    }

    /// Buffers a frame that was just read, after any replay is complete.
    fn keep(&mut self, frame: &Frame<Bytes>) {
        if self.is_incomplete {
            return;
        }
        if let Some(data) = frame.data_ref() {
            if self.data.len() + data.len() > self.max {
                return self.stop();
            }
            self.data.push(data);
        }
        self.trailers = frame.trailers_ref().cloned();
        if !self.hold() {
            self.stop();
        }
    }

    /// Counts the memory as that of another share.
    fn move_to(&mut self, share: &Rc<Share>) {
        self.held = Held::none(share);
        if !self.hold() {
            self.stop();
        }
    }

    /// Counts the memory of the buffer. Returns false if the client may not keep that much.
    fn hold(&mut self) -> bool {
        let trailers = self.trailers.as_ref().map_or(0, header_memory::size);
        self.held.resize(self.data.allocated() + trailers)
    }

    /// Returns the next frame to replay.
    fn next(&mut self) -> Option<Frame<Bytes>> {
        if self.unsent > 0 {
            let data = if self.is_incomplete {
                self.data.pop()
            } else {
                self.next += 1;
                self.data.parts().nth(self.next - 1).cloned()
            }?;
            self.unsent -= data.len();
            self.hold();
            return Some(Frame::data(data));
        }
        if mem::take(&mut self.repeats_trailers) {
            return self.trailers.clone().map(Frame::trailers);
        }
        None
    }

    /// Adds everything that is buffered to a copy of the body.
    fn copy_to(&mut self, copy: &BodyCopy) {
        let parts = self.data.parts().cloned().map(Frame::data);
        let trailers = self.trailers.clone().map(Frame::trailers);
        parts.chain(trailers).for_each(|frame| copy.push(&frame));
    }

    /// Returns all buffered data in one part and rewinds, unless a part was not buffered.
    fn join(&mut self) -> Option<Bytes> {
        let data = self.data.join();
        self.hold();
        self.rewind().then_some(data)
    }

    fn is_at_end(&self) -> bool {
        self.unsent == 0 && !self.repeats_trailers
    }

    /// Restarts the replay at the first byte. Returns false if that is not buffered.
    fn rewind(&mut self) -> bool {
        if !self.is_incomplete {
            self.next = 0;
            self.unsent = self.data.len();
            self.repeats_trailers = self.trailers.is_some();
        }
        !self.is_incomplete
    }

    /// Stops buffering. A replay in progress continues.
    fn stop(&mut self) {
        self.is_incomplete = true;
        if self.unsent == 0 {
            self.data = ByteChain::default();
        }
        for _ in 0..mem::take(&mut self.next) {
            self.data.pop();
        }
        self.hold();
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::proxy::worker_state::budget::Budget;

    fn data(text: &'static str) -> Frame<Bytes> {
        Frame::data(Bytes::from_static(text.as_bytes()))
    }

    fn buffer() -> ReplayBuffer {
        let client = IpAddr::from([192, 0, 2, 1]);
        ReplayBuffer::new(&Budget::of_worker(1).share(client))
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
        let mut kept = buffer();
        assert!(kept.rewind() && kept.is_at_end());
        kept.keep(&data("a"));
        kept.keep(&data("b"));
        kept.keep(&Frame::trailers(HeaderMap::new()));
        assert!(kept.is_at_end());
        for _ in 0..2 {
            assert!(kept.rewind() && !kept.is_at_end());
            assert_eq!(kept.unsent, 2);
            assert_eq!(text(&mut kept), "abT");
            assert!(kept.is_at_end());
        }
    }

    #[test]
    fn bounds_the_replay_buffer() {
        let mut kept = buffer();
        kept.keep(&Frame::data(vec![0; MAX_REPLAY_BYTES].into()));
        assert!(kept.rewind());
        assert_eq!(
            kept.next().unwrap().into_data().unwrap().len(),
            MAX_REPLAY_BYTES
        );
        kept.keep(&data("a"));
        assert!(!kept.rewind());
        assert!(kept.is_at_end() && kept.data.allocated() == 0);
    }

    #[test]
    fn completes_a_replay_after_buffering_stops() {
        let mut kept = buffer();
        kept.keep(&data("a"));
        assert!(kept.rewind() && kept.next().is_some());
        kept.keep(&data("b"));
        assert!(kept.rewind() && kept.next().is_some());
        kept.stop();
        kept.stop();
        assert_eq!(kept.unsent, 1);
        assert_eq!(text(&mut kept), "b");
        assert_eq!(kept.data.allocated(), 0);
        assert!(!kept.rewind());
    }

    #[test]
    fn client_without_share_loses_its_replay() {
        let budget = Budget::of_worker(1);
        let share = budget.share(IpAddr::from([192, 0, 2, 1]));
        let part = Frame::data(vec![0; MAX_REPLAY_BYTES / 2].into());
        let mut kept = Vec::new();
        let lost = loop {
            let mut next = ReplayBuffer::new(&share);
            next.keep(&part);
            match next.rewind() {
                true => kept.push(next),
                false => break next,
            }
        };
        assert!(kept.len() > 50 && lost.data.allocated() == 0);
        let neighbour = budget.share(IpAddr::from([192, 0, 2, 2]));
        let mut neighbour = ReplayBuffer::new(&neighbour);
        neighbour.keep(&part);
        assert!(neighbour.rewind());
        drop((kept, neighbour));
        assert_eq!(budget.held(), 0);
    }
}
