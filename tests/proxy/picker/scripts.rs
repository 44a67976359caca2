//! Scripts of a picker: lengths, orders and ends that it should not say, and the one right outcome of each for a pool that fails
//! open and for one that fails closed, with model servers of both versions of HTTP. No body that is not whole ends as if it
//! were, and no request has two framings.

use std::net::SocketAddr;

use tokio::sync::mpsc::UnboundedReceiver;

use self::Ends::{Broken, Sent, Status, Text};
use super::framing::{Seen, observed_model};
use super::server::Act::{Close, Fail, Immediate};
use super::server::{Phase, Picker, Script};
use super::steps::Side::{Request, Response};
use super::steps::Step::{
    self, Act, Answer, AnswerWithBody, Buffered, End, Leave, Part, Pass, Raw, Read, ReadHead,
    Return,
};
use super::{Outcome, PROTOCOLS, clients, model, post, serve};
use crate::origin::{Origin, full};

/// Bytes of a body in one message.
const SHORT: usize = 19;
/// The same for two messages.
const MEDIUM: usize = 100_000;
/// More than is kept to go on without a picker.
const BEYOND: usize = 1_300_000;
const LONG: usize = 8 * 1024 * 1024;

const EMPTY: Step = Raw(b"\0\0\0\0\0");

/// How a request ends.
#[derive(Clone, Copy)]
enum Ends {
    /// With the body that was sent.
    Sent,
    /// With the text of the row.
    Text,
    /// With this status.
    Status(u16),
    /// In the middle of the response.
    Broken,
}

struct Row {
    name: &'static str,
    /// The endpoints that the picker chooses.
    list: &'static str,
    /// Bytes of the request.
    size: usize,
    /// What the picker makes of the body.
    text: Option<&'static str>,
    script: fn(Script) -> Script,
    /// With FailOpen.
    open: Ends,
    /// With FailClose.
    close: Ends,
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

const ROWS: &[Row] = &[
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
        open: Status(503),
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

impl Row {
    fn outcome(&self, ends: Ends, sent: &str) -> Outcome {
        match ends {
            Sent => Outcome::Whole(200, sent.to_owned()),
            Text => Outcome::Whole(200, self.text.expect("a text").to_owned()),
            Status(status) => Outcome::Whole(status, String::new()),
            Broken => Outcome::Broken(200),
        }
    }
}

/// Returns a body of this length.
fn body(size: usize) -> String {
    let mut text = "0123456789abcdef".repeat(size.div_ceil(16));
    text.truncate(size);
    text
}

fn shown(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Whole(status, body) => format!("{status} with {} bytes", body.len()),
        Outcome::Broken(status) => format!("{status} that has broken off"),
    }
}

/// Returns a list in which addresses replace their names.
fn list(names: &str, addresses: &[(&str, SocketAddr)]) -> String {
    let names = names.split(',');
    let named = names.filter_map(|name| addresses.iter().find(|(of, _)| *of == name));
    let found: Vec<_> = named.map(|(_, address)| address.to_string()).collect();
    found.join(",")
}

/// Checks all that the model server has got so far: a request that has not broken off is that of its row.
fn check(seen: &mut UnboundedReceiver<Seen>) {
    while let Ok(Seen {
        path,
        is_sound,
        body: got,
    }) = seen.try_recv()
    {
        let index = path
            .rsplit('/')
            .next()
            .and_then(|it| it.parse::<usize>().ok());
        let row = index.and_then(|index| ROWS.get(index));
        let row = row.unwrap_or_else(|| panic!("a request to {path:?}"));
        assert!(is_sound, "{}: {path}", row.name);
        if let Some(got) = got {
            let is_right = got == body(row.size) || row.text.is_some_and(|text| got == text);
            assert!(is_right, "{}: {path}: {} bytes", row.name, got.len());
        }
    }
}

#[tokio::test]
async fn every_script_has_its_outcome() {
    let (own, mut seen) = observed_model().await;
    let foreign = model("foreign").await;
    let dead = [(); 3].map(|()| Origin::dead());
    let addresses = [
        ("own", own.address),
        ("foreign", foreign.address),
        ("dead0", dead[0]),
        ("dead1", dead[1]),
        ("dead2", dead[2]),
    ];
    let picker = Picker::start(Script::choosing("")).await;
    // A pool that fails open chooses from all its endpoints.
    let pools = [vec![own.address], [&dead[..], &[own.address]].concat()];
    let scenes = pools.map(|models| serve(&picker, &models));
    for (index, row) in ROWS.iter().enumerate() {
        let sent = body(row.size);
        let list = list(row.list, &addresses);
        let scene = &scenes[usize::from(row.list.contains("dead"))];
        picker.follow((row.script)(Script::choosing(&list)));
        for (prefix, _) in PROTOCOLS {
            for (path, ends) in [("open", row.open), ("close", row.close)] {
                let path = format!("{prefix}/{path}/{index}");
                for mut client in clients(scene).await {
                    let outcome = post(&mut client, &path, full(sent.clone())).await;
                    let is_right = outcome == row.outcome(ends, &sent);
                    assert!(is_right, "{}: {path}: {}", row.name, shown(&outcome));
                    check(&mut seen);
                }
            }
        }
    }
    assert_eq!(foreign.requests(), 0);
}
