//! A scripted picker. As servers of grpc-go, it sends the head of its response with its first message.

use std::future::pending;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use prost::Message;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::message::{
    Request, Response, body_answer, choice_metadata, head_answer, immediate, set,
};
use super::steps::{self, Step};
use crate::origin::{BoxError, Origin};

/// How far the picker has come in its script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(crate) enum Phase {
    /// It has the head of the request.
    RequestHead,
    /// It has the whole request.
    RequestEnd,
    /// It has answered the head.
    HeadAnswered,
    /// It has returned a part of the body.
    PartReturned,
    /// It has returned the whole request.
    RequestReturned,
    /// It has the head of the response.
    ResponseHead,
    /// It has answered that head.
    ResponseHeadAnswered,
    /// It has the whole response.
    ResponseEnd,
    /// It has returned a part of the response.
    ResponsePartReturned,
    /// It has returned the whole response.
    ResponseReturned,
}

/// What it does at one phase instead of the rest of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Responds itself, with 429.
    Immediate,
    /// Ends the call with OK.
    Close,
    /// Ends the call with an error.
    Fail,
    /// Resets the stream.
    Reset,
    /// Says what the protocol does not permit.
    Violate,
    /// Never says anything again.
    Stall,
    /// Sends messages that say nothing until the caller ends.
    Chatter,
}

/// What a picker does.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    /// The endpoints that it chooses, as a list.
    pub(crate) list: String,
    /// Whether the choice is in metadata instead of a header.
    pub(crate) in_metadata: bool,
    /// Headers that it sets in the request and the response.
    pub(crate) headers: Vec<(&'static str, &'static str)>,
    /// Whether it answers while the body is sent, as for streams of events, instead of after its end.
    pub(crate) streams: bool,
    /// Whether it answers each message before it reads the next one, in whatever order both bodies are sent.
    pub(crate) is_duplex: bool,
    /// Maximum bytes of the parts that it returns.
    pub(crate) piece: usize,
    /// Maximum bytes of the frames with its messages.
    pub(crate) frame: usize,
    /// Text in bodies that it replaces by another one.
    pub(crate) rewrite: Option<(&'static str, &'static str)>,
    pub(crate) stop: Option<(Phase, Act)>,
    /// What it does instead of all that, if it is not empty.
    pub(super) steps: Vec<Step>,
    /// Has a permit for each [`Step::Await`] that may end.
    pub(super) gate: Arc<Semaphore>,
}

impl Script {
    /// Chooses these endpoints and returns what it gets, once it has all of it.
    pub(crate) fn choosing(list: &str) -> Self {
        Self {
            list: list.to_owned(),
            in_metadata: false,
            headers: Vec::new(),
            streams: false,
            is_duplex: false,
            piece: 62_000,
            frame: usize::MAX,
            rewrite: None,
            stop: None,
            steps: Vec::new(),
            gate: Arc::new(Semaphore::new(0)),
        }
    }
}

/// A picker, and what it has received.
pub(crate) struct Picker {
    pub(crate) origin: Origin,
    script: Arc<Mutex<Script>>,
    received: mpsc::UnboundedReceiver<Request>,
}

impl Picker {
    /// Starts a picker.
    pub(crate) async fn start(script: Script) -> Self {
        let script = Arc::new(Mutex::new(script));
        let (tell, received) = mpsc::unbounded_channel();
        let current = script.clone();
        let origin = Origin::new(move |request: http::Request<Incoming>| {
            let script = current.lock().expect("no panic").clone();
            let tell = tell.clone();
            async move {
                assert_eq!(
                    request.uri().path(),
                    "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
                );
                assert_eq!(request.headers()["te"], "trailers");
                let (answers, receiver) = mpsc::channel(1);
                let (begun, begins) = oneshot::channel();
                let stream = Stream {
                    body: request.into_body(),
                    read: BytesMut::new(),
                    answers,
                    frame: script.frame,
                    begun: Some(begun),
                    tell,
                };
                tokio::spawn(script.run(stream));
                // An error: the script has ended without a word.
                let _ = begins.await;
                http::Response::builder()
                    .header("content-type", "application/grpc")
                    .body(Answers(receiver).boxed_unsync())
                    .expect("a response")
            }
        })
        .await;
        Self {
            origin,
            script,
            received,
        }
    }

