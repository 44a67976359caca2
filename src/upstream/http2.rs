//! HTTP/2 connections of one worker to its backends, with prior knowledge. Each carries many requests; another is
//! opened when all are full. Knows nothing of retries or endpoints' choice.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustc_hash::FxHashMap;
use tokio::net::TcpStream;

use crate::clock::Clock;

/// Requests on one connection before another is opened: what servers commonly allow.
const STREAMS: u32 = 100;
/// Window of one stream.
const STREAM_WINDOW: u32 = 256 * 1024;
/// Window of a connection: half of it bounds unread small frames in h2.
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// Late frames of streams that were cancelled here must not add up to an error of the shared connection (h2 #856).
const REMEMBERED_RESETS: usize = 1000;
/// Ping interval, and how long an answer may take.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

/// Spawns onto the worker's own thread.
#[derive(Clone, Copy)]
pub(super) struct LocalExecutor;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

/// The HTTP/2 connections of one worker, by endpoint.
pub(super) struct Http2Pool<B> {
    clock: Rc<Clock>,
    timeout: u64,
    connections: RefCell<FxHashMap<u64, Vec<Shared<B>>>>,
}

struct Shared<B> {
    sender: SendRequest<B>,
    load: Rc<Load>,
}

/// Requests on a connection, and when there was the last one.
struct Load {
    streams: Cell<u32>,
    used: Cell<u64>,
}

/// A place on a connection, given back when dropped.
pub(super) struct Stream<B> {
    clock: Rc<Clock>,
    sender: SendRequest<B>,
    load: Rc<Load>,
}

impl<B> Drop for Stream<B> {
    fn drop(&mut self) {
        self.load.streams.set(self.load.streams.get() - 1);
        self.load.used.set(self.clock.now());
    }
}

impl<B> Http2Pool<B>
where
    B: Body<Data = Bytes> + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// A pool that keeps unused connections for at most `timeout`.
    pub(super) fn new(clock: Rc<Clock>, timeout: Duration) -> Self {
        Self {
            clock,
            timeout: timeout.as_millis() as u64,
            connections: RefCell::default(),
        }
    }

    /// A place on an open connection to the endpoint.
    pub(super) fn take(&self, endpoint: u64) -> Option<Stream<B>> {
        let mut connections = self.connections.borrow_mut();
        let connections = connections.get_mut(&endpoint)?;
        connections.retain(|shared| !shared.sender.is_closed());
        let shared = connections
            .iter()
            .find(|shared| shared.load.streams.get() < STREAMS)?;
        shared.load.streams.set(shared.load.streams.get() + 1);
        Some(Stream {
            clock: self.clock.clone(),
            sender: shared.sender.clone(),
            load: shared.load.clone(),
        })
    }

    /// Speaks HTTP/2 on a new connection to the endpoint, keeps it, and takes the first place on it.
    pub(super) async fn open(&self, endpoint: u64, io: TcpStream) -> hyper::Result<Stream<B>> {
        let (sender, connection) = http2::Builder::new(LocalExecutor)
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_reset_streams(REMEMBERED_RESETS)
            .keep_alive_interval(PING.0)
            .keep_alive_timeout(PING.1)
            .handshake(TokioIo::new(io))
            .await?;
        tokio::task::spawn_local(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an HTTP/2 connection to a backend ended");
            }
        });
        let load = Rc::new(Load {
            streams: Cell::new(1),
            used: Cell::new(self.clock.now()),
        });
        let shared = Shared {
            sender: sender.clone(),
            load: load.clone(),
        };
        self.connections
            .borrow_mut()
            .entry(endpoint)
            .or_default()
            .push(shared);
        Ok(Stream {
            clock: self.clock.clone(),
            sender,
            load,
        })
    }

    /// Forgets connections that have ended, and closes those that were unused for too long.
    pub(super) fn sweep(&self) {
        let oldest = self.clock.now().saturating_sub(self.timeout);
        self.connections.borrow_mut().retain(|_, connections| {
            connections.retain(|shared| {
                let used = shared.load.streams.get() > 0 || shared.load.used.get() >= oldest;
                used && !shared.sender.is_closed()
            });
            !connections.is_empty()
        });
    }
}

impl<B> Stream<B>
where
    B: Body<Data = Bytes> + Unpin + 'static,
{
    /// Sends a request. An error comes with the request where it is certain that the backend did not get it.
    pub(super) async fn send(
        &mut self,
        request: Request<B>,
    ) -> Result<Response<Incoming>, (hyper::Error, Option<Request<B>>)> {
        self.sender
            .try_send_request(request)
            .await
            .map_err(|mut error| {
                let request = error.take_message();
                (error.into_error(), request)
            })
    }
}
