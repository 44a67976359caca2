//! One worker: a thread with a runtime of its own, which accepts, serves and pools connections. Of the other workers it
//! has their queues and their numbers of connections.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use ipnet::IpNet;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc;
use tokio::task::spawn_local;

use super::connection;
use super::date::Date;
use super::handshakes::Handshakes;
use super::listener::Listener;
use super::port::Ports;
use crate::clock::Clock;
use crate::ir::Bind;
use crate::settings::Limits;
use crate::shutdown::Shutdown;
use crate::table::Table;
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::metrics::ConnectionStats;
use crate::upstream::Upstream;

/// How long accepting pauses when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often idle connections to backends are looked at.
const SWEEP: Duration = Duration::from_secs(1);

/// What all workers share.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) table: Arc<ArcSwap<Table>>,
    pub(super) limits: Limits,
    pub(super) trusted_proxies: Vec<IpNet>,
    pub(super) access_log: AccessLog,
    pub(super) stats: Arc<ConnectionStats>,
    pub(super) shutdown: Shutdown,
    /// Open connections by worker.
    pub(super) loads: Arc<[AtomicUsize]>,
    /// The workers' queues, in the same order.
    pub(super) queues: Arc<[mpsc::UnboundedSender<Command>]>,
}

/// What a worker has to do.
pub(super) enum Command {
    /// Accept from this socket.
    Listen(Bind, std::net::TcpListener),
    /// Stop accepting from the socket of this port.
    Close(Bind),
    /// End the connections of ports that the current table no longer has, with their current requests.
    CloseUnconfigured,
    /// Choose a worker for this connection, as for one that it has accepted.
    Accept(Bind, std::net::TcpStream, SocketAddr),
    /// Serve this connection, which is counted already.
    Serve(Counted, Bind, std::net::TcpStream, SocketAddr),
}

/// A worker, as its own connections see it.
pub(crate) struct Worker {
    /// The configuration, loaded once per request and handshake.
    pub(crate) table: Arc<ArcSwap<Table>>,
    /// Its clock.
    pub(crate) clock: Rc<Clock>,
    /// The time as responses have it.
    pub(crate) date: Date,
    /// Its connections to backends.
    pub(crate) upstream: Upstream,
    /// TLS handshakes under way.
    pub(crate) handshakes: Handshakes,
    /// Timeouts and caps.
    pub(crate) limits: Rc<Limits>,
    /// Peers whose forwarding headers are believed.
    pub(crate) trusted_proxies: Vec<IpNet>,
    /// Where requests are recorded.
    pub(crate) access_log: AccessLog,
    /// Where connections are counted.
    pub(crate) stats: Arc<ConnectionStats>,
    /// Whether the process is about to leave: clients had better go elsewhere.
    pub(crate) terminating: Cell<bool>,
    /// Whether connections are to end.
    pub(crate) draining: Cell<bool>,
    ports: Ports,
    index: usize,
    loads: Arc<[AtomicUsize]>,
    queues: Arc<[mpsc::UnboundedSender<Command>]>,
}

/// Starts the thread of worker `index`, which runs until the process is to leave and its connections have ended.
pub(super) fn start(
    index: usize,
    common: Common,
    commands: mpsc::UnboundedReceiver<Command>,
) -> io::Result<thread::JoinHandle<()>> {
    let (started, outcome) = std::sync::mpsc::channel();
    let thread = thread::Builder::new()
        .name(format!("worker-{index}"))
        .spawn(move || {
            // Made here because it can never leave its thread, which spares every task a lock.
            let runtime = Builder::new_current_thread()
                .enable_all()
                .build_local(LocalOptions::default());
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return drop(started.send(error)),
            };
            drop(started);
            runtime.block_on(run(index, common, commands));
        })?;
    outcome.recv().map_or(Ok(thread), Err)
}

async fn run(index: usize, common: Common, mut commands: mpsc::UnboundedReceiver<Command>) {
    let clock = Clock::new();
    let worker = Rc::new(Worker {
        upstream: Upstream::new(&clock, &common.limits),
        handshakes: Handshakes::new(common.limits.max_handshakes / common.loads.len()),
        date: Date::default(),
        table: common.table,
        clock: clock.clone(),
        limits: Rc::new(common.limits),
        trusted_proxies: common.trusted_proxies,
        access_log: common.access_log,
        stats: common.stats,
        terminating: Cell::new(false),
        draining: Cell::new(false),
        ports: Ports::default(),
        index,
        loads: common.loads,
        queues: common.queues,
    });
    spawn_local(async move { clock.run().await });
    spawn_local(worker.clone().sweep());
    let (mut terminating, mut draining) = (common.shutdown.clone(), common.shutdown.clone());
    let mut forced = common.shutdown;
    let mut accepting = BTreeMap::new();
    loop {
        tokio::select! {
            Some(command) = commands.recv() => worker.handle(command, &mut accepting),
            () = terminating.terminating(), if !worker.terminating.get() => worker.terminating.set(true),
            () = draining.draining() => break,
        }
    }
    accepting.values().for_each(tokio::task::AbortHandle::abort);
    worker.draining.set(true);
    worker.clock.wake_all();
    loop {
        tokio::select! {
            () = worker.emptied() => break,
            () = forced.forced() => break,
            // Connections that another worker has handed over are counted as open already.
            Some(command) = commands.recv() => {
                if let Command::Serve(..) = command {
                    worker.handle(command, &mut accepting);
                }
            }
        }
    }
}

