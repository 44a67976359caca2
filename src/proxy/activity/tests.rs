//! What connections and streams wait for, and until when.

use super::*;

fn connection(multiplexed: bool) -> Rc<Activity> {
    Activity::connection(&Clock::new(), &Rc::default(), multiplexed)
}

fn stream(pace: BodyPace) -> Rc<Activity> {
    let stream = Activity::stream(&Clock::new(), &Rc::default(), pace);
    stream.on_request();
    stream
}

#[test]
fn alternates_between_head_and_idle() {
    let connection = connection(false);
    assert_eq!(connection.phase.get(), Phase::Head);
    assert_eq!(connection.unfinished_head(), 0);
    connection.on_read(10);
    connection.on_read(20);
    assert_eq!(connection.phase.get(), Phase::Head);
    assert_eq!(connection.unfinished_head(), 30);
    connection.on_request();
    assert_eq!(connection.unfinished_head(), 0);
    connection.on_body_awaited();
    assert_eq!(connection.phase.get(), Phase::RequestBody);
    connection.on_body(1);
    connection.on_response();
    assert_eq!(connection.phase.get(), Phase::Backend);
    connection.on_request_end();
    assert_eq!(connection.phase.get(), Phase::Idle);
    assert_eq!(connection.unfinished_head(), 0);
    connection.on_read(40);
    assert_eq!(connection.phase.get(), Phase::Head);
    assert_eq!(connection.unfinished_head(), 40);
}

#[test]
fn blocked_write_outlasts_the_request() {
    let connection = connection(false);
    connection.on_request();
    connection.on_write_blocked();
    connection.on_request_end();
    assert_eq!(connection.phase.get(), Phase::Write);
    connection.on_written();
    assert_eq!(connection.phase.get(), Phase::Idle);
}

#[test]
fn flush_ends_a_blocked_write() {
    let connection = connection(false);
    connection.on_request();
    connection.on_write_blocked();
    connection.on_flushed();
    assert_eq!(connection.phase.get(), Phase::Backend);
    connection.on_request_end();
    connection.on_write_blocked();
    connection.on_flushed();
    assert_eq!(connection.phase.get(), Phase::Idle);
}

#[test]
fn last_try_lasts_until_a_write_is_blocked() {
    let connection = connection(false);
    connection.on_request();
    assert!(!connection.begin_last_write(Phase::Backend));
    connection.on_write_blocked();
    assert!(connection.begin_last_write(Phase::Write));
    connection.on_written();
    connection.on_flushed();
    assert!(connection.is_last_write(), "there may be more to write");
    connection.on_write_blocked();
    assert!(!connection.is_last_write());
    assert!(connection.begin_last_write(Phase::Write));
    connection.on_write_blocked();
    assert!(!connection.begin_last_write(Phase::Write), "no room");
}

#[test]
fn last_try_that_writes_takes_back_the_timeout() {
    let clock = Clock::new();
    let connection = Activity::connection(&clock, &Rc::default(), false);
    connection.on_request();
    connection.on_write_blocked();
    clock.advance(Limits::default().write_timeout.as_millis() as u64);
    let cx = &mut Context::from_waker(std::task::Waker::noop());
    assert_eq!(connection.poll_due(cx), Poll::Ready(Phase::Write));
    assert_eq!(connection.ended_by(), Some(TimeoutKind::Write));
    assert!(connection.begin_last_write(Phase::Write));
    connection.on_written();
    assert_eq!(connection.ended_by(), None);
}

#[test]
fn stream_waits_for_the_client_between_response_parts() {
    let stream = stream(BodyPace::Steady);
    stream.on_response();
    assert_eq!(stream.phase.get(), Phase::Write);
    stream.on_response_awaited();
    assert_eq!(stream.phase.get(), Phase::Backend);
}

#[test]
fn stalled_request_body_times_out_by_its_pace() {
    let paces = [
        (BodyPace::Steady, [Phase::RequestBody, Phase::RequestBody]),
        (
            BodyPace::SteadyUntilResponse,
            [Phase::RequestBody, Phase::Backend],
        ),
        (BodyPace::Any, [Phase::Backend, Phase::Backend]),
    ];
    for (pace, [before, behind]) in paces {
        let stream = stream(pace);
        stream.on_body_awaited();
        assert_eq!(stream.phase.get(), before, "{pace:?}");
        stream.on_response();
        stream.on_response_awaited();
        stream.on_body_awaited();
        assert_eq!(stream.phase.get(), behind, "{pace:?}");
    }
}

#[tokio::test]
async fn exchange_deadline_is_never_extended() {
    let stream = stream(BodyPace::Steady);
    stream.expire_at(Some(Instant::now()));
    let due = std::future::poll_fn(|cx| {
        stream.on_response();
        stream.poll_due(cx)
    });
    assert_eq!(due.await, Phase::Exchange);
    assert_eq!(stream.ended_by(), Some(TimeoutKind::Request));
}
