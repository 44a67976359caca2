//! HTTP/1 connections: hyper's server plus timeouts, parking of idle connections without buffers,
//! and lingering close.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALT_SVC, CONNECTION, CONTENT_LENGTH, EXPECT};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::io::{ClientIo, Observed};
use super::upgrade;
use crate::http2::Unread;
use crate::proxy::activity::{Activity, Phase};
use crate::proxy::body::response_body::ResponseBody;
use crate::proxy::body::tunnel::Tunnel;
use crate::proxy::client::{Client, USUAL_HEAD};
use crate::proxy::request::request;
use crate::proxy::response::interim::Interim;

/// Maximum bytes of a request that hyper buffers: a head of maximum size, or the largest chunk of a
/// body.
const BUFFER: usize = 64 * 1024;
/// Bytes that hyper allocates before it reads. Its buffer has up to twice what was read.
const FIRST_BUFFER: usize = 8 * 1024;
/// Number of headers that hyper parses without an extra allocation. Requests with more are parsed
/// with one; lower limits are checked afterwards.
const PARSER_HEADERS: usize = 100;
/// Maximum bytes that rustls encrypts before the client reads.
const TLS_BUFFER: usize = 64 * 1024;
/// Maximum time and bytes of a lingering close after a final response (RFC 9112, 9.6): unread bytes
/// would cause a reset, which could discard the response at the client.
const LINGER: (Duration, usize) = (Duration::from_secs(5), 8 * 1024 * 1024);

/// Why hyper's server returned.
enum Exit {
    /// The connection is closed.
    Closed,
    /// The connection ends before a response whose end is that of the connection.
    Cut,
    /// The proxy has ended the connection, but the client may still be sending.
    Unread,
    /// The connection is idle: the socket can wait without a server task.
    Idle,
    /// The connection has switched protocols.
    Switched,
}

/// Serves HTTP/1 on a connection whose first bytes were read as `prefix`.
pub(crate) async fn serve(
    mut io: ClientIo,
    mut prefix: Bytes,
    activity: Rc<Activity>,
    client: Rc<Client>,
) {
    loop {
        let tunnel = RefCell::new(None);
        let ends_with_response = Cell::new(false);
        let service = service_fn(|request: Request<hyper::body::Incoming>| {
            let outcome = (&tunnel, &ends_with_response);
            respond(&client, activity.clone(), outcome, request)
        });
        let server = server(&client, matches!(io, ClientIo::Plain(_)));
        let observed =
            Observed::new(io, prefix, activity.clone(), client.injection.clone()).watching_peer();
        let mut connection = Box::new(server.serve_connection(TokioIo::new(observed), service));
        let mut is_announced = false;
        let mut held = Unread::default();
        let end = poll_fn(|cx| {
            let mut polled = Pin::new(&mut *connection).poll(cx);
            if polled.is_pending() && client.is_draining() && !is_announced {
                is_announced = true;
                // hyper disables keep-alive and closes after the current response. Before its first
                // poll, it would close without reading a request that has already arrived.
                Pin::new(&mut *connection).graceful_shutdown();
                polled = Pin::new(&mut *connection).poll(cx);
            }
            if let Poll::Ready(result) = polled {
                return Poll::Ready(match result {
                    Ok(()) if tunnel.borrow().is_some() => Exit::Switched,
                    Err(error) if error.is_user() && ends_with_response.get() => Exit::Cut,
                    result => exit(&result, &activity, &client),
                });
            }
            held.set(held_unread(&activity, &client));
            if !client.hold_unfinished(held_unfinished(&activity)) {
                return Poll::Ready(Exit::Closed);
            }
            match ready!(activity.poll_due(cx)) {
                Phase::Idle => Poll::Ready(Exit::Idle),
                phase if activity.begin_last_write(phase) => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                phase => {
                    client.timed_out(phase);
                    Poll::Ready(timed_out(ends_with_response.get()))
                }
            }
        })
        .await;
        // A tunnel counts what it holds itself.
        drop(held);
        client.hold_unfinished(0);
        if let Exit::Closed = end {
            return;
        }
        // hyper returns the bytes that it has read ahead, so that parking loses none.
        let parts = connection.into_parts();
        let unread;
        (io, unread) = parts.io.into_inner().into_parts();
        if let Exit::Cut = end {
            // Without the reset, the client would take the end of the connection for that of the response.
            return io.abort();
        }
        if let Exit::Unread = end {
            spawn_local(linger(io, client.clone()));
            return;
        }
        prefix = join(parts.read_buf, unread);
        if let Some(tunnel) = tunnel.take() {
            let idle = tunnel.idle_timeout();
            let relay = upgrade::relay(*tunnel, io, prefix, &client.worker.clock, idle);
            return Box::pin(relay).await;
        }
        if prefix.is_empty() {
            spawn_local(park(io, activity, client.clone()));
            return;
        }
    }
}

