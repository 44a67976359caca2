//! The downstream side of the data plane: ports, connections, requests. Serves the current table
//! and opens its ports.

mod activity;
mod body;
mod client;
mod connection;
mod connection_record;
mod error;
mod error_source;
mod exporter;
mod grpc;
mod grpc_frame;
mod grpc_web;
mod passwords;
mod prober;
mod quic_ports;
mod request;
mod response;
mod sign_in_fault;
mod udp;
mod unwritten;
mod worker;
mod worker_state;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;

use arc_swap::ArcSwap;
use tokio::sync::mpsc;

use self::connection::listener::Listeners;
use self::connection::quic::choose_listener;
use self::passwords::PasswordThreads;
use self::prober::Prober;
use self::worker::SharedState;
use self::worker_state::Command;
use self::worker_state::bound::Bound;
use self::worker_state::quic_socket::QuicSocket;
use crate::ir::client::AddressSource;
use crate::ir::{Bind, BindReport, PortProtocol, Transport};
use crate::quic::BoundSocket;
use crate::runtime::background::Background;
use crate::runtime::descriptors::Descriptors;
use crate::runtime::shutdown::Shutdown;
use crate::settings::session_key::SessionKey;
use crate::settings::{Limits, Ports, Settings};
use crate::table::Table;
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::metrics::ProcessStats;
use crate::telemetry::trace::TraceQueue;
use crate::token_endpoint::TokenClient;

pub use self::request::preview;

/// The running data plane. Dropping it does not stop it; a [`Shutdown`] does.
pub struct Proxy {
    listeners: Listeners,
    ports: Ports,
    /// Protocols of the configured ports.
    protocols: BTreeMap<Bind, PortProtocol>,
    /// What keys of QUIC are derived from.
    session_key: Arc<SessionKey>,
    queues: Arc<[mpsc::UnboundedSender<Command>]>,
    workers: Vec<JoinHandle<()>>,
    /// The exporter of traces, once something is traced, and what it needs.
    exporter: Option<Background>,
    traces: Traces,
    /// The thread of health checks, once a backend has some.
    prober: Option<Prober>,
}

/// What the exporter shares with the workers.
struct Traces {
    queue: Arc<TraceQueue>,
    table: Arc<ArcSwap<Table>>,
    limits: Limits,
    descriptors: Arc<Descriptors>,
}

impl Proxy {
    /// Starts the workers, with what sessions need. They open no port until [`Proxy::follow`] is called.
    pub fn start(
        settings: &Settings,
        table: Arc<ArcSwap<Table>>,
        access_log: &AccessLog,
        (session_key, tokens): (Arc<SessionKey>, TokenClient),
        stats: &ProcessStats,
        shutdown: Shutdown,
    ) -> std::io::Result<Self> {
        let count = settings.workers.max(1);
        let (queues, receivers): (Vec<_>, Vec<_>) =
            (0..count).map(|_| mpsc::unbounded_channel()).unzip();
        let queues: Arc<[_]> = queues.into();
        let loads: Arc<[_]> = (0..count).map(|_| AtomicUsize::new(0)).collect();
        // Fails only if the workers were started before, which sets the same counters again.
        let _ = stats.connections.by_worker.set(loads.clone());
        let descriptors = Descriptors::claim(settings.limits.max_connections, count);
        let descriptors = Arc::new(descriptors);
        let traces = Traces {
            queue: stats.traces.clone(),
            table: table.clone(),
            limits: settings.limits.clone(),
            descriptors: descriptors.clone(),
        };
        let shared = SharedState {
            table,
            descriptors,
            limits: settings.limits.clone(),
            duration_labels: settings.metrics.durations_by,
            address_source: match settings.trusted_proxies.as_slice() {
                [] => AddressSource::Connection,
                proxies => AddressSource::Proxies(proxies.iter().copied().collect()),
            },
            access_log: access_log.clone(),
            session_key: session_key.clone(),
            tokens,
            stats: stats.connections.clone(),
            traces: stats.traces.clone(),
            taps: stats.taps.clone(),
            shutdown,
            passwords: PasswordThreads::new(count),
            loads,
            queues: queues.clone(),
        };
        let start = |(index, commands)| worker::start(index, shared.clone(), commands);
        let workers = receivers
            .into_iter()
            .enumerate()
            .map(start)
            .collect::<Result<_, _>>()?;
        Ok(Self {
            listeners: Listeners::default(),
            protocols: BTreeMap::new(),
            session_key,
            ports: settings.ports,
            queues,
            workers,
            exporter: None,
            traces,
            prober: None,
        })
    }

