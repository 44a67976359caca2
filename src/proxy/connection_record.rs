//! The record of one connection or session that is forwarded as it is, from its begin to its end. Counts it among those of its
//! rule, and writes its line of the access log when it ends. Without memory of its own if nothing logs it.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use crate::ir::{
    BackendId, GatewayLog, ListenerKey, PortProtocol, RouteKind, RuleId, Tracing, Transport,
};
use crate::proxy::worker_state::Worker;
use crate::proxy::worker_state::port::PortState;
use crate::runtime::per_worker::WorkerId;
use crate::table::{Backend, Listener, Port, Rule, RuleState, Table};
use crate::telemetry::access_log::{Connection, ConnectionEnd};
use crate::telemetry::trace::{Item, LogRecord};

/// The record of a connection or session in progress.
#[derive(Default)]
pub(super) struct ConnectionRecord {
    /// Bytes of the client that were forwarded.
    pub(super) received: Cell<u64>,
    /// Bytes that the client was sent.
    pub(super) sent: Cell<u64>,
    /// What its line needs; `None` if there is no line, or it is written already.
    open: RefCell<Option<Box<Open>>>,
    /// Where it is counted, from when its rule is known to its end.
    counted: RefCell<Option<Counted>>,
}

/// A connection or session among those of its rule.
struct Counted {
    rule: Arc<RuleState>,
    worker: WorkerId,
    transport: Transport,
    /// The bytes that its rule has counted: those of the client, and those that the client was sent.
    moved: (u64, u64),
}

/// What a line needs beside the counts of bytes.
struct Open {
    worker: Rc<Worker>,
    start: Instant,
    client: SocketAddr,
    protocol: PortProtocol,
    port: u16,
    server_name: Option<Box<str>>,
    listener: Option<ListenerKey>,
    rule: Option<RuleId>,
    backend: Option<BackendId>,
    upstream: Option<SocketAddr>,
    /// The policy whose collector gets the line, instead of the log of the process.
    log: Option<Arc<Tracing>>,
    /// What a policy says about the line.
    log_settings: Option<Arc<GatewayLog>>,
}

impl ConnectionRecord {
    /// Begins the record of a connection to a port.
    pub(super) fn begin(worker: &Rc<Worker>, port: &PortState, client: SocketAddr) -> Self {
        let table = worker.table.load();
        match port.configured(&table) {
            Some(port) => Self::on_port(worker, &table, port, client),
            None => Self::default(),
        }
    }

    /// Begins the record of a connection to a port of this table, or of a session there.
    pub(super) fn on_port(
        worker: &Rc<Worker>,
        table: &Table,
        port: &Port,
        client: SocketAddr,
    ) -> Self {
        Self::of(Open::begin(worker, table, port, client))
    }

    fn of(open: Option<Box<Open>>) -> Self {
        Self {
            received: Cell::default(),
            sent: Cell::default(),
            open: RefCell::new(open),
            counted: RefCell::default(),
        }
    }

    /// Records the address of the client, if it is not that of the connection.
    pub(super) fn comes_from(&self, client: SocketAddr) {
        self.note(|open| open.client = canonical(client));
    }

    /// Records the server name of a ClientHello, in lower case, and the listener for it. Forgets a connection whose client
    /// sends requests.
    pub(super) fn greeted(&self, name: Option<&str>, listener: Option<&Listener>) {
        if listener.is_some_and(Listener::is_http) {
            return self.discard();
        }
        self.note(|open| {
            open.server_name = name.map(Into::into);
            open.listener = listener.map(|listener| listener.ir.key.clone());
        });
    }

    /// Records the rule, and counts the connection or session among those of the rule.
    pub(super) fn matched(&self, rule: &Rule, worker: WorkerId) {
        self.note(|open| open.rule = Some(rule.ir.id.clone()));
        rule.state.forwarded.enter(worker);
        self.counted.replace(Some(Counted {
            rule: rule.state.clone(),
            worker,
            transport: match rule.kind() {
                RouteKind::Udp => Transport::Udp,
                _ => Transport::Tcp,
            },
            moved: (0, 0),
        }));
    }

