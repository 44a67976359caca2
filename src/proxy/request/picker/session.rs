//! A picker's part in one request: moves the body of the client, the messages of the call and the answers, whenever one who
//! waits for any of them polls. All of these are the task of the request.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep_until};

use super::call::{Call, Event};
use super::message::{HeaderList, Metadata};
use super::original::Original;
use super::protocol::{Close, Head, Part, Protocol, Side};
use crate::filter::LocalResponse;
use crate::ir::PickerTimeouts;
use crate::proxy::activity::{Activity, BackendPause};
use crate::proxy::body::request_body::RequestBody;
use crate::proxy::worker_state::budget::{Held, Share};
use crate::upstream::{BoxError, Replay};

/// Returned bytes of a body that may wait before the picker has to wait.
const WINDOW: usize = 64 * 1024;
/// The same for the request once its response has begun, if the client may hold that much: the rest of the request is before
/// the response in the stream.
const WINDOW_BEFORE_RESPONSE: usize = 1024 * 1024;

const CLIENT_FAILED: &str = "the request body failed";
const NOT_WHOLE: &str = "the picker ended before it had returned the whole body";

/// A session that the bodies of both sides share.
pub(super) type Shared = Rc<RefCell<Session>>;

/// What the picker makes of the head of a request or response.
pub(super) enum Outcome {
    /// See [`Head`]; never [`Head::Waiting`].
    Head(Head),
    /// The picker responds itself.
    Immediate(LocalResponse),
    /// The client has failed to send its body.
    ClientFailed,
}

/// The exchange of one request with a picker.
pub(super) struct Session {
    protocol: Protocol,
    /// `None` once nothing more is said.
    call: Option<Call>,
    /// The body that the client sends.
    original: Original,
    has_client_failed: bool,
    /// Memory of what was returned and not taken, as far as the client may hold it.
    held: Held,
    timeouts: PickerTimeouts,
    /// When something was last sent to the picker, read by it, or returned by it.
    since: Instant,
    deadline: Pin<Box<Sleep>>,
    activity: Rc<Activity>,
    /// While the time of the picker passes, that of the backend does not.
    pause: Option<BackendPause>,
    /// How often something has moved.
    moves: u64,
}

impl Session {
    /// Begins a session for a request with this head and body. `share` is that of the client.
    pub(super) fn new(
        call: Call,
        (head, body): (HeaderList, RequestBody),
        (share, activity): (&Rc<Share>, &Rc<Activity>),
        fails_open: bool,
        timeouts: PickerTimeouts,
    ) -> Self {
        let mut protocol = Protocol::new(fails_open);
        protocol.request_head(head, !body.is_end_stream());
        let since = Instant::now();
        Self {
            protocol,
            call: Some(call),
            original: Original::new(body, share),
            has_client_failed: false,
            held: Held::none(share),
            since,
            deadline: Box::pin(sleep_until(since + timeouts.connect)),
            timeouts,
            activity: activity.clone(),
            pause: None,
            moves: 0,
        }
    }

    /// Returns what becomes of the head of the request.
    pub(super) fn poll_request_head(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        loop {
            if let Some(outcome) = self.outcome(Side::Request) {
                return Poll::Ready(outcome);
            }
            if !self.advance(cx) {
                return Poll::Pending;
            }
        }
    }

    /// Returns the outcome for a head, if there is one.
    pub(super) fn outcome(&mut self, side: Side) -> Option<Outcome> {
        if let Some(response) = self.take_immediate() {
            return Some(Outcome::Immediate(response));
        }
        if self.has_client_failed {
            return Some(Outcome::ClientFailed);
        }
        match self.protocol.take_head(side) {
            Head::Waiting => None,
            head => Some(Outcome::Head(head)),
        }
    }