    /// Opens and closes ports to match `table`, which must already be the current one. Reports
    /// failed binds and retries them on the next call.
    pub fn follow(&mut self, table: &Table) -> BindReport {
        let ports = table.ports().iter();
        let protocols: BTreeMap<_, _> = ports.map(|port| (port.bind(), port.protocol())).collect();
        let with_http3 = table.ports().iter().filter(|port| port.has_http3());
        let quic = with_http3.map(|port| port.bind().quic());
        let wanted: Vec<Bind> = protocols.keys().copied().chain(quic).collect();
        let changes = self.listeners.follow(&wanted, self.ports);
        let acceptor = |bind: Bind| &self.queues[usize::from(bind.port) % self.queues.len()];
        for (bind, socket, peer) in changes.waiting {
            send(acceptor(bind), Command::Accept(bind, socket, peer));
        }
        for bind in changes.closed {
            match bind.transport {
                Transport::Tcp | Transport::Udp => send(acceptor(bind), Command::Close(bind)),
                Transport::Quic => {
                    (self.queues.iter()).for_each(|it| send(it, Command::Close(bind)))
                }
            }
        }
        for (bind, socket) in changes.opened {
            match socket {
                Bound::Quic(socket) => self.listen_quic(bind, &socket),
                socket => send(acceptor(bind), Command::Listen(bind, socket)),
            }
        }
        for port in table.ports() {
            let bound = changes.report.get(&port.bind().quic());
            port.set_quic_bound(bound.is_some_and(Result::is_ok));
        }
        let old = std::mem::replace(&mut self.protocols, protocols);
        let closes = old
            .iter()
            .any(|(bind, protocol)| self.protocols.get(bind) != Some(protocol));
        let queues = self.queues.iter();
        queues.for_each(|queue| send(queue, Command::Follow { closes }));
        if !table.ir.tracing.is_empty() && self.exporter.is_none() {
            self.start_exporter();
        }
        self.check_health(table);
        changes.report
    }

    /// Serves QUIC on a socket, which one worker reads for all.
    fn listen_quic(&self, bind: Bind, socket: &Arc<BoundSocket>) {
        let tcp = Bind::tcp(bind.address, bind.port);
        let choose = choose_listener(self.traces.table.clone(), tcp);
        let count = self.queues.len();
        let reader = usize::from(bind.port) % count;
        let sockets = QuicSocket::divide(socket, count, reader, &self.session_key, &choose);
        for (queue, socket) in self.queues.iter().zip(sockets) {
            send(queue, Command::ListenQuic(bind, socket));
        }
    }

    fn check_health(&mut self, table: &Table) {
        if let Some(prober) = &self.prober {
            return prober.notify();
        }
        if !table.backends().any(|it| it.active_check().is_some()) {
            return;
        }
        let Traces {
            table,
            limits,
            descriptors,
            ..
        } = &self.traces;
        self.prober = Prober::start(table.clone(), limits.clone(), descriptors.clone());
    }

    fn start_exporter(&mut self) {
        let traces = &self.traces;
        let shared = exporter::Shared {
            queue: traces.queue.clone(),
            table: traces.table.clone(),
            limits: traces.limits.clone(),
            descriptors: traces.descriptors.clone(),
            id: worker::exporter_id(self.queues.len()),
        };
        self.exporter = exporter::start(shared);
    }

    /// Waits until all workers have ended, and the spans of their requests are sent or dropped.
    pub fn join(self) {
        for worker in self.workers {
            if worker.join().is_err() {
                tracing::error!("a worker panicked");
            }
        }
        if let Some(prober) = self.prober {
            prober.join();
        }
        self.traces.queue.close();
        if let Some(exporter) = self.exporter {
            exporter.join();
        }
    }
}

/// Commands to an ended worker are dropped: the process is terminating.
fn send(queue: &mpsc::UnboundedSender<Command>, command: Command) {
    let _ = queue.send(command);
}
