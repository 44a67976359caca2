//! Scripts of a picker: lengths, orders and ends that it should not say, and the one right outcome of each for a pool that fails
//! open and for one that fails closed.

use self::Ends::{Broken, Sent, Status, Text};
use super::server::Act::{Close, Fail, Immediate};
use super::server::{Phase, Script};
use super::steps::Side::{Request, Response};
use super::steps::Step::{
    self, Act, Answer, AnswerWithBody, Buffered, End, Leave, Part, Pass, Raw, Read, ReadHead,
    Return,
};

/// Bytes of a body in one message.
const SHORT: usize = 19;
/// The same for two messages.
const MEDIUM: usize = 100_000;
/// More than a message has that pickers usually send, and less than one may have.
const LONGER_MESSAGE: usize = 300_000;
/// More than is kept to go on without a picker.
const BEYOND: usize = 1_300_000;
const LONG: usize = 8 * 1024 * 1024;

const EMPTY: Step = Raw(b"\0\0\0\0\0");

/// How a request ends.
#[derive(Clone, Copy)]
pub(super) enum Ends {
    /// With the body that was sent.
    Sent,
    /// With the text of the row.
    Text,
    /// With this status.
    Status(u16),
    /// In the middle of the response.
    Broken,
}

pub(super) struct Row {
    pub(super) name: &'static str,
    /// The endpoints that the picker chooses.
    pub(super) list: &'static str,
    /// Bytes of the request.
    pub(super) size: usize,
    /// What the picker makes of the body.
    pub(super) text: Option<&'static str>,
    pub(super) script: fn(Script) -> Script,
    /// With FailOpen.
    pub(super) open: Ends,
    /// With FailClose.
    pub(super) close: Ends,
}

/// The picker says what it should.
const RIGHT: Row = Row {
    name: "",
    list: "own",
    size: SHORT,
    text: None,
    script: |it| it,
    open: Sent,
    close: Sent,
};

/// The picker has failed, and the original can go on.
const WRONG: Row = Row {
    close: Status(503),
    ..RIGHT
};

/// The picker has failed, or ended, and the original cannot go on.
const LOST: Row = Row {
    size: BEYOND,
    open: Status(503),
    ..WRONG
};

