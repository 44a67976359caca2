//! Pickers that stop in the middle of a request, on a clock that moves only while everyone waits.

use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::net::IpAddr;
use std::task::Waker;

use prost::Message;
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

use super::super::destination;
use super::super::message::{
    self, Answer, BodyMutation, CommonAnswer, CommonResponse, HeaderMutation, HttpBody,
    ProcessingResponse,
};
use super::super::outbox::OutboxBody;
use super::*;
use crate::proxy::activity::{BodyPace, Phase};
use crate::proxy::worker_state::budget::Budget;
use crate::runtime::clock::Clock;
use crate::settings::Limits;

/// As much as waits for a picker that reads nothing.
const PART: usize = WINDOW;

/// A body with this number of parts, which then stalls.
struct Parts(usize);

impl Body for Parts {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(left) = self.0.checked_sub(1) else {
            return Poll::Pending;
        };
        self.0 = left;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![0; PART])))))
    }
}

fn share() -> Rc<Share> {
    Budget::of_worker(1).share(IpAddr::from([192, 0, 2, 1]))
}

fn body(parts: usize) -> RequestBody {
    RequestBody::derived(Box::new(Parts(parts)), &share())
}

/// Returns the state of the stream of a request.
fn activity(clock: &Rc<Clock>) -> Rc<Activity> {
    Activity::stream(clock, &Rc::default(), BodyPace::Steady)
}

/// Returns a call to a picker that reads nothing and says nothing.
fn silent() -> Call {
    Call::unanswered(&share(), |_| pending())
}

/// Begins a session with such a picker.
fn begin(body: RequestBody, fails_open: bool) -> Session {
    let timeouts = PickerTimeouts::default();
    let call = silent();
    let request = (HeaderList::default(), body);
    let client = (&share(), &activity(&Clock::new()));
    Session::new(call, request, client, fails_open, timeouts)
}

fn answer(answer: impl FnOnce(CommonAnswer) -> Answer) -> ProcessingResponse {
    let common = CommonAnswer {
        response: Some(CommonResponse::default()),
    };
    ProcessingResponse {
        answer: Some(answer(common)),
        dynamic_metadata: Bytes::new(),
    }
}

/// Returns what becomes of the head of the request.
async fn head(session: &mut Session) -> Head {
    match poll_fn(|cx| session.poll_request_head(cx)).await {
        Outcome::Head(head) => head,
        Outcome::Immediate(_) | Outcome::ClientFailed => panic!("another outcome"),
    }
}

fn assert_is_limit(time: Duration) {
    let limit = PickerTimeouts::default().answer;
    let most = limit + Duration::from_secs(1);
    assert!((limit..most).contains(&time), "{time:?}");
}

