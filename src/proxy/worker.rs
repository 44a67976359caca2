//! A worker: a thread with its own runtime that accepts and serves connections and owns connection
//! pools. Workers share only command queues and connection counts.

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{io, thread};

use arc_swap::ArcSwap;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle, LocalOptions};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::MissedTickBehavior;

use super::connection::connection;
use super::connection::listener::Listener;
use super::passwords::PasswordThreads;
use super::quic_ports::QuicPorts;
use super::udp::{self, UdpPort};
use super::worker_state::access_log::RequestLog;
use super::worker_state::bound::Bound;
use super::worker_state::budget::Budget;
use super::worker_state::current_table::CurrentTable;
use super::worker_state::date::Date;
use super::worker_state::handshakes::Handshakes;
use super::worker_state::page_slots::PageSlots;
use super::worker_state::port::Ports;
use super::worker_state::traces::SampledRequests;
use crate::http2::divide_memory;
use crate::ir::client::AddressSource;
use crate::ir::{Bind, Transport};
use crate::proxy::worker_state::{Command, Counted, OpenConnection, Worker};
use crate::runtime::after_work::{AfterWork, free_empty_pages};
use crate::runtime::clock::Clock;
use crate::runtime::descriptors;
use crate::runtime::descriptors::Descriptors;
use crate::runtime::per_worker::WorkerId;
use crate::runtime::shutdown::Shutdown;
use crate::settings::Limits;
use crate::settings::metrics::DurationLabels;
use crate::settings::session_key::SessionKey;
use crate::table::Table;
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::metrics::ConnectionStats;
use crate::telemetry::tap::Taps;
use crate::telemetry::trace::TraceQueue;
use crate::token_endpoint::TokenClient;
use crate::upstream::Upstream;

/// Number of connections above the limit, which wait for evicted ones to close, before accepting
/// pauses.
const OVERSHOOT: usize = 16;
/// Minimum interval of warnings about failed accepts of a port.
const ACCEPT_WARNING: Duration = Duration::from_secs(10);
/// Delay after a failed accept when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Interval of the sweep over idle upstream connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// State shared by all workers.
#[derive(Clone)]
pub(super) struct SharedState {
    pub(super) table: Arc<ArcSwap<Table>>,
    pub(super) descriptors: Arc<Descriptors>,
    pub(super) limits: Limits,
    pub(super) duration_labels: DurationLabels,
    pub(super) address_source: AddressSource,
    pub(super) access_log: AccessLog,
    pub(super) session_key: Arc<SessionKey>,
    pub(super) tokens: TokenClient,
    pub(super) stats: Arc<ConnectionStats>,
    pub(super) traces: Arc<TraceQueue>,
    pub(super) taps: Arc<Taps>,
    pub(super) shutdown: Shutdown,
    pub(super) passwords: PasswordThreads,
    /// Number of open connections by worker.
    pub(super) loads: Arc<[AtomicUsize]>,
    /// Command queues of the workers, in the same order.
    pub(super) queues: Arc<[mpsc::UnboundedSender<Command>]>,
}

/// Returns the identity of worker `index` of `count`. The exporter of traces is another one: it counts, too.
fn worker_id(index: usize, count: usize) -> WorkerId {
    WorkerId::new(index, count + 1)
}

/// Returns the identity of the exporter beside `count` workers.
pub(super) fn exporter_id(count: usize) -> WorkerId {
    worker_id(count, count)
}

/// Starts the thread of worker `index`, which runs until draining is complete.
pub(super) fn start(
    index: usize,
    shared: SharedState,
    commands: mpsc::UnboundedReceiver<Command>,
) -> io::Result<thread::JoinHandle<()>> {
    let (started, outcome) = std::sync::mpsc::channel();
    let thread = thread::Builder::new()
        .name(format!("worker-{index}"))
        .spawn(move || {
            // A `LocalSet` never leaves the thread that creates it, which saves a lock per task.
            let runtime = Builder::new_current_thread()
                .enable_all()
                .build_local(LocalOptions::default());
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return drop(started.send(error)),
            };
            drop(started);
            runtime.block_on(run(index, shared, commands));
        })?;
    outcome.recv().map_or(Ok(thread), Err)
}