/// Returns why hyper's server has returned, unless the connection has switched protocols.
fn exit(result: &hyper::Result<()>, activity: &Activity, client: &Client) -> Exit {
    match result {
        // hyper has sent the error response before it returns the parse error.
        Err(error) if error.is_parse() => {
            client.worker.stats.bad_requests.fetch_add(1, Relaxed);
            Exit::Unread
        }
        _ if activity.is_body_open() => Exit::Unread,
        _ => Exit::Closed,
    }
}

/// Returns how a connection ends at a timeout.
fn timed_out(ends_with_response: bool) -> Exit {
    match ends_with_response {
        true => Exit::Cut,
        false => Exit::Closed,
    }
}

/// Returns the bytes that a connection holds because its client does not read.
fn held_unread(activity: &Activity, client: &Client) -> usize {
    if !activity.is_write_blocked() {
        return 0;
    }
    let unwritten = activity.unwritten.allocated();
    match client.tls {
        // What TLS has taken of a part keeps that allocated.
        Some(_) => unwritten + unwritten.min(TLS_BUFFER),
        None => unwritten,
    }
}

/// Returns the bytes that count of a head that is not complete.
fn held_unfinished(activity: &Activity) -> usize {
    match activity.unfinished_head() {
        0..=USUAL_HEAD => 0,
        bytes => FIRST_BUFFER + 2 * bytes,
    }
}

fn server(client: &Client, is_plain: bool) -> http1::Builder {
    let limits = &client.limits;
    let mut server = http1::Builder::new();
    server
        // A half-close ends a TLS session, but not a plain-text connection.
        .half_close(is_plain)
        .max_buf_size(BUFFER.max(limits.max_header_bytes))
        .max_header_size(limits.max_header_bytes);
    if limits.max_headers > PARSER_HEADERS {
        server.max_headers(limits.max_headers);
    }
    server
}

