//! Scripts of messages: what the sender and the picker say, and what comes out.

mod property;

use super::super::destination;
use super::super::message::{BodyMutation, CommonAnswer, HttpStatus, TrailersAnswer};
use super::*;

const SIDES: [Side; 2] = [Side::Request, Side::Response];

/// Describes the messages that wait to be sent.
fn sent(protocol: &mut Protocol) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(message) = protocol.next_message() {
        let mut text = match message.sent.expect("a message") {
            Sent::RequestHeaders(it) => format!("head{}", end(it.end_of_stream)),
            Sent::ResponseHeaders(it) => format!("response{}", end(it.end_of_stream)),
            Sent::RequestBody(it) => format!("body {}{}", it.body.len(), end(it.end_of_stream)),
            Sent::ResponseBody(it) => format!("data {}{}", it.body.len(), end(it.end_of_stream)),
        };
        if message.metadata_context.is_some() {
            text.push_str(" served");
        }
        if message.protocol_config.is_some() {
            text.push_str(" modes");
        }
        all.push(text);
    }
    all
}

fn end(ends: bool) -> &'static str {
    match ends {
        true => " end",
        false => "",
    }
}

fn common(response: CommonResponse) -> CommonAnswer {
    CommonAnswer {
        response: Some(response),
    }
}

fn message(answer: Answer) -> ProcessingResponse {
    ProcessingResponse {
        answer: Some(answer),
        dynamic_metadata: Bytes::new(),
    }
}

fn head_answer(side: Side) -> ProcessingResponse {
    let answer = common(CommonResponse::default());
    message(match side {
        Side::Request => Answer::RequestHeaders(answer),
        Side::Response => Answer::ResponseHeaders(answer),
    })
}

fn with_body(side: Side, body: Body) -> ProcessingResponse {
    let answer = common(CommonResponse {
        body_mutation: Some(BodyMutation { body: Some(body) }),
        ..CommonResponse::default()
    });
    message(match side {
        Side::Request => Answer::RequestBody(answer),
        Side::Response => Answer::ResponseBody(answer),
    })
}

fn part(side: Side, body: &'static str, ends: bool) -> ProcessingResponse {
    let body = HttpBody {
        body: Bytes::from_static(body.as_bytes()),
        end_of_stream: ends,
    };
    with_body(side, Body::Streamed(body))
}

fn immediate() -> ProcessingResponse {
    message(Answer::Immediate(ImmediateResponse {
        status: Some(HttpStatus { code: 429 }),
        ..ImmediateResponse::default()
    }))
}

