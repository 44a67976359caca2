//! HTTP on an agreed connection: hyper's own HTTP/1 and HTTP/2 servers, with the timeouts that they leave to us, and
//! idle HTTP/1 connections parked without their buffers. Knows nothing of what a request means.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncReadExt;
use tokio::task::spawn_local;

use super::activity::{Activity, Phase};
use super::client::Client;
use super::io::{ClientIo, Observed};
use super::request::handle;

/// RFC 9113, 3.4: what an HTTP/2 client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a connection's first read.
const FIRST_READ: usize = 2048;
/// Bytes that hyper may hold of a request: a head of the largest size, and the largest piece of a body.
const HTTP1_BUFFER: usize = 64 * 1024;
/// Fields that hyper's parser takes by itself. It takes more only at a price, and fewer are counted afterwards.
const PARSER_FIELDS: usize = 100;
/// Windows of HTTP/2 streams and connections, and what one stream may hold unsent.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
const SEND_BUFFER: usize = 64 * 1024;
/// Decoded size of an HTTP/2 field list.
const FIELD_LIST: u32 = 32 * 1024;
/// Streams that we may have to reset on one connection before it ends.
const LOCAL_RESETS: usize = 256;
/// Ping interval, and how long an answer may take: also ends a header block that is never finished.
const PING: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(10));

/// Serves whichever version of HTTP the client begins to speak in plain text.
pub(crate) async fn serve_plain(mut io: ClientIo, client: Rc<Client>) {
    let activity = Activity::connection(&client.worker.clock, &client.worker.limits, false);
    let mut first = BytesMut::with_capacity(FIRST_READ);
    let read = async {
        while PREFACE.starts_with(&first) && first.len() < PREFACE.len() {
            if !matches!(io.read_buf(&mut first).await, Ok(1..)) {
                return false;
            }
        }
        true
    };
    match in_time(read, &activity, &client).await {
        Some(true) if first.starts_with(PREFACE) => {
            Box::pin(serve_http2(io, first.freeze(), client)).await;
        }
        Some(true) => serve_http1(io, first.freeze(), activity, client).await,
        Some(false) | None => {}
    }
}

/// Serves HTTP/1 on a connection that has agreed on it.
pub(crate) async fn serve_tls_http1(io: ClientIo, client: Rc<Client>) {
    let activity = Activity::connection(&client.worker.clock, &client.worker.limits, false);
    serve_http1(io, Bytes::new(), activity, client).await;
}

/// What ended a stretch of HTTP/1.
enum End {
    /// The connection is over.
    Closed,
    /// Nothing happens any more: the socket can wait without a server around it.
    Idle,
    /// The connection has switched protocols.
    Switched,
}

async fn serve_http1(
    mut io: ClientIo,
    mut prefix: Bytes,
    activity: Rc<Activity>,
    client: Rc<Client>,
) {
    loop {
        let service = service_fn(|request| handle(client.clone(), activity.clone(), request));
        let observed = TokioIo::new(Observed::new(io, prefix, activity.clone()));
        let mut connection = Box::new(http1_server(&client).serve_connection(observed, service));
        let mut told = false;
        let end = poll_fn(|cx| {
            if client.is_draining() && !told {
                told = true;
                Pin::new(&mut *connection).graceful_shutdown();
            }
            if let Poll::Ready(result) = Pin::new(&mut *connection).poll(cx) {
                let switched = result.is_ok() && client.tunnel.borrow().is_some();
                return Poll::Ready(if switched { End::Switched } else { End::Closed });
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
        let parts = match end {
            End::Closed => return,
            End::Idle | End::Switched => connection.into_parts(),
        };
        let unread;
        (io, unread) = parts.io.into_inner().into_parts();
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

fn http1_server(client: &Client) -> http1::Builder {
    let limits = &client.worker.limits;
    let mut server = http1::Builder::new();
    server
        .max_buf_size(HTTP1_BUFFER.max(limits.max_header_bytes))
        .max_header_size(limits.max_header_bytes);
    if limits.max_headers > PARSER_FIELDS {
        server.max_headers(limits.max_headers);
    }
    server
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
        spawn_local(serve_http1(io, Bytes::new(), activity, client));
    }
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

/// Serves HTTP/2 on a connection whose first bytes have been read as `prefix`.
pub(crate) async fn serve_http2(io: ClientIo, prefix: Bytes, client: Rc<Client>) {
    let worker = client.worker.clone();
    let activity = Activity::connection(&worker.clock, &worker.limits, true);
    let next = Rc::new(RefCell::new(None));
    let executor = StreamExecutor {
        next: next.clone(),
        connection: activity.clone(),
        client: client.clone(),
    };
    let service = service_fn(|request| {
        let stream = Activity::stream(&worker.clock, &worker.limits);
        *next.borrow_mut() = Some(stream.clone());
        handle(client.clone(), stream, request)
    });
    let observed = TokioIo::new(Observed::new(io, prefix, activity.clone()));
    let connection = http2::Builder::new(executor)
        .timer(TokioTimer::new())
        .max_concurrent_streams(worker.limits.max_streams)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(FIELD_LIST)
        .max_local_error_reset_streams(LOCAL_RESETS)
        .keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1)
        .serve_connection(observed, service);
    let mut connection = pin!(connection);
    let mut told = false;
    poll_fn(|cx| {
        if client.is_draining() && !told {
            told = true;
            connection.as_mut().graceful_shutdown();
        }
        if connection.as_mut().poll(cx).is_ready() || client.is_abusive() {
            return Poll::Ready(());
        }
        match activity.poll_due(cx) {
            Poll::Ready(Phase::Idle) if !told => {
                told = true;
                connection.as_mut().graceful_shutdown();
                // What is left is ours to write, and bounded like any other write.
                activity.on_write_blocked();
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(phase) => {
                client.timed_out(phase);
                Poll::Ready(())
            }
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
}

/// Runs the streams of one connection, each with a deadline of its own: a stream that is due is dropped, which resets it.
#[derive(Clone)]
struct StreamExecutor {
    /// The activity of the stream that hyper is about to run.
    next: Rc<RefCell<Option<Rc<Activity>>>>,
    connection: Rc<Activity>,
    client: Rc<Client>,
}

/// Counts a stream on its connection until dropped.
struct OpenStream(Rc<Activity>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.on_request_end();
    }
}

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        let Some(activity) = self.next.borrow_mut().take() else {
            spawn_local(stream);
            return;
        };
        self.connection.on_request();
        let open = OpenStream(self.connection.clone());
        let client = self.client.clone();
        spawn_local(async move {
            let _open = open;
            let mut stream = pin!(stream);
            poll_fn(|cx| {
                if stream.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                activity.poll_due(cx).map(|phase| client.timed_out(phase))
            })
            .await;
        });
    }
}

/// The outcome of `future`, unless the connection is due or draining first.
async fn in_time<F: Future>(future: F, activity: &Activity, client: &Client) -> Option<F::Output> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn future_size<A, B, C, F>(_: impl Fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_parked_connection_is_small() {
        let size = future_size(park);
        assert!(size <= 192, "a parked connection's task takes {size} bytes");
    }
}
