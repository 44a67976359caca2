//! Memory of a worker for bytes that outlive their turn: request bodies for another attempt or an
//! authorization server, queues of copies for mirrors, and messages for and of endpoint pickers. All of them
//! share one budget, encoders of responses share another, and heads and handshakes that are not complete,
//! with ClientHellos that wait for their backend, a third. Of a budget,
//! each client has a share that depends on what is free. No client can use up a budget: a client that
//! asks for too much loses its own replay, copy, compression or connection, or waits.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::task::{Context, Waker};

use slab::Slab;

use crate::ir::cidr::client_network;

/// Budget of the process in bytes, divided among its workers, and the minimum of a worker. The
/// minimum allows 64 full replays of 64 KiB. With the bodies of HTTP/2, what one client can hold stays below 128 MiB with up to
/// four workers.
const PROCESS: usize = 32 * 1024 * 1024;
const MIN: usize = 4 * 1024 * 1024;
/// The same for encoders of responses.
const ENCODERS: usize = 64 * 1024 * 1024;
const MIN_ENCODERS: usize = 8 * 1024 * 1024;
/// The same for heads of requests and handshakes that are not complete.
const UNFINISHED: usize = 32 * 1024 * 1024;
const MIN_UNFINISHED: usize = 4 * 1024 * 1024;
/// Pages of one policy that a worker fetches at the same time.
const PAGES: usize = 64;
/// Part of the free bytes that one connection may hold. An address may hold all that is still free,
/// hence half of the budget, and leaves as much to all others.
const CONNECTION: usize = 8;
/// The same for an encoder, of which a small budget has room for few.
const ENCODER: usize = 1;
/// The same for a head or a handshake: other limits bound how large one is.
const BEGINNING: usize = 1;

/// The budget of one worker.
pub(in crate::proxy) struct Budget {
    limit: usize,
    /// Part of what is free that one share may hold.
    part: usize,
    held: Cell<usize>,
    /// What addresses hold that have connections with kept bytes.
    addresses: RefCell<HashMap<IpAddr, Weak<Cell<usize>>>>,
    /// Who waits until its client may hold more.
    waiting: RefCell<Slab<Waiting>>,
}

/// A task that waits until its client may hold more.
struct Waiting {
    share: Rc<Share>,
    /// What it holds, and what it has asked for.
    held: usize,
    asked: usize,
    /// `None` once it was woken.
    task: Option<Waker>,
}

/// The share of one client connection.
pub(crate) struct Share {
    budget: Rc<Budget>,
    held: Cell<usize>,
    address: IpAddr,
    /// What all connections of the address hold. Most connections never hold anything.
    of_address: OnceCell<Rc<Cell<usize>>>,
}

/// Bytes that are held until dropped.
pub(in crate::proxy) struct Held {
    share: Rc<Share>,
    bytes: usize,
    /// Its entry among those who wait, which has the same number of bytes.
    waiting: Option<usize>,
}

impl Budget {
    /// Creates the budget of one of `workers` workers.
    pub(in crate::proxy) fn of_worker(workers: usize) -> Rc<Self> {
        Self::new((PROCESS / workers.max(1)).max(MIN), CONNECTION)
    }

    /// Creates the budget for encoders of responses, of one of `workers` workers.
    pub(in crate::proxy) fn of_encoders(workers: usize) -> Rc<Self> {
        Self::new((ENCODERS / workers.max(1)).max(MIN_ENCODERS), ENCODER)
    }

    /// Creates the budget for heads and handshakes that are not complete, of one of `workers` workers.
    pub(in crate::proxy) fn of_unfinished(workers: usize) -> Rc<Self> {
        let limit = (UNFINISHED / workers.max(1)).max(MIN_UNFINISHED);
        Self::new(limit, BEGINNING)
    }

    /// Creates the budget for error pages of a policy: one for each page, instead of bytes.
    pub(in crate::proxy) fn of_pages() -> Rc<Self> {
        Self::new(PAGES, CONNECTION)
    }

    fn new(limit: usize, part: usize) -> Rc<Self> {
        Rc::new(Self {
            limit,
            part,
            held: Cell::new(0),
            addresses: RefCell::default(),
            waiting: RefCell::default(),
        })
    }

