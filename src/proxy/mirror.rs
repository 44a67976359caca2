//! RequestMirror: sends a copy of a request to another backend and discards the response. The
//! client's request never waits for a copy, and no outcome of a copy reaches it.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, request};
use http_body::Body;
use tokio::task::spawn_local;
use tokio::time::{Sleep, sleep};

use super::body_copy::{BodyCopy, CopyFailure};
use super::request::Exchange;
use super::worker::Worker;
use crate::ir::filter::Mirror;
use crate::table::{Backend, MirrorResult, Target, draw};
use crate::upstream::{Attempts, FailedAttempt, Outgoing, ResponseBody};

/// Maximum time from the end of a request body to the end of a copy's response, for rules without a
/// request timeout.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum bytes of a response that are read to keep its connection.
const MAX_DISCARDED: usize = 1024 * 1024;

/// A copy of a request.
struct Copy {
    backend: Arc<Backend>,
    parts: request::Parts,
    body: BodyCopy,
    timeout: Option<Duration>,
}

/// Starts a copy of the request as it is now, if the request is in the mirror's share. Requests for
/// an upgrade are not copied.
pub(super) fn start(exchange: &mut Exchange, mirror: &Mirror, target: Option<&Target>) {
    let Some(Target::Backend(backend)) = target else {
        return;
    };
    if exchange.upgrade.is_some() || !draw(mirror.share, &mut rand::rng()) {
        return;
    }
    let worker = Rc::clone(&exchange.client.worker);
    let Some(permit) = worker.copies.begin() else {
        return backend.stats.mirrored(MirrorResult::Dropped);
    };
    let copy = Copy {
        backend: backend.clone(),
        parts: head(&exchange.parts),
        body: exchange.body.copy(permit),
        timeout: exchange.rule.ir.timeouts.request,
    };
    // Not a task of the connection: it neither delays draining nor ends with the connection.
    spawn_local(async move {
        let backend = copy.backend.clone();
        backend.stats.mirrored(copy.send(&worker).await);
    });
}

/// A copy of a request head, without extensions, which belong to the client's connection.
fn head(parts: &request::Parts) -> request::Parts {
    let (mut copy, ()) = Request::new(()).into_parts();
    copy.method = parts.method.clone();
    copy.uri = parts.uri.clone();
    copy.version = parts.version;
    copy.headers = parts.headers.clone();
    copy
}

impl Copy {
    async fn send(self, worker: &Worker) -> MirrorResult {
        let watch = self.body.watch();
        let mut deadline = self.timeout.map(timer);
        let mut exchange = pin!(exchange(worker, &self.backend, &self.parts, self.body));
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
    parts: &request::Parts,
    mut body: BodyCopy,
) -> MirrorResult {
    let outgoing = Outgoing {
        parts,
        added: &[],
        upgrade: None,
        expect_continue: false,
        informational: None,
        try_timeout: None,
        keeps_body: false,
    };
    let mut attempts = Attempts::default();
    let response = loop {
        let attempt = worker
            .upstream
            .attempt(backend, None, &mut attempts, &outgoing, body);
        match attempt.await {
            Ok(response) => break response,
            Err(FailedAttempt { body: None, .. }) => return MirrorResult::Failed,
            Err(FailedAttempt {
                body: Some(again), ..
            }) => body = again,
        }
    };
    if let Some(release) = attempts.release() {
        release.record(response.status.as_u16());
    }
    discard(response.body).await
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
