//! Memory of a worker for bytes that outlive their turn: request bodies for another attempt or an
//! authorization server, queues of copies for mirrors, and messages for and of endpoint pickers. All of them
//! share one budget, encoders of responses share another, heads and handshakes that are not complete,
//! with ClientHellos that wait for their backend, a third, and what QUIC holds of responses a fourth. Of a budget,
//! each client has a share that depends on what is free. No client can use up a budget: a client that
//! asks for too much loses its own replay, copy, compression or connection, or waits.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::task::{Context, Waker};

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
/// The same for responses that clients of HTTP/3 have not acknowledged. The minimum lets two clients have the largest window of a
/// connection.
const SEND_WINDOWS: usize = 48 * 1024 * 1024;
const MIN_SEND_WINDOWS: usize = 16 * 1024 * 1024;
/// Pages of one policy that a worker fetches at the same time.
const PAGES: usize = 64;
/// Part of the free bytes that one connection may hold. An address may hold all that is still free,
/// hence half of the budget, and leaves as much to all others.
const CONNECTION: usize = 8;
/// The same for the bodies that a request keeps for an endpoint picker, of which a small budget has room for few.
const PICKED: usize = 1;
/// The same for an encoder, of which a small budget has room for few.
const ENCODER: usize = 1;
/// The same for a head or a handshake: other limits bound how large one is.
const BEGINNING: usize = 1;
/// The same for a window, of which a small budget has room for few.
const WINDOW: usize = 1;

/// The budget of one worker.
pub(in crate::proxy) struct Budget {
    limit: usize,
    /// Part of what is free that the share of a connection may hold.
    part: usize,
    held: Cell<usize>,
    /// The addresses that have connections with kept bytes.
    addresses: RefCell<HashMap<IpAddr, Weak<Address>>>,
    /// The addresses with tasks that wait, by what has to be free for the first one of each.
    waiting: RefCell<BTreeMap<QueueKey, Rc<Address>>>,
    /// Number of tasks that have begun to wait.
    arrivals: Cell<u64>,
}

/// A place in a queue: the bytes that are needed, and the number of the task that needs them.
type QueueKey = (usize, u64);

/// What all connections of an address share.
#[derive(Default)]
struct Address {
    held: Cell<usize>,
    /// Its connections with tasks that wait, by what has to be free for the first one of each, as far as the connection
    /// decides.
    waiting: RefCell<BTreeMap<QueueKey, Rc<Share>>>,
    /// Its place among the addresses that wait.
    place: Cell<Option<QueueKey>>,
}

/// A task that waits until its client may hold more.
struct Waiter {
    /// The bytes that it has asked for beyond those that it holds.
    more: usize,
    number: u64,
    /// `None` once it was woken.
    task: Cell<Option<Waker>>,
    /// Whether it has got the bytes, which count since then.
    is_granted: Cell<bool>,
}

/// The share of one client connection, or of a request.
pub(crate) struct Share {
    budget: Rc<Budget>,
    /// Part of what is free that it may hold.
    part: usize,
    held: Cell<usize>,
    address: IpAddr,
    /// Most connections never hold anything.
    of_address: OnceCell<Rc<Address>>,
    /// Its tasks that wait, by the bytes that they have asked for.
    waiting: RefCell<BTreeMap<QueueKey, Rc<Waiter>>>,
    /// Its place among the connections of the address that wait.
    place: Cell<Option<QueueKey>>,
}

/// Bytes that are held until dropped.
pub(in crate::proxy) struct Held {
    share: Rc<Share>,
    bytes: usize,
    /// Its entry among those who wait, until it has taken what was granted.
    waiting: Option<Rc<Waiter>>,
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

    /// Creates the budget for what QUIC holds of responses, of one of `workers` workers.
    pub(in crate::proxy) fn of_send_windows(workers: usize) -> Rc<Self> {
        let limit = (SEND_WINDOWS / workers.max(1)).max(MIN_SEND_WINDOWS);
        Self::new(limit, WINDOW)
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
            arrivals: Cell::new(0),
        })
    }

    /// Returns the share of a new connection from `address`.
    pub(in crate::proxy) fn share(self: &Rc<Self>, address: IpAddr) -> Rc<Share> {
        self.share_of(client_network(address), self.part)
    }

    fn share_of(self: &Rc<Self>, address: IpAddr, part: usize) -> Rc<Share> {
        Rc::new(Share {
            budget: self.clone(),
            part,
            held: Cell::new(0),
            address,
            of_address: OnceCell::new(),
            waiting: RefCell::default(),
            place: Cell::new(None),
        })
    }

    fn free(&self) -> usize {
        self.limit.saturating_sub(self.held.get())
    }

    /// Puts a connection and its address at their places among those that wait, and grants what is free. To be called after any
    /// change while somebody waits.
    fn update(&self, share: &Rc<Share>) {
        self.place(share);
        self.grant();
    }

    fn place(&self, share: &Rc<Share>) {
        let address = share.of_address();
        let of_share = first(&share.waiting);
        let of_share = of_share.map(|((more, number), _)| (share.needs(more), number));
        relocate(&address.waiting, &share.place, of_share, share);
        let of_address = first(&address.waiting).and_then(|((needs, number), share)| {
            let ((more, _), _) = first(&share.waiting)?;
            Some((needs.max(address.needs(more)), number))
        });
        relocate(&self.waiting, &address.place, of_address, address);
    }

    /// Wakes those whose clients may hold what they have asked for, which is theirs from then on: one that does not need it any
    /// more frees it for the next. Looks at none of those that have to wait on, except for the first.
    fn grant(&self) {
        let mut tasks = Vec::new();
        while let Some(((needs, _), address)) = first(&self.waiting)
            && needs <= self.free()
            && let Some((_, share)) = first(&address.waiting)
        {
            let Some((_, waiter)) = share.waiting.borrow_mut().pop_first() else {
                break;
            };
            waiter.is_granted.set(true);
            share.change(0, waiter.more);
            tasks.extend(waiter.task.take());
            self.place(&share);
        }
        tasks.into_iter().for_each(Waker::wake);
    }

    /// Returns the bytes that all clients hold.
    #[cfg(test)]
    pub(in crate::proxy) fn held(&self) -> usize {
        self.held.get()
    }
}

