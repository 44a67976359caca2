//! What a worker holds for its connections and requests. Must not know how these are served.

pub(super) mod access_log;
pub(super) mod bound;
pub(super) mod budget;
pub(super) mod current_table;
pub(super) mod date;
pub(super) mod handshakes;
pub(super) mod idle;
pub(super) mod port;
pub(super) mod traces;

use std::cell::{Cell, OnceCell};
use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use ipnet::IpNet;
use tokio::sync::mpsc;

use self::access_log::RequestLog;
use self::bound::Bound;
use self::budget::Budget;
use self::current_table::CurrentTable;
use self::date::Date;
use self::handshakes::Handshakes;
use self::idle::Connections;
use self::port::Ports;
use self::traces::SampledRequests;
use crate::datagrams::DatagramIo;
use crate::ir::Bind;
use crate::runtime::clock::Clock;
use crate::runtime::descriptors::Descriptors;
use crate::runtime::per_worker::WorkerId;
use crate::settings::Limits;
use crate::settings::session_key::SessionKey;
use crate::telemetry::metrics::ConnectionStats;
use crate::upstream::Upstream;

/// A command to a worker.
pub(super) enum Command {
    /// Serve this socket.
    Listen(Bind, Bound),
    /// Stop serving the socket of this port.
    Close(Bind),
    /// Follow the current table. With `closes`, drain connections of ports that it does not have.
    Follow { closes: bool },
    /// Assign this connection to a worker, like an accepted one.
    Accept(Bind, std::net::TcpStream, SocketAddr),
    /// Serve this connection instead of an idle one. The number of workers that have none.
    Replace(Bind, std::net::TcpStream, SocketAddr, usize),
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
    /// TLS handshakes in progress.
    pub(crate) handshakes: Handshakes,
    /// Timeouts and limits.
    pub(crate) limits: Rc<Limits>,
    /// Networks of trusted proxies, whose forwarding headers are accepted.
    pub(crate) trusted_proxies: Vec<IpNet>,
    /// Access log.
    pub(super) access_log: RequestLog,
    /// Sampled requests.
    pub(super) traces: SampledRequests,
    /// Key of session tokens.
    pub(crate) session_key: Arc<SessionKey>,
    /// Connection counters.
    pub(crate) stats: Arc<ConnectionStats>,
    /// Input and output of its UDP ports, if it has any.
    pub(super) datagrams: OnceCell<Rc<DatagramIo>>,
    /// Number of UDP sessions.
    pub(crate) udp_sessions: Rc<Cell<usize>>,
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

/// An open connection of this worker.
pub(crate) struct OpenConnection {
    pub(super) worker: Rc<Worker>,
    pub(super) _counted: Counted,
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
