//! The connection pool of one worker, by endpoint and TLS identity: idle HTTP/1.1 connections,
//! shared HTTP/2 connections, and connections being opened.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::connector::{Connector, Protocol};
use super::http1::{Buffers, Connection};
use super::http2::{ASSUMED_STREAMS, Http2Connection, Slot};
use super::in_flight::WorkerEndpoints;
use super::io::Io;
use super::outgoing::HeadLimits;
use super::send_error::SendError;
use crate::ir::keyed::KeyedMap;
use crate::runtime::clock::Clock;
use crate::runtime::descriptors::{BackendDescriptor, Descriptors};
use crate::runtime::monotonic;
use crate::runtime::per_worker::WorkerId;
use crate::settings::Limits;
use crate::upstream::connector::ConnectionKey;
use crate::upstream::restrictions::Avoid;

/// Maximum number of HTTP/2 connections to one endpoint that are being opened.
const MAX_OPENING: usize = 4;
/// Maximum number of HTTP/2 connections to one endpoint. When all are full, requests queue on them. Connections whose
/// window is exhausted, or whose heads are not read, do not count: as in HTTP/1.1, a body that is not read has a connection
/// for itself.
const MAX_HTTP2: usize = 64;

/// Idle timeout in milliseconds while few descriptors are left.
const TIGHT_IDLE_TIMEOUT: u64 = 1000;

/// Time in milliseconds after a connection was refused by the limit of its backend in which idle ones close for others.
const WANTED: u64 = 2000;

/// A connection that can carry a request now.
pub(super) enum Ready {
    Http1(Connection),
    Http2(Slot),
}

/// The connections of one worker.
pub(super) struct Pool {
    pub(super) worker: WorkerId,
    pub(super) clock: Rc<Clock>,
    pub(super) buffers: Rc<Buffers>,
    pub(super) head_limits: HeadLimits,
    pub(super) endpoints: WorkerEndpoints,
    connect_timeout: Duration,
    descriptors: Arc<Descriptors>,
    entries: RefCell<KeyedMap<ConnectionKey, Entry>>,
    max_idle: usize,
    idle_timeout: u64,
}

/// The connections of one key.
#[derive(Default)]
struct Entry {
    idle: Vec<Idle>,
    http2: Vec<Rc<Http2Connection>>,
    opening: Vec<Rc<Opening>>,
    /// Protocol of the last connection that was opened.
    negotiated: Option<Protocol>,
}

struct Idle {
    connection: Connection,
    since: u64,
}

/// A connection being opened, with the requests that wait for it.
struct Opening {
    begin: Instant,
    outcome: Cell<Option<Result<(), SendError>>>,
    is_done: Notify,
    waiting: Cell<usize>,
    /// Assumed number of requests that the connection can carry.
    capacity: usize,
}

/// A request waiting for a connection.
struct Waiting(Rc<Opening>);

impl Waiting {
    fn new(opening: Rc<Opening>) -> Self {
        opening.waiting.set(opening.waiting.get() + 1);
        Self(opening)
    }

