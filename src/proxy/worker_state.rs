//! What a worker holds for its connections and requests. Must not know how these are served.

pub(super) mod access_log;
pub(super) mod bound;
pub(super) mod budget;
pub(super) mod current_table;
pub(super) mod date;
pub(super) mod handshakes;
pub(super) mod idle;
pub(super) mod page_slots;
pub(super) mod port;
pub(super) mod quic_socket;
pub(super) mod traces;

use std::cell::{Cell, OnceCell};
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use tokio::sync::{mpsc, oneshot};

use self::access_log::RequestLog;
use self::bound::Bound;
use self::budget::Budget;
use self::current_table::CurrentTable;
use self::date::Date;
use self::handshakes::Handshakes;
use self::idle::Connections;
use self::page_slots::PageSlots;
use self::port::{PortState, Ports};
use self::quic_socket::QuicSocket;
use self::traces::SampledRequests;
use super::passwords::PasswordThreads;
use crate::datagrams::DatagramIo;
use crate::ir::Bind;
use crate::ir::client::AddressSource;
use crate::runtime::clock::Clock;
use crate::runtime::descriptors::Descriptors;
use crate::runtime::per_worker::WorkerId;
use crate::settings::Limits;
use crate::settings::metrics::DurationLabels;
use crate::settings::session_key::SessionKey;
use crate::table::{CountedConnection, TooManyConnections};
use crate::telemetry::metrics::ConnectionStats;
use crate::token_endpoint::TokenClient;
use crate::upstream::Upstream;

/// A command to a worker.
pub(super) enum Command {
    /// Serve this socket.
    Listen(Bind, Bound),
    /// Serve QUIC on this socket, which all workers get.
    ListenQuic(Bind, Box<QuicSocket>),
    /// Stop serving the socket of this port.
    Close(Bind),
    /// Follow the current table. With `closes`, drain connections of ports that it does not have.
    Follow { closes: bool },
    /// Assign this connection to a worker, like an accepted one.
    Accept(Bind, std::net::TcpStream, SocketAddr),
    /// Serve this connection instead of an idle one. The number of workers that have none.
    Replace(Bind, std::net::TcpStream, SocketAddr, usize),
    /// Make an idle connection close, and tell whether there is one.
    Evict(oneshot::Sender<bool>),
    /// Serve this connection, which is already counted.
    Serve(Counted, Bind, std::net::TcpStream, SocketAddr),
}

/// A worker as seen by its connections.
pub(crate) struct Worker {
    /// Identity among the workers of the process.
    pub(crate) id: WorkerId,
    /// Current table, loaded once per request and per handshake.
    pub(crate) table: CurrentTable,
    /// Clock of the worker.
    pub(crate) clock: Rc<Clock>,
    /// Cached `Date` header.
    pub(crate) date: Date,
    /// Connection pools.
    pub(crate) upstream: Upstream,
    /// Memory for request bodies that are kept.
    pub(super) kept_bytes: Rc<Budget>,
    /// Memory for encoders of responses.
    pub(super) encoders: Rc<Budget>,
    /// Memory for heads of requests and handshakes that are not complete.
    pub(super) unfinished: Rc<Budget>,
    /// Memory for responses that clients of HTTP/3 have not acknowledged, above that of each connection.
    pub(super) send_windows: Rc<Budget>,
    /// Error pages that are being fetched.
    pub(super) page_slots: PageSlots,
    /// TLS handshakes in progress.
    pub(crate) handshakes: Handshakes,
    /// Timeouts and limits.
    pub(crate) limits: Rc<Limits>,
    /// Labels of the durations of requests.
    pub(crate) duration_labels: DurationLabels,
    /// Where the addresses of clients come from, if policies do not say it.
    pub(crate) address_source: AddressSource,
    /// Access log.
    pub(super) access_log: RequestLog,
    /// Sampled requests.
    pub(super) traces: SampledRequests,
    /// Key of session tokens.
    pub(crate) session_key: Arc<SessionKey>,
    /// Asks OpenID providers for tokens.
    pub(crate) tokens: TokenClient,
    /// Connection counters.
    pub(crate) stats: Arc<ConnectionStats>,
    /// Input and output of its UDP ports, if it has any.
    pub(super) datagrams: OnceCell<Rc<DatagramIo>>,
    /// Number of UDP sessions.
    pub(crate) udp_sessions: Rc<Cell<usize>>,
    /// Threads that verify passwords.
    pub(crate) passwords: PasswordThreads,
    /// Whether shutdown has begun, so that clients should reconnect elsewhere.
    pub(crate) terminating: Cell<bool>,
    /// Whether connections must end.
    pub(crate) draining: Cell<bool>,
    /// Client connections, some of which may be idle.
    pub(super) connections: Rc<Connections>,
    /// Descriptors of the process.
    pub(super) descriptors: Arc<Descriptors>,
    /// The worker that evicts next.
    pub(super) turn: Cell<usize>,
    /// Ports of its connections.
    pub(super) ports: Ports,
    /// Number of open connections by worker.
    pub(super) loads: Arc<[AtomicUsize]>,
    /// Command queues of the workers, in the same order.
    pub(super) queues: Arc<[mpsc::UnboundedSender<Command>]>,
}

