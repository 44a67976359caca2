//! The timeouts that HTTP/1 and HTTP/2 share.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use crate::proxy::activity::Activity;
use crate::proxy::client::Client;

/// Awaits `future` unless a deadline passes or the connection drains first.
pub(super) async fn in_time<F: Future>(
    future: F,
    activity: &Activity,
    client: &Client,
) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        if client.is_draining() {
            return Poll::Ready(None);
        }
        activity.poll_due(cx).map(|phase| {
            client.timed_out(phase);
            None
        })
    })
    .await
}
