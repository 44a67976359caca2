//! The QUIC ports of a worker: accepts connections for itself, and reads those sockets for all workers that are its part.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle, spawn_local};
use tokio::time::timeout;

use super::connection::http3_limits::quic_limits;
use super::connection::quic;
use super::worker_state::port::limits_of;
use super::worker_state::quic_socket::{QuicSocket, Reading};
use super::worker_state::{Counted, OpenConnection, Worker};
use crate::http3::Code;
use crate::ir::{Bind, Transport};
use crate::quic::{Acceptor, Handshake, HandshakeCount, Receiver};
use crate::settings::Limits;
use crate::table::Table;

/// Maximum time to close the connections of a port.
const CLOSING: Duration = Duration::from_millis(500);

/// The QUIC ports of one worker.
#[derive(Default)]
pub(super) struct QuicPorts {
    open: BTreeMap<Bind, QuicPort>,
    handshakes: HandshakeCount,
    /// The tasks that read sockets.
    readers: Vec<JoinHandle<()>>,
}

struct QuicPort {
    acceptor: Rc<Acceptor>,
    /// Whether its connections have to drain.
    closing: Rc<Cell<bool>>,
    accepting: AbortHandle,
    /// Keeps the reader of the socket.
    in_use: mpsc::UnboundedSender<Infallible>,
}

/// Returns the TCP port beside which a QUIC port is bound.
fn beside(bind: Bind) -> Bind {
    Bind {
        transport: Transport::Tcp,
        ..bind
    }
}

/// Returns the limits of a port of this table.
fn limits(worker: &Worker, table: &Table, bind: Bind) -> crate::quic::Limits {
    let port = table.port(&beside(bind));
    let limits = port.map_or_else(
        || Limits::clone(&worker.limits),
        |port| limits_of(port, &worker.limits),
    );
    quic_limits(&limits, worker.loads.len())
}

impl QuicPorts {
    /// Serves a port.
    ///
    /// # Errors
    /// When the process has no descriptor, or the reactor cannot watch the socket.
    pub(super) fn listen(
        &mut self,
        worker: &Rc<Worker>,
        bind: Bind,
        socket: QuicSocket,
    ) -> io::Result<()> {
        let QuicSocket {
            port,
            keys,
            choose,
            in_use,
            reading,
        } = socket;
        let address = port.socket.local_addr().ip();
        if let Some(Reading { inboxes, unused }) = reading {
            let receiver = Receiver::new(port.socket.clone(), port.router.clone(), inboxes)?;
            self.readers.retain(|reader| !reader.is_finished());
            self.readers
                .push(spawn_local(read(worker.clone(), receiver, unused)));
        }
        let limits = limits(worker, &worker.table.load(), bind);
        let acceptor = Acceptor::new(port, &keys, limits, self.handshakes.clone(), choose)?;
        let (acceptor, closing) = (Rc::new(acceptor), Rc::default());
        let accepting = Accepting {
            worker: worker.clone(),
            bind: beside(bind),
            address,
            closing: Rc::clone(&closing),
        };
        let accepting = spawn_local(accepting.run(acceptor.clone())).abort_handle();
        let port = QuicPort {
            acceptor,
            closing,
            accepting,
            in_use,
        };
        if let Some(old) = self.open.insert(bind, port) {
            old.close();
        }
        Ok(())
    }

    /// Serves no new clients of a port. Its connections drain.
    pub(super) fn close(&mut self, bind: Bind) {
        if let Some(port) = self.open.remove(&bind) {
            port.close();
        }
    }

    /// Applies the limits of a table to new connections.
    pub(super) fn set_limits(&self, worker: &Worker, table: &Table) {
        for (bind, port) in &self.open {
            port.acceptor.set_limits(limits(worker, table, *bind));
        }
    }

    /// Serves no new clients, since the worker drains.
    pub(super) fn refuse_new(&self) {
        for port in self.open.values() {
            port.acceptor.refuse_new();
        }
    }

    /// Tells clients that their connections have ended, and reads sockets until no worker needs that any more.
    pub(super) async fn finish(&mut self) {
        for port in std::mem::take(&mut self.open).into_values() {
            let code = Code::NoError.value() as u32;
            port.acceptor.close(code, b"");
            // The worker ends all the same.
            let _ = timeout(CLOSING, port.acceptor.wait_idle()).await;
            drop(port);
        }
        for reader in std::mem::take(&mut self.readers) {
            // Fails only if the reader has panicked.
            let _ = reader.await;
        }
    }
}

impl QuicPort {
    /// Drains the connections, and lets the reader of the socket end after the last one. Until then, new clients are refused.
    fn close(self) {
        self.closing.set(true);
        self.acceptor.refuse_new();
        spawn_local(async move {
            self.acceptor.wait_idle().await;
            self.accepting.abort();
            drop(self.in_use);
        });
    }
}

/// Reads a socket while a worker may have connections.
async fn read(
    worker: Rc<Worker>,
    receiver: Receiver,
    mut unused: mpsc::UnboundedReceiver<Infallible>,
) {
    let on_dropped = |count| {
        worker.stats.dropped_datagrams.fetch_add(count, Relaxed);
    };
    tokio::select! {
        outcome = receiver.run(on_dropped) => if let Err(error) = outcome {
            tracing::error!(%error, "cannot read a QUIC socket");
        },
        // Nothing is ever sent: it closes.
        _ = unused.recv() => {}
    }
}

/// Accepts the connections of a worker to a port.
#[derive(Clone)]
struct Accepting {
    worker: Rc<Worker>,
    /// The TCP port beside it.
    bind: Bind,
    /// The address to which the socket is bound.
    address: IpAddr,
    closing: Rc<Cell<bool>>,
}

impl Accepting {
    async fn run(self, acceptor: Rc<Acceptor>) {
        // A client that may have forged its address must not evict another one.
        while let Some(handshake) = acceptor.accept(|| self.worker.is_full()).await {
            self.serve(handshake);
        }
    }

    /// Serves a connection. At the limit, it replaces an idle one of the worker or, as over TCP, of another one.
    fn serve(&self, handshake: Handshake) {
        let worker = &self.worker;
        worker.stats.accepted.fetch_add(1, Relaxed);
        if !worker.is_full() || worker.evict() {
            return self.begin(handshake);
        }
        let accepting = self.clone();
        spawn_local(async move {
            match accepting.worker.evict_elsewhere().await {
                true => accepting.begin(handshake),
                false => accepting.worker.refuse(),
            }
        });
    }

    fn begin(&self, handshake: Handshake) {
        let worker = &self.worker;
        let counted = Counted::new(worker.id.index(), &worker.loads, &worker.stats);
        let local = handshake.local().unwrap_or(self.address).to_canonical();
        let port = worker.ports.of(self.bind, local, &worker.table.load());
        let Some(port) = port else { return };
        let open = OpenConnection::new(worker.clone(), counted);
        spawn_local(quic::serve(open, port, self.closing.clone(), handshake));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quic_ports_are_beside_their_tcp_ports() {
        let tcp = Bind::tcp(None, 443);
        assert_eq!(beside(tcp.quic()), tcp);
        assert_ne!(tcp.quic(), tcp);
        assert_eq!(tcp.quic().to_string(), "*:443/quic");
    }
}