    /// Follows another script from the next request on.
    pub(crate) fn follow(&self, script: Script) {
        *self.script.lock().expect("no panic") = script;
    }

    /// Returns all that it has received so far.
    pub(crate) fn received(&mut self) -> Vec<Request> {
        std::iter::from_fn(|| self.received.try_recv().ok()).collect()
    }
}

/// The call of one request.
pub(super) struct Stream {
    body: Incoming,
    read: BytesMut,
    answers: mpsc::Sender<Result<Frame<Bytes>, BoxError>>,
    /// Maximum bytes of a frame.
    frame: usize,
    begun: Option<oneshot::Sender<()>>,
    tell: mpsc::UnboundedSender<Request>,
}

impl Stream {
    /// Returns the next message; `None` once the caller has ended.
    pub(super) async fn next(&mut self) -> Option<Request> {
        loop {
            if let Some(prefix) = self.read.first_chunk::<5>() {
                let [0, length @ ..] = *prefix else {
                    panic!("a compressed message");
                };
                let whole = 5 + u32::from_be_bytes(length) as usize;
                if self.read.len() >= whole {
                    let mut message = self.read.split_to(whole);
                    message.advance(5);
                    let message = Request::decode(message.freeze()).expect("a message");
                    // Ignored: not every test looks.
                    let _ = self.tell.send(message.clone());
                    return Some(message);
                }
            }
            let frame = self.body.frame().await?.ok()?;
            if let Ok(data) = frame.into_data() {
                self.read.extend_from_slice(&data);
            }
        }
    }

    async fn put(&mut self, frame: Result<Frame<Bytes>, BoxError>) {
        if let Some(begun) = self.begun.take() {
            let _ = begun.send(());
        }
        // An error: the caller has ended.
        let _ = self.answers.send(frame).await;
    }

    pub(super) async fn send(&mut self, message: Response) {
        let mut bytes = BytesMut::new();
        bytes.put_u8(0);
        bytes.put_u32(u32::try_from(message.encoded_len()).expect("short"));
        message.encode(&mut bytes).expect("room");
        self.send_raw(bytes.freeze()).await;
    }

    pub(super) async fn send_raw(&mut self, mut bytes: Bytes) {
        while !bytes.is_empty() {
            let frame = bytes.split_to(self.frame.min(bytes.len()));
            self.put(Ok(Frame::data(frame))).await;
        }
    }

    async fn close(&mut self, code: &'static str) {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static(code));
        self.put(Ok(Frame::trailers(trailers))).await;
    }

    pub(super) async fn act(&mut self, act: Act) {
        match act {
            Act::Immediate => self.send(immediate(429)).await,
            Act::Close => self.close("0").await,
            Act::Fail => self.close("14").await,
            Act::Reset => self.put(Err("reset".into())).await,
            Act::Violate => {
                let again = Response {
                    request_headers: Some(head_answer(set(&[]))),
                    ..Response::default()
                };
                self.send(again.clone()).await;
                self.send(again).await;
            }
            Act::Stall => pending().await,
            Act::Chatter => {
                while !self.answers.is_closed() {
                    self.send(Response::default()).await;
                }
            }
        }
    }
}

impl Script {
    async fn run(self, mut stream: Stream) {
        // `None`: the caller has ended, or the script.
        let _ = self.follow(&mut stream).await;
    }

    async fn follow(&self, stream: &mut Stream) -> Option<()> {
        if !self.steps.is_empty() {
            return steps::follow(self, stream).await;
        }
        if self.is_duplex {
            return self.echo(stream).await;
        }
        let head = stream.next().await?.request_headers.expect("a head");
        self.at(Phase::RequestHead, stream).await?;
        let answer = Response {
            request_headers: Some(head_answer(self.changes(!self.in_metadata))),
            metadata: self.in_metadata.then(|| choice_metadata(&self.list)),
            ..Response::default()
        };
        if self.streams {
            stream.send(answer.clone()).await;
        }
        let of_request = |body, ends| Response {
            request_body: Some(body_answer(body, ends)),
            ..Response::default()
        };
        let body = match head.end_of_stream {
            true => None,
            false => Some(self.body(stream, |it| it.request_body, &of_request).await?),
        };
        self.at(Phase::RequestEnd, stream).await?;
        if !self.streams {
            stream.send(answer).await;
        }
        self.at(Phase::HeadAnswered, stream).await?;
        if let Some(body) = body {
            self.give_back(body, Phase::PartReturned, stream, &of_request)
                .await?;
        }
        self.at(Phase::RequestReturned, stream).await?;
        self.respond(stream).await
    }

