//! One call to a picker: `envoy.service.ext_proc.v3.ExternalProcessor/Process`, with messages in both directions. Driven by
//! polling, without a task.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::StatusCode;
use http_body::Body;

use super::message::{ProcessingRequest, ProcessingResponse};
use super::outbox::{Outbox, OutboxBody};
use super::protocol::Close;
use crate::proxy::client::Client;
use crate::proxy::grpc_frame::{self, Messages};
use crate::proxy::request::subrequest::{self, Subrequest};
use crate::proxy::worker_state::Worker;
use crate::proxy::worker_state::budget::Held;
#[cfg(test)]
use crate::proxy::worker_state::budget::Share;
use crate::table::Backend;
use crate::telemetry::trace::{Purpose, RequestSpan};
use crate::upstream::{Response, ResponseBody, Semantics, SendError};

const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
/// Maximum bytes of a message of a picker, which cuts bodies at 62,000 bytes.
const MAX_MESSAGE: usize = 1024 * 1024;
/// Bytes of a message that do not count while the rest of it is to come: those of usual ones.
const USUAL_MESSAGE: usize = 64 * 1024;

/// What the picker says.
pub(super) enum Event {
    Message(Box<ProcessingResponse>),
    Closed(Close),
}

/// A call in progress. Dropping it cancels it.
pub(super) struct Call {
    outbox: Outbox,
    state: State,
    messages: Messages,
    /// Memory of a message that is longer than usual ones and has not arrived as a whole.
    received: Held,
}

enum State {
    /// The picker has not responded: many do only once they have the whole request.
    Opening(Opening),
    /// The second part ends the span of the call when it is dropped.
    Open(Box<(ResponseBody<OutboxBody>, Subrequest)>),
    Ended,
}

type Opening = Pin<Box<dyn Future<Output = (Opened, Subrequest)>>>;
type Opened = Result<Response<OutboxBody>, SendError>;

impl Call {
    /// Begins a call. `None` if the server has a name that cannot be in a header.
    pub(super) fn new(
        client: &Client,
        server: &Arc<Backend>,
        span: Option<&RequestSpan>,
    ) -> Option<Self> {
        let head = subrequest::grpc_head(server, PROCESS)?;
        let worker: &Rc<Worker> = &client.worker;
        // A question has no effect, so that it may be asked again. The picker says no more than the client takes.
        let request = Subrequest::new(head, Semantics::Safe).caused_by(client.kept_bytes.client());
        let mut request = request.traced(worker, span, Purpose::Picker, Some(PROCESS));
        let outbox = Outbox::new(&client.kept_bytes);
        let body = outbox.body();
        let (worker, server) = (worker.clone(), server.clone());
        let opening = async move {
            let response = subrequest::send(&worker, &server, &mut request, body).await;
            (response, request)
        };
        Some(Self {
            outbox,
            state: State::Opening(Box::pin(opening)),
            messages: Messages::new(MAX_MESSAGE),
            received: Held::none(&client.kept_bytes),
        })
    }

    /// Begins a call that a connection carries, to a server that says nothing, and reads only what `read` does.
    #[cfg(test)]
    pub(super) fn unanswered<R>(share: &Rc<Share>, read: impl FnOnce(OutboxBody) -> R) -> Self
    where
        R: Future<Output = ()> + 'static,
    {
        let outbox = Outbox::new(share);
        let mut body = outbox.body();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let _ = Pin::new(&mut body).poll_frame(&mut cx);
        let reading = read(body);
        let opening = async move {
            reading.await;
            std::future::pending::<(Opened, Subrequest)>().await
        };
        Self {
            outbox,
            state: State::Opening(Box::pin(opening)),
            messages: Messages::new(MAX_MESSAGE),
            received: Held::none(share),
        }
    }

    /// Sends a message. The next poll passes it on.
    pub(super) fn send(&self, message: &ProcessingRequest) {
        self.outbox.push(grpc_frame::encode(message));
    }

    /// Says that no message follows, so that the picker can end its side.
    pub(super) fn finish(&mut self, cx: &mut Context<'_>) {
        self.outbox.end();
        // Whatever the picker still says is not needed.
        let _ = self.poll(cx);
    }

    /// Returns the bytes of messages that the picker has not taken yet.
    pub(super) fn waiting(&self) -> usize {
        self.outbox.waiting()
    }

    /// Reports whether more of a body may be sent.
    pub(super) fn has_room(&self) -> bool {
        self.outbox.has_room()
    }

    /// Reports whether a connection carries the call.
    pub(super) fn has_begun(&self) -> bool {
        self.outbox.has_begun()
    }

    /// Returns what the picker says next, and passes on what is sent. Never ready again once the call is closed.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        loop {
            match &mut self.state {
                State::Opening(opening) => {
                    let (opened, request) = ready!(opening.as_mut().poll(cx));
                    match opened {
                        Ok(response) if response.status == StatusCode::OK => {
                            if response.body.is_end_stream() {
                                return self.closed(grpc_frame::is_ok(&response.headers));
                            }
                            self.state = State::Open(Box::new((response.body, request)));
                        }
                        Ok(_) | Err(_) => return self.closed(false),
                    }
                }
                State::Open(open) => {
                    match self.messages.next() {
                        Ok(Some(message)) => {
                            self.received.resize(0);
                            return Poll::Ready(Event::Message(Box::new(message)));
                        }
                        Ok(None) if may_wait(&mut self.received, self.messages.len()) => {}
                        Ok(None) | Err(_) => return self.closed(false),
                    }
                    let Some(Ok(frame)) = ready!(Pin::new(&mut open.0).poll_frame(cx)) else {
                        // Without trailers there is no status.
                        return self.closed(false);
                    };
                    match frame.into_data() {
                        Ok(data) => self.messages.push(data),
                        Err(frame) => {
                            let is_whole = self.messages.is_empty();
                            let trailers = frame.trailers_ref();
                            let is_ok = trailers.is_some_and(grpc_frame::is_ok);
                            return self.closed(is_ok && is_whole);
                        }
                    }
                }
                State::Ended => return Poll::Pending,
            }
        }
    }

    fn closed(&mut self, is_clean: bool) -> Poll<Event> {
        self.state = State::Ended;
        Poll::Ready(Event::Closed(match is_clean {
            true => Close::Clean,
            false => Close::Failed,
        }))
    }
}

/// Counts what has arrived of a message. Returns false if the client may not hold it.
fn may_wait(received: &mut Held, bytes: usize) -> bool {
    received.resize(match bytes {
        0..=USUAL_MESSAGE => 0,
        // A buffer that grows has up to twice what is in it.
        bytes => 2 * bytes,
    })
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::proxy::worker_state::budget::Budget;

    #[test]
    fn long_messages_are_memory_of_the_client() {
        let budget = Budget::of_worker(1);
        let share = budget.share(IpAddr::from([192, 0, 2, 1]));
        let mut received = Held::none(&share);
        assert!(may_wait(&mut received, USUAL_MESSAGE) && budget.held() == 0);
        assert!(may_wait(&mut received, MAX_MESSAGE));
        assert_eq!(budget.held(), 2 * MAX_MESSAGE);
        let mut other = Held::none(&share);
        assert!(!may_wait(&mut other, MAX_MESSAGE) && may_wait(&mut other, USUAL_MESSAGE));
        assert!(may_wait(&mut received, 0) && budget.held() == 0);
    }
}
