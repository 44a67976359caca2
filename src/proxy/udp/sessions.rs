//! The sessions of a UDP port by client address and local address, in bounded number. When there are too many, those of
//! clients that have had no answer and sent nothing more end first, since their addresses may be forged; then those of the
//! client with the most sessions. Must not know how datagrams are forwarded.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::ir::cidr::client_network;
use crate::ir::keyed::KeyedMap;
use crate::proxy::connection_record::ConnectionRecord;
use crate::runtime::clock::Deadline;
use crate::runtime::descriptors::UdpShare;
use crate::telemetry::access_log::ConnectionEnd;
use crate::telemetry::metrics::ConnectionStats;
use crate::upstream::UdpFlow;

/// Number of sessions that one search finds to end.
const BATCH: usize = 256;
/// Time without a datagram after which a session is quiet, in milliseconds.
const QUIET: u64 = 1000;
/// Number of sessions of a client up to which those in use do not end for other clients.
const CROWD: u32 = 64;

/// Both ends of the datagrams of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Path {
    /// Address of the client.
    pub(super) client: SocketAddr,
    /// The local address to which it sends. `None` if the socket has only one.
    pub(super) local: Option<IpAddr>,
}

/// A client and the flow of its datagrams.
pub(super) struct Session {
    pub(super) path: Path,
    pub(super) flow: UdpFlow,
    record: ConnectionRecord,
    pub(super) deadline: Deadline,
    /// The table in which its backend was looked up last.
    pub(super) generation: Cell<u64>,
    /// Clock time of the last datagram.
    last: Cell<u64>,
    is_answered: Cell<bool>,
    /// Whether the client has sent something after an answer.
    is_assured: Cell<bool>,
    has_ended: Cell<bool>,
    /// Number of the worker's sessions.
    count: Rc<Cell<usize>>,
    stats: Arc<ConnectionStats>,
}

impl Session {
    /// Begins a session.
    pub(super) fn new(
        path: Path,
        (flow, record): (UdpFlow, ConnectionRecord),
        deadline: Deadline,
        generation: u64,
        count: &Rc<Cell<usize>>,
        stats: &Arc<ConnectionStats>,
    ) -> Rc<Self> {
        stats.udp_sessions.fetch_add(1, Relaxed);
        count.set(count.get() + 1);
        Rc::new(Self {
            path,
            flow,
            record,
            generation: Cell::new(generation),
            last: Cell::new(deadline.clock().now()),
            deadline,
            is_answered: Cell::new(false),
            is_assured: Cell::new(false),
            has_ended: Cell::new(false),
            count: count.clone(),
            stats: stats.clone(),
        })
    }

    /// Records datagrams of the client, with their bytes.
    pub(super) fn on_received(&self, bytes: usize, idle: Duration) {
        count(&self.record.received, bytes);
        self.is_assured
            .set(self.is_assured.get() || self.is_answered.get());
        self.on_moved(idle);
    }

    /// Records datagrams of the endpoint, with their bytes.
    pub(super) fn on_answered(&self, bytes: usize, idle: Duration) {
        count(&self.record.sent, bytes);
        self.is_answered.set(true);
        self.on_moved(idle);
    }

    fn on_moved(&self, idle: Duration) {
        self.record.on_moved();
        self.last.set(self.deadline.clock().now());
        self.deadline.set(idle);
    }

    /// Returns the client that it counts for.
    fn client(&self) -> IpAddr {
        client_network(self.path.client.ip())
    }

    /// Reports whether it is of a client that has sent something after an answer, and has moved datagrams lately.
    fn is_in_use(&self) -> bool {
        self.is_assured.get() && !self.is_quiet()
    }

    /// Reports whether it must not be used any more.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.get()
    }

    /// Reports whether nothing has moved for a moment.
    pub(super) fn is_quiet(&self) -> bool {
        self.deadline.clock().now().saturating_sub(self.last.get()) >= QUIET
    }

    fn end(&self, end: ConnectionEnd) {
        if !self.has_ended.replace(true) {
            self.record.end(end);
            self.stats.udp_sessions_ended.fetch_add(1, Relaxed);
            self.count.set(self.count.get() - 1);
            self.deadline.expire();
        }
    }
}

fn count(counter: &Cell<u64>, bytes: usize) {
    counter.set(counter.get() + bytes as u64);
}

/// The sessions of a port.
pub(super) struct Sessions {
    share: UdpShare,
    by_path: RefCell<KeyedMap<Path, Rc<Session>>>,
    /// Number of sessions by client.
    by_client: RefCell<KeyedMap<IpAddr, u32>>,
    /// The result of the last search, the next one to end last.
    found: RefCell<Vec<Rc<Session>>>,
    /// Clock time of the last search after which nothing could end. The next one waits for a later time.
    found_nothing: Cell<Option<u64>>,
}