    /// Returns the next frame of the request body for a backend.
    fn poll_request(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if self.has_client_failed {
                return Poll::Ready(Some(Err(CLIENT_FAILED.into())));
            }
            let part = self.protocol.next_part(Side::Request);
            if self.protocol.is_ended(Side::Request) {
                // The original is not needed any more.
                self.original.body.forget();
                self.count();
            }
            match part {
                Part::Data(data) => {
                    if !self.original.take(&data) {
                        self.protocol.is_request_changed = true;
                    }
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Part::Trailers(trailers) => {
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                Part::Ended => return Poll::Ready(None),
                Part::Failed => return Poll::Ready(Some(Err(NOT_WHOLE.into()))),
                Part::Passed => return self.poll_original(cx),
                Part::Waiting if self.advance(cx) => {}
                Part::Waiting => return Poll::Pending,
            }
        }
    }

    fn poll_original(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if !self.original.begin_rest() {
            return Poll::Ready(Some(Err(NOT_WHOLE.into())));
        }
        let frame = self.original.poll_rest(cx);
        self.has_client_failed |= matches!(frame, Poll::Ready(Some(Err(_))));
        frame
    }

    /// Returns the body of the client at its first byte, so that the request goes on without the picker. `None` if that is
    /// no longer kept.
    pub(super) fn take_original(&mut self) -> Option<RequestBody> {
        if self.has_client_failed {
            return None;
        }
        let original = self.original.rewound()?;
        self.close(Close::Clean);
        // What was made of the body must not go on.
        self.has_client_failed = true;
        Some(original)
    }

    /// Reports whether the client has failed to send its body.
    pub(super) fn has_client_failed(&self) -> bool {
        self.has_client_failed
    }

    /// Reports whether the request may go on without a picker that has failed.
    pub(super) fn fails_open(&self) -> bool {
        self.protocol.fails_open()
    }

    /// Reports whether a backend may have a part of the request that the picker has changed, or that is not kept.
    pub(super) fn is_request_changed(&self) -> bool {
        self.protocol.is_request_changed
    }

    /// Reports whether the picker gets what follows of the response.
    pub(super) fn is_read(&self) -> bool {
        self.protocol.is_read(Side::Response)
    }

    /// Reports whether more of the response may be sent.
    pub(super) fn has_room(&self) -> bool {
        self.call.as_ref().is_some_and(Call::has_room)
    }

    /// Sends the head of the response.
    pub(super) fn response_head(&mut self, head: HeaderList, has_body: bool, served: Metadata) {
        self.protocol.response_head(head, has_body, Some(served));
    }

    /// Sends a part of the response. The time of the backend begins anew, however long the picker keeps the part.
    pub(super) fn response_data(&mut self, data: Bytes, ends: bool) {
        self.activity.on_backend();
        self.protocol.data(Side::Response, data, ends);
        self.send();
    }

    /// Sends the end of the response.
    pub(super) fn response_end(&mut self, trailers: Option<HeaderMap>) {
        self.protocol.end(Side::Response, trailers);
        self.send();
    }

    /// Nobody takes the rest of the request any more.
    pub(super) fn forget_request(&mut self) {
        self.protocol.forget(Side::Request);
    }

    /// Returns what follows of the response.
    pub(super) fn response_part(&mut self) -> Part {
        let part = self.protocol.next_part(Side::Response);
        self.count();
        part
    }

    /// Reports whether nothing of the response follows.
    pub(super) fn is_response_ended(&self) -> bool {
        self.protocol.is_ended(Side::Response)
    }

    /// Reports whether the response goes on as it is.
    pub(super) fn is_response_passed(&self) -> bool {
        self.protocol.is_passed(Side::Response)
    }

    /// Reports whether no response of a backend may follow.
    pub(super) fn has_response_failed(&self) -> bool {
        self.protocol.is_stopped(Side::Response)
    }

    /// Returns the response that the picker gives itself.
    pub(super) fn take_immediate(&mut self) -> Option<LocalResponse> {
        self.protocol.take_immediate()
    }

    /// Returns the bytes that the picker has returned and that nobody has taken yet.
    pub(super) fn returned(&self) -> usize {
        self.protocol.queued(Side::Request) + self.protocol.queued(Side::Response)
    }

    /// Ends the call after the response.
    pub(super) fn finish(&mut self, cx: &mut Context<'_>) {
        self.pause = None;
        if let Some(mut call) = self.call.take() {
            call.finish(cx);
        }
    }

    /// Moves what can be moved. Returns whether anything was.
    pub(super) fn advance(&mut self, cx: &mut Context<'_>) -> bool {
        let read = self.read_client(cx);
        let sent = self.send();
        let exchanged = self.exchange(cx);
        let timed_out = !exchanged && self.poll_time(cx);
        let has_moved = read | sent | exchanged | timed_out;
        self.moves += u64::from(has_moved);
        self.count();
        match self.limit() {
            None => self.pause = None,
            Some(_) => {
                let activity = &self.activity;
                self.pause
                    .get_or_insert_with(|| BackendPause::new(activity));
            }
        }
        has_moved
    }

    /// Counts what was returned.
    fn count(&mut self) {
        let bytes = self.returned();
        self.held.resize(bytes);
    }

    /// Returns a number that is another one once something has moved, whoever has polled the session.
    pub(super) fn moves(&self) -> u64 {
        self.moves
    }

    /// Reads the body of the client.
    fn read_client(&mut self, cx: &mut Context<'_>) -> bool {
        let mut has_read = false;
        while self.protocol.is_read(Side::Request) && self.has_room() {
            let Poll::Ready(frame) = Pin::new(&mut self.original.body).poll_frame(cx) else {
                break;
            };
            has_read = true;
            match frame {
                None => self.protocol.end(Side::Request, None),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        let ends = self.original.body.is_end_stream();
                        self.protocol.data(Side::Request, data, ends);
                    }
                    Err(frame) => {
                        let trailers = frame.into_trailers().ok();
                        self.protocol.end(Side::Request, trailers);
                    }
                },
                Some(Err(_)) => {
                    self.has_client_failed = true;
                    self.close(Close::Failed);
                }
            }
            self.send();
        }
        has_read
    }

    /// Passes the messages on to the call.
    fn send(&mut self) -> bool {
        let Some(call) = &self.call else {
            return false;
        };
        let mut has_sent = false;
        while let Some(message) = self.protocol.next_message() {
            call.send(&message);
            has_sent = true;
        }
        if has_sent && call.has_begun() {
            self.since = Instant::now();
        }
        has_sent
    }

    /// Reads the answers, unless too much of them waits, and lets the picker take the messages. Returns whether anything
    /// has moved: the sender of a body that had no room for it is polled only then.
    fn exchange(&mut self, cx: &mut Context<'_>) -> bool {
        let mut has_moved = false;
        while let Some(call) = &mut self.call
            && has_window(&self.protocol, &mut self.held, cx)
        {
            let (was_open, waiting) = (call.has_begun(), call.waiting());
            let polled = call.poll(cx);
            if call.waiting() != waiting {
                // It reads, however slowly.
                self.since = Instant::now();
                has_moved = true;
            }
            let Poll::Ready(event) = polled else {
                if call.has_begun() && !was_open {
                    // The time for the answer begins.
                    self.since = Instant::now();
                    has_moved = true;
                }
                break;
            };
            has_moved = true;
            // Messages that say nothing do not prolong the time for an answer.
            if !matches!(&event, Event::Message(message) if !message.is_answer()) {
                self.since = Instant::now();
            }
            match event {
                Event::Message(message) => self.protocol.answer(*message),
                Event::Closed(close) => self.protocol.close(close),
            }
            if !self.protocol.is_open() {
                self.call = None;
            }
        }
        has_moved
    }

    /// Ends the session if the picker takes too long. Returns whether it has.
    fn poll_time(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(limit) = self.limit() else {
            return false;
        };
        let due = self.since + limit;
        if self.deadline.deadline() != due {
            self.deadline.as_mut().reset(due);
        }
        let is_due = self.deadline.as_mut().poll(cx).is_ready();
        if is_due {
            self.close(Close::Failed);
        }
        is_due
    }

    /// Returns how long the picker may take now; `None` while it owes nothing.
    fn limit(&self) -> Option<Duration> {
        let call = self.call.as_ref()?;
        if is_held_up(&self.protocol, &self.held) {
            return None;
        }
        match call.has_begun() {
            false => Some(self.timeouts.connect),
            // Without room, it does not read what it is sent.
            true if self.protocol.is_awaited() || !call.has_room() => Some(self.timeouts.answer),
            true => None,
        }
    }

    fn close(&mut self, close: Close) {
        self.protocol.close(close);
        self.call = None;
        self.pause = None;
    }
}

