//! UDP ports: forwards the datagrams of each client address to one endpoint, and those of the endpoint back. A worker
//! receives all datagrams of a port. Nothing is queued: a datagram that a full socket does not take is dropped, as on any
//! hop.

mod sessions;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};

use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::task::spawn_local;

use self::sessions::{Path, Session, Sessions};
use super::connection_record::ConnectionRecord;
use super::worker_state::Worker;
use crate::datagrams::{DatagramIo, Datagrams, Outbox, join_received, with_local_address};
use crate::ir::Bind;
use crate::runtime::descriptors::UdpShare;
use crate::table::{Backend, BackendTarget, Port, Rule, Table};
use crate::telemetry::access_log::ConnectionEnd;
use crate::upstream::UdpFlow;

/// Maximum number of batches that are received from a socket before others get their turn.
const BURST: usize = 4;

/// A UDP port.
pub(super) struct UdpPort {
    worker: Rc<Worker>,
    io: Rc<DatagramIo>,
    bind: Bind,
    socket: UdpSocket,
    sessions: Sessions,
    /// Clock time of the last look for sessions beyond the share of the port.
    trimmed: Cell<u64>,
    /// What endpoints have answered in this turn of the worker. The task of the port sends it.
    answers: RefCell<Outbox>,
    waker: Cell<Option<Waker>>,
}

/// Serves a port until the task is aborted.
pub(super) async fn serve(port: Rc<UdpPort>) {
    let _ends = EndSessions(port.clone());
    while poll_fn(|cx| port.poll_ready(cx)).await.is_ok() {
        if port.receive() {
            // Sessions and other connections of the worker are served between bursts.
            tokio::task::yield_now().await;
        }
    }
}

/// Ends the sessions of a port when the port is removed.
struct EndSessions(Rc<UdpPort>);

impl Drop for EndSessions {
    fn drop(&mut self) {
        let end = match self.0.worker.draining.get() {
            true => ConnectionEnd::Drain,
            false => ConnectionEnd::ListenerRemoved,
        };
        self.0.sessions.end_all(end);
    }
}

impl UdpPort {
    /// Prepares to serve a port.
    ///
    /// # Errors
    /// When the process has no descriptor, or the kernel refuses an option of the socket.
    pub(super) fn new(worker: Rc<Worker>, bind: Bind, socket: UdpSocket) -> io::Result<Rc<Self>> {
        let io = match worker.datagrams.get() {
            Some(io) => io.clone(),
            None => {
                let io = Rc::new(DatagramIo::new()?);
                worker.datagrams.get_or_init(|| io).clone()
            }
        };
        join_received(&socket);
        if socket.local_addr()?.ip().is_unspecified() {
            with_local_address(&socket)?;
        }
        let sessions = Sessions::new(UdpShare::new(&worker.descriptors));
        Ok(Rc::new(Self {
            worker,
            io,
            bind,
            socket,
            sessions,
            trimmed: Cell::default(),
            answers: RefCell::default(),
            waker: Cell::default(),
        }))
    }