    async fn outcome(&self) -> Result<(), SendError> {
        loop {
            // Created before the check: tokio's `notify_waiters` wakes only futures that exist at its call.
            let done = self.0.is_done.notified();
            if let Some(outcome) = self.0.outcome.get() {
                return outcome;
            }
            done.await;
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

impl Pool {
    pub(super) fn new(
        worker: WorkerId,
        clock: Rc<Clock>,
        limits: &Limits,
        descriptors: Arc<Descriptors>,
    ) -> Self {
        Self {
            worker,
            endpoints: WorkerEndpoints::new(worker, clock.clone()),
            clock,
            buffers: Rc::default(),
            head_limits: HeadLimits {
                bytes: limits.max_header_bytes,
                headers: limits.max_headers,
                is_of_policy: false,
            },
            connect_timeout: limits.connect_timeout,
            descriptors,
            entries: RefCell::default(),
            max_idle: limits.upstream_max_idle,
            idle_timeout: limits.upstream_idle_timeout.as_millis() as u64,
        }
    }

    /// Takes an open connection with capacity: an HTTP/2 connection, or the most recently used HTTP/1.1 connection.
    pub(super) fn take(&self, key: ConnectionKey, avoid: Avoid) -> Option<Ready> {
        self.entries.borrow_mut().get_mut(&key)?.take(avoid, false)
    }

    /// Reports whether a connection is open, or is being opened, that can carry another request.
    pub(super) fn has_open(&self, key: ConnectionKey) -> bool {
        let entries = self.entries.borrow();
        entries.get(&key).is_some_and(Entry::has_open)
    }

    /// Returns an HTTP/1.1 connection whose exchange is complete.
    pub(super) fn put(&self, key: ConnectionKey, mut connection: Connection) {
        if !connection.count_request() {
            return;
        }
        let mut entries = self.entries.borrow_mut();
        let entry = entries.entry(key).or_default();
        if entry.idle.len() < self.max_idle && !self.descriptors.is_tight() {
            entry.idle.push(Idle {
                connection,
                since: self.clock.now(),
            });
        }
    }

    /// Closes connections that were idle for too long or that the backend has closed. Called periodically.
    pub(super) fn sweep(&self) {
        let timeout = match self.descriptors.is_tight() {
            true => TIGHT_IDLE_TIMEOUT.min(self.idle_timeout),
            false => self.idle_timeout,
        };
        let now = self.clock.now();
        let oldest = now.saturating_sub(timeout);
        let since =
            |own: Option<u64>| own.map_or(oldest, |own| oldest.max(now.saturating_sub(own)));
        let wanted = monotonic::now().get().saturating_sub(WANTED);
        self.entries.borrow_mut().retain(|_, entry| {
            entry.idle.retain_mut(|idle| {
                let connection = &mut idle.connection;
                idle.since >= since(connection.idle_timeout())
                    && connection.is_idle()
                    && !connection.is_wanted(wanted)
            });
            entry.http2.retain(|connection| {
                connection.is_open()
                    && !connection.is_unused_since(since(connection.idle_timeout))
                    && !connection.is_wanted(wanted)
            });
            !(entry.idle.is_empty() && entry.http2.is_empty() && entry.opening.is_empty())
        });
        self.buffers.sweep();
        self.endpoints.sweep();
    }

    /// Frees unused read buffers.
    pub(super) fn free_unused_buffers(&self) {
        self.buffers.free_unused();
    }

    /// Takes an open connection to the endpoint or opens one. Requests share new connections that may
    /// speak HTTP/2, and others are those of their client.
    pub(super) async fn ready(
        self: &Rc<Self>,
        connector: &Connector,
        avoid: Avoid,
        client: Option<IpAddr>,
    ) -> Result<Ready, SendError> {
        loop {
            if let Some(ready) = self.take(connector.key(), avoid) {
                return Ok(ready);
            }
            if self.is_http1(connector) {
                connector.await_since(Instant::now());
                let io = self.connect(connector, client).await?;
                if connector.protocol_of(&io) == Protocol::Http1 {
                    return Ok(Ready::Http1(Connection::new(io, self.buffers.clone())));
                }
                // The endpoint chose HTTP/1.1 before, and chooses HTTP/2 now.
                self.add(connector, io, ASSUMED_STREAMS).await?;
                continue;
            }
            let opening = match self.join(connector, avoid) {
                ControlFlow::Continue(opening) => Waiting::new(opening),
                ControlFlow::Break(ready) => return Ok(ready),
            };
            connector.await_since(opening.0.begin);
            opening.outcome().await?;
        }
    }

    /// Reports whether a new connection to the endpoint is expected to speak HTTP/1.1, so that requests cannot share it.
    fn is_http1(&self, connector: &Connector) -> bool {
        let negotiated = || {
            let entries = self.entries.borrow();
            entries.get(&connector.key()).and_then(|it| it.negotiated)
        };
        connector.protocol().or_else(negotiated) == Some(Protocol::Http1)
    }

    /// Joins a connection being opened that has assumed capacity, or starts a new one. Returns a slot on a full
    /// connection if the endpoint already has [`MAX_HTTP2`] connections.
    fn join(
        self: &Rc<Self>,
        connector: &Connector,
        avoid: Avoid,
    ) -> ControlFlow<Ready, Rc<Opening>> {
        let mut entries = self.entries.borrow_mut();
        let entry = entries.entry(connector.key()).or_default();
        let least_awaited = entry.opening.iter().min_by_key(|it| it.waiting.get());
        if let Some(opening) = least_awaited
            && (opening.waiting.get() < opening.capacity || entry.opening.len() == MAX_OPENING)
        {
            return ControlFlow::Continue(opening.clone());
        }
        if entry.usable_connections() >= MAX_HTTP2
            && let Some(ready) = entry.take(avoid, true)
        {
            return ControlFlow::Break(ready);
        }
        // Assumes the lowest limit of the existing connections for the new one.
        let known = entry.http2.iter().map(|it| it.max_streams()).min();
        let known = known.into_iter().chain(connector.max_streams()).min();
        let capacity = known.unwrap_or(ASSUMED_STREAMS).clamp(1, ASSUMED_STREAMS);
        let opening = Rc::new(Opening {
            begin: Instant::now(),
            outcome: Cell::new(None),
            is_done: Notify::new(),
            waiting: Cell::new(0),
            capacity,
        });
        entry.opening.push(opening.clone());
        let (pool, connector, opened) = (self.clone(), connector.clone(), opening.clone());
        // A task, so that the connection outlives the request that opens it.
        tokio::task::spawn_local(async move { pool.open(&connector, &opened).await });
        ControlFlow::Continue(opening)
    }

    /// Opens a connection for the waiting requests. Continues when some of them stop waiting.
    async fn open(&self, connector: &Connector, opening: &Rc<Opening>) {
        let outcome = match self.connect(connector, None).await {
            Ok(io) => self.add(connector, io, opening.capacity).await,
            Err(error) => Err(error),
        };
        if let Some(entry) = self.entries.borrow_mut().get_mut(&connector.key()) {
            entry.opening.retain(|it| !Rc::ptr_eq(it, opening));
        }
        opening.outcome.set(Some(outcome));
        opening.is_done.notify_waiters();
    }

    /// Connects, unless no descriptor is left for the client, an address or a network. `None` stands for the process and for
    /// what clients share.
    pub(super) async fn connect(
        &self,
        connector: &Connector,
        client: Option<IpAddr>,
    ) -> Result<Io, SendError> {
        let descriptor = self.descriptor(client).ok_or(SendError::NO_DESCRIPTOR)?;
        connector.connect(self.connect_timeout, descriptor).await
    }

    /// Takes a descriptor for a connection to a backend. Closes idle connections if none is left for the client.
    pub(super) fn descriptor(&self, client: Option<IpAddr>) -> Option<BackendDescriptor> {
        BackendDescriptor::take(&self.descriptors, client).or_else(|| {
            self.close_idle();
            BackendDescriptor::take(&self.descriptors, client)
        })
    }

    /// Closes all idle connections.
    #[cold]
    fn close_idle(&self) {
        for entry in self.entries.borrow_mut().values_mut() {
            entry.idle.clear();
        }
    }

    async fn add(&self, connector: &Connector, io: Io, assumed: usize) -> Result<(), SendError> {
        let protocol = connector.protocol_of(&io);
        let (idle, http2) = match protocol {
            Protocol::Http1 => (Some(Connection::new(io, self.buffers.clone())), None),
            Protocol::Http2 => {
                let opened = Http2Connection::open(io, &self.clock, self.head_limits, assumed);
                (None, Some(opened.await.map_err(|_| SendError::CLOSED)?))
            }
        };
        let mut entries = self.entries.borrow_mut();
        let entry = entries.entry(connector.key()).or_default();
        entry.negotiated = Some(protocol);
        entry.http2.extend(http2);
        entry.idle.extend(idle.map(|connection| Idle {
            connection,
            since: self.clock.now(),
        }));
        Ok(())
    }
}

impl Entry {
    /// Takes an open connection with capacity. With `allow_full`, falls back to the least loaded HTTP/2 connection.
    fn take(&mut self, avoid: Avoid, allow_full: bool) -> Option<Ready> {
        while let Some(index) = self.usable_http2(avoid, allow_full) {
            if self.http2[index].is_open() {
                return Some(Ready::Http2(self.http2[index].reserve()));
            }
            self.http2.swap_remove(index);
        }
        if avoid.idle {
            return None;
        }
        while let Some(Idle { mut connection, .. }) = self.idle.pop() {
            if connection.is_idle() {
                return Some(Ready::Http1(connection));
            }
        }
        None
    }

    fn usable_http2(&self, avoid: Avoid, allow_full: bool) -> Option<usize> {
        let connections = self.http2.iter().enumerate();
        let mut usable = connections.filter(|(_, connection)| {
            connection.id != avoid.refused
                && connection.has_requests_left()
                && !connection.is_full_by_policy()
        });
        let found = if allow_full {
            usable.min_by_key(|(_, connection)| (connection.is_exhausted(), connection.streams()))
        } else {
            usable.find(|(_, connection)| {
                connection.streams() < connection.max_streams() && !connection.is_exhausted()
            })
        };
        found.map(|(index, _)| index)
    }

    fn has_open(&self) -> bool {
        let has_room = |opening: &Rc<Opening>| opening.waiting.get() < opening.capacity;
        !self.idle.is_empty()
            || self.usable_http2(Avoid::default(), false).is_some()
            || self.opening.iter().any(has_room)
    }

    /// Returns the number of HTTP/2 connections that requests may queue on.
    fn usable_connections(&self) -> usize {
        let usable = |connection: &&Rc<Http2Connection>| {
            !connection.is_exhausted()
                && connection.has_requests_left()
                && !connection.is_full_by_policy()
        };
        self.http2.iter().filter(usable).count()
    }
}