#[tokio::test(start_paused = true)]
async fn picker_that_does_not_answer_has_failed() {
    for (fails_open, expected) in [(true, Head::Passed), (false, Head::Failed)] {
        let begun = Instant::now();
        let mut session = begin(RequestBody::Empty, fails_open);
        assert_eq!(head(&mut session).await, expected);
        assert!(!session.protocol.is_open());
        assert_is_limit(begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn picker_that_changes_a_head_without_end_has_failed() {
    for (count, is_open) in [(100, true), (10_000, false), (100_000, false)] {
        let changes = HeaderMutation {
            remove_headers: vec![String::new(); count],
            ..HeaderMutation::default()
        };
        let common = CommonAnswer {
            response: Some(CommonResponse {
                header_mutation: changes.encode_to_vec().into(),
                ..CommonResponse::default()
            }),
        };
        let mut session = begin(RequestBody::Empty, false);
        session.protocol.answer(ProcessingResponse {
            answer: Some(Answer::RequestHeaders(common)),
            dynamic_metadata: Bytes::new(),
        });
        assert_eq!(session.protocol.is_open(), is_open);
    }
}

#[tokio::test(start_paused = true)]
async fn picker_that_does_not_read_the_request_has_failed() {
    for fails_open in [true, false] {
        let begun = Instant::now();
        let mut session = begin(body(2), fails_open);
        session.protocol.answer(answer(Answer::RequestHeaders));
        assert!(matches!(head(&mut session).await, Head::Answered(_)));
        // The first part of the original, or an error.
        let frame = poll_fn(|cx| session.poll_request(cx)).await;
        assert_eq!(frame.map(|frame| frame.is_ok()), Some(fails_open));
        assert!(!session.protocol.is_open());
        assert_is_limit(begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn picker_that_does_not_read_the_response_has_failed() {
    for fails_open in [true, false] {
        let begun = Instant::now();
        let mut session = begin(RequestBody::Empty, fails_open);
        session.protocol.answer(answer(Answer::RequestHeaders));
        assert!(matches!(head(&mut session).await, Head::Answered(_)));
        let served = destination::served(([192, 0, 2, 2], 80).into());
        session.response_head(HeaderList::default(), true, served);
        session.protocol.answer(answer(Answer::ResponseHeaders));
        session.response_data(Bytes::from(vec![0; PART]), false);
        assert!(!session.has_room());
        let closed = poll_fn(|cx| {
            while session.advance(cx) {}
            match session.protocol.is_open() {
                true => Poll::Pending,
                false => Poll::Ready(()),
            }
        });
        closed.await;
        assert_eq!(session.is_response_passed(), fails_open);
        assert_eq!(session.has_response_failed(), !fails_open);
        assert_is_limit(begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn client_may_be_slower_than_the_picker() {
    let mut session = begin(body(0), false);
    session.protocol.answer(answer(Answer::RequestHeaders));
    assert!(matches!(head(&mut session).await, Head::Answered(_)));
    let frame = poll_fn(|cx| session.poll_request(cx));
    let frame = timeout(Duration::from_secs(3600), frame).await;
    assert!(frame.is_err(), "the picker owes nothing");
    assert!(session.protocol.is_open());
    let mut session = begin(body(0), true);
    let head = timeout(Duration::from_secs(3600), head(&mut session)).await;
    assert!(head.is_err(), "the picker has not the whole request");
    assert!(session.protocol.is_open());
}

/// Reads all that it is sent, after a while. Adds up the bytes.
async fn read_late(mut body: OutboxBody, count: Rc<Cell<usize>>) {
    // The clock of the test: everyone waits for the reader meanwhile.
    sleep(Duration::from_secs(1)).await;
    while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        count.set(count.get() + length);
    }
}

/// A reader that takes all that waits at once leaves nothing that would wake the session again.
#[tokio::test(start_paused = true)]
async fn client_is_read_on_once_the_picker_has_read_all_that_waits() {
    const PARTS: usize = 3;
    let count = Rc::new(Cell::new(0));
    let counted = count.clone();
    let call = Call::unanswered(&share(), |body| read_late(body, counted));
    let request = (HeaderList::default(), body(PARTS));
    let client = (&share(), &activity(&Clock::new()));
    let mut session = Session::new(call, request, client, false, PickerTimeouts::default());
    let outcome = poll_fn(|cx| session.poll_request_head(cx));
    let outcome = timeout(Duration::from_secs(10), outcome).await;
    assert!(outcome.is_err(), "the picker says nothing");
    assert!(count.get() > PARTS * PART, "{} bytes", count.get());
}

#[tokio::test(start_paused = true)]
async fn client_that_holds_too_much_is_read_part_by_part() {
    const PARTS: usize = 3;
    const STEP: usize = 16;
    let share = share();
    let _others = all_of(&share, STEP);
    let count = Rc::new(Cell::new(0));
    let counted = count.clone();
    let call = Call::unanswered(&share, |body| read_late(body, counted));
    let request = (HeaderList::default(), body(PARTS));
    let client = (&share, &activity(&Clock::new()));
    let mut session = Session::new(call, request, client, false, PickerTimeouts::default());
    poll_fn(|cx| Poll::Ready(session.advance(cx))).await;
    assert!(!session.has_room(), "one part waits");
    let outcome = poll_fn(|cx| session.poll_request_head(cx));
    let outcome = timeout(Duration::from_secs(10), outcome).await;
    assert!(outcome.is_err(), "the picker says nothing");
    assert!(count.get() > PARTS * PART, "{} bytes", count.get());
}

#[tokio::test(start_paused = true)]
async fn time_of_the_backend_begins_once_the_picker_owes_nothing() {
    let idle = Limits::default().stream_idle_timeout.as_millis() as u64;
    let clock = Clock::new();
    let activity = activity(&clock);
    let request = (HeaderList::default(), RequestBody::Empty);
    let client = (&share(), &activity);
    let mut session = Session::new(silent(), request, client, false, PickerTimeouts::default());
    poll_fn(|cx| Poll::Ready(session.advance(cx))).await;
    let due = || activity.poll_due(&mut Context::from_waker(Waker::noop()));
    clock.advance(idle);
    assert_eq!(due(), Poll::Pending, "the picker has a limit of its own");
    session.protocol.answer(answer(Answer::RequestHeaders));
    poll_fn(|cx| Poll::Ready(session.advance(cx))).await;
    assert_eq!(due(), Poll::Pending, "the backend has all its time");
    clock.advance(2 * idle);
    assert_eq!(due(), Poll::Ready(Phase::Backend));
    activity.restart();
    begin_response(&mut session);
    poll_fn(|cx| Poll::Ready(session.advance(cx))).await;
    clock.advance(4 * idle);
    assert_eq!(due(), Poll::Pending, "the picker has the response");
    drop(session);
    clock.advance(5 * idle);
    assert_eq!(due(), Poll::Ready(Phase::Backend));
}

/// Pickers keep a response that is no stream until its end.
#[tokio::test(start_paused = true)]
async fn time_of_the_backend_begins_with_each_part_that_the_picker_keeps() {
    let idle = Limits::default().stream_idle_timeout.as_millis() as u64;
    let clock = Clock::new();
    let activity = activity(&clock);
    let request = (HeaderList::default(), RequestBody::Empty);
    let client = (&share(), &activity);
    let mut session = Session::new(silent(), request, client, false, PickerTimeouts::default());
    session.protocol.answer(answer(Answer::RequestHeaders));
    begin_response(&mut session);
    session.protocol.answer(answer(Answer::ResponseHeaders));
    poll_fn(|cx| Poll::Ready(session.advance(cx))).await;
    let due = || activity.poll_due(&mut Context::from_waker(Waker::noop()));
    for part in 1..4 {
        clock.advance(part * idle - 1);
        session.response_data(Bytes::from_static(b"a"), false);
        assert_eq!(due(), Poll::Pending, "part {part}");
    }
    clock.advance(5 * idle);
    assert_eq!(due(), Poll::Ready(Phase::Backend));
}

/// A part of a body that the picker returns.
fn returned(answer: impl FnOnce(CommonAnswer) -> Answer, length: usize) -> ProcessingResponse {
    let body = message::Body::Streamed(HttpBody {
        body: Bytes::from(vec![0; length]),
        end_of_stream: false,
    });
    let response = CommonResponse {
        body_mutation: Some(BodyMutation { body: Some(body) }),
        ..CommonResponse::default()
    };
    let answer = answer(CommonAnswer {
        response: Some(response),
    });
    ProcessingResponse {
        answer: Some(answer),
        dynamic_metadata: Bytes::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn original_follows_what_a_backend_has_unless_that_is_changed() {
    const TAKEN: usize = 100;
    // More than was read of the body is not the beginning of it.
    for (length, rest) in [(TAKEN, Some(PART - TAKEN)), (3 * PART, None)] {
        let mut session = begin(body(2), true);
        session.protocol.answer(answer(Answer::RequestHeaders));
        assert!(matches!(head(&mut session).await, Head::Answered(_)));
        poll_fn(|cx| Poll::Ready(session.advance(cx))).await;
        let part = returned(Answer::RequestBody, length);
        session.protocol.answer(part);
        let taken = poll_fn(|cx| session.poll_request(cx)).await;
        assert!(taken.is_some_and(|frame| frame.is_ok()));
        // Nobody takes it.
        session.protocol.answer(returned(Answer::RequestBody, 1));
        session.close(Close::Failed);
        let next = poll_fn(|cx| session.poll_request(cx)).await;
        let data = next.and_then(Result::ok);
        let data = data.and_then(|frame| frame.into_data().ok());
        assert_eq!(data.map(|data| data.len()), rest);
        assert_eq!(session.is_request_changed(), rest.is_none());
    }
}

/// Begins a session whose picker has returned a part of the request.
async fn begin_returned(share: &Rc<Share>) -> Session {
    let call = silent();
    let request = (HeaderList::default(), body(0));
    let client = (share, &activity(&Clock::new()));
    let mut session = Session::new(call, request, client, false, PickerTimeouts::default());
    session.protocol.answer(answer(Answer::RequestHeaders));
    session.protocol.answer(returned(Answer::RequestBody, PART));
    poll_fn(|cx| Poll::Ready(session.advance(cx))).await;
    session
}

fn begin_response(session: &mut Session) {
    let served = destination::served(([192, 0, 2, 2], 80).into());
    session.response_head(HeaderList::default(), true, served);
}

/// Other requests of the client hold what it may, up to `step` bytes.
fn all_of(share: &Rc<Share>, step: usize) -> Held {
    let (mut others, mut bytes) = (Held::none(share), 0);
    while others.resize(bytes + step) {
        bytes += step;
    }
    others
}

/// Reports whether more answers may be read.
fn may_go_on(session: &mut Session) -> bool {
    let cx = Context::from_waker(Waker::noop());
    has_window(&session.protocol, &mut session.held, &cx)
}

#[tokio::test(start_paused = true)]
async fn returned_request_is_memory_of_the_client() {
    let budget = Budget::of_worker(1);
    let share = budget.share(IpAddr::from([192, 0, 2, 1]));
    let mut session = begin_returned(&share).await;
    assert!(budget.held() > PART && budget.held() == session.returned());
    // Too much until its response has begun.
    assert!(!may_go_on(&mut session));
    begin_response(&mut session);
    assert!(may_go_on(&mut session));
    let others = all_of(&share, PART);
    session.protocol.answer(returned(Answer::RequestBody, PART));
    assert!(!may_go_on(&mut session));
    drop(others);
    assert!(may_go_on(&mut session));
    assert_eq!(budget.held(), session.returned());
    for _ in 0..2 {
        let frame = poll_fn(|cx| session.poll_request(cx)).await;
        assert!(frame.is_some_and(|frame| frame.is_ok()));
    }
    poll_fn(|cx| Poll::Ready(session.advance(cx))).await;
    assert_eq!(budget.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn freed_memory_wakes_the_session_that_waits_for_it() {
    let budget = Budget::of_worker(1);
    let share = budget.share(IpAddr::from([192, 0, 2, 1]));
    let mut session = begin_returned(&share).await;
    begin_response(&mut session);
    let others = all_of(&share, PART);
    session.protocol.answer(returned(Answer::RequestBody, PART));
    let begun = Instant::now();
    let goes_on = poll_fn(move |cx| {
        while session.advance(cx) {}
        match budget.held() == session.returned() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    });
    let wait = Duration::from_secs(1);
    let end_others = async move {
        // The clock of the test: the session waits meanwhile.
        sleep(wait).await;
        drop(others);
    };
    // A task of its own, which nothing else wakes before the picker has taken too long.
    let tasks = LocalSet::new();
    let session = tasks.spawn_local(goes_on);
    tasks.spawn_local(end_others);
    tasks.run_until(session).await.unwrap();
    let limit = PickerTimeouts::default().answer;
    assert!((wait..limit).contains(&begun.elapsed()));
}

#[tokio::test(start_paused = true)]
async fn returned_response_of_a_client_that_holds_too_much_waits_part_by_part() {
    const LENGTH: usize = 1000;
    let budget = Budget::of_worker(1);
    let share = budget.share(IpAddr::from([192, 0, 2, 1]));
    let request = (HeaderList::default(), RequestBody::Empty);
    let timeouts = PickerTimeouts::default();
    let client = (&share, &activity(&Clock::new()));
    let mut session = Session::new(silent(), request, client, false, timeouts);
    session.protocol.answer(answer(Answer::RequestHeaders));
    begin_response(&mut session);
    session.protocol.answer(answer(Answer::ResponseHeaders));
    session.response_end(None);
    let others = all_of(&share, 16);
    let held = budget.held();
    assert!(may_go_on(&mut session));
    let part = || returned(Answer::ResponseBody, LENGTH);
    session.protocol.answer(part());
    assert!(!may_go_on(&mut session) && budget.held() == held);
    let closed = poll_fn(|cx| {
        while session.advance(cx) {}
        match session.protocol.is_open() {
            true => Poll::<()>::Pending,
            false => Poll::Ready(()),
        }
    });
    let closed = timeout(Duration::from_secs(3600), closed).await;
    assert!(closed.is_err(), "the picker waits for the client");
    assert!(matches!(session.response_part(), Part::Data(_)) && may_go_on(&mut session));
    drop(others);
    session.protocol.answer(part());
    assert!(may_go_on(&mut session) && session.returned() > LENGTH);
    assert_eq!(budget.held(), session.returned());
    assert!(matches!(session.response_part(), Part::Data(_)));
    assert_eq!(budget.held(), 0);
    session.protocol.answer(part());
    assert!(may_go_on(&mut session) && budget.held() > LENGTH);
    drop(session);
    assert_eq!(budget.held(), 0);
}
