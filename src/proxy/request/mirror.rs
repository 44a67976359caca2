//! RequestMirror: sends a copy of a request to another backend and discards the response. The
//! client's request never waits for a copy, and does not depend on its outcome.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use tokio::task::spawn_local;
use tokio::time::{Sleep, sleep};

use super::exchange::Exchange;
use super::subrequest::{self, Subrequest};
use crate::ir::filter::Mirror;
use crate::ir::picker::{is_pool, remove_claims};
use crate::proxy::body::body_copy::{BodyCopy, CopyFailure, CopyPermit};
use crate::proxy::worker_state::Worker;
use crate::table::{Backend, BackendTarget, MirrorResult, draw};
use crate::telemetry::trace::{Purpose, RequestSpan};
use crate::upstream::{ResponseBody, Semantics};

/// Maximum time from the end of a request body to the end of the mirror's response, for rules
/// without a request timeout.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum bytes of a response that are read so that its connection can be reused.
const MAX_DISCARDED: usize = 1024 * 1024;

/// A copy of a request.
struct Copy {
    backend: Arc<Backend>,
    request: Subrequest,
    body: BodyCopy,
    timeout: Option<Duration>,
}

/// Starts a copy of the request in its current state, if the request is in the mirror's share. Does
/// not copy requests for an upgrade.
pub(in crate::proxy) fn start(
    exchange: &mut Exchange,
    mirror: &Mirror,
    target: Option<&BackendTarget>,
) {
    let Some(BackendTarget::Backend(backend)) = target else {
        return;
    };
    if exchange.upgrade.is_some() || !draw(mirror.share, &mut rand::rng()) {
        return;
    }
    let worker = Rc::clone(&exchange.client.worker);
    let Some(permit) = CopyPermit::new(&exchange.client.kept_bytes) else {
        return backend.stats.mirrored(MirrorResult::Dropped);
    };
    let mut parts = subrequest::head(&exchange.parts);
    parts.headers = exchange.parts.headers.clone();
    if is_pool(&backend.id.object) {
        remove_claims(&mut parts.headers);
    }
    let semantics = Semantics::of(&parts.method);
    let span = exchange.record.span.as_deref();
    let template = span.and_then(RequestSpan::template);
    let client = exchange.client.kept_bytes.client();
    let request = Subrequest::new(parts, semantics).caused_by(client);
    let copy = Copy {
        backend: backend.clone(),
        request: request.traced(&worker, span, Purpose::Mirror, template),
        body: exchange.body.copy(permit),
        timeout: exchange
            .rule
            .ir
            .request_timeout(exchange.defaults.as_deref()),
    };
    // Not a task of the connection: it neither delays draining nor ends with the connection.
    spawn_local(async move {
        let backend = copy.backend.clone();
        backend.stats.mirrored(copy.send(&worker).await);
    });
}

impl Copy {
    async fn send(mut self, worker: &Worker) -> MirrorResult {
        let watch = self.body.watch();
        let mut deadline = self.timeout.map(timer);
        let mut exchange = pin!(exchange(
            worker,
            &self.backend,
            &mut self.request,
            self.body
        ));
        poll_fn(|cx| {
            if let Some(failure) = watch.poll_failure(cx) {
                return Poll::Ready(match failure {
                    CopyFailure::Overflow => MirrorResult::Dropped,
                    CopyFailure::Aborted => MirrorResult::Aborted,
                });
            }
            if let Poll::Ready(result) = exchange.as_mut().poll(cx) {
                return Poll::Ready(result);
            }
            if deadline.is_none() && watch.is_complete() {
                deadline = Some(timer(TIMEOUT));
            }
            match &mut deadline {
                Some(deadline) => deadline.as_mut().poll(cx).map(|()| MirrorResult::Timeout),
                None => Poll::Pending,
            }
        })
        .await
    }
}

fn timer(after: Duration) -> Pin<Box<Sleep>> {
    Box::pin(sleep(after))
}

/// Sends a copy and reads its response.
async fn exchange(
    worker: &Worker,
    backend: &Backend,
    request: &mut Subrequest,
    body: BodyCopy,
) -> MirrorResult {
    match subrequest::send(worker, backend, request, body).await {
        Ok(response) => discard(response.body).await,
        Err(_) => MirrorResult::Failed,
    }
}

async fn discard(mut body: ResponseBody<BodyCopy>) -> MirrorResult {
    let mut discarded = 0;
    while discarded <= MAX_DISCARDED {
        match poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            Some(Ok(frame)) => discarded += frame.data_ref().map_or(0, Bytes::len),
            Some(Err(_)) => return MirrorResult::Failed,
            None => break,
        }
    }
    MirrorResult::Completed
}