/// Returns the first one of a queue.
fn first<T>(queue: &RefCell<BTreeMap<QueueKey, Rc<T>>>) -> Option<(QueueKey, Rc<T>)> {
    let queue = queue.borrow();
    let (place, item) = queue.first_key_value()?;
    Some((*place, item.clone()))
}

/// Moves an item from its place in a queue to the next one.
fn relocate<T>(
    queue: &RefCell<BTreeMap<QueueKey, Rc<T>>>,
    place: &Cell<Option<QueueKey>>,
    next: Option<QueueKey>,
    item: &Rc<T>,
) {
    let last = place.replace(next);
    if last == next {
        return;
    }
    let mut queue = queue.borrow_mut();
    if let Some(last) = last {
        queue.remove(&last);
    }
    if let Some(next) = next {
        queue.insert(next, item.clone());
    }
}

impl Address {
    /// Returns the bytes of the budget that must be free so that the address may hold this many more.
    fn needs(&self, more: usize) -> usize {
        2 * more + self.held.get()
    }
}

impl Share {
    /// Returns the address of the client, or its network of IPv6.
    pub(crate) fn client(&self) -> IpAddr {
        self.address
    }

    /// Returns the share of a request that an endpoint picker decides about, for the copies of its bodies: with those of the
    /// other requests of the address, it may hold what remains free.
    pub(in crate::proxy) fn of_picked(&self) -> Rc<Self> {
        self.budget.share_of(self.address, PICKED)
    }

    fn of_address(&self) -> &Rc<Address> {
        self.of_address.get_or_init(|| {
            let mut addresses = self.budget.addresses.borrow_mut();
            let known = addresses.get(&self.address).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let address = Rc::default();
                addresses.insert(self.address, Rc::downgrade(&address));
                address
            })
        })
    }

    /// Counts `after` bytes in place of `before` for the connection, its address and all clients.
    fn change(&self, before: usize, after: usize) {
        for cell in [&self.held, &self.of_address().held, &self.budget.held] {
            cell.set(cell.get() - before + after);
        }
    }

    /// Returns the bytes of the budget that must be free so that the share may hold this many more, whatever its address
    /// holds.
    fn needs(&self, more: usize) -> usize {
        more + self.part * (self.held.get() + more)
    }

    /// Reports whether the client may hold this many more bytes.
    fn permits(&self, more: usize) -> bool {
        let needs = self.needs(more).max(self.of_address().needs(more));
        needs <= self.budget.free()
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

    /// Does what [`Self::resize`] does. If the client may not hold that many, wakes the task once it holds them. Those that need
    /// least come first, and of equal ones those that have waited longest.
    pub(in crate::proxy) fn resize_or_wait(&mut self, bytes: usize, cx: &Context<'_>) -> bool {
        if self.resize(bytes) {
            return true;
        }
        let last = self.leave();
        let budget = &self.share.budget;
        let number = match &last {
            Some(last) => last.number,
            None => budget.arrivals.replace(budget.arrivals.get() + 1),
        };
        let waiter = Rc::new(Waiter {
            more: bytes - self.bytes,
            number,
            task: Cell::new(Some(cx.waker().clone())),
            is_granted: Cell::new(false),
        });
        let place = (waiter.more, number);
        let mut queue = self.share.waiting.borrow_mut();
        queue.insert(place, waiter.clone());
        drop(queue);
        self.waiting = Some(waiter);
        self.share.budget.update(&self.share);
        false
    }

    /// Does what [`Self::resize`] does, and permits any number of bytes while the client holds no others: those of one
    /// connection have another limit.
    pub(in crate::proxy) fn resize_first(&mut self, bytes: usize) -> bool {
        let is_first = self.share.of_address().held.get() == self.bytes;
        self.set(bytes, is_first)
    }

    /// Returns the number of bytes.
    pub(in crate::proxy) fn bytes(&self) -> usize {
        self.bytes
    }

    fn set(&mut self, bytes: usize, is_permitted: bool) -> bool {
        if let Some(granted) = self.waiting.take_if(|it| it.is_granted.get()) {
            self.bytes += granted.more;
        }
        if bytes == self.bytes {
            return true;
        }
        let more = bytes.saturating_sub(self.bytes);
        if more > 0 && !is_permitted && !self.share.permits(more) {
            return false;
        }
        self.share.change(self.bytes, bytes);
        self.bytes = bytes;
        // Until the end: a task that is dropped with its waker may change the budget itself.
        let _last = self.leave();
        let budget = &self.share.budget;
        if !budget.waiting.borrow().is_empty() {
            budget.update(&self.share);
        }
        true
    }

    /// Leaves the queue of those who wait.
    fn leave(&mut self) -> Option<Rc<Waiter>> {
        let waiter = self.waiting.take()?;
        let place = (waiter.more, waiter.number);
        self.share.waiting.borrow_mut().remove(&place);
        Some(waiter)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.resize(0);
        let last = self.leave();
        if last.is_some() {
            self.share.budget.update(&self.share);
        }
    }
}

#[cfg(test)]
mod tests;