impl Worker {
    /// Reports whether there are as many connections as the process may have.
    pub(super) fn is_full(&self) -> bool {
        let total: usize = self.loads.iter().map(|load| load.load(Relaxed)).sum();
        total >= self.descriptors.clients()
    }

    /// Makes an idle connection close.
    pub(super) fn evict(&self) -> bool {
        let evicted = self.connections.evict(self.clock.now());
        self.stats.evicted.fetch_add(u64::from(evicted), Relaxed);
        evicted
    }

    /// Makes an idle connection of another worker close. Returns false if none has one.
    pub(super) async fn evict_elsewhere(&self) -> bool {
        let (own, count) = (self.id.index(), self.queues.len());
        for distance in 1..count {
            let (outcome, evicted) = oneshot::channel();
            let queue = &self.queues[(own + distance) % count];
            // A worker that has ended drops the command.
            let is_sent = queue.send(Command::Evict(outcome)).is_ok();
            if is_sent && matches!(evicted.await, Ok(true)) {
                return true;
            }
        }
        false
    }

    /// Counts a connection that is refused.
    pub(super) fn refuse(&self) {
        self.stats.refused.fetch_add(1, Relaxed);
        self.stats.closed.fetch_add(1, Relaxed);
    }

    /// Returns the timeouts and limits of a new connection to a port.
    pub(crate) fn limits_of(&self, port: &PortState) -> Rc<Limits> {
        port.limits(&self.table.load(), &self.limits)
    }
}

/// An open connection of this worker.
pub(crate) struct OpenConnection {
    pub(super) worker: Rc<Worker>,
    _counted: Counted,
    /// What policies have added. Boxed, since few connections have it.
    beginning: Option<Box<Beginning>>,
}

/// The beginning of a connection to a port with policies on connections.
#[derive(Default)]
struct Beginning {
    /// Counts it among those of its port, if these are limited.
    _limited: Option<CountedConnection>,
    /// Bytes that were read with the header of the PROXY protocol.
    received: Cell<Vec<u8>>,
}

impl OpenConnection {
    pub(super) fn new(worker: Rc<Worker>, counted: Counted) -> Self {
        Self {
            worker,
            _counted: counted,
            beginning: None,
        }
    }

    /// Counts a connection, from which bytes were read, among those of its port. Returns whether it is within the limits.
    pub(crate) fn begin(&mut self, port: &PortState, client: IpAddr, received: Vec<u8>) -> bool {
        let table = self.table.load();
        let port = port.configured(&table);
        match port.map(|port| port.open_connection(client)) {
            Some(Err(TooManyConnections)) => {
                self.stats.over_limits.fetch_add(1, Relaxed);
                false
            }
            limited => {
                self.beginning = Some(Box::new(Beginning {
                    _limited: limited.and_then(Result::unwrap_or_default),
                    received: Cell::new(received),
                }));
                true
            }
        }
    }

    /// Returns the bytes that were read already, once.
    pub(crate) fn take_received(&self) -> Vec<u8> {
        let beginning = self.beginning.as_ref();
        beginning.map_or_else(Vec::new, |beginning| beginning.received.take())
    }
}

impl Deref for OpenConnection {
    type Target = Rc<Worker>;

    fn deref(&self) -> &Rc<Worker> {
        &self.worker
    }
}

/// Counts an open connection of a worker until dropped.
pub(super) struct Counted {
    worker: usize,
    loads: Arc<[AtomicUsize]>,
    stats: Arc<ConnectionStats>,
}

impl Counted {
    pub(super) fn new(
        worker: usize,
        loads: &Arc<[AtomicUsize]>,
        stats: &Arc<ConnectionStats>,
    ) -> Self {
        loads[worker].fetch_add(1, Relaxed);
        Self {
            worker,
            loads: loads.clone(),
            stats: stats.clone(),
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.loads[self.worker].fetch_sub(1, Relaxed);
        self.stats.closed.fetch_add(1, Relaxed);
    }
}
