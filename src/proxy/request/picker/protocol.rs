//! The protocol between the proxy and a picker for one request: the messages that tell it of the request and its response,
//! and what its answers make of both. Bodies are sent before heads are answered, and what the picker returns replaces what
//! was sent. Does no I/O.

use std::collections::VecDeque;
use std::mem;

use bytes::Bytes;
use http::HeaderMap;

use super::immediate;
use super::message::{
    Answer, Body, CommonResponse, FULL_DUPLEX_STREAMED, HeaderList, HeaderMutation, HttpBody,
    HttpHeaders, ImmediateResponse, Metadata, ProcessingRequest, ProcessingResponse,
    ProtocolConfiguration, Sent, Struct,
};
use crate::byte_chain::MIN_SLICE;
use crate::filter::LocalResponse;

/// Maximum bytes of a body in one message: what pickers send, too. They accept 4 MiB at most.
pub(super) const MAX_CHUNK: usize = 62_000;
/// What a part of a body that waits takes apart from its bytes.
const PART: usize = 64;
/// `CONTINUE_AND_REPLACE`: the answer to a head has the whole body, which no mode of this protocol permits.
const REPLACES_BODY: i32 = 1;

/// The request or its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Request,
    Response,
}

/// What has become of a head.
#[derive(Debug, PartialEq)]
pub(super) enum Head {
    /// The picker has not answered it.
    Waiting,
    /// The picker has answered it.
    Answered(Box<HeadAnswer>),
    /// It goes on as it was.
    Passed,
    /// It must not go on.
    Failed,
}

/// The answer to a head.
#[derive(Debug, Default, PartialEq)]
pub(super) struct HeadAnswer {
    pub(super) changes: HeaderMutation,
    pub(super) metadata: Struct,
}

/// What follows of a body.
#[derive(Debug, PartialEq)]
pub(super) enum Part {
    /// Nothing yet.
    Waiting,
    /// A part that the picker returned.
    Data(Bytes),
    /// The trailers, after the last part.
    Trailers(HeaderMap),
    /// Nothing any more: the body is whole.
    Ended,
    /// The body goes on as it was: a response from its first byte, a request after what was taken of it.
    Passed,
    /// Nothing any more: the body is not whole.
    Failed,
}

/// How the picker has ended the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Close {
    /// With the status OK: once it has answered the head of the request, the rest goes on without it.
    Clean,
    /// In any other way.
    Failed,
}

/// How far one side has come, in what was sent or in what was answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Progress {
    #[default]
    Nothing,
    Head,
    Ended,
}

/// Whether the picker has to do with a side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    Passed,
    Failed,
}

/// A violation of the protocol.
struct Violation;

/// One side of the exchange.
#[derive(Default)]
struct Flow {
    sent: Progress,
    answered: Progress,
    state: State,
    /// The answer to the head, until it is taken.
    head: Option<Box<HeadAnswer>>,
    has_body: bool,
    /// Returned parts that nobody has taken yet.
    parts: VecDeque<Bytes>,
    /// What these take.
    queued: usize,
    /// Whether a byte of the body was returned.
    has_returned: bool,
    /// Trailers of the sender. Pickers ignore messages with trailers, so that these wait for the end of the body here.
    trailers: Option<HeaderMap>,
    /// Whether nobody takes the body any more, which then never ends.
    is_unwanted: bool,
}

/// The exchange of one request with a picker.
pub(super) struct Protocol {
    fails_open: bool,
    request: Flow,
    response: Flow,
    messages: VecDeque<ProcessingRequest>,
    /// Whether the next message is the first one.
    is_first: bool,
    /// Whether a backend may have other bytes of the request than its sender has sent: then the original can no longer go on.
    pub(super) is_request_changed: bool,
    /// The endpoint that responded. The last message of a body has it too: pickers replace what an earlier one said.
    served: Option<Metadata>,
    immediate: Option<LocalResponse>,
    is_open: bool,
}

impl Protocol {
    /// Begins the exchange. With `fails_open`, a picker that fails has as little to say as one that ends cleanly.
    pub(super) fn new(fails_open: bool) -> Self {
        Self {
            fails_open,
            request: Flow::default(),
            response: Flow::default(),
            messages: VecDeque::new(),
            is_first: true,
            is_request_changed: false,
            served: None,
            immediate: None,
            is_open: true,
        }
    }

    /// Sends the head of the request.
    pub(super) fn request_head(&mut self, headers: HeaderList, has_body: bool) {
        self.head(Side::Request, headers, has_body);
    }

    /// Sends the head of the response, from the endpoint in `served`.
    pub(super) fn response_head(
        &mut self,
        headers: HeaderList,
        has_body: bool,
        served: Option<Metadata>,
    ) {
        self.served = served;
        self.head(Side::Response, headers, has_body);
    }

    fn head(&mut self, side: Side, headers: HeaderList, has_body: bool) {
        let flow = self.flow_mut(side);
        if flow.state != State::Open {
            return;
        }
        flow.has_body = has_body;
        flow.sent = match has_body {
            true => Progress::Head,
            false => Progress::Ended,
        };
        let message = HttpHeaders {
            headers: Some(headers),
            end_of_stream: !has_body,
        };
        let metadata = self.metadata(side);
        let sent = match side {
            Side::Request => Sent::RequestHeaders(message),
            Side::Response => Sent::ResponseHeaders(message),
        };
        self.push(sent, metadata);
    }