    /// Returns the share of a new connection from `address`.
    pub(in crate::proxy) fn share(self: &Rc<Self>, address: IpAddr) -> Rc<Share> {
        Rc::new(Share {
            budget: self.clone(),
            held: Cell::new(0),
            address: client_network(address),
            of_address: OnceCell::new(),
        })
    }

    /// Wakes those whose clients may hold what they have asked for.
    fn wake(&self) {
        if self.waiting.borrow().is_empty() {
            return;
        }
        let mut tasks = Vec::new();
        for (_, waiting) in self.waiting.borrow_mut().iter_mut() {
            if waiting.share.permits(waiting.held, waiting.asked) {
                tasks.extend(waiting.task.take());
            }
        }
        tasks.into_iter().for_each(Waker::wake);
    }

    /// Returns the bytes that all clients hold.
    #[cfg(test)]
    pub(in crate::proxy) fn held(&self) -> usize {
        self.held.get()
    }
}

impl Share {
    /// Returns the address of the client, or its network of IPv6.
    pub(crate) fn client(&self) -> IpAddr {
        self.address
    }

    /// Returns what all connections of the address hold.
    fn of_address(&self) -> &Cell<usize> {
        self.of_address.get_or_init(|| {
            let mut addresses = self.budget.addresses.borrow_mut();
            let known = addresses.get(&self.address).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let held = Rc::default();
                addresses.insert(self.address, Rc::downgrade(&held));
                held
            })
        })
    }

    /// Returns what the connection, its address and all clients hold.
    fn cells(&self) -> [&Cell<usize>; 3] {
        [&self.held, self.of_address(), &self.budget.held]
    }

    /// Reports whether the client may hold `bytes` in place of the `held` ones.
    fn permits(&self, held: usize, bytes: usize) -> bool {
        let after = |cell: &Cell<usize>| cell.get() - held + bytes;
        let [of_connection, of_address, of_all] = self.cells().map(after);
        let free = self.budget.limit.saturating_sub(of_all);
        of_connection <= free / self.budget.part && of_address <= free
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let last = self.of_address.take().and_then(Rc::into_inner);
        if last.is_some() {
            self.budget.addresses.borrow_mut().remove(&self.address);
        }
    }
}

impl Held {
    /// Holds nothing yet.
    pub(in crate::proxy) fn none(share: &Rc<Share>) -> Self {
        Self {
            share: share.clone(),
            bytes: 0,
            waiting: None,
        }
    }

    /// Changes the number of bytes. Returns false and changes nothing if the client may not hold
    /// that many.
    pub(in crate::proxy) fn resize(&mut self, bytes: usize) -> bool {
        self.set(bytes, false)
    }

    /// Does what [`Self::resize`] does. If the client may not hold that many, wakes the task once it may.
    pub(in crate::proxy) fn resize_or_wait(&mut self, bytes: usize, cx: &Context<'_>) -> bool {
        if self.resize(bytes) {
            return true;
        }
        self.stop_waiting();
        let waiting = Waiting {
            share: self.share.clone(),
            held: self.bytes,
            asked: bytes,
            task: Some(cx.waker().clone()),
        };
        let key = self.share.budget.waiting.borrow_mut().insert(waiting);
        self.waiting = Some(key);
        false
    }

    /// Does what [`Self::resize`] does, and permits any number of bytes while the client holds no others: those of one
    /// connection have another limit.
    pub(in crate::proxy) fn resize_first(&mut self, bytes: usize) -> bool {
        let is_first = self.share.of_address().get() == self.bytes;
        self.set(bytes, is_first)
    }

    fn set(&mut self, bytes: usize, is_permitted: bool) -> bool {
        if bytes == self.bytes {
            return true;
        }
        let is_freed = bytes < self.bytes;
        if !is_freed && !is_permitted && !self.share.permits(self.bytes, bytes) {
            return false;
        }
        for cell in self.share.cells() {
            cell.set(cell.get() - self.bytes + bytes);
        }
        self.bytes = bytes;
        self.stop_waiting();
        if is_freed {
            self.share.budget.wake();
        }
        true
    }