async fn run(index: usize, shared: SharedState, mut commands: mpsc::UnboundedReceiver<Command>) {
    let clock = Clock::new();
    divide_memory(shared.loads.len());
    let id = worker_id(index, shared.loads.len());
    let worker = Rc::new(Worker {
        upstream: Upstream::new(id, &clock, &shared.limits, &shared.descriptors),
        connections: Rc::default(),
        descriptors: shared.descriptors,
        turn: Cell::new(0),
        kept_bytes: Budget::of_worker(shared.loads.len()),
        encoders: Budget::of_encoders(shared.loads.len()),
        unfinished: Budget::of_unfinished(shared.loads.len()),
        send_windows: Budget::of_send_windows(shared.loads.len()),
        page_slots: PageSlots::default(),
        handshakes: Handshakes::new(shared.limits.max_handshakes / shared.loads.len()),
        date: Date::default(),
        id,
        table: CurrentTable::new(shared.table),
        clock: clock.clone(),
        limits: Rc::new(shared.limits),
        duration_labels: shared.duration_labels,
        address_source: shared.address_source,
        access_log: RequestLog::new(&shared.access_log, shared.taps),
        traces: SampledRequests::new(shared.traces),
        session_key: shared.session_key,
        tokens: shared.tokens,
        stats: shared.stats,
        datagrams: OnceCell::new(),
        udp_sessions: Rc::default(),
        passwords: shared.passwords,
        terminating: Cell::new(false),
        draining: Cell::new(false),
        ports: Ports::default(),
        loads: shared.loads,
        queues: shared.queues,
    });
    spawn_local(async move { clock.run().await });
    spawn_local(worker.clone().sweep());
    spawn_local(worker.clone().write_access_log());
    spawn_local(worker.clone().pass_on_traces());
    let (mut terminating, mut draining) = (shared.shutdown.clone(), shared.shutdown.clone());
    let mut forced = shared.shutdown;
    let mut ports = OpenPorts::default();
    loop {
        tokio::select! {
            Some(command) = commands.recv() => worker.handle(command, &mut ports),
            () = terminating.terminating(), if !worker.terminating.get() => worker.terminating.set(true),
            () = draining.draining() => break,
        }
    }
    // Clients of UDP ports do not learn that these close, so that sessions end when they are quiet.
    ports.accepting.retain(|bind, task| {
        let is_udp = bind.transport == Transport::Udp;
        if !is_udp {
            task.abort();
        }
        is_udp
    });
    ports.quic.refuse_new();
    worker.draining.set(true);
    worker.clock.wake_all();
    loop {
        tokio::select! {
            () = worker.drained() => break,
            () = forced.forced() => break,
            // The worker that handed over the connection has counted it as open.
            Some(command) = commands.recv() => {
                if let Command::Serve(..) | Command::Replace(..) = command {
                    worker.handle(command, &mut ports);
                }
            }
        }
    }
    tokio::select! {
        () = ports.quic.finish() => {}
        () = forced.forced() => {}
    }
}

/// The ports that a worker serves.
#[derive(Default)]
struct OpenPorts {
    /// The tasks of those that one worker serves for all.
    accepting: BTreeMap<Bind, AbortHandle>,
    quic: QuicPorts,
}

impl Worker {
    fn handle(self: &Rc<Self>, command: Command, ports: &mut OpenPorts) {
        match command {
            Command::Listen(bind, socket) => match self.start(bind, socket) {
                Ok(task) => {
                    if let Some(old) = ports.accepting.insert(bind, task) {
                        old.abort();
                    }
                }
                Err(error) => {
                    tracing::error!(%bind, %error, "cannot poll a listening socket")
                }
            },
            Command::ListenQuic(bind, socket) => {
                if let Err(error) = ports.quic.listen(self, bind, *socket) {
                    tracing::error!(%bind, %error, "cannot serve QUIC");
                }
            }
            Command::Close(bind) => {
                if let Some(task) = ports.accepting.remove(&bind) {
                    task.abort();
                }
                if bind.transport == Transport::Quic {
                    ports.quic.close(bind);
                    self.clock.wake_all();
                }
            }
            Command::Follow { closes } => {
                let table = self.table.load();
                ports.quic.set_limits(self, &table);
                if closes {
                    self.ports.close_unconfigured(&table);
                    self.clock.wake_all();
                }
            }
            Command::Accept(bind, socket, peer) => match TcpStream::from_std(socket) {
                Ok(socket) => drop(self.assign(bind, socket, peer)),
                Err(error) => tracing::warn!(%error, "cannot poll an accepted connection"),
            },
            Command::Replace(bind, socket, peer, refusals) => {
                self.replace(bind, socket, peer, refusals);
            }
            Command::Evict(outcome) => {
                // Fails only if the worker that has asked ends.
                let _ = outcome.send(self.evict());
            }
            Command::Serve(counted, bind, socket, peer) => {
                self.handle_serve(counted, bind, socket, peer);
            }
        }
    }