    async fn echo(&self, stream: &mut Stream) -> Option<()> {
        let returned = |part: Option<super::message::Body>| {
            part.map(|part| body_answer(part.body, part.end_of_stream))
        };
        loop {
            let next = stream.next().await?;
            let of_request = next.request_headers.map(|_| self.changes(true));
            let of_response = next.response_headers.map(|_| self.changes(false));
            let answer = Response {
                request_headers: of_request.map(head_answer),
                response_headers: of_response.map(head_answer),
                request_body: returned(next.request_body),
                response_body: returned(next.response_body),
                ..Response::default()
            };
            stream.send(answer).await;
        }
    }

    async fn respond(&self, stream: &mut Stream) -> Option<()> {
        let head = stream.next().await?.response_headers.expect("a head");
        self.at(Phase::ResponseHead, stream).await?;
        let answer = Response {
            response_headers: Some(head_answer(self.changes(false))),
            ..Response::default()
        };
        stream.send(answer).await;
        self.at(Phase::ResponseHeadAnswered, stream).await?;
        if !head.end_of_stream {
            let of_response = |body, ends| Response {
                response_body: Some(body_answer(body, ends)),
                ..Response::default()
            };
            let body = self
                .body(stream, |it| it.response_body, &of_response)
                .await?;
            self.at(Phase::ResponseEnd, stream).await?;
            self.give_back(body, Phase::ResponsePartReturned, stream, &of_response)
                .await?;
        }
        self.at(Phase::ResponseReturned, stream).await?;
        // The caller ends the call.
        while stream.next().await.is_some() {}
        Some(())
    }

    /// Reads a body. Returns what is not given back yet.
    async fn body(
        &self,
        stream: &mut Stream,
        part: impl Fn(Request) -> Option<super::message::Body>,
        answer: &impl Fn(Bytes, bool) -> Response,
    ) -> Option<Bytes> {
        let mut all = BytesMut::new();
        loop {
            let next = part(stream.next().await?).expect("a part of the body");
            assert!(next.body.len() <= 62_000);
            if next.end_of_stream {
                all.extend_from_slice(&next.body);
                return Some(all.freeze());
            }
            match self.streams {
                true => stream.send(answer(next.body, false)).await,
                false => all.extend_from_slice(&next.body),
            }
        }
    }

    async fn give_back(
        &self,
        body: Bytes,
        first: Phase,
        stream: &mut Stream,
        answer: &impl Fn(Bytes, bool) -> Response,
    ) -> Option<()> {
        let mut body = match self.rewrite {
            None => body,
            Some((from, to)) => {
                let text = String::from_utf8_lossy(&body).replace(from, to);
                Bytes::from(text)
            }
        };
        let mut is_first = true;
        while !body.is_empty() {
            let piece = body.split_to(self.piece.min(body.len()));
            stream.send(answer(piece, false)).await;
            if is_first {
                self.at(first, stream).await?;
                is_first = false;
            }
        }
        stream.send(answer(Bytes::new(), true)).await;
        Some(())
    }

    pub(super) fn changes(&self, has_choice: bool) -> super::message::HeaderChanges {
        let choice = [("X-Gateway-Destination-Endpoint", &*self.list)];
        let choice = choice.iter().filter(|_| has_choice);
        let headers: Vec<_> = choice.chain(&self.headers).copied().collect();
        set(&headers)
    }

    /// Ends the script if it stops at this phase.
    async fn at(&self, phase: Phase, stream: &mut Stream) -> Option<()> {
        let Some((_, act)) = self.stop.filter(|(at, _)| *at == phase) else {
            return Some(());
        };
        stream.act(act).await;
        None
    }
}

/// The answers as a body.
struct Answers(mpsc::Receiver<Result<Frame<Bytes>, BoxError>>);

impl http_body::Body for Answers {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.0.poll_recv(cx)
    }
}