impl Sessions {
    /// Holds at most as many sessions as its share permits when one is added.
    pub(super) fn new(share: UdpShare) -> Self {
        Self {
            share,
            by_path: RefCell::default(),
            by_client: RefCell::default(),
            found: RefCell::default(),
            found_nothing: Cell::default(),
        }
    }

    /// Returns the session of a client.
    pub(super) fn get(&self, path: &Path) -> Option<Rc<Session>> {
        self.by_path.borrow().get(path).cloned()
    }

    /// Adds a session.
    pub(super) fn insert(&self, session: &Rc<Session>) {
        let mut sessions = self.by_path.borrow_mut();
        if sessions.insert(session.path, session.clone()).is_none() {
            let mut by_client = self.by_client.borrow_mut();
            *by_client.entry(session.client()).or_default() += 1;
        }
    }

    /// Ends a session.
    pub(super) fn end(&self, session: &Rc<Session>, end: ConnectionEnd) {
        session.end(end);
        let mut sessions = self.by_path.borrow_mut();
        if sessions
            .get(&session.path)
            .is_some_and(|known| Rc::ptr_eq(known, session))
        {
            sessions.remove(&session.path);
            // Memory of a burst of clients goes back.
            if sessions.len() < sessions.capacity() / 8 {
                sessions.shrink_to_fit();
            }
            self.stop_counting(session.client());
        }
    }

    fn stop_counting(&self, client: IpAddr) {
        let mut by_client = self.by_client.borrow_mut();
        if let Some(count) = by_client.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                by_client.remove(&client);
            }
        }
        if by_client.len() < by_client.capacity() / 8 {
            by_client.shrink_to_fit();
        }
    }

    /// Ends all sessions.
    pub(super) fn end_all(&self, end: ConnectionEnd) {
        let sessions = std::mem::take(&mut *self.by_path.borrow_mut());
        sessions.values().for_each(|session| session.end(end));
        self.by_client.borrow_mut().clear();
        self.found.borrow_mut().clear();
    }

    /// Reports whether a session must end before another one begins.
    pub(super) fn are_full(&self) -> bool {
        self.len() >= self.share.sessions()
    }

    fn len(&self) -> usize {
        self.by_path.borrow().len()
    }

    /// Ends sessions beyond the share, which is less than before if there are more ports. `now` is the clock time.
    pub(super) fn trim(&self, now: u64) {
        let excess = self.len().saturating_sub(self.share.sessions());
        for _ in 0..excess.min(BATCH) {
            if !self.evict(None, now) {
                return;
            }
        }
    }

    /// Ends the session that may end first, for a new one of `for_client`. Returns false if there is none. `now` is the clock
    /// time.
    pub(super) fn evict(&self, for_client: Option<IpAddr>, now: u64) -> bool {
        let for_client = for_client.map(client_network);
        if self.evict_found(for_client) {
            return true;
        }
        // A search visits all sessions: not for each datagram of clients that get none.
        if self.found_nothing.get() == Some(now) {
            return false;
        }
        self.found.replace(self.search());
        let has_ended = self.evict_found(for_client);
        if !has_ended {
            self.found_nothing.set(Some(now));
        }
        has_ended
    }

    /// Ends the first session of the last search that may end. Returns false if there is none.
    fn evict_found(&self, for_client: Option<IpAddr>) -> bool {
        loop {
            let Some(session) = self.found.borrow_mut().pop() else {
                return false;
            };
            if session.has_ended() {
                continue;
            }
            // One that was used since the search no longer is the first to end.
            if session.is_in_use() {
                let count = self.count_of(session.client());
                if count <= CROWD {
                    continue;
                }
                // Clients with about as many do not take each other's places without an end.
                if for_client.is_some_and(|client| count <= 2 * self.count_of(client)) {
                    self.found.borrow_mut().push(session);
                    return false;
                }
            }
            self.end(&session, ConnectionEnd::Evicted);
            return true;
        }
    }

    fn count_of(&self, client: IpAddr) -> u32 {
        let by_client = self.by_client.borrow();
        by_client.get(&client).copied().unwrap_or_default()
    }

    fn search(&self) -> Vec<Rc<Session>> {
        let sessions = self.by_path.borrow();
        let mut all: Vec<_> = sessions
            .values()
            .map(|session| {
                let count = Reverse(self.count_of(session.client()));
                (
                    (session.is_assured.get(), count, session.last.get()),
                    session,
                )
            })
            .collect();
        let count = BATCH.min(all.len().div_ceil(2));
        if count < all.len() {
            all.select_nth_unstable_by_key(count, |(order, _)| *order);
            all.truncate(count);
        }
        all.sort_unstable_by_key(|(order, _)| Reverse(*order));
        all.into_iter()
            .map(|(_, session)| session.clone())
            .collect()
    }
}