    /// Starts the task of a port.
    fn start(self: &Rc<Self>, bind: Bind, socket: Bound) -> io::Result<AbortHandle> {
        let task = match socket {
            Bound::Tcp(socket) => {
                let listener = Listener::from_std(socket)?;
                spawn_local(self.clone().accept(bind, listener))
            }
            Bound::Udp(socket) => {
                let socket = tokio::net::UdpSocket::from_std(socket)?;
                spawn_local(udp::serve(UdpPort::new(self.clone(), bind, socket)?))
            }
            // All workers get it, by another command.
            Bound::Quic(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(task.abort_handle())
    }

    /// Accepts on behalf of all workers.
    async fn accept(self: Rc<Self>, bind: Bind, listener: Listener) {
        let mut warned = None::<Instant>;
        loop {
            match listener.accept().await {
                Ok((socket, peer)) => match self.assign(bind, socket, peer) {
                    Assigned::Free => {}
                    // Lets the evicted connection close before the next one is accepted.
                    Assigned::ByEviction => tokio::task::yield_now().await,
                    Assigned::TooSoon => tokio::time::sleep(ACCEPT_PAUSE).await,
                },
                Err(error) if is_transient(&error) => {}
                // The socket is closed.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
                Err(error) => {
                    if warned.is_none_or(|last| last.elapsed() >= ACCEPT_WARNING) {
                        tracing::warn!(%bind, %error, "accept failed, pausing");
                        warned = Some(Instant::now());
                    }
                    if descriptors::are_exhausted(&error) {
                        self.evict();
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Assigns a new connection to the worker with the fewest connections. At the limit, it replaces
    /// an idle one.
    fn assign(self: &Rc<Self>, bind: Bind, socket: TcpStream, peer: SocketAddr) -> Assigned {
        self.stats.accepted.fetch_add(1, Relaxed);
        let total: usize = self.loads.iter().map(|load| load.load(Relaxed)).sum();
        if total >= self.descriptors.clients() {
            // In turn, so that idle connections of all workers end.
            let target = self.turn.replace((self.turn.get() + 1) % self.queues.len());
            match socket.into_std() {
                Ok(socket) if target == self.id.index() => self.replace(bind, socket, peer, 0),
                Ok(socket) => {
                    let command = Command::Replace(bind, socket, peer, 0);
                    if self.queues[target].send(command).is_err() {
                        self.refuse();
                    }
                }
                Err(_) => self.refuse(),
            }
            return match total >= self.descriptors.clients() + OVERSHOOT {
                true => Assigned::TooSoon,
                false => Assigned::ByEviction,
            };
        }
        self.hand_over(bind, socket, peer);
        Assigned::Free
    }

    /// Serves a connection in the place of an idle one, here or at the next worker that has one.
    fn replace(
        self: &Rc<Self>,
        bind: Bind,
        socket: std::net::TcpStream,
        peer: SocketAddr,
        refusals: usize,
    ) {
        if self.evict() {
            let counted = Counted::new(self.id.index(), &self.loads, &self.stats);
            self.handle_serve(counted, bind, socket, peer);
        } else if refusals + 1 < self.queues.len() {
            let next = (self.id.index() + 1) % self.queues.len();
            let command = Command::Replace(bind, socket, peer, refusals + 1);
            if self.queues[next].send(command).is_err() {
                self.refuse();
            }
        } else {
            self.refuse();
        }
    }

    fn hand_over(self: &Rc<Self>, bind: Bind, socket: TcpStream, peer: SocketAddr) {
        let target = self.least_loaded();
        let counted = Counted::new(target, &self.loads, &self.stats);
        if target == self.id.index() {
            return self.serve(counted, bind, socket, peer);
        }
        match socket.into_std() {
            // An ended worker serves no connections: the process is terminating.
            Ok(socket) => {
                let _ = self.queues[target].send(Command::Serve(counted, bind, socket, peer));
            }
            Err(error) => tracing::warn!(%error, "cannot hand over an accepted connection"),
        }
    }

    fn handle_serve(
        self: &Rc<Self>,
        counted: Counted,
        bind: Bind,
        socket: std::net::TcpStream,
        peer: SocketAddr,
    ) {
        match TcpStream::from_std(socket) {
            Ok(socket) => self.serve(counted, bind, socket, peer),
            Err(error) => tracing::warn!(%error, "cannot poll an accepted connection"),
        }
    }

    fn least_loaded(&self) -> usize {
        let own = self.loads[self.id.index()].load(Relaxed);
        let least = self
            .loads
            .iter()
            .enumerate()
            .min_by_key(|(_, load)| load.load(Relaxed));
        least
            // On equal loads, keeps the connection: handing it over costs a wake-up of the other
            // worker.
            .filter(|(_, load)| load.load(Relaxed) < own)
            .map_or(self.id.index(), |(index, _)| index)
    }

    fn serve(self: &Rc<Self>, counted: Counted, bind: Bind, socket: TcpStream, peer: SocketAddr) {
        let port = match socket.local_addr() {
            Ok(local) => {
                let address = local.ip().to_canonical();
                self.ports.of(bind, address, &self.table.load())
            }
            Err(error) => {
                return tracing::debug!(%error, "an accepted connection is already closed");
            }
        };
        let Some(port) = port else { return };
        let open = OpenConnection::new(self.clone(), counted);
        spawn_local(connection::serve(open, port, socket, peer));
    }

    async fn sweep(self: Rc<Self>) {
        let mut times = tokio::time::interval(SWEEP_INTERVAL);
        times.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let runtime = Handle::current().metrics();
        let mut after_work = AfterWork::default();
        loop {
            times.tick().await;
            self.upstream.sweep();
            // Of the only worker of the runtime.
            let busy = runtime.worker_total_busy_duration(0);
            let busy_micros = busy.as_micros() as u64;
            self.stats
                .busy_micros
                .of(self.id)
                .store(busy_micros, Relaxed);
            if after_work.is_due(busy) {
                self.upstream.free_unused_buffers();
                self.access_log.free_unused_lines();
                free_empty_pages();
            }
        }
    }

    async fn write_access_log(self: Rc<Self>) {
        self.access_log.run().await;
    }

    async fn pass_on_traces(self: Rc<Self>) {
        self.traces.run().await;
    }

    /// Waits until all connections are closed.
    async fn drained(&self) {
        let mut ticks = tokio::time::interval(crate::runtime::clock::TICK);
        while self.loads[self.id.index()].load(Relaxed) > 0 || self.udp_sessions.get() > 0 {
            ticks.tick().await;
        }
    }
}

/// How a new connection got its place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Assigned {
    /// The limit was not reached.
    Free,
    /// An idle connection closes, if there is one.
    ByEviction,
    /// The same, and many that are to close are still open.
    TooSoon,
}

/// Reports whether the error affects only one connection, before it was accepted.
fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionReset | Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_to_an_ended_worker_counts_as_closed() {
        let loads: Arc<[_]> = [AtomicUsize::new(0), AtomicUsize::new(0)].into();
        let stats = Arc::new(ConnectionStats::default());
        let (queue, commands) = mpsc::unbounded_channel();
        let hand_over = || {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let socket = std::net::TcpStream::connect(address).unwrap();
            let bind = Bind::tcp(None, 80);
            stats.accepted.fetch_add(1, Relaxed);
            let counted = Counted::new(1, &loads, &stats);
            queue.send(Command::Serve(counted, bind, socket, address))
        };
        assert!(hand_over().is_ok());
        assert_eq!((loads[1].load(Relaxed), stats.open()), (1, 1));
        drop(commands);
        assert_eq!((loads[1].load(Relaxed), stats.open()), (0, 0));
        assert!(hand_over().is_err());
        assert_eq!((loads[1].load(Relaxed), stats.open()), (0, 0));
    }
}
