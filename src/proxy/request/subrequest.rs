//! Requests that filters send to other backends while they handle a client's request.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HOST, TE};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, Version, request};
use http_body::Body;

use crate::proxy::error::Error;
use crate::proxy::worker_state::Worker;
use crate::proxy::worker_state::budget::{Held, Share};
use crate::runtime::per_worker::WorkerId;
use crate::table::Backend;
use crate::telemetry::trace::{Item, Purpose, RequestSpan, TRACEPARENT, TRACESTATE};
use crate::upstream::{
    Attempts, Outgoing, Replay, Resend, Response, ResponseBody, Semantics, SendError, Upstream,
};

/// Creates a head without headers and without extensions, since those belong to the client's
/// connection.
pub(in crate::proxy) fn head(of: &request::Parts) -> request::Parts {
    let (mut head, ()) = Request::new(()).into_parts();
    head.method = of.method.clone();
    head.uri = of.uri.clone();
    head.version = of.version;
    head
}

/// Creates the head of a call over gRPC. `None` if the name of the backend cannot be in a header.
pub(in crate::proxy) fn grpc_head(backend: &Backend, path: &'static str) -> Option<request::Parts> {
    let (mut head, ()) = Request::new(()).into_parts();
    head.method = Method::POST;
    head.uri = Uri::from_static(path);
    head.version = Version::HTTP_2;
    let id = &backend.id;
    let host = format!("{}.{}:{}", id.object.name, id.object.namespace, id.port);
    let content = HeaderValue::from_static("application/grpc");
    head.headers.insert(HOST, HeaderValue::try_from(host).ok()?);
    head.headers.insert(CONTENT_TYPE, content);
    head.headers
        .insert(TE, HeaderValue::from_static("trailers"));
    Some(head)
}

/// A request to another backend. Its spans, if it has some, end when it is dropped.
pub(in crate::proxy) struct Subrequest {
    head: request::Parts,
    semantics: Semantics,
    attempts: Attempts,
    trace: Option<Trace>,
}

/// The spans of a request to another backend.
struct Trace {
    span: Box<RequestSpan>,
    worker: Rc<Worker>,
}

impl Subrequest {
    pub(in crate::proxy) fn new(head: request::Parts, semantics: Semantics) -> Self {
        Self {
            head,
            semantics,
            attempts: Attempts::default(),
            trace: None,
        }
    }

    /// Counts what waits of the response, and its connection, for the client that has caused it, an address or a network.
    pub(in crate::proxy) fn caused_by(mut self, client: IpAddr) -> Self {
        self.attempts.client = Some(client);
        self
    }

    /// Gives the request spans for this purpose, if the client's request is sampled. `template` is that of its path, if it has
    /// few values.
    pub(in crate::proxy) fn traced(
        mut self,
        worker: &Rc<Worker>,
        client: Option<&RequestSpan>,
        purpose: Purpose,
        template: Option<&str>,
    ) -> Self {
        let Some(client) = client else { return self };
        if let Some(state) = client.tracestate() {
            self.head.headers.insert(TRACESTATE, state);
        }
        self.trace = Some(Trace {
            span: client.of_subrequest(purpose, &self.head.method, template),
            worker: worker.clone(),
        });
        self
    }

    fn begin_attempt(&mut self) {
        if let Some(Trace { span, .. }) = &mut self.trace {
            let context = span.begin_attempt(self.head.uri.path());
            let headers = &mut self.head.headers;
            headers.insert(TRACEPARENT, context.to_header());
        }
    }

    fn end_attempt(&mut self, backend: &Backend, outcome: Result<StatusCode, SendError>) {
        if let Some(Trace { span, .. }) = &mut self.trace {
            let outcome = outcome.map(|status| status.as_u16());
            let outcome = outcome.map_err(|error| Error::from(error).message());
            let endpoint = self.attempts.selected();
            span.attempted(endpoint, backend.id.tls.is_some(), outcome);
        }
    }
}

impl Drop for Subrequest {
    fn drop(&mut self) {
        if let Some(Trace { mut span, worker }) = self.trace.take() {
            span.end_subrequest(self.attempts.selected());
            if !span.is_empty() {
                worker.traces.add(Item::Span(span));
            }
        }
    }
}

/// Sends a request until there is a response or no other attempt is safe.
pub(in crate::proxy) async fn send<B: Replay>(
    worker: &Worker,
    backend: &Backend,
    subrequest: &mut Subrequest,
    body: B,
) -> Result<Response<B>, SendError> {
    let sender = (&worker.upstream, worker.id);
    send_by(sender, backend, subrequest, body).await
}

