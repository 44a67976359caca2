//! HTTP/1 connections: hyper's server with the timeouts that it leaves to us, idle connections parked without their
//! buffers, and connections that end while the client still sends.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::activity::{Activity, Phase};
use super::client::Client;
use super::interim::Interim;
use super::io::{ClientIo, Observed};
use super::request;
use super::response_body::ResponseBody;

/// Bytes that hyper may hold of a request: a head of the largest size, and the largest piece of a body.
const BUFFER: usize = 64 * 1024;
/// Headers that hyper's parser takes by itself. It takes more only at a price, and fewer are counted afterwards.
const PARSER_HEADERS: usize = 100;
/// How long, and for how many bytes, a client may send on behind a response that ends its connection (RFC 9112, 9.6):
/// without it, the reset that unread bytes cause could take the response from the client.
const LINGER: (Duration, usize) = (Duration::from_secs(5), 8 * 1024 * 1024);

/// What ended a stretch of HTTP/1.
enum End {
    /// The connection is over.
    Closed,
    /// The connection is over for the proxy, but the client may still be sending.
    Unread,
    /// Nothing happens any more: the socket can wait without a server around it.
    Idle,
    /// The connection has switched protocols.
    Switched,
}

/// Serves HTTP/1 on a connection whose first bytes have been read as `prefix`.
pub(crate) async fn serve(
    mut io: ClientIo,
    mut prefix: Bytes,
    activity: Rc<Activity>,
    client: Rc<Client>,
) {
    loop {
        let service = service_fn(|request: Request<hyper::body::Incoming>| {
            respond(client.clone(), activity.clone(), request)
        });
        let server = server(&client, matches!(io, ClientIo::Plain(_)));
        let observed =
            Observed::new(io, prefix, activity.clone(), client.injection.clone()).watching_peer();
        let mut connection = Box::new(server.serve_connection(TokioIo::new(observed), service));
        let mut is_announced = false;
        let end = poll_fn(|cx| {
            if client.is_draining() && !is_announced {
                is_announced = true;
                Pin::new(&mut *connection).graceful_shutdown();
            }
            if let Poll::Ready(result) = Pin::new(&mut *connection).poll(cx) {
                return Poll::Ready(match result {
                    Ok(()) if client.tunnel.borrow().is_some() => End::Switched,
                    Err(error) if error.is_parse() => {
                        client.worker.stats.bad_requests.fetch_add(1, Relaxed);
                        End::Unread
                    }
                    _ if activity.is_body_open() => End::Unread,
                    _ => End::Closed,
                });
            }
            activity.poll_due(cx).map(|phase| match phase {
                Phase::Idle => End::Idle,
                phase => {
                    client.timed_out(phase);
                    End::Closed
                }
            })
        })
        .await;
        if let End::Closed = end {
            return;
        }
        let parts = connection.into_parts();
        let unread;
        (io, unread) = parts.io.into_inner().into_parts();
        if let End::Unread = end {
            spawn_local(linger(io, client));
            return;
        }
        prefix = join(parts.read_buf, unread);
        let tunnel = client.tunnel.borrow_mut().take();
        if let Some(tunnel) = tunnel {
            let idle = client.worker.limits.tunnel_idle_timeout;
            let relay = tunnel.relay(io, prefix, &client.worker.clock, idle);
            return Box::pin(relay).await;
        }
        if prefix.is_empty() {
            spawn_local(park(io, activity, client));
            return;
        }
    }
}

fn server(client: &Client, is_plain: bool) -> http1::Builder {
    let limits = &client.worker.limits;
    let mut server = http1::Builder::new();
    server
        // The end of what a client sends is the end of a TLS session, but not of a connection in plain text.
        .half_close(is_plain)
        .max_buf_size(BUFFER.max(limits.max_header_bytes))
        .max_header_size(limits.max_header_bytes);
    if limits.max_headers > PARSER_HEADERS {
        server.max_headers(limits.max_headers);
    }
    server
}

/// The response to one request, as hyper is to write it.
async fn respond(
    client: Rc<Client>,
    activity: Rc<Activity>,
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
    let admitted = request::open(client, activity, interim, parts, body.into());
    let mut response = admitted.serve().await;
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
        // hyper writes the length of what did not change only before a body that it has to poll.
        response.body_mut().hide_end();
    } else if version == Version::HTTP_10 && length.is_none() {
        // Only the end of the connection ends this body.
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// Waits for the client to speak again, as a task that holds nothing but the socket and what is known of the client.
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

/// Sends no more and discards what the client still sends, as a task that counts as an open connection.
async fn linger(io: ClientIo, client: Rc<Client>) {
    let mut socket = io.into_socket();
    let discard = async {
        // Fails for a connection that the client has reset, which has nothing to be read either.
        let _ = socket.shutdown().await;
        let mut discarded = 0;
        while discarded < LINGER.1 && socket.readable().await.is_ok() {
            // Not held while the task waits.
            let mut buffer = [0; 16 * 1024];
            match socket.try_read(&mut buffer) {
                Ok(count @ 1..) => discarded += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => break,
            }
        }
    };
    // A client that sends for longer has had its time to read.
    let _ = timeout(LINGER.0, discard).await;
    drop(client);
}

/// Bytes that were read before those that were about to be. No bytes hold no buffer, so that a parked connection holds
/// none.
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

    fn parked<A, B, C, F>(_: impl Fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    fn lingering<A, B, F>(_: impl Fn(A, B) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn waits_for_clients_in_small_tasks() {
        let size = parked(park);
        assert!(size <= 192, "a parked connection's task takes {size} bytes");
        let size = lingering(linger);
        assert!(
            size <= 512,
            "a lingering connection's task takes {size} bytes"
        );
    }
}