/// Responds to one request, in the form that hyper needs. `tunnel` receives the tunnel to relay after the 101 response is
/// written, and `ends_with_response` whether the end of the connection is that of the response.
async fn respond(
    client: &Rc<Client>,
    activity: Rc<Activity>,
    (tunnel, ends_with_response): (&RefCell<Option<Box<Tunnel>>>, &Cell<bool>),
    request: Request<hyper::body::Incoming>,
) -> Result<Response<ResponseBody>, Infallible> {
    let is_head = request.method() == Method::HEAD;
    let version = request.version();
    let interim = if version == Version::HTTP_11 {
        Interim::Http1(client.clone())
    } else {
        Interim::None
    };
    let (parts, body) = request.into_parts();
    let expects = parts.headers.contains_key(EXPECT);
    let expecting = expects.then(|| activity.clone());
    let admitted = request::open(client.clone(), activity, interim, parts, body.into());
    let mut response = admitted.serve().await;
    if expecting.is_some_and(|activity| activity.is_body_open()) {
        // hyper ends the connection after the response unless the body arrives without a 100 (RFC 9112, 9.6).
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if let Some(alternative) = client.alt_svc() {
        response.headers_mut().entry(ALT_SVC).or_insert(alternative);
    }
    if let Some(opened) = response.body_mut().take_tunnel() {
        tunnel.replace(Some(opened));
    }
    let length = response.body().size_hint().exact();
    if is_head {
        if let Some(length @ 1..) = length {
            let headers = response.headers_mut();
            headers.entry(CONTENT_LENGTH).or_insert(length.into());
        }
        response.body_mut().skip();
    } else if response.status() == StatusCode::NOT_MODIFIED
        && response.headers().contains_key(CONTENT_LENGTH)
    {
        // hyper keeps an existing Content-Length only if it has to poll the body.
        response.body_mut().hide_end();
    } else if version == Version::HTTP_10 && length.is_none() {
        // The end of the connection delimits the body.
        ends_with_response.set(true);
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if version == Version::HTTP_10 && response.headers().contains_key(CONNECTION) {
        // hyper would add `keep-alive` for clients that asked for it.
        *response.version_mut() = Version::HTTP_10;
    }
    Ok(response)
}

/// Waits for the next request in a task that holds only the socket and the client state.
async fn park(io: ClientIo, activity: Rc<Activity>, client: Rc<Client>) {
    activity.on_park();
    client.worker.stats.parked.fetch_add(1, Relaxed);
    let awake = poll_fn(|cx| {
        if let Poll::Ready(result) = io.poll_readable(cx) {
            return Poll::Ready(result.is_ok());
        }
        if client.is_draining() {
            Poll::Ready(false)
        } else {
            activity.poll_due(cx).map(|_| false)
        }
    })
    .await;
    client.worker.stats.parked.fetch_sub(1, Relaxed);
    activity.restart();
    if awake {
        spawn_local(serve(io, Bytes::new(), activity, client));
    }
}

/// Lingers before the close: shuts down the write side and discards received bytes, in a task that
/// counts as an open connection.
async fn linger(io: ClientIo, client: Rc<Client>) {
    let mut socket = io.into_socket();
    let discard = async {
        // Fails if the client has reset the connection, in which case there is nothing to read
        // either.
        let _ = socket.shutdown().await;
        let mut discarded = 0;
        while discarded < LINGER.1 && socket.readable().await.is_ok() {
            // Frees the buffer while the task waits.
            let mut buffer = [0; 16 * 1024];
            match socket.try_read(&mut buffer) {
                Ok(count @ 1..) => discarded += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => break,
            }
        }
    };
    // After the timeout, the client has had enough time to read the response.
    let _ = timeout(LINGER.0, discard).await;
    drop(client);
}

/// Joins already read bytes with unread ones. Returns an empty value without a buffer if both are
/// empty, so that a parked connection holds none.
fn join(read: Bytes, unread: Bytes) -> Bytes {
    match (read.is_empty(), unread.is_empty()) {
        (true, true) => Bytes::new(),
        (false, true) => read,
        (true, false) => unread,
        (false, false) => [read, unread].concat().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::clock::Clock;

    fn parked<A, B, C, F>(_: impl Fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    fn lingering<A, B, F>(_: impl Fn(A, B) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn parked_and_lingering_tasks_are_small() {
        let size = parked(park);
        assert!(size <= 192, "a parked connection's task takes {size} bytes");
        let size = lingering(linger);
        assert!(
            size <= 512,
            "a lingering connection's task takes {size} bytes"
        );
    }

    #[test]
    fn heads_count_once_they_are_longer_than_usual_ones() {
        let activity = Activity::connection(&Clock::new(), &Rc::default(), false);
        activity.on_read(USUAL_HEAD);
        assert_eq!(held_unfinished(&activity), 0);
        activity.on_read(1);
        let counted = FIRST_BUFFER + 2 * (USUAL_HEAD + 1);
        assert_eq!(held_unfinished(&activity), counted);
        activity.on_request();
        assert_eq!(held_unfinished(&activity), 0);
    }
}
