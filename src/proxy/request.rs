//! The way of one request, in the order of its phases. Everything it calls is below it; nothing else knows the order.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, StatusCode, Version, request};
use hyper::body::Incoming;
use rand::RngExt;
use tokio::time::{Sleep, sleep};

use super::activity::{Activity, Phase};
use super::body::{RequestBody, ResponseBody, Source};
use super::client::Client;
use super::error::Error;
use super::headers::{self, Normal};
use super::record::Record;
use super::upgrade::Tunnel;
use crate::filter::{self, RequestFacts, Verdict};
use crate::ir::route::Action;
use crate::table::{Pick, RequestView, Rule, Target};
use crate::upstream::{Answer, Outgoing};

/// Serves one request. Never fails: what goes wrong becomes an answer.
pub(crate) async fn handle(
    client: Rc<Client>,
    activity: Rc<Activity>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Infallible> {
    let (mut parts, incoming) = request.into_parts();
    client.on_request();
    let mut record = Record::open(client.clone(), activity.clone(), &parts);
    let version = parts.version;
    let one_way = version != Version::HTTP_2 || parts.headers.contains_key(CONTENT_LENGTH);
    let body = RequestBody::new(incoming, activity, one_way);
    let waiting = record.activity().clone();
    let outcome = in_time(
        forward(&client, &mut parts, body, &mut record),
        &waiting,
        &client,
    )
    .await;
    let mut response = match outcome {
        Ok(Outcome::Answer {
            answer,
            rule,
            share,
            deadline,
        }) => respond(&client, answer, &rule, &share, record, deadline),
        Ok(Outcome::Here(head)) => {
            record.answered_here(head.status().as_u16());
            head.map(|()| ResponseBody::new(Source::None, record, None))
        }
        Err(error) => refuse(error, record),
    };
    let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if client.is_leaving() && version != Version::HTTP_2 && !switches {
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// What became of a request.
enum Outcome {
    /// A backend answered; `share` is the place of its filters in the rule.
    Answer {
        answer: Answer<RequestBody>,
        rule: Arc<Rule>,
        share: Filters,
        deadline: Option<Pin<Box<Sleep>>>,
    },
    /// A filter answered.
    Here(Response<()>),
}

/// The filters of the share of a rule that was picked.
type Filters = Arc<[crate::ir::Filter]>;

async fn forward(
    client: &Client,
    parts: &mut request::Parts,
    body: RequestBody,
    record: &mut Record,
) -> Result<Outcome, Error> {
    let normal = headers::normalize(
        parts,
        &mut client.host.borrow_mut(),
        client.worker.limits.max_headers,
    )?;
    record.directed(&normal.host);
    let rule = route(client, parts, &normal)?;
    record.matched(&rule);
    let mut added = client
        .forwarding
        .fields(&mut parts.headers, normal.forwarding, new_id);
    record.identified(added.id());
    let facts = RequestFacts {
        scheme: client.scheme(),
        host: normal.host.as_str(),
        listener_port: client.port.bind.port,
    };
    if !rule.ir.filters.is_empty() {
        added.insert_into(&mut parts.headers);
    }
    if let Verdict::Answer(head) =
        filter::request(&rule.ir.filters, parts, &facts).map_err(|_| Error::Filter)?
    {
        return Ok(Outcome::Here(head));
    }
    let share = match rule.pick() {
        _ if matches!(rule.ir.action, Action::Broken(_)) => return Err(Error::Broken),
        Pick::None => return Err(Error::NoBackend),
        Pick::Share(share) => share,
    };
    if !share.filters.is_empty() {
        added.insert_into(&mut parts.headers);
    }
    if let Verdict::Answer(head) =
        filter::request(&share.filters, parts, &facts).map_err(|_| Error::Filter)?
    {
        return Ok(Outcome::Here(head));
    }
    let Target::Backend(backend) = &share.target else {
        return Err(Error::Broken);
    };
    let outgoing = Outgoing {
        parts,
        added: added.as_slice(),
        upgrade: normal.upgrade.as_ref(),
        try_timeout: rule.ir.timeouts.backend_request,
    };
    let send = client.worker.upstream.send(backend, &outgoing, body);
    let (answer, deadline) = within(rule.ir.timeouts.request, send).await?;
    let share = share.filters.clone();
    Ok(Outcome::Answer {
        answer,
        share,
        deadline,
        rule,
    })
}

/// The outcome of `future`, unless the backend or the client's body has been silent for too long: then there is still
/// time to say so.
async fn in_time(
    future: impl Future<Output = Result<Outcome, Error>>,
    activity: &Activity,
    client: &Client,
) -> Result<Outcome, Error> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        if let Poll::Ready(outcome) = future.as_mut().poll(cx) {
            return Poll::Ready(outcome);
        }
        let Poll::Ready(phase) = activity.poll_due(cx) else {
            return Poll::Pending;
        };
        let error = match phase {
            Phase::Backend => Error::BackendSilent,
            Phase::RequestBody => Error::BodyTimeout,
            // The connection's own business.
            Phase::Head | Phase::Idle | Phase::Write => return Poll::Pending,
        };
        client.timed_out(phase);
        Poll::Ready(Err(error))
    })
    .await
}