/// Reports whether more answers may be read. `held` is the memory of those that wait. The task is woken once the client holds
/// what is missing of the request. While it may not hold what waits, answers are read only until a part of the response waits.
fn has_window(protocol: &Protocol, held: &mut Held, cx: &Context<'_>) -> bool {
    let [request, response] = [Side::Request, Side::Response].map(|side| protocol.queued(side));
    let needs_memory = request >= WINDOW && protocol.has_begun(Side::Response);
    let is_permitted = match needs_memory {
        true => held.resize_or_wait(request + response, cx),
        false => held.resize(request + response),
    };
    let of_request = match needs_memory && is_permitted {
        true => WINDOW_BEFORE_RESPONSE,
        false => WINDOW,
    };
    let of_response = match is_permitted {
        true => WINDOW,
        false => 1,
    };
    request < of_request && response < of_response
}

/// Reports whether the picker waits for those who take what it has returned. A backend that has begun its response may
/// itself wait for the picker, which gets that response.
fn is_held_up(protocol: &Protocol, held: &Held) -> bool {
    let [request, response] = [Side::Request, Side::Response].map(|side| protocol.queued(side));
    let is_short = held.bytes() < request + response;
    response >= WINDOW
        || response > 0 && is_short
        || request >= WINDOW && !protocol.has_begun(Side::Response)
}

/// The request body for a backend, as the picker returns it.
pub(super) struct PickedRequest(Shared);

impl PickedRequest {
    pub(super) fn new(session: &Shared) -> Self {
        Self(session.clone())
    }
}

impl Body for PickedRequest {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.0.borrow_mut().poll_request(cx)
    }

    /// Unknown until the end was returned: its framing must not be that of the client.
    fn is_end_stream(&self) -> bool {
        self.0.borrow().protocol.is_ended(Side::Request)
    }
}

impl Drop for PickedRequest {
    fn drop(&mut self) {
        // The response of the backend may follow without it.
        if let Ok(mut session) = self.0.try_borrow_mut() {
            session.forget_request();
        }
    }
}

#[cfg(test)]
mod tests;
