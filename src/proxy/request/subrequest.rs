//! Requests that filters send to other backends while they handle a client's request.

use std::future::poll_fn;
use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, request};
use http_body::Body;

use crate::proxy::worker_state::Worker;
use crate::runtime::per_worker::WorkerId;
use crate::table::Backend;
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

/// Sends a request until there is a response or no other attempt is safe.
pub(in crate::proxy) async fn send<B: Replay>(
    worker: &Worker,
    backend: &Backend,
    parts: &request::Parts,
    semantics: Semantics,
    body: B,
) -> Result<Response<B>, SendError> {
    let sender = (&worker.upstream, worker.id);
    send_by(sender, backend, parts, semantics, body).await
}

/// Does what [`send`] does, with the connections and the counters of this sender.
pub(in crate::proxy) async fn send_by<B: Replay>(
    (upstream, worker): (&Upstream, WorkerId),
    backend: &Backend,
    parts: &request::Parts,
    semantics: Semantics,
    mut body: B,
) -> Result<Response<B>, SendError> {
    let outgoing = Outgoing {
        parts,
        semantics,
        added: &[],
        upgrade: None,
        expect_continue: false,
        informational: None,
        try_timeout: None,
        keeps_body: false,
    };
    let mut attempts = Attempts::default();
    loop {
        let attempt = upstream.attempt(backend, None, &mut attempts, &outgoing, body);
        let failed = match attempt.await {
            Ok(response) => {
                if let Some(release) = attempts.release() {
                    release.record(worker, response.status.as_u16());
                }
                return Ok(response);
            }
            Err(failed) => failed,
        };
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
    mut body: ResponseBody<B>,
    max: usize,
) -> Option<WholeResponse> {
    let (mut read, mut trailers, mut length) = (BytesMut::new(), HeaderMap::new(), 0);
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        match frame.ok()?.into_data() {
            Ok(data) => {
                length += data.len();
                if length <= max {
                    read.extend_from_slice(&data);
                }
            }
            Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
        }
        if length > MAX_READ {
            return None;
        }
    }
    let body = (length <= max).then(|| read.freeze());
    Some(WholeResponse { body, trailers })
}
