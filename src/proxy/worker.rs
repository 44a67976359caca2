//! One worker: a thread with a runtime of its own, which accepts, serves and pools connections without sharing any of
//! it. Knows the other workers only by how many connections they have.

use std::cell::{Cell, RefCell};
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
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc;
use tokio::task::spawn_local;

use super::body::RequestBody;
use super::connection;
use super::handshakes::Handshakes;
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

/// What a worker is told.
pub(super) enum Command {
    /// Accept from this socket.
    Listen(Bind, std::net::TcpListener),
    /// Stop accepting on this port, and end its connections with their current requests.
    Close(Bind),
    /// Serve this connection.
    Serve(Bind, std::net::TcpStream, SocketAddr),
}

/// A port as one worker sees it.
pub(crate) struct PortState {
    /// The port.
    pub(crate) bind: Bind,
    /// Whether it is no longer configured.
    pub(crate) closed: Cell<bool>,
}

/// A worker, as its own connections see it.
pub(crate) struct Worker {
    /// The configuration, loaded once per request and handshake.
    pub(crate) table: Arc<ArcSwap<Table>>,
    /// Its clock.
    pub(crate) clock: Rc<Clock>,
    /// Its connections to backends.
    pub(crate) upstream: Upstream<RequestBody>,
    /// TLS handshakes under way.
    pub(crate) handshakes: Handshakes,
    /// Timeouts and caps.
    pub(crate) limits: Rc<Limits>,
    /// Peers whose forwarding fields are believed.
    pub(crate) trusted_proxies: Vec<IpNet>,
    /// Where requests are recorded.
    pub(crate) access_log: AccessLog,
    /// Where connections are counted.
    pub(crate) stats: Arc<ConnectionStats>,
    /// Whether the process is about to leave: clients had better go elsewhere.
    pub(crate) leaving: Cell<bool>,
    /// Whether connections are to end.
    pub(crate) draining: Cell<bool>,
    ports: RefCell<BTreeMap<Bind, Rc<PortState>>>,
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
        table: common.table,
        clock: clock.clone(),
        limits: Rc::new(common.limits),
        trusted_proxies: common.trusted_proxies,
        access_log: common.access_log,
        stats: common.stats,
        leaving: Cell::new(false),
        draining: Cell::new(false),
        ports: RefCell::default(),
        index,
        loads: common.loads,
        queues: common.queues,
    });
    spawn_local(async move { clock.run().await });
    spawn_local(worker.clone().sweep());
    let (mut leaving, mut draining) = (common.shutdown.clone(), common.shutdown.clone());
    let mut forced = common.shutdown;
    let mut accepting = BTreeMap::new();
    loop {
        tokio::select! {
            Some(command) = commands.recv() => worker.obey(command, &mut accepting),
            () = leaving.leaving(), if !worker.leaving.get() => worker.leaving.set(true),
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
                    worker.obey(command, &mut accepting);
                }
            }
        }
    }
}

impl Worker {
    fn obey(
        self: &Rc<Self>,
        command: Command,
        accepting: &mut BTreeMap<Bind, tokio::task::AbortHandle>,
    ) {
        match command {
            Command::Listen(bind, socket) => match TcpListener::from_std(socket) {
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
                if let Some(port) = self.ports.borrow_mut().remove(&bind) {
                    port.closed.set(true);
                    self.clock.wake_all();
                }
            }
            Command::Serve(bind, socket, peer) => match TcpStream::from_std(socket) {
                Ok(socket) => self.serve(bind, socket, peer),
                Err(error) => {
                    self.loads[self.index].fetch_sub(1, Relaxed);
                    tracing::warn!(%error, "an accepted connection cannot be watched");
                }
            },
        }
    }

    /// Accepts for all workers, and gives each connection to the one that has the fewest.
    async fn accept(self: Rc<Self>, bind: Bind, listener: TcpListener) {
        loop {
            let (socket, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) if is_transient(&error) => continue,
                Err(error) => {
                    tracing::warn!(%bind, %error, "accepting connections pauses");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            self.stats.accepted.fetch_add(1, Relaxed);
            let total: usize = self.loads.iter().map(|load| load.load(Relaxed)).sum();
            if total >= self.limits.max_connections {
                self.stats.refused.fetch_add(1, Relaxed);
                self.stats.closed.fetch_add(1, Relaxed);
                continue;
            }
            let target = self.least_loaded();
            self.loads[target].fetch_add(1, Relaxed);
            if target == self.index {
                self.serve(bind, socket, peer);
            } else if let Ok(socket) = socket.into_std() {
                // A worker that is gone has no connections to serve: the process is leaving.
                let _ = self.queues[target].send(Command::Serve(bind, socket, peer));
            }
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

    /// Serves a connection that is counted in `loads` already.
    fn serve(self: &Rc<Self>, bind: Bind, socket: TcpStream, peer: SocketAddr) {
        let state = || {
            Rc::new(PortState {
                bind,
                closed: Cell::new(false),
            })
        };
        let port = self
            .ports
            .borrow_mut()
            .entry(bind)
            .or_insert_with(state)
            .clone();
        let open = OpenConnection(self.clone());
        // Without it small answers wait for acknowledgements; a socket that refuses it still works.
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

/// A connection of this worker, counted until dropped.
pub(crate) struct OpenConnection(Rc<Worker>);

impl Deref for OpenConnection {
    type Target = Rc<Worker>;

    fn deref(&self) -> &Rc<Worker> {
        &self.0
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.loads[self.0.index].fetch_sub(1, Relaxed);
        self.0.stats.closed.fetch_add(1, Relaxed);
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
