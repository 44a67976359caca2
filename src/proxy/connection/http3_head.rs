//! The head of a request on an HTTP/3 stream, and what clients get whose head is malformed, too large or late.

use std::future::poll_fn;
use std::mem;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use http::{HeaderMap, Request, StatusCode};

use super::http3_shared::Shared;
use super::stream_response;
use crate::http3::Code;
use crate::proxy::activity::Phase;
use crate::proxy::body::inbound::{Failure, Inbound};
use crate::proxy::request::websocket;
use crate::proxy::response::outbound::{Lost, Outbound};

/// A request and whether it has a body.
pub(super) type Arrived = Request<bool>;

/// Reads the head of a request. Refuses one that is malformed, too large or late.
pub(super) async fn read(
    connection: &Shared,
    outbound: &Rc<Outbound>,
    inbound: &Rc<Inbound>,
) -> Option<Arrived> {
    let client = &connection.client;
    let deadline = client.worker.clock.deadline();
    deadline.set(client.limits.header_timeout);
    let mut held = 0;
    let read = poll_fn(|cx| {
        let polled = inbound.poll_head(cx);
        let now = inbound.held();
        connection.hold_head(mem::replace(&mut held, now), now);
        match polled {
            Poll::Ready(head) => Poll::Ready(Some(head)),
            // The client does not wait for a response any more.
            Poll::Pending if outbound.poll_end(cx).is_ready() => {
                Poll::Ready(Some(Err(Failure::Reset)))
            }
            Poll::Pending => deadline.poll_due(cx).map(|()| None),
        }
    })
    .await;
    connection.hold_head(held, 0);
    let failure = match read {
        Some(Ok(request)) => match begin(inbound, request).await {
            Ok(arrived) => return Some(arrived),
            Err(failure) => failure,
        },
        Some(Err(failure)) => failure,
        None => {
            client.timed_out(Phase::Head);
            outbound.reset(Code::RequestRejected);
            inbound.stop(Code::RequestRejected);
            return None;
        }
    };
    match failure {
        Failure::TooLarge => refuse_too_large(connection, outbound).await,
        failure => {
            connection.count_cancelled();
            outbound.reset(code_of(failure));
            inbound.stop(code_of(failure));
        }
    }
    if failure != Failure::Reset {
        let bad = &client.worker.stats.bad_requests;
        bad.fetch_add(1, Relaxed);
    }
    None
}

/// Finds out whether a request has a body.
async fn begin(inbound: &Inbound, request: Request<()>) -> Result<Arrived, Failure> {
    let (parts, ()) = request.into_parts();
    let is_tunnel = websocket::is_extended_connect(&parts);
    if is_tunnel {
        inbound.become_tunnel();
        return Ok(Request::from_parts(parts, false));
    }
    let has_ended = poll_fn(|cx| Poll::Ready(inbound.has_ended(cx))).await?;
    Ok(Request::from_parts(parts, !has_ended))
}

/// Responds to a request whose head is too large.
async fn refuse_too_large(connection: &Shared, outbound: &Outbound) {
    let mut headers = HeaderMap::new();
    stream_response::complete_headers(&connection.client, &mut headers);
    outbound.push_head(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, &headers);
    let client = &connection.client;
    let deadline = client.worker.clock.deadline();
    deadline.set(client.limits.write_timeout);
    let mut is_finished = false;
    poll_fn(|cx| {
        if !is_finished {
            match outbound.poll_flush(cx) {
                Poll::Ready(Ok(())) => {
                    outbound.finish();
                    is_finished = true;
                }
                Poll::Ready(Err(Lost)) => return Poll::Ready(()),
                Poll::Pending => {}
            }
        }
        match outbound.poll_end(cx) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => deadline.poll_due(cx),
        }
    })
    .await;
}

/// Returns the code with which the response ends when the request has failed.
pub(super) fn code_of(failure: Failure) -> Code {
    match failure {
        Failure::Malformed(code) => code,
        Failure::Reset => Code::RequestCancelled,
        Failure::TooLarge | Failure::TooSlow => Code::ExcessiveLoad,
    }
}
