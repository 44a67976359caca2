//! UDP ports: forwards the datagrams of each client address to one endpoint, and those of the endpoint back. A worker
//! receives all datagrams of a port. Nothing is queued: a datagram that a full socket does not take is dropped, as on any
//! hop.

mod sessions;

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::task::spawn_local;

use self::sessions::{Session, Sessions};
use super::worker_state::Worker;
use crate::ir::Bind;
use crate::table::{BackendTarget, Rule, Table};
use crate::upstream::UdpFlow;

/// Size of a buffer for one datagram: the largest has 65,507 bytes (RFC 768, with the header of RFC 791).
const DATAGRAM: usize = 64 * 1024;
/// Maximum number of datagrams that are read from a socket before others get their turn.
const BURST: usize = 64;

thread_local! {
    /// What a read fills. The sockets of a worker share it, since a datagram leaves it before the next read.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; DATAGRAM].into());
}

/// A UDP port.
struct UdpPort {
    worker: Rc<Worker>,
    bind: Bind,
    socket: UdpSocket,
    sessions: Sessions,
}

/// Serves a port until the task is aborted.
pub(super) async fn serve(worker: Rc<Worker>, bind: Bind, socket: UdpSocket) {
    let sessions = Sessions::new(worker.descriptors.udp_sessions(worker.loads.len()));
    let port = Rc::new(UdpPort {
        worker,
        bind,
        socket,
        sessions,
    });
    let _ends = EndSessions(port.clone());
    while port.socket.readable().await.is_ok() {
        SCRATCH.with_borrow_mut(|buffer| port.receive(buffer));
        // Sessions and other connections of the worker are served between bursts.
        tokio::task::yield_now().await;
    }
}

/// Ends the sessions of a port when the port is removed.
struct EndSessions(Rc<UdpPort>);

impl Drop for EndSessions {
    fn drop(&mut self) {
        self.0.sessions.end_all();
    }
}

impl UdpPort {
    /// Forwards what clients have sent.
    fn receive(self: &Rc<Self>, buffer: &mut [u8]) {
        let table = self.worker.table.load();
        for _ in 0..BURST {
            match self.socket.try_recv_from(buffer) {
                Ok((length, client)) => self.forward(&table, client, &buffer[..length]),
                // Of a datagram that was sent before.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(_) => return,
            }
        }
    }

    /// Forwards a datagram. If the endpoint has refused an earlier one, another endpoint is selected.
    fn forward(self: &Rc<Self>, table: &Table, client: SocketAddr, datagram: &[u8]) {
        for _ in 0..2 {
            let Some(session) = self.session(table, client) else {
                self.worker.stats.unforwarded.fetch_add(1, Relaxed);
                return;
            };
            match session.flow.send(datagram) {
                Ok(_) => return session.on_received(self.worker.limits.udp_idle_timeout),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    session.flow.on_refused();
                    self.sessions.end(&session);
                }
                Err(_) => break,
            }
        }
        self.worker.stats.dropped_datagrams.fetch_add(1, Relaxed);
    }

    /// Returns the session of a client, which begins with its first datagram. A session whose endpoint or backend was
    /// removed is replaced.
    fn session(self: &Rc<Self>, table: &Table, client: SocketAddr) -> Option<Rc<Session>> {
        if let Some(session) = self.sessions.get(client) {
            if self.is_current(table, &session) {
                return Some(session);
            }
            self.sessions.end(&session);
        }
        if self.worker.draining.get() {
            return None;
        }
        let flow = self.open(table)?;
        let deadline = self.worker.clock.deadline();
        deadline.set(self.worker.limits.udp_idle_timeout);
        let (count, stats) = (&self.worker.udp_sessions, &self.worker.stats);
        let session = Session::new(client, flow, deadline, table.generation, count, stats);
        self.sessions.insert(&session);
        spawn_local(serve_session(self.clone(), session.clone()));
        Some(session)
    }

    /// Reports whether datagrams of a session may go on to its endpoint.
    fn is_current(&self, table: &Table, session: &Session) -> bool {
        if session.generation.replace(table.generation) != table.generation {
            let backend = &session.flow.backend().id;
            let is_target = |rule: &Arc<Rule>| {
                let mut targets = rule.backends().iter().filter(|one| one.has_weight);
                targets.any(
                    |one| matches!(&one.target, BackendTarget::Backend(it) if it.id == *backend),
                )
            };
            if !self.rule(table).is_some_and(is_target) {
                return false;
            }
        }
        session.flow.has_endpoint()
    }

    fn rule<'a>(&self, table: &'a Table) -> Option<&'a Arc<Rule>> {
        table.port(&self.bind)?.only_rule()
    }

    /// Opens a flow to a backend by weight. If no descriptor is left, an idle session ends.
    fn open(&self, table: &Table) -> Option<UdpFlow> {
        let backend = self.rule(table)?.draw_backend()?;
        if self.sessions.are_full() && !self.sessions.evict() {
            return None;
        }
        self.worker
            .upstream
            .open_flow(backend)
            .inspect_err(|error| {
                tracing::debug!(%error, backend = %backend.id, "cannot forward datagrams");
            })
            .ok()
    }
}

/// Sends what an endpoint answers to its client, until the session ends.
async fn serve_session(port: Rc<UdpPort>, session: Rc<Session>) {
    // The refusal of a datagram is an error of the socket.
    let interest = Interest::READABLE | Interest::ERROR;
    while !session.has_ended() {
        let ready = tokio::select! {
            ready = session.flow.socket.ready(interest) => ready,
            () = poll_fn(|cx| poll_due(&port, &session, cx)) => break,
        };
        let Ok(ready) = ready else { break };
        let answered = SCRATCH.with_borrow_mut(|buffer| answer(&port, &session, buffer));
        let is_refused = ready.is_error() && session.flow.take_refusal();
        if is_refused || answered.is_err() {
            session.flow.on_refused();
            break;
        }
        tokio::task::yield_now().await;
    }
    port.sessions.end(&session);
}

/// Ready when the session has ended, or nothing has moved for the idle timeout, or for a moment while the process drains.
fn poll_due(port: &UdpPort, session: &Session, cx: &mut Context<'_>) -> Poll<()> {
    match port.worker.draining.get() && session.is_quiet() {
        true => Poll::Ready(()),
        false => session.deadline.poll_due(cx),
    }
}

fn answer(port: &UdpPort, session: &Session, buffer: &mut [u8]) -> io::Result<()> {
    for _ in 0..BURST {
        let length = match session.flow.socket.try_recv(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            result => result?,
        };
        session.flow.on_answered();
        session.on_answered(port.worker.limits.udp_idle_timeout);
        let sent = port.socket.try_send_to(&buffer[..length], session.client);
        if sent.is_err() {
            port.worker.stats.dropped_datagrams.fetch_add(1, Relaxed);
        }
    }
    Ok(())
}