    /// Sends a part of a body.
    pub(super) fn data(&mut self, side: Side, mut data: Bytes, ends: bool) {
        if !self.is_read(side) {
            return;
        }
        while data.len() > MAX_CHUNK {
            let chunk = data.split_to(MAX_CHUNK);
            self.chunk(side, chunk, false);
        }
        if !data.is_empty() || ends {
            self.chunk(side, data, ends);
        }
    }

    /// Sends the end of a body that was not known with its last part.
    pub(super) fn end(&mut self, side: Side, trailers: Option<HeaderMap>) {
        if self.is_read(side) {
            self.flow_mut(side).trailers = trailers;
            self.chunk(side, Bytes::new(), true);
        }
    }

    fn chunk(&mut self, side: Side, body: Bytes, ends: bool) {
        let message = HttpBody {
            body,
            end_of_stream: ends,
        };
        let metadata = self.metadata(side).filter(|_| ends);
        if ends {
            self.flow_mut(side).sent = Progress::Ended;
        }
        let sent = match side {
            Side::Request => Sent::RequestBody(message),
            Side::Response => Sent::ResponseBody(message),
        };
        self.push(sent, metadata);
    }

    fn push(&mut self, sent: Sent, metadata_context: Option<Metadata>) {
        let config = ProtocolConfiguration {
            request_body_mode: FULL_DUPLEX_STREAMED,
            response_body_mode: FULL_DUPLEX_STREAMED,
            send_body_without_waiting_for_header_response: true,
        };
        self.messages.push_back(ProcessingRequest {
            sent: Some(sent),
            metadata_context,
            protocol_config: mem::take(&mut self.is_first).then_some(config),
        });
    }

    fn metadata(&self, side: Side) -> Option<Metadata> {
        match side {
            Side::Request => None,
            Side::Response => self.served.clone(),
        }
    }

    /// Returns the next message to send.
    pub(super) fn next_message(&mut self) -> Option<ProcessingRequest> {
        self.messages.pop_front()
    }

    /// Reports whether the picker gets what follows of the body of a side.
    pub(super) fn is_read(&self, side: Side) -> bool {
        let flow = self.flow(side);
        self.is_open && flow.state == State::Open && flow.sent == Progress::Head
    }

    /// Reports whether the head of a side was sent.
    pub(super) fn has_begun(&self, side: Side) -> bool {
        self.flow(side).sent != Progress::Nothing
    }

    /// Returns the bytes that were returned and that nobody has taken yet.
    pub(super) fn queued(&self, side: Side) -> usize {
        self.flow(side).queued
    }

    /// Reads a message of the picker.
    pub(super) fn answer(&mut self, message: ProcessingResponse) {
        if !self.is_open {
            return;
        }
        let metadata = message.dynamic_metadata;
        let read = match message.answer {
            Some(Answer::RequestHeaders(it)) => self.request.answer_head(it.response, metadata),
            Some(Answer::ResponseHeaders(it)) => self.response.answer_head(it.response, metadata),
            Some(Answer::RequestBody(it)) => self.request.answer_body(it.response),
            Some(Answer::ResponseBody(it)) => self.response.answer_body(it.response),
            // The client has its response.
            Some(Answer::Immediate(_)) if self.response.answered == Progress::Ended => Ok(()),
            Some(Answer::Immediate(it)) => self.answer_immediately(it),
            // No trailers are sent, so that an answer to them says nothing.
            Some(Answer::RequestTrailers(_) | Answer::ResponseTrailers(_)) | None => Ok(()),
        };
        if let Err(Violation) = read {
            self.close(Close::Failed);
        }
    }

    fn answer_immediately(&mut self, response: ImmediateResponse) -> Result<(), Violation> {
        let response = immediate::response(response).ok_or(Violation)?;
        self.immediate = Some(response);
        self.is_open = false;
        self.messages.clear();
        self.request.close(false);
        self.response.close(false);
        Ok(())
    }

    /// The stream has ended, or must end: the picker answers nothing more. One that has not answered the head of the request
    /// has failed, however it ends: the protocol says that it chooses an endpoint or responds itself.
    pub(super) fn close(&mut self, close: Close) {
        if mem::replace(&mut self.is_open, false) {
            let has_answered = self.request.answered != Progress::Nothing;
            let passes = self.fails_open || close == Close::Clean && has_answered;
            self.request.close(passes && !self.is_request_changed);
            // Returned parts of a response go to the client as they are.
            self.response.close(passes && !self.response.has_returned);
            self.messages.clear();
        }
    }

    /// Nobody takes the rest of a body any more.
    pub(super) fn forget(&mut self, side: Side) {
        if self.is_ended(side) {
            return;
        }
        let flow = self.flow_mut(side);
        flow.is_unwanted = true;
        flow.parts.clear();
        flow.queued = 0;
    }