pub(super) const ROWS: &[Row] = &[
    // Lengths and pieces.
    Row {
        name: "no body",
        size: 0,
        ..RIGHT
    },
    Row {
        name: "one byte",
        size: 1,
        ..RIGHT
    },
    Row {
        name: "pieces of 7 bytes in frames of 3",
        script: |it| Script {
            piece: 7,
            frame: 3,
            ..it
        },
        ..RIGHT
    },
    Row {
        name: "a long body after its end",
        size: LONG,
        ..RIGHT
    },
    Row {
        name: "a long body while it is sent",
        size: LONG,
        script: |it| Script {
            streams: true,
            ..it
        },
        ..RIGHT
    },
    Row {
        name: "a body in one message that is longer than usual ones",
        size: LONGER_MESSAGE,
        script: |it| Script {
            piece: usize::MAX,
            ..it
        },
        ..RIGHT
    },
    Row {
        name: "a long body in one message, which is too long",
        size: LONG,
        script: |it| Script {
            piece: usize::MAX,
            ..it
        },
        ..LOST
    },
    Row {
        name: "a head of a response after the end of its body",
        size: BEYOND,
        script: |it| it.with_steps(&[Pass(Request), Pass(Response)]),
        ..RIGHT
    },
    Row {
        name: "messages that say nothing",
        script: |it| {
            it.with_steps(&[
                EMPTY,
                Read(Request),
                Answer(Request),
                EMPTY,
                Return(Request, 7),
                EMPTY,
                End(Request),
                EMPTY,
                Pass(Response),
                EMPTY,
            ])
        },
        ..RIGHT
    },
    // Framing.
    Row {
        name: "headers with another framing",
        size: MEDIUM,
        script: |it| Script {
            headers: vec![
                ("content-length", "3"),
                ("Transfer-Encoding", "gzip, chunked"),
                ("connection", "content-length"),
                ("trailer", "content-length"),
            ],
            ..it
        },
        ..RIGHT
    },
    Row {
        name: "headers with a greater length",
        size: MEDIUM,
        script: |it| Script {
            headers: vec![("Content-Length", "99999999999")],
            ..it
        },
        ..RIGHT
    },
    Row {
        name: "an empty body instead of a long one",
        size: MEDIUM,
        text: Some(""),
        script: |it| it.with_steps(&[Read(Request), Answer(Request), End(Request), Pass(Response)]),
        open: Text,
        close: Text,
        ..RIGHT
    },
    Row {
        name: "another body of a request",
        size: MEDIUM,
        text: Some("other"),
        script: |it| {
            it.with_steps(&[
                Read(Request),
                Answer(Request),
                Part(Request, "other"),
                End(Request),
                Pass(Response),
            ])
        },
        open: Text,
        close: Text,
        ..RIGHT
    },
    Row {
        name: "another body of a response",
        size: MEDIUM,
        text: Some("other"),
        script: |it| {
            it.with_steps(&[
                Pass(Request),
                Read(Response),
                Answer(Response),
                Part(Response, "other"),
                End(Response),
            ])
        },
        open: Text,
        close: Text,
        ..RIGHT
    },
    // Orders.
    Row {
        name: "a body before its head",
        script: |it| it.with_steps(&[Read(Request), Part(Request, "x")]),
        ..WRONG
    },
    Row {
        name: "a response before the answer to the request",
        script: |it| it.with_steps(&[ReadHead(Request), Answer(Response)]),
        ..WRONG
    },
    Row {
        name: "a response before it begins",
        script: |it| it.with_steps(&[Read(Request), Answer(Request), Answer(Response)]),
        ..WRONG
    },
    Row {
        name: "a body of a request without one",
        size: 0,
        script: |it| it.with_steps(&[ReadHead(Request), Answer(Request), Part(Request, "x")]),
        ..WRONG
    },
    Row {
        name: "more of a request after its end",
        script: |it| it.with_steps(&[Pass(Request), Part(Request, "x")]),
        ..WRONG
    },
    Row {
        name: "a body of a response before its head",
        script: |it| it.with_steps(&[Pass(Request), Read(Response), Part(Response, "x")]),
        ..WRONG
    },
    Row {
        name: "the head of a response twice",
        script: |it| {
            it.with_steps(&[
                Pass(Request),
                Read(Response),
                Answer(Response),
                Answer(Response),
            ])
        },
        close: Broken,
        ..WRONG
    },
    Row {
        name: "more of a response after its end",
        script: |it| it.with_steps(&[Pass(Request), Pass(Response), Part(Response, "x")]),
        ..RIGHT
    },
    Row {
        name: "a body of a response without one",
        size: 0,
        script: |it| it.with_steps(&[Pass(Request), Pass(Response), Part(Response, "x")]),
        ..RIGHT
    },
    // Other modes, and malformed calls.
    Row {
        name: "a body with the answer to the head",
        script: |it| it.with_steps(&[Read(Request), AnswerWithBody(Request)]),
        ..WRONG
    },
    Row {
        name: "a buffered body",
        script: |it| it.with_steps(&[Read(Request), Answer(Request), Buffered(Request)]),
        ..WRONG
    },
    Row {
        name: "a message that breaks off, then OK",
        script: |it| it.with_steps(&[Pass(Request), Raw(b"\0\0\0\0\x09half"), Act(Close)]),
        ..WRONG
    },
    Row {
        name: "a compressed message",
        script: |it| it.with_steps(&[Pass(Request), Raw(b"\x01\0\0\0\0")]),
        ..WRONG
    },
    Row {
        name: "a malformed message",
        script: |it| it.with_steps(&[Pass(Request), Raw(b"\0\0\0\0\x02\xff\xff")]),
        ..WRONG
    },
    Row {
        name: "a message that is too long",
        script: |it| it.with_steps(&[Pass(Request), Raw(b"\0\0\x10\0\x01")]),
        ..WRONG
    },
    Row {
        name: "no status and no answer",
        script: |it| it.with_steps(&[ReadHead(Request), Leave]),
        ..WRONG
    },
    Row {
        name: "no status after the request",
        script: |it| it.with_steps(&[Pass(Request), Leave]),
        ..WRONG
    },
    // Ends.
    Row {
        name: "an error after a part of the request",
        size: MEDIUM,
        script: |it| Script {
            streams: true,
            stop: Some((Phase::RequestEnd, Fail)),
            ..it
        },
        ..WRONG
    },
    Row {
        name: "an error after a part of a long request",
        script: |it| Script {
            streams: true,
            stop: Some((Phase::RequestEnd, Fail)),
            ..it
        },
        ..LOST
    },
    Row {
        name: "an error after a long request",
        script: |it| it.with_steps(&[Read(Request), Act(Fail)]),
        ..LOST
    },
    Row {
        name: "OK after the answer to a long request",
        script: |it| it.with_steps(&[Read(Request), Answer(Request), Act(Close)]),
        ..LOST
    },
    Row {
        name: "an error instead of a response",
        size: MEDIUM,
        script: |it| it.with_steps(&[Pass(Request), Read(Response), Act(Fail)]),
        ..WRONG
    },
    Row {
        name: "OK instead of a response",
        size: MEDIUM,
        script: |it| it.with_steps(&[Pass(Request), Read(Response), Act(Close)]),
        ..RIGHT
    },
    Row {
        name: "an error instead of a long response",
        script: |it| it.with_steps(&[Pass(Request), Read(Response), Act(Fail)]),
        ..LOST
    },
    Row {
        name: "OK instead of a long response",
        script: |it| it.with_steps(&[Pass(Request), Read(Response), Act(Close)]),
        ..LOST
    },
    Row {
        name: "an error in a long response",
        script: |it| Script {
            stop: Some((Phase::ResponseEnd, Fail)),
            ..it
        },
        open: Broken,
        close: Broken,
        ..LOST
    },
    Row {
        name: "its own response after a long request",
        script: |it| it.with_steps(&[Read(Request), Act(Immediate)]),
        open: Status(429),
        close: Status(429),
        ..LOST
    },
    Row {
        name: "its own response after a long one",
        script: |it| it.with_steps(&[Pass(Request), Read(Response), Act(Immediate)]),
        open: Status(429),
        close: Status(429),
        ..LOST
    },
    // Choices.
    Row {
        name: "a dead endpoint and a long body",
        list: "dead0,own",
        size: LONG,
        ..RIGHT
    },
    Row {
        name: "two dead endpoints before another one",
        list: "dead0,dead1,own",
        size: 1,
        ..RIGHT
    },
    Row {
        name: "three dead endpoints before another one",
        list: "dead0,dead1,dead2,own",
        size: MEDIUM,
        ..RIGHT
    },
    Row {
        name: "only dead endpoints",
        list: "dead0,dead1,dead2",
        size: MEDIUM,
        ..WRONG
    },
    Row {
        name: "a foreign address",
        list: "foreign",
        ..WRONG
    },
    Row {
        name: "a foreign address and a dead endpoint before another one",
        list: "foreign,dead0,own",
        ..RIGHT
    },
    Row {
        name: "no choice and a long body",
        list: "",
        size: BEYOND,
        ..WRONG
    },
];