    /// Ready when clients have sent something. Sends the answers of the turn.
    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.send_answers();
        self.waker.set(Some(cx.waker().clone()));
        self.socket.poll_recv_ready(cx)
    }

    /// Forwards what clients have sent. Returns whether there may be more.
    fn receive(self: &Rc<Self>) -> bool {
        let now = self.worker.clock.now();
        if self.trimmed.replace(now) != now {
            self.sessions.trim(now);
        }
        let table = self.worker.table.load();
        for _ in 0..BURST {
            let received = self.io.receive(&self.socket, |datagrams| {
                self.forward(&table, &datagrams);
            });
            // Errors are those of datagrams that were sent before.
            if matches!(received, Ok(false)) {
                return false;
            }
        }
        true
    }

    /// Forwards datagrams of a client. If the endpoint has refused an earlier one, another endpoint is selected.
    fn forward(self: &Rc<Self>, table: &Table, datagrams: &Datagrams<'_>) {
        let path = Path {
            client: datagrams.peer,
            local: datagrams.local,
        };
        let count = datagrams.count() as u64;
        for _ in 0..2 {
            let Some(session) = self.session(table, path) else {
                self.worker.stats.unforwarded.fetch_add(count, Relaxed);
                return;
            };
            match session.flow.send(&self.io, datagrams) {
                Ok(dropped) => {
                    self.on_dropped(dropped as u64);
                    // Where none gets through, the session ends, and the next one may get another endpoint.
                    if (dropped as u64) < count {
                        let idle = self.worker.limits.udp_idle_timeout;
                        session.on_received(datagrams.bytes.len(), idle);
                    }
                    return;
                }
                Err(_) => {
                    session.flow.on_refused();
                    self.sessions.end(&session, ConnectionEnd::RefusedByBackend);
                }
            }
        }
        self.on_dropped(count);
    }

    fn on_dropped(&self, count: u64) {
        if count > 0 {
            let dropped = &self.worker.stats.dropped_datagrams;
            dropped.fetch_add(count, Relaxed);
        }
    }

    /// Returns the session of a client, which begins with its first datagram. A session whose endpoint or backend was
    /// removed is replaced.
    fn session(self: &Rc<Self>, table: &Table, path: Path) -> Option<Rc<Session>> {
        if let Some(session) = self.sessions.get(&path) {
            if self.is_current(table, &session) {
                return Some(session);
            }
            self.sessions.end(&session, ConnectionEnd::BackendRemoved);
        }
        if self.worker.draining.get() {
            return None;
        }
        let opened = self.open(table, path.client)?;
        let deadline = self.worker.clock.deadline();
        deadline.set(self.worker.limits.udp_idle_timeout);
        let (count, stats) = (&self.worker.udp_sessions, &self.worker.stats);
        let session = Session::new(path, opened, deadline, table.generation, count, stats);
        self.sessions.insert(&session);
        spawn_local(serve_session(self.clone(), session.clone()));
        Some(session)
    }

    /// Reports whether datagrams of a session may go on to its endpoint.
    fn is_current(&self, table: &Table, session: &Session) -> bool {
        if session.generation.replace(table.generation) != table.generation {
            let flow = &session.flow;
            let is_target = |rule: &Arc<Rule>| {
                let mut targets = rule.backends().iter().filter(|one| one.has_weight);
                targets
                    .any(|one| matches!(&one.target, BackendTarget::Backend(it) if flow.is_to(it)))
            };
            let rule = self.rule(table, session.path.client);
            if !rule.is_some_and(|(_, rule)| is_target(rule)) {
                return false;
            }
        }
        session.flow.has_endpoint()
    }

    fn rule<'a>(&self, table: &'a Table, client: SocketAddr) -> Option<(&'a Port, &'a Arc<Rule>)> {
        let port = table.port(&self.bind)?;
        Some((port, port.only_rule(client.ip()).ok()?))
    }

    /// Opens a flow for a client, and its record, or counts that there is none.
    fn open(&self, table: &Table, client: SocketAddr) -> Option<(UdpFlow, ConnectionRecord)> {
        let (port, rule) = self.rule(table, client)?;
        let worker = self.worker.id;
        let Some((backend, flow)) = self.open_flow(rule, client) else {
            rule.state.forwarded.failed(worker);
            return None;
        };
        let record = ConnectionRecord::on_port(&self.worker, table, port, client);
        record.matched(rule, worker);
        record.selected(backend);
        record.reached(Some(flow.endpoint()));
        Some((flow, record))
    }

    /// Opens a flow to a backend by weight. If no descriptor is left, an idle session ends.
    fn open_flow<'a>(
        &self,
        rule: &'a Rule,
        client: SocketAddr,
    ) -> Option<(&'a Arc<Backend>, UdpFlow)> {
        let backend = rule.draw_backend()?;
        let now = self.worker.clock.now();
        if self.sessions.are_full() && !self.sessions.evict(Some(client.ip()), now) {
            return None;
        }
        let opened = self.worker.upstream.open_flow(backend, client.ip());
        let opened = opened.inspect_err(|error| {
            tracing::debug!(%error, backend = %backend.id, "cannot forward datagrams");
        });
        Some((backend, opened.ok()?))
    }

    /// Takes what an endpoint has answered. Returns whether there may be more.
    fn answer(&self, session: &Session) -> io::Result<bool> {
        for _ in 0..BURST {
            let received = self.io.receive(&session.flow.socket, |datagrams| {
                self.send_later(&session.path, &datagrams);
                session.flow.on_answered();
                let idle = self.worker.limits.udp_idle_timeout;
                session.on_answered(datagrams.bytes.len(), idle);
            });
            if !received? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends datagrams to a client when the tasks that are ready have had their turn.
    fn send_later(&self, path: &Path, datagrams: &Datagrams<'_>) {
        if !self.answers.borrow().has_room(datagrams) {
            self.send_answers();
        }
        let mut answers = self.answers.borrow_mut();
        if answers.is_empty()
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
        answers.push(path.client, path.local, datagrams);
    }

    fn send_answers(&self) {
        let mut answers = self.answers.borrow_mut();
        if !answers.is_empty() {
            let dropped = answers.send(&self.io, &self.socket);
            self.on_dropped(dropped as u64);
        }
    }
}

/// Serves a session until it ends.
async fn serve_session(port: Rc<UdpPort>, session: Rc<Session>) {
    if let Some(end) = pass_answers(&port, &session).await {
        port.sessions.end(&session, end);
    }
}

/// Passes on what an endpoint answers. Returns why the session must end; `None` if it has ended already.
async fn pass_answers(port: &UdpPort, session: &Session) -> Option<ConnectionEnd> {
    // The refusal of a datagram is an error of the socket.
    let interest = Interest::READABLE | Interest::ERROR;
    while !session.has_ended() {
        let ready = tokio::select! {
            ready = session.flow.socket.ready(interest) => ready,
            end = poll_fn(|cx| poll_due(port, session, cx)) => return Some(end),
        };
        // Fails only with the runtime of the worker.
        let Ok(ready) = ready else {
            return Some(ConnectionEnd::Drain);
        };
        let answered = port.answer(session);
        let is_refused = ready.is_error() && session.flow.take_refusal();
        match answered {
            Ok(_) if is_refused => {}
            Ok(false) => continue,
            Ok(true) => {
                tokio::task::yield_now().await;
                continue;
            }
            Err(_) => {}
        }
        session.flow.on_refused();
        return Some(ConnectionEnd::RefusedByBackend);
    }
    None
}

/// Ready when the session has ended already, or nothing has moved for the idle timeout, or for a moment while the process
/// drains.
fn poll_due(port: &UdpPort, session: &Session, cx: &mut Context<'_>) -> Poll<ConnectionEnd> {
    match port.worker.draining.get() && session.is_quiet() {
        true => Poll::Ready(ConnectionEnd::Drain),
        false => (session.deadline.poll_due(cx)).map(|()| ConnectionEnd::IdleTimeout),
    }
}