    /// Counts the bytes that have moved since the last call among those of the rule.
    pub(super) fn on_moved(&self) {
        if let Some(counted) = &mut *self.counted.borrow_mut() {
            counted.on_moved((self.received.get(), self.sent.get()));
        }
    }

    /// Records the selected backend.
    pub(super) fn selected(&self, backend: &Backend) {
        self.note(|open| open.backend = Some(backend.id.clone()));
    }

    /// Records the endpoint that was connected to or tried last.
    pub(super) fn reached(&self, endpoint: Option<SocketAddr>) {
        self.note(|open| open.upstream = endpoint);
    }

    /// Takes the record to another place, before its rule is recorded.
    pub(super) fn take(&self) -> Self {
        Self::of(self.open.take())
    }

    /// Forgets what turns out to be no connection that is forwarded as it is.
    pub(super) fn discard(&self) {
        self.open.take();
    }

    /// Records the end, of which the first one counts.
    pub(super) fn end(&self, end: ConnectionEnd) {
        let moved = (self.received.get(), self.sent.get());
        if let Some(counted) = self.counted.take() {
            counted.end(moved, end);
        }
        if let Some(open) = self.open.take() {
            open.write(moved, end);
        }
    }

    fn note(&self, note: impl FnOnce(&mut Open)) {
        if let Some(open) = &mut *self.open.borrow_mut() {
            note(open);
        }
    }
}

impl Drop for ConnectionRecord {
    /// Tasks are dropped only with their worker.
    fn drop(&mut self) {
        self.end(ConnectionEnd::Drain);
    }
}

impl Counted {
    fn on_moved(&mut self, (received, sent): (u64, u64)) {
        let before = std::mem::replace(&mut self.moved, (received, sent));
        let (received, sent) = (
            received.saturating_sub(before.0),
            sent.saturating_sub(before.1),
        );
        self.rule.forwarded.moved(self.worker, received, sent);
    }

    fn end(mut self, moved: (u64, u64), end: ConnectionEnd) {
        self.on_moved(moved);
        if end.error(self.transport).is_some() {
            self.rule.forwarded.failed(self.worker);
        }
        self.rule.forwarded.leave(self.worker);
    }
}

impl Open {
    /// Returns `None` if nothing logs a connection to the port.
    fn begin(
        worker: &Rc<Worker>,
        table: &Table,
        port: &Port,
        client: SocketAddr,
    ) -> Option<Box<Self>> {
        let gateway = &port.ir.gateway;
        let log = table.ir.tracing.get(gateway).filter(|it| it.access_log);
        if !port.forwards() || (log.is_none() && !worker.access_log.is_enabled()) {
            return None;
        }
        let protocol = port.protocol();
        // That of a TLS port is known once its client has sent a ClientHello.
        let listener = port.listeners().first();
        let listener = listener.filter(|_| protocol != PortProtocol::Tls);
        Some(Box::new(Self {
            worker: worker.clone(),
            start: Instant::now(),
            client: canonical(client),
            protocol,
            port: port.bind().port,
            server_name: None,
            listener: listener.map(|listener| listener.ir.key.clone()),
            rule: None,
            backend: None,
            upstream: None,
            log: log.cloned(),
            log_settings: table.ir.access_logs.get(gateway).cloned(),
        }))
    }

    fn write(self, (received, sent): (u64, u64), end: ConnectionEnd) {
        let connection = Connection {
            start: self.start,
            duration: self.start.elapsed(),
            client: self.client,
            protocol: self.protocol,
            port: self.port,
            server_name: self.server_name.as_deref(),
            listener: self.listener.as_ref(),
            bytes_received: received,
            bytes_sent: sent,
            rule: self.rule.as_ref(),
            backend: self.backend.as_ref(),
            upstream: self.upstream,
            end,
        };
        let (worker, settings) = (&self.worker, self.log_settings.as_deref());
        let Some(tracing) = self.log else {
            return worker
                .access_log
                .log_connection(&connection, &worker.clock, settings);
        };
        let outcome = (None, connection.error());
        let duration = connection.duration;
        if let Some(line) = connection.into_text(settings) {
            let record = LogRecord::new(tracing, None, duration, outcome, line);
            worker.traces.add(Item::Record(record));
        }
    }
}

/// Returns an address as it is in IPv4, if it is mapped to one of IPv6: a dual-stack socket reports it so.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
