//! Scripts of a picker step by step, for what the usual script never says.

use bytes::{Bytes, BytesMut};

use super::message::{Body, BodyChange, Changes, Common, Head, Response, body_answer, head_answer};
use super::server::{Act, Script, Stream};

/// The request or its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Request,
    Response,
}

/// What a picker does next. After its steps it says nothing until the caller ends the call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Reads until it has the head.
    ReadHead(Side),
    /// Reads until it has all of it.
    Read(Side),
    /// Answers the head.
    Answer(Side),
    /// Answers the head as if that were the answer to the body, too.
    AnswerWithBody(Side),
    /// Returns this part of the body.
    Part(Side, &'static str),
    /// Returns what it has read of the body, in parts of this length.
    Return(Side, usize),
    /// Answers the body as if it were not streamed.
    Buffered(Side),
    /// Ends the body.
    End(Side),
    /// Reads all of it, answers the head, and returns the body.
    Pass(Side),
    /// Sends these bytes.
    Raw(&'static [u8]),
    /// Waits for a permit of the script.
    Await,
    /// Does this as the last step.
    Act(Act),
    /// Ends its side of the call without a status.
    Leave,
}

impl Script {
    /// Takes these steps instead of the usual script.
    pub(super) fn with_steps(self, steps: &[Step]) -> Self {
        Self {
            steps: steps.to_vec(),
            ..self
        }
    }
}

/// What has been read of a side.
#[derive(Default)]
struct Progress {
    has_head: bool,
    has_body: bool,
    is_ended: bool,
    body: BytesMut,
}

impl Progress {
    fn add(&mut self, head: Option<Head>, body: Option<Body>) {
        if let Some(head) = head {
            self.has_head = true;
            self.has_body = !head.end_of_stream;
            self.is_ended = head.end_of_stream;
        }
        if let Some(part) = body {
            self.body.extend_from_slice(&part.body);
            self.is_ended |= part.end_of_stream;
        }
    }
}

/// A call whose steps are taken.
struct Steps<'a> {
    script: &'a Script,
    stream: &'a mut Stream,
    request: Progress,
    response: Progress,
}

/// Takes the steps of a script. `None`: the caller has ended, or the script.
pub(super) async fn follow(script: &Script, stream: &mut Stream) -> Option<()> {
    let mut steps = Steps {
        script,
        stream,
        request: Progress::default(),
        response: Progress::default(),
    };
    for step in &script.steps {
        steps.take(*step).await?;
    }
    while steps.stream.next().await.is_some() {}
    Some(())
}

impl Steps<'_> {
    async fn take(&mut self, step: Step) -> Option<()> {
        match step {
            Step::ReadHead(side) => self.read(side, |it| it.has_head).await?,
            Step::Read(side) => self.read(side, |it| it.is_ended).await?,
            Step::Answer(side) => self.answer(side).await,
            Step::AnswerWithBody(side) => self.stream.send(of_head(side, not_streamed())).await,
            Step::Part(side, text) => self.part(side, text.into(), false).await,
            Step::Return(side, length) => self.give_back(side, length).await,
            Step::Buffered(side) => self.stream.send(of_body(side, not_streamed())).await,
            Step::End(side) => self.part(side, Bytes::new(), true).await,
            Step::Pass(side) => {
                self.read(side, |it| it.is_ended).await?;
                self.answer(side).await;
                if self.side(side).has_body {
                    self.give_back(side, self.script.piece).await;
                    self.part(side, Bytes::new(), true).await;
                }
            }
            Step::Raw(bytes) => self.stream.send_raw(bytes.into()).await,
            Step::Await => self.script.gate.acquire().await.ok()?.forget(),
            Step::Act(act) => {
                self.stream.act(act).await;
                return None;
            }
            Step::Leave => return None,
        }
        Some(())
    }

    fn side(&mut self, side: Side) -> &mut Progress {
        match side {
            Side::Request => &mut self.request,
            Side::Response => &mut self.response,
        }
    }

    async fn read(&mut self, side: Side, is_done: fn(&Progress) -> bool) -> Option<()> {
        while !is_done(self.side(side)) {
            let next = self.stream.next().await?;
            self.request.add(next.request_headers, next.request_body);
            self.response.add(next.response_headers, next.response_body);
        }
        Some(())
    }

    async fn answer(&mut self, side: Side) {
        let changes = self.script.changes(side == Side::Request);
        self.stream.send(of_head(side, head_answer(changes))).await;
    }

    async fn part(&mut self, side: Side, body: Bytes, ends: bool) {
        self.stream
            .send(of_body(side, body_answer(body, ends)))
            .await;
    }

    async fn give_back(&mut self, side: Side, length: usize) {
        let mut body = self.side(side).body.split().freeze();
        while !body.is_empty() {
            let part = body.split_to(length.min(body.len()));
            self.part(side, part, false).await;
        }
    }
}

fn of_head(side: Side, answer: Common) -> Response {
    let (request_headers, response_headers) = match side {
        Side::Request => (Some(answer), None),
        Side::Response => (None, Some(answer)),
    };
    Response {
        request_headers,
        response_headers,
        ..Response::default()
    }
}

fn of_body(side: Side, answer: Common) -> Response {
    let (request_body, response_body) = match side {
        Side::Request => (Some(answer), None),
        Side::Response => (None, Some(answer)),
    };
    Response {
        request_body,
        response_body,
        ..Response::default()
    }
}

/// Returns an answer with the body of a mode that this protocol does not use.
fn not_streamed() -> Common {
    Common {
        response: Some(Changes {
            headers: None,
            body: Some(BodyChange { streamed: None }),
        }),
    }
}