/// Begins a side with a body of which `parts` were sent.
fn begin(protocol: &mut Protocol, side: Side, parts: &[&'static str], ends: bool) {
    match side {
        Side::Request => protocol.request_head(HeaderList::default(), true),
        Side::Response => protocol.response_head(HeaderList::default(), true, None),
    }
    for part in parts {
        protocol.data(side, Bytes::from_static(part.as_bytes()), false);
    }
    if ends {
        protocol.end(side, None);
    }
}

/// Takes what follows of a body: its bytes, and how it ends or that it waits.
fn taken(protocol: &mut Protocol, side: Side) -> (String, Part) {
    let mut text = String::new();
    loop {
        match protocol.next_part(side) {
            Part::Data(data) => text.push_str(std::str::from_utf8(&data).expect("text")),
            last => return (text, last),
        }
    }
}

#[test]
fn body_is_sent_before_the_head_is_answered() {
    let mut protocol = Protocol::new(false);
    protocol.request_head(HeaderList::default(), true);
    protocol.data(
        Side::Request,
        Bytes::from(vec![0; 2 * MAX_CHUNK + 1]),
        false,
    );
    protocol.data(Side::Request, Bytes::new(), false);
    protocol.data(Side::Request, Bytes::from_static(b"ab"), true);
    let expected = [
        "head modes",
        "body 62000",
        "body 62000",
        "body 1",
        "body 2 end",
    ];
    assert_eq!(sent(&mut protocol), expected);
    assert!(!protocol.is_read(Side::Request));
    protocol.data(Side::Request, Bytes::from_static(b"late"), true);
    protocol.end(Side::Request, None);
    assert!(sent(&mut protocol).is_empty());
}

#[test]
fn end_is_in_the_last_part_or_in_an_empty_one() {
    let mut protocol = Protocol::new(false);
    protocol.request_head(HeaderList::default(), false);
    assert_eq!(sent(&mut protocol), ["head end modes"]);
    let mut protocol = Protocol::new(false);
    protocol.request_head(HeaderList::default(), true);
    protocol.data(Side::Request, Bytes::from(vec![0; MAX_CHUNK]), true);
    assert_eq!(sent(&mut protocol), ["head modes", "body 62000 end"]);
    let mut protocol = Protocol::new(false);
    begin(&mut protocol, Side::Request, &["ab"], true);
    assert_eq!(sent(&mut protocol), ["head modes", "body 2", "body 0 end"]);
}

#[test]
fn served_endpoint_is_sent_with_the_head_and_the_end_of_a_response() {
    let mut protocol = Protocol::new(false);
    protocol.request_head(HeaderList::default(), false);
    let served = destination::served(([10, 0, 0, 1], 80).into());
    protocol.response_head(HeaderList::default(), true, Some(served));
    protocol.data(Side::Response, Bytes::from_static(b"a"), false);
    protocol.data(Side::Response, Bytes::from_static(b"b"), true);
    let expected = [
        "head end modes",
        "response served",
        "data 1",
        "data 1 end served",
    ];
    assert_eq!(sent(&mut protocol), expected);
}

#[test]
fn returned_body_replaces_the_sent_one() {
    for side in SIDES {
        let mut protocol = Protocol::new(false);
        begin(&mut protocol, side, &["a", "b"], true);
        assert_eq!(protocol.take_head(side), Head::Waiting);
        assert_eq!(protocol.next_part(side), Part::Waiting);
        protocol.answer(head_answer(side));
        assert!(matches!(protocol.take_head(side), Head::Answered(_)));
        protocol.answer(part(side, "XY", false));
        protocol.answer(part(side, "", false));
        protocol.answer(part(side, "Z", false));
        assert_eq!(
            taken(&mut protocol, side),
            ("XYZ".to_owned(), Part::Waiting)
        );
        protocol.answer(part(side, "", true));
        assert!(protocol.is_ended(side));
        assert_eq!(taken(&mut protocol, side), (String::new(), Part::Ended));
    }
}

#[test]
fn message_without_a_body_ends_with_its_head() {
    let mut protocol = Protocol::new(false);
    protocol.request_head(HeaderList::default(), false);
    assert!(protocol.is_awaited());
    protocol.answer(head_answer(Side::Request));
    assert!(!protocol.is_awaited() && protocol.is_ended(Side::Request));
    assert_eq!(protocol.next_part(Side::Request), Part::Ended);
}

#[test]
fn trailers_follow_the_end_that_the_picker_returns() {
    for side in SIDES {
        let mut protocol = Protocol::new(false);
        begin(&mut protocol, side, &["a"], false);
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
        protocol.end(side, Some(trailers.clone()));
        assert_eq!(sent(&mut protocol).len(), 3);
        protocol.answer(head_answer(side));
        protocol.answer(part(side, "a", false));
        assert_eq!(taken(&mut protocol, side), ("a".to_owned(), Part::Waiting));
        protocol.answer(part(side, "", true));
        assert!(!protocol.is_ended(side));
        assert_eq!(protocol.next_part(side), Part::Trailers(trailers));
        assert_eq!(protocol.next_part(side), Part::Ended);
        // Nobody asked about the trailers.
        protocol.answer(message(Answer::RequestTrailers(TrailersAnswer {})));
        protocol.answer(message(Answer::ResponseTrailers(TrailersAnswer {})));
        protocol.answer(ProcessingResponse::default());
        assert!(protocol.is_open());
    }
}

#[test]
fn answer_that_the_protocol_does_not_permit_is_a_failure() {
    let replacing = CommonResponse {
        status: REPLACES_BODY,
        ..CommonResponse::default()
    };
    for side in SIDES {
        let replaces = match side {
            Side::Request => Answer::RequestHeaders(common(replacing.clone())),
            Side::Response => Answer::ResponseHeaders(common(replacing.clone())),
        };
        let empty = match side {
            Side::Request => Answer::RequestBody(common(CommonResponse::default())),
            Side::Response => Answer::ResponseBody(common(CommonResponse::default())),
        };
        let of_head = head_answer(side);
        for answers in [
            // The body before the head.
            vec![part(side, "a", false)],
            vec![of_head.clone(), of_head.clone()],
            vec![message(replaces)],
            // Answers of other modes.
            vec![of_head.clone(), message(empty)],
            vec![of_head.clone(), with_body(side, Body::Clear(true))],
            vec![of_head.clone(), with_body(side, Body::Whole(Bytes::new()))],
            // The end before that of the sender.
            vec![of_head.clone(), part(side, "a", true)],
        ] {
            let mut protocol = Protocol::new(false);
            begin(&mut protocol, side, &["a"], false);
            answers.iter().for_each(|it| protocol.answer(it.clone()));
            assert!(!protocol.is_open(), "{answers:?}");
            assert_eq!(protocol.next_part(side), Part::Failed, "{answers:?}");
        }
        let mut protocol = Protocol::new(false);
        protocol.answer(of_head);
        assert_eq!(protocol.take_head(side), Head::Failed);
        let mut protocol = Protocol::new(false);
        begin(&mut protocol, side, &["a"], true);
        protocol.answer(head_answer(side));
        protocol.answer(part(side, "a", true));
        protocol.answer(part(side, "more", false));
        assert!(!protocol.is_open());
        // What was whole before stays whole.
        assert_eq!(taken(&mut protocol, side), ("a".to_owned(), Part::Ended));
    }
}

/// What a message becomes if the picker ends the stream: after no answer, after that to the head, after a part of the body,
/// after the whole body.
#[test]
fn end_of_the_stream_at_each_phase() {
    let passes = |side, answers: usize, fails_open, close| {
        let mut protocol = Protocol::new(fails_open);
        if side == Side::Response {
            protocol.request_head(HeaderList::default(), false);
            protocol.answer(head_answer(Side::Request));
        }
        begin(&mut protocol, side, &["a", "b"], true);
        let all = [
            head_answer(side),
            part(side, "A", false),
            part(side, "B", true),
        ];
        all.into_iter()
            .take(answers)
            .for_each(|it| protocol.answer(it));
        protocol.close(close);
        assert!(!protocol.is_open() && !protocol.is_awaited());
        let head = protocol.take_head(side);
        let (text, last) = taken(&mut protocol, side);
        assert!(answers == 0 || matches!(head, Head::Answered(_)));
        (head, text, last)
    };
    for side in SIDES {
        for (fails_open, close, goes_on) in [
            (false, Close::Clean, true),
            (true, Close::Clean, true),
            (true, Close::Failed, true),
            (false, Close::Failed, false),
        ] {
            let (head, _, last) = passes(side, 0, fails_open, close);
            // Before the answer to the head of the request, nothing is chosen.
            match goes_on && (fails_open || side == Side::Response) {
                true => assert_eq!((head, last), (Head::Passed, Part::Passed)),
                false => assert_eq!((head, last), (Head::Failed, Part::Failed)),
            }
            let (_, _, last) = passes(side, 1, fails_open, close);
            assert_eq!(last == Part::Passed, goes_on);
            // Of a request nothing was taken. The original of a response cannot follow what was returned.
            let (_, text, last) = passes(side, 2, fails_open, close);
            let expected = match goes_on && side == Side::Request {
                true => Part::Passed,
                false => Part::Failed,
            };
            assert_eq!((&*text, last), ("", expected));
            let (_, text, last) = passes(side, 3, fails_open, close);
            assert_eq!((&*text, last), ("AB", Part::Ended));
        }
    }
}

#[test]
fn original_of_a_request_follows_no_changed_part() {
    for (is_changed, expected) in [(false, Part::Passed), (true, Part::Failed)] {
        let mut protocol = Protocol::new(true);
        begin(&mut protocol, Side::Request, &["a", "b"], true);
        protocol.answer(head_answer(Side::Request));
        protocol.answer(part(Side::Request, "A", false));
        let (text, last) = taken(&mut protocol, Side::Request);
        assert_eq!((&*text, last), ("A", Part::Waiting));
        protocol.is_request_changed = is_changed;
        protocol.answer(part(Side::Request, "B", false));
        protocol.close(Close::Failed);
        let (text, last) = taken(&mut protocol, Side::Request);
        assert_eq!((&*text, last), ("", expected));
    }
}

#[test]
fn picker_that_ends_after_the_request_has_no_part_in_the_response() {
    for (fails_open, close, expected) in [
        (false, Close::Clean, Head::Passed),
        (true, Close::Failed, Head::Passed),
        (false, Close::Failed, Head::Failed),
    ] {
        let mut protocol = Protocol::new(fails_open);
        protocol.request_head(HeaderList::default(), false);
        protocol.answer(head_answer(Side::Request));
        protocol.close(close);
        sent(&mut protocol);
        protocol.response_head(HeaderList::default(), true, None);
        assert!(sent(&mut protocol).is_empty());
        assert_eq!(protocol.take_head(Side::Response), expected);
    }
}

#[test]
fn picker_may_respond_itself_at_each_phase() {
    for answers in 0..6 {
        let mut protocol = Protocol::new(true);
        begin(&mut protocol, Side::Request, &["a"], true);
        begin(&mut protocol, Side::Response, &["b"], true);
        let all = [
            head_answer(Side::Request),
            part(Side::Request, "a", false),
            part(Side::Request, "", true),
            head_answer(Side::Response),
            part(Side::Response, "b", false),
        ];
        all.into_iter()
            .take(answers)
            .for_each(|it| protocol.answer(it));
        protocol.answer(immediate());
        let response = protocol.take_immediate().expect("a response");
        assert_eq!(response.status(), 429);
        assert!(!protocol.is_open());
        // No body is ended that is not whole.
        let is_whole = |protocol: &mut Protocol, side| taken(protocol, side).1 == Part::Ended;
        assert_eq!(is_whole(&mut protocol, Side::Request), answers >= 3);
        assert!(!is_whole(&mut protocol, Side::Response));
        protocol.answer(head_answer(Side::Request));
        assert!(protocol.take_immediate().is_none());
    }
    let mut protocol = Protocol::new(true);
    protocol.request_head(HeaderList::default(), false);
    protocol.answer(head_answer(Side::Request));
    protocol.response_head(HeaderList::default(), false, None);
    protocol.answer(head_answer(Side::Response));
    protocol.answer(immediate());
    assert!(protocol.take_immediate().is_none());
}

#[test]
fn answer_is_awaited_only_while_the_picker_owes_one() {
    let mut protocol = Protocol::new(false);
    assert!(!protocol.is_awaited());
    begin(&mut protocol, Side::Request, &["a"], false);
    // The sender may take its time, and pickers wait for all of it.
    assert!(!protocol.is_awaited());
    protocol.end(Side::Request, None);
    assert!(protocol.is_awaited());
    protocol.answer(head_answer(Side::Request));
    assert!(protocol.is_awaited());
    protocol.answer(part(Side::Request, "", true));
    assert!(!protocol.is_awaited());
    begin(&mut protocol, Side::Response, &["a"], false);
    assert!(protocol.is_awaited());
    protocol.answer(head_answer(Side::Response));
    assert!(!protocol.is_awaited());
    protocol.end(Side::Response, None);
    assert!(protocol.is_awaited());
    protocol.answer(part(Side::Response, "", true));
    assert!(!protocol.is_awaited());
}

#[test]
fn returned_parts_count_until_they_are_taken() {
    let side = Side::Request;
    let mut protocol = Protocol::new(false);
    begin(&mut protocol, side, &["a"], false);
    protocol.answer(head_answer(side));
    (0..100).for_each(|_| protocol.answer(part(side, "x", false)));
    assert_eq!(protocol.queued(side), 100 * (1 + PART));
    assert_eq!(taken(&mut protocol, side).0.len(), 100);
    assert_eq!(protocol.queued(side), 0);
    protocol.answer(part(side, "x", false));
    protocol.forget(side);
    protocol.answer(part(side, "x", false));
    assert_eq!(protocol.queued(side), 0);
    assert!(protocol.is_open());
    // A body that lacks these parts is not whole.
    protocol.end(side, None);
    protocol.answer(part(side, "", true));
    assert!(protocol.is_open() && !protocol.is_ended(side));
    assert_eq!(protocol.next_part(side), Part::Waiting);
}