    /// Returns what has become of a head. An answer is returned once.
    pub(super) fn take_head(&mut self, side: Side) -> Head {
        let flow = self.flow_mut(side);
        match (flow.head.take(), flow.state) {
            (Some(answer), _) => Head::Answered(answer),
            (None, State::Open) => Head::Waiting,
            (None, State::Passed) => Head::Passed,
            (None, State::Failed) => Head::Failed,
        }
    }

    /// Returns what follows of a body.
    pub(super) fn next_part(&mut self, side: Side) -> Part {
        let flow = self.flow_mut(side);
        match flow.state {
            State::Passed => return Part::Passed,
            State::Failed => return Part::Failed,
            State::Open if flow.is_unwanted => return Part::Waiting,
            State::Open => {}
        }
        if let Some(part) = flow.parts.pop_front() {
            flow.queued -= part.len() + PART;
            return Part::Data(part);
        }
        match flow.answered {
            Progress::Ended => flow.trailers.take().map_or(Part::Ended, Part::Trailers),
            Progress::Nothing | Progress::Head => Part::Waiting,
        }
    }

    /// Reports whether a body is whole and was taken, so that nothing follows.
    pub(super) fn is_ended(&self, side: Side) -> bool {
        let flow = self.flow(side);
        flow.state == State::Open
            && !flow.is_unwanted
            && flow.answered == Progress::Ended
            && flow.parts.is_empty()
            && flow.trailers.is_none()
    }

    /// Reports whether a message goes on as it was.
    pub(super) fn is_passed(&self, side: Side) -> bool {
        self.flow(side).state == State::Passed
    }

    /// Reports whether a message must not go on.
    pub(super) fn is_stopped(&self, side: Side) -> bool {
        self.flow(side).state == State::Failed
    }

    /// Returns the response that the picker gives instead of that of a backend.
    pub(super) fn take_immediate(&mut self) -> Option<LocalResponse> {
        self.immediate.take()
    }

    /// Reports whether the picker owes an answer, however long the sender of a body takes. Pickers answer the head of a request
    /// once they have all of it.
    pub(super) fn is_awaited(&self) -> bool {
        let head_of_response =
            self.response.sent == Progress::Head && self.response.answered == Progress::Nothing;
        self.is_open
            && (head_of_response || self.request.is_awaited() || self.response.is_awaited())
    }

    /// Reports whether a picker that has failed has as little to say as one that ends cleanly.
    pub(super) fn fails_open(&self) -> bool {
        self.fails_open
    }

    /// Reports whether the stream carries messages.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    fn flow(&self, side: Side) -> &Flow {
        match side {
            Side::Request => &self.request,
            Side::Response => &self.response,
        }
    }

    fn flow_mut(&mut self, side: Side) -> &mut Flow {
        match side {
            Side::Request => &mut self.request,
            Side::Response => &mut self.response,
        }
    }
}

impl Flow {
    fn answer_head(
        &mut self,
        response: Option<CommonResponse>,
        metadata: Bytes,
    ) -> Result<(), Violation> {
        let response = response.unwrap_or_default();
        let replaces = response.status == REPLACES_BODY || response.body_mutation.is_some();
        if self.sent == Progress::Nothing || self.answered != Progress::Nothing || replaces {
            return Err(Violation);
        }
        let changes = HeaderMutation::read(response.header_mutation).ok_or(Violation)?;
        let metadata = Struct::read(metadata).ok_or(Violation)?;
        self.answered = match self.has_body {
            true => Progress::Head,
            false => Progress::Ended,
        };
        self.head = Some(Box::new(HeadAnswer { changes, metadata }));
        Ok(())
    }

    fn answer_body(&mut self, response: Option<CommonResponse>) -> Result<(), Violation> {
        if self.answered != Progress::Head {
            return Err(Violation);
        }
        let mutation = response.and_then(|response| response.body_mutation?.body);
        let Some(Body::Streamed(HttpBody {
            body,
            end_of_stream,
        })) = mutation
        else {
            return Err(Violation);
        };
        // A body that the sender has not ended may still fail: its copy must not be whole before.
        if end_of_stream && self.sent != Progress::Ended {
            return Err(Violation);
        }
        if !body.is_empty() {
            self.has_returned = true;
            if !self.is_unwanted {
                self.queued += body.len() + PART;
                self.parts.push_back(own(body));
            }
        }
        if end_of_stream {
            self.answered = Progress::Ended;
        }
        Ok(())
    }

    fn close(&mut self, passes: bool) {
        if self.state != State::Open || self.answered == Progress::Ended {
            return;
        }
        self.state = match passes {
            true => State::Passed,
            false => State::Failed,
        };
        self.parts.clear();
        self.queued = 0;
    }

    /// Reports whether the picker has all of it and has not answered all.
    fn is_awaited(&self) -> bool {
        self.sent == Progress::Ended && self.answered != Progress::Ended
    }
}

/// Copies a short part, so that it does not hold the buffer that it was read into while it waits.
fn own(part: Bytes) -> Bytes {
    match part.len() < MIN_SLICE {
        true => Bytes::copy_from_slice(&part),
        false => part,
    }
}

#[cfg(test)]
mod tests;