/// Finds the rule, in the one configuration that is current now.
fn route(client: &Client, parts: &request::Parts, normal: &Normal) -> Result<Arc<Rule>, Error> {
    let table = client.worker.table.load();
    let port = table
        .port(&client.port.bind)
        .ok_or(Error::NotFound("this port is no longer served"))?;
    let listener = client.listener(port, &normal.host)?;
    let view = RequestView {
        host: normal.host.as_str(),
        method: &parts.method,
        path: parts.uri.path(),
        query: parts.uri.query(),
        headers: &parts.headers,
    };
    listener
        .find(&view)
        .cloned()
        .ok_or(Error::NotFound("no route matches this request"))
}

/// Waits for an answer for at most `limit`, and leaves what is left of it for the answer's body.
async fn within<F, T, E>(
    limit: Option<Duration>,
    future: F,
) -> Result<(T, Option<Pin<Box<Sleep>>>), Error>
where
    F: Future<Output = Result<T, E>>,
    Error: From<E>,
{
    let Some(limit) = limit else {
        return Ok((future.await?, None));
    };
    let mut deadline = Box::pin(sleep(limit));
    tokio::select! {
        biased;
        outcome = future => Ok((outcome?, Some(deadline))),
        () = &mut deadline => Err(Error::RequestTimeout),
    }
}

fn respond(
    client: &Client,
    answer: Answer<RequestBody>,
    rule: &Rule,
    share: &[crate::ir::Filter],
    mut record: Record,
    deadline: Option<Pin<Box<Sleep>>>,
) -> Response<ResponseBody> {
    record.answered(answer.status.as_u16(), answer.body.endpoint());
    let mut headers = answer.headers;
    filter::response(share, &mut headers);
    filter::response(&rule.ir.filters, &mut headers);
    let mut response = if answer.status == StatusCode::SWITCHING_PROTOCOLS {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        *client.tunnel.borrow_mut() = Tunnel::new(answer.body, record).map(Box::new);
        Response::new(None)
    } else {
        Response::new(Some(ResponseBody::new(
            Source::Backend(answer.body),
            record,
            deadline,
        )))
    };
    *response.status_mut() = answer.status;
    *response.headers_mut() = headers;
    response.map(|body| body.unwrap_or_else(ResponseBody::none))
}

fn refuse(error: Error, mut record: Record) -> Response<ResponseBody> {
    record.refused(error);
    let mut response = Response::new(ResponseBody::new(
        Source::Own(error.message()),
        record,
        None,
    ));
    *response.status_mut() = error.status();
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    if error.closes() {
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// A request id: 128 random bits in hexadecimal.
fn new_id() -> HeaderValue {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut bits: u128 = rand::rng().random();
    let mut text = [0; 32];
    for digit in &mut text {
        *digit = DIGITS[(bits & 15) as usize];
        bits >>= 4;
    }
    HeaderValue::from_maybe_shared(Bytes::copy_from_slice(&text))
        .unwrap_or_else(|_| HeaderValue::from_static("0"))
}