impl Worker {
    fn handle(
        self: &Rc<Self>,
        command: Command,
        accepting: &mut BTreeMap<Bind, tokio::task::AbortHandle>,
    ) {
        match command {
            Command::Listen(bind, socket) => match Listener::from_std(socket) {
                Ok(listener) => {
                    let task = spawn_local(self.clone().accept(bind, listener));
                    if let Some(former) = accepting.insert(bind, task.abort_handle()) {
                        former.abort();
                    }
                }
                Err(error) => {
                    tracing::error!(%bind, %error, "a listening socket cannot be watched")
                }
            },
            Command::Close(bind) => {
                if let Some(task) = accepting.remove(&bind) {
                    task.abort();
                }
            }
            Command::CloseUnconfigured => {
                self.ports.close_unconfigured(&self.table.load());
                self.clock.wake_all();
            }
            Command::Accept(bind, socket, peer) => match TcpStream::from_std(socket) {
                Ok(socket) => self.assign(bind, socket, peer),
                Err(error) => tracing::warn!(%error, "an accepted connection cannot be watched"),
            },
            Command::Serve(counted, bind, socket, peer) => match TcpStream::from_std(socket) {
                Ok(socket) => self.serve(counted, bind, socket, peer),
                Err(error) => tracing::warn!(%error, "an accepted connection cannot be watched"),
            },
        }
    }

    /// Accepts for all workers.
    async fn accept(self: Rc<Self>, bind: Bind, listener: Listener) {
        loop {
            match listener.accept().await {
                Ok((socket, peer)) => self.assign(bind, socket, peer),
                Err(error) if is_transient(&error) => {}
                // The socket is closed: nothing listens any more.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
                Err(error) => {
                    tracing::warn!(%bind, %error, "accepting connections pauses");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Gives a new connection to the worker that has the fewest.
    fn assign(self: &Rc<Self>, bind: Bind, socket: TcpStream, peer: SocketAddr) {
        self.stats.accepted.fetch_add(1, Relaxed);
        let total: usize = self.loads.iter().map(|load| load.load(Relaxed)).sum();
        if total >= self.limits.max_connections {
            self.stats.refused.fetch_add(1, Relaxed);
            self.stats.closed.fetch_add(1, Relaxed);
            return;
        }
        let target = self.least_loaded();
        let counted = Counted::new(target, &self.loads, &self.stats);
        if target == self.index {
            return self.serve(counted, bind, socket, peer);
        }
        match socket.into_std() {
            // A worker that is gone has no connections to serve: the process is terminating.
            Ok(socket) => {
                let _ = self.queues[target].send(Command::Serve(counted, bind, socket, peer));
            }
            Err(error) => tracing::warn!(%error, "an accepted connection cannot be handed over"),
        }
    }

    fn least_loaded(&self) -> usize {
        let own = self.loads[self.index].load(Relaxed);
        let least = self
            .loads
            .iter()
            .enumerate()
            .min_by_key(|(_, load)| load.load(Relaxed));
        least
            .filter(|(_, load)| load.load(Relaxed) < own)
            .map_or(self.index, |(index, _)| index)
    }

    fn serve(self: &Rc<Self>, counted: Counted, bind: Bind, socket: TcpStream, peer: SocketAddr) {
        let port = match socket.local_addr() {
            Ok(local) => {
                let address = local.ip().to_canonical();
                self.ports.of(bind, address, &self.table.load())
            }
            Err(error) => return tracing::debug!(%error, "an accepted connection has ended"),
        };
        let Some(port) = port else { return };
        let open = OpenConnection {
            worker: self.clone(),
            _counted: counted,
        };
        // Without it small responses wait for acknowledgements; a socket that refuses it still works.
        let _ = socket.set_nodelay(true);
        spawn_local(connection::serve(open, port, socket, peer));
    }

    async fn sweep(self: Rc<Self>) {
        let mut times = tokio::time::interval(SWEEP);
        loop {
            times.tick().await;
            self.upstream.sweep();
        }
    }

    /// Waits until no connection is left.
    async fn emptied(&self) {
        let mut ticks = tokio::time::interval(crate::clock::TICK);
        while self.loads[self.index].load(Relaxed) > 0 {
            ticks.tick().await;
        }
    }
}

/// A connection of this worker.
pub(crate) struct OpenConnection {
    worker: Rc<Worker>,
    _counted: Counted,
}

impl Deref for OpenConnection {
    type Target = Rc<Worker>;

    fn deref(&self) -> &Rc<Worker> {
        &self.worker
    }
}

/// Counts a connection as open, at one worker, until dropped.
pub(super) struct Counted {
    worker: usize,
    loads: Arc<[AtomicUsize]>,
    stats: Arc<ConnectionStats>,
}

impl Counted {
    fn new(worker: usize, loads: &Arc<[AtomicUsize]>, stats: &Arc<ConnectionStats>) -> Self {
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

/// Whether only this one connection failed, before it was accepted.
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
    fn counts_connection_closed_when_its_worker_is_gone() {
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