/// Does what [`send`] does, with the connections and the counters of this sender.
pub(in crate::proxy) async fn send_by<B: Replay>(
    (upstream, worker): (&Upstream, WorkerId),
    backend: &Backend,
    subrequest: &mut Subrequest,
    mut body: B,
) -> Result<Response<B>, SendError> {
    loop {
        subrequest.begin_attempt();
        let attempts = &mut subrequest.attempts;
        let outgoing = Outgoing {
            parts: &subrequest.head,
            semantics: subrequest.semantics,
            added: &[],
            upgrade: None,
            expect_continue: false,
            informational: None,
            try_timeout: None,
            keeps_body: false,
        };
        let attempt = upstream.attempt(backend, None, attempts, &outgoing, body);
        let failed = match attempt.await {
            Ok(response) => {
                subrequest.end_attempt(backend, Ok(response.status));
                if let Some(release) = subrequest.attempts.release() {
                    release.record(worker, response.status.as_u16());
                }
                return Ok(response);
            }
            Err(failed) => failed,
        };
        subrequest.end_attempt(backend, Err(failed.error));
        let attempts = &mut subrequest.attempts;
        let Some(again) = failed.body else {
            attempts.give_up(backend);
            return Err(failed.error);
        };
        if failed.resend == Resend::AsRetry && !attempts.try_default_retry(backend) {
            return Err(failed.error);
        }
        body = again;
    }
}

/// Maximum size of a response body that is used.
pub(in crate::proxy) const MAX_RESPONSE: usize = 64 * 1024;
/// Bytes of a response body that do not count.
const USUAL_RESPONSE: usize = 8 * 1024;
/// Maximum size of a response body that is read to its end.
const MAX_READ: usize = 1024 * 1024;

/// A response that was read to its end.
pub(in crate::proxy) struct WholeResponse {
    /// The body, unless it is longer than asked for.
    pub(in crate::proxy) body: Option<Bytes>,
    /// The trailers.
    pub(in crate::proxy) trailers: HeaderMap,
}

/// Reads a response to its end and keeps up to `max` bytes of its body. `None` if the body ends
/// early or exceeds [`MAX_READ`].
pub(in crate::proxy) async fn read<B: Replay>(
    body: ResponseBody<B>,
    max: usize,
) -> Option<WholeResponse> {
    read_while(body, |length| length <= max).await
}

/// Does what [`read`] does, with up to [`MAX_RESPONSE`] bytes, which count as memory of a client. Those of one that may not hold
/// them are not kept.
pub(in crate::proxy) async fn read_for(
    body: impl Body<Data = Bytes> + Unpin,
    share: &Rc<Share>,
) -> Option<WholeResponse> {
    let mut held = Held::none(share);
    read_while(body, |length| {
        length <= MAX_RESPONSE && (length <= USUAL_RESPONSE || held.resize(2 * length))
    })
    .await
}

/// Reads a response to its end. Keeps its body while `keeps` permits its length.
async fn read_while(
    mut body: impl Body<Data = Bytes> + Unpin,
    mut keeps: impl FnMut(usize) -> bool,
) -> Option<WholeResponse> {
    let (mut read, mut trailers, mut length) = (BytesMut::new(), HeaderMap::new(), 0);
    let mut is_kept = true;
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        match frame.ok()?.into_data() {
            Ok(data) => {
                length += data.len();
                is_kept = is_kept && keeps(length);
                match is_kept {
                    true => read.extend_from_slice(&data),
                    false => read = BytesMut::new(),
                }
            }
            Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
        }
        if length > MAX_READ {
            return None;
        }
    }
    let body = is_kept.then(|| read.freeze());
    Some(WholeResponse { body, trailers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::body::buffered::Buffered;
    use crate::proxy::worker_state::budget::Budget;

    /// Reports whether a body of this length is kept.
    async fn is_kept(length: usize, share: &Rc<Share>) -> bool {
        let body = Buffered::new(Bytes::from(vec![0; length]));
        let read = read_for(body, share).await.expect("a whole response");
        read.body.is_some_and(|body| body.len() == length)
    }

    #[tokio::test]
    async fn bodies_are_kept_as_far_as_the_client_may_hold_them() {
        const STEP: usize = 1024;
        let budget = Budget::of_worker(1);
        let share = budget.share(IpAddr::from([192, 0, 2, 1]));
        assert!(is_kept(MAX_RESPONSE, &share).await);
        assert!(!is_kept(MAX_RESPONSE + 1, &share).await);
        assert_eq!(budget.held(), 0);
        let (mut others, mut bytes) = (Held::none(&share), 0);
        while others.resize(bytes + STEP) {
            bytes += STEP;
        }
        assert!(is_kept(USUAL_RESPONSE, &share).await);
        assert!(!is_kept(USUAL_RESPONSE + 1, &share).await);
    }
}