    fn stop_waiting(&mut self) {
        if let Some(key) = self.waiting.take() {
            let waiting = self.share.budget.waiting.borrow_mut().remove(key);
            // After the borrow: a task that is dropped with its waker may stop waiting itself.
            drop(waiting);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.stop_waiting();
        self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    const LIMIT: usize = 1024 * 1024;

    /// Counts how often a task is woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes all that a new connection from `address` can get, in small steps.
    fn greedy(budget: &Rc<Budget>, address: &str) -> Held {
        let mut held = Held::none(&budget.share(address.parse().unwrap()));
        while held.resize(held.bytes + 16) {}
        held
    }

    #[test]
    fn connection_gets_a_part_of_what_is_free() {
        let budget = Budget::new(LIMIT, CONNECTION);
        let share = budget.share("192.0.2.1".parse().unwrap());
        let (mut first, mut second) = (Held::none(&share), Held::none(&share));
        let most = LIMIT / (CONNECTION + 1) / 2;
        assert!(first.resize(most) && second.resize(most));
        assert!(!first.resize(2 * most) && !Held::none(&share).resize(16));
        assert_eq!(budget.held(), 2 * most);
        assert!(second.resize(0) && first.resize(2 * most));
        drop((first, second));
        assert_eq!((budget.held(), share.held.get()), (0, 0));
    }

    #[test]
    fn greedy_address_leaves_half_to_others() {
        let budget = Budget::new(LIMIT, CONNECTION);
        let networks = ["192.0.2.1", "2001:db8::1", "2001:db8::ffff:1"];
        let hostile: Vec<_> = (0..200).map(|_| greedy(&budget, networks[0])).collect();
        assert!(budget.held() <= LIMIT / 2);
        let polite = greedy(&budget, networks[1]);
        assert!(polite.bytes >= LIMIT / 2 / (CONNECTION + 1) - 16);
        let mut neighbours: Vec<_> = (0..200).map(|_| greedy(&budget, networks[2])).collect();
        neighbours.push(polite);
        let of_network: usize = neighbours.iter().map(|held| held.bytes).sum();
        assert!(of_network <= LIMIT / 4, "{of_network} bytes of one network");
        assert_eq!(budget.addresses.borrow().len(), 2);
        drop((hostile, neighbours));
        assert_eq!((budget.held(), budget.addresses.borrow().len()), (0, 0));
    }

    #[test]
    fn first_bytes_of_a_client_are_permitted() {
        let budget = Budget::new(LIMIT, BEGINNING);
        let held = |address: &str| Held::none(&budget.share(address.parse().unwrap()));
        let (mut first, mut second) = (held("192.0.2.1"), held("192.0.2.1"));
        assert!(first.resize_first(LIMIT) && first.resize_first(2 * LIMIT));
        assert!(!second.resize_first(16));
        let mut other = held("192.0.2.2");
        assert!(!other.resize(16) && other.resize_first(16));
        assert_eq!(budget.held(), 2 * LIMIT + 16);
        drop(first);
        assert!(second.resize_first(16) && budget.held() == 32);
    }

    #[test]
    fn task_is_woken_once_its_client_may_hold_more() {
        let budget = Budget::new(LIMIT, CONNECTION);
        let share = budget.share("192.0.2.1".parse().unwrap());
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let cx = Context::from_waker(&waker);
        let times = || woken.0.load(Ordering::Relaxed);
        let most = LIMIT / (CONNECTION + 1);
        let (mut first, mut second) = (Held::none(&share), Held::none(&share));
        assert!(first.resize(most) && !second.resize_or_wait(16, &cx));
        // What others free is not enough.
        let mut other = Held::none(&budget.share("192.0.2.2".parse().unwrap()));
        assert!(other.resize(16));
        drop(other);
        assert_eq!(times(), 0);
        assert!(first.resize(most / 2) && first.resize(0));
        assert_eq!(times(), 1);
        assert!(second.resize_or_wait(16, &cx) && budget.waiting.borrow().is_empty());
        // One that has left is not woken.
        assert!(first.resize(most - 16) && !second.resize_or_wait(most, &cx));
        drop(second);
        drop(first);
        assert_eq!((times(), budget.held()), (1, 0));
        assert!(budget.waiting.borrow().is_empty());
    }

    #[test]
    fn every_worker_has_room_for_some_replays() {
        assert_eq!(Budget::of_worker(1).limit, PROCESS);
        assert_eq!(Budget::of_worker(4).limit, PROCESS / 4);
        assert_eq!(Budget::of_worker(128).limit, MIN);
    }
}
