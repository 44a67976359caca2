//! Memory that the streams of one worker hold while they wait, and which of them fail when it is too much: those of the client
//! that holds most. What HTTP/1.1 connections hold counts beside it: they get less then, and none fails.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::mem;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use slab::Slab;

use super::bodies::Bodies;

/// Maximum bytes of the process, divided among its workers, and bounds for a worker.
const PROCESS: usize = 64 * 1024 * 1024;
const OF_WORKER: (usize, usize) = (16 * 1024 * 1024, 48 * 1024 * 1024);
/// Bytes of the process that HTTP/1.1 connections may hold before each gets little, divided among its workers, and the least
/// of a worker.
const UNREAD: usize = 32 * 1024 * 1024;
const LEAST_UNREAD: usize = 8 * 1024 * 1024;
/// Maximum bytes of a read while that is scarce.
pub(crate) const SCARCE_READ: usize = 16 * 1024;
/// Minimum interval of warnings of a worker about streams that fail.
const WARNING: Duration = Duration::from_secs(10);

// A worker is a thread. Numbers in cells are read for each part of a body, and need neither initialization nor a destructor.
thread_local! {
    static MAX: Cell<usize> = const { Cell::new(OF_WORKER.1) };
    static HELD: Cell<usize> = const { Cell::new(0) };
    static MAX_UNREAD: Cell<usize> = const { Cell::new(UNREAD) };
    /// What HTTP/1.1 connections hold. No stream fails for it.
    static HELD_UNREAD: Cell<usize> = const { Cell::new(0) };
    /// Number of collections so far: the time of a read, as far as it matters here.
    static NOW: Cell<u64> = const { Cell::new(0) };
    static FAILURES: RefCell<Failures> = const { RefCell::new(Failures::NONE) };
    static CONNECTIONS: RefCell<Slab<Weak<Bodies>>> = const { RefCell::new(Slab::new()) };
}

/// Streams that have failed.
struct Failures {
    /// Those that no warning has counted.
    unsaid: usize,
    warned: Option<Instant>,
}

impl Failures {
    const NONE: Self = Self {
        unsaid: 0,
        warned: None,
    };

    /// Counts failures. Returns the number for a warning, if one is due.
    fn add(&mut self, failed: usize, now: Instant) -> Option<usize> {
        self.unsaid += failed;
        let is_recent = |warned| now.duration_since(warned) < WARNING;
        if self.warned.is_some_and(is_recent) {
            return None;
        }
        self.warned = Some(now);
        Some(mem::take(&mut self.unsaid))
    }
}

/// Something that is held.
pub(super) struct Holder {
    pub(super) bodies: Rc<Bodies>,
    pub(super) owner: Owner,
    pub(super) bytes: usize,
    /// The time since when it waits ([`now`]).
    pub(super) since: u64,
    pub(super) what: Held,
}

/// Where something is held in the bodies of its connection.
#[derive(Clone, Copy)]
pub(super) enum Held {
    /// What was collected of a body.
    Collected(usize),
    /// What a task keeps while it waits.
    Waiting(usize),
    /// A response that a task keeps before it begins.
    Response(usize),
}

/// Whose memory it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// That of a client, on its own connections and on those to backends.
    Client(IpAddr),
    /// That of a connection whose streams no client has caused.
    Connection(usize),
}

/// Makes the thread one of `workers` workers, which share the memory of the process.
pub(crate) fn divide(workers: usize) {
    let (least, most) = OF_WORKER;
    let max = PROCESS / workers.max(1);
    MAX.set(max.clamp(least, most));
    MAX_UNREAD.set((UNREAD / workers.max(1)).max(LEAST_UNREAD));
}

/// Returns the maximum bytes of the worker.
pub(super) fn max() -> usize {
    MAX.get()
}

/// Returns what is left after the maximum was exceeded.
fn after() -> usize {
    max() / 8 * 7
}

/// Reports whether the worker holds so much that connections with a part of it get small windows.
pub(super) fn is_much() -> bool {
    total() > max() / 3
}

/// Reports whether the worker holds so much, of any connections, that less is read from backends.
pub(crate) fn is_scarce() -> bool {
    is_much() || HELD_UNREAD.get() > MAX_UNREAD.get()
}

/// What one HTTP/1.1 connection holds for a client that does not read. Counts until dropped.
#[derive(Default)]
pub(crate) struct Unread(usize);

impl Unread {
    /// Changes the number of bytes.
    pub(crate) fn set(&mut self, bytes: usize) {
        if bytes != self.0 {
            HELD_UNREAD.set(HELD_UNREAD.get() - self.0 + bytes);
            self.0 = bytes;
        }
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Adds a connection; returns its key.
pub(super) fn register(bodies: Weak<Bodies>) -> usize {
    CONNECTIONS.with_borrow_mut(|connections| connections.insert(bodies))
}

/// Removes a connection.
pub(super) fn unregister(key: usize) {
    // Fails only while the thread ends.
    let _ = CONNECTIONS.try_with(|connections| connections.borrow_mut().try_remove(key));
}

/// Returns the bytes that the worker holds.
pub(super) fn total() -> usize {
    HELD.get()
}

/// Counts bytes.
pub(super) fn add(bytes: usize) {
    HELD.set(total() + bytes);
}

/// Stops counting bytes.
pub(super) fn remove(bytes: usize) {
    HELD.set(total().saturating_sub(bytes));
}

/// Returns the number of collections so far.
pub(super) fn now() -> u64 {
    NOW.get()
}

/// Counts a collection; returns the number so far.
pub(super) fn advance() -> u64 {
    NOW.set(now() + 1);
    now()
}

/// Fails streams if the worker holds too much: those of the client that holds most first, of these the ones of the connection
/// that holds most, and of these the ones that have waited longest.
pub(super) fn enforce() {
    if total() <= max() {
        return;
    }
    fail(by_size().iter(), || total() <= after());
}

/// Fails streams in this order until that is enough.
pub(super) fn fail<'a>(holders: impl Iterator<Item = &'a Holder>, is_enough: impl Fn() -> bool) {
    let mut failed = 0;
    for holder in holders {
        if is_enough() {
            break;
        }
        holder.bodies.drop_held(holder.what);
        failed += 1;
    }
    let due = FAILURES.with_borrow_mut(|failures| failures.add(failed, Instant::now()));
    if let Some(failed) = due {
        tracing::warn!(failed, "ended streams that wait: they hold too much memory");
    }
}

/// Returns what is held, in the order in which it has to go.
pub(super) fn by_size() -> Vec<Holder> {
    let connections: Vec<Rc<Bodies>> = CONNECTIONS.with_borrow(|connections| {
        let alive = connections.iter().filter_map(|(_, it)| it.upgrade());
        alive.collect()
    });
    let mut holders = Vec::new();
    for bodies in &connections {
        bodies.add_holders(&mut holders);
    }
    let mut sums = BTreeMap::<Owner, usize>::new();
    for holder in &holders {
        *sums.entry(holder.owner).or_default() += holder.bytes;
    }
    holders.sort_by_cached_key(|holder| {
        let of_owner = sums.get(&holder.owner).copied().unwrap_or_default();
        let of_connection = holder.bodies.held();
        (
            Reverse(of_owner),
            holder.owner,
            Reverse(of_connection),
            holder.since,
        )
    });
    holders
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::super::{Body, Waiting, Windows};
    use super::*;

    const KIB: usize = 1024;
    const MIB: usize = 1024 * KIB;
    const WINDOWS: Windows = Windows {
        initial: 64 * 1024,
        full: 256 * 1024,
        max_unread: MIB,
    };
    /// What connections announce that hold too much.
    const SMALL: u32 = 16 * 1024;

    fn connection() -> Rc<Bodies> {
        Bodies::new(WINDOWS, None)
    }

    /// A connection of the client with this number.
    fn connection_of(client: u8) -> Rc<Bodies> {
        Bodies::new(WINDOWS, Some([192, 0, 2, client].into()))
    }

    /// Returns the stream windows of connections after their next turn.
    fn windows<const N: usize>(connections: [&Rc<Bodies>; N]) -> [u32; N] {
        connections.map(|bodies| {
            bodies.on_driven(|_| Ok(()));
            bodies.window()
        })
    }

    /// Reads a body to its end. `None` if it fails.
    fn read(body: &mut Body) -> Option<usize> {
        let mut cx = Context::from_waker(Waker::noop());
        let mut length = 0;
        while let Poll::Ready(Some(data)) = body.poll_data(&mut cx) {
            length += data.ok()?.len();
        }
        Some(length)
    }

    #[test]
    fn connection_that_holds_much_gets_a_small_window_and_its_neighbour_does_not() {
        let [holder, neighbour] = [connection(), connection()];
        let mut much = holder.add_collected(MIB);
        let _little = neighbour.add_collected(KIB);
        assert_eq!(windows([&holder, &neighbour]), [SMALL, WINDOWS.initial]);
        assert_eq!(read(&mut much), Some(MIB));
        // Its reader has taken enough for the full window.
        assert_eq!(
            windows([&holder, &neighbour]),
            [WINDOWS.full, WINDOWS.initial]
        );
    }

    #[test]
    fn above_the_first_level_a_connection_that_holds_a_little_gets_a_small_window() {
        let [holder, neighbour, idle] = [connection(), connection(), connection()];
        let _bodies = [
            holder.add_collected(100 * KIB),
            neighbour.add_collected(20 * KIB),
        ];
        let all = [&holder, &neighbour, &idle];
        assert_eq!(windows(all), [WINDOWS.initial; 3]);
        // What other connections hold.
        let others = max() / 3;
        add(others);
        assert_eq!(windows(all), [SMALL, WINDOWS.initial, WINDOWS.initial]);
        remove(others);
        assert_eq!(windows(all), [WINDOWS.initial; 3]);
    }

    #[test]
    fn workers_share_the_memory_of_the_process() {
        for (workers, expected) in [(1, 48), (2, 32), (3, 21), (4, 16), (64, 16)] {
            divide(workers);
            assert_eq!(max() / MIB, expected, "{workers} workers");
        }
    }

    #[test]
    fn above_the_maximum_the_idlest_bodies_of_the_largest_connection_fail() {
        let [holder, neighbour] = [connection(), connection()];
        let mut oldest = neighbour.add_collected(MIB);
        let mut idle = holder.add_collected(7 * MIB);
        let mut recent = holder.add_collected(2 * MIB);
        let others = max() - total();
        add(others);
        enforce();
        assert_eq!(total(), max(), "the maximum is allowed");
        add(KIB);
        enforce();
        // Its bytes are freed before it is read.
        assert!(total() <= after() && holder.held() < 3 * MIB);
        assert_eq!(read(&mut idle), None);
        assert_eq!(read(&mut recent), Some(2 * MIB));
        assert_eq!(read(&mut oldest), Some(MIB));
        remove(others + KIB);
        assert_eq!((total(), holder.held(), neighbour.held()), (0, 0, 0));
    }

    #[test]
    fn above_the_maximum_streams_of_the_client_fail_that_holds_most_on_all_its_connections() {
        const CONNECTIONS: usize = 300;
        let hostile: Vec<_> = (0..CONNECTIONS).map(|_| connection_of(1)).collect();
        let polite = connection_of(2);
        let part = max() / 2 / CONNECTIONS;
        let mut small: Vec<_> = hostile.iter().map(|it| it.add_collected(part)).collect();
        let mut slow = polite.add_collected(8 * part);
        assert!(hostile.iter().all(|it| it.held() < polite.held()));
        let others = max() - total() + KIB;
        add(others);
        enforce();
        let failed = small.iter_mut().map(read).filter(Option::is_none).count();
        assert!((1..CONNECTIONS).contains(&failed), "{failed}");
        assert_eq!(read(&mut slow), Some(8 * part));
        remove(others);
    }

    #[test]
    fn above_the_maximum_responses_of_backends_count_as_memory_of_their_clients() {
        let [hostile, other] = [1, 2].map(|client| IpAddr::from([192, 0, 2, client]));
        let (backend, own) = (connection(), connection_of(1));
        // The others hold more each, on the same connection, and have waited longer.
        let mut polite = backend.add_collected_for(5 * MIB, Some(other));
        let mut nobody = backend.add_collected_for(5 * MIB, None);
        let mut caused = backend.add_collected_for(4 * MIB, Some(hostile));
        let mut sent = own.add_collected(4 * MIB);
        let others = max() - total() + KIB;
        add(others);
        enforce();
        assert_eq!((read(&mut caused), read(&mut sent)), (None, None));
        let left = [read(&mut polite), read(&mut nobody)];
        assert_eq!(left, [Some(5 * MIB); 2]);
        remove(others);
    }

    #[test]
    fn above_the_maximum_parts_that_are_not_taken_fail_with_the_bodies_of_their_connection() {
        let cx = Context::from_waker(Waker::noop());
        let [holder, neighbour] = [connection(), connection()];
        let part = |bodies, bytes| Waiting::new(bodies, bytes, &cx);
        let oldest = part(&neighbour, 2 * MIB);
        let first = part(&holder, MIB);
        let mut second = holder.add_collected(MIB);
        let third = part(&holder, max() / 8);
        assert!(holder.held() >= 2 * MIB + max() / 8);
        // The neighbour's own bodies are read.
        assert_eq!(windows([&neighbour]), [WINDOWS.initial]);
        let others = max() - total();
        add(others);
        assert!(!first.has_failed() && is_much());
        let last = part(&holder, KIB);
        assert!(first.has_failed() && third.has_failed());
        assert!(!oldest.has_failed() && !last.has_failed());
        assert_eq!(read(&mut second), None);
        assert_eq!(holder.held(), KIB);
        drop((oldest, first, third, last));
        remove(others);
        assert_eq!((total(), holder.held(), neighbour.held()), (0, 0, 0));
    }

    #[test]
    fn above_the_maximum_parts_for_backends_count_as_memory_of_their_clients() {
        let cx = Context::from_waker(Waker::noop());
        let [hostile, other] = [1, 2].map(|client| IpAddr::from([192, 0, 2, client]));
        let backend = connection();
        let part = |client, bytes| Waiting::caused_by(&backend, Some(client), bytes, &cx);
        let polite = part(other, 5 * MIB);
        let caused = [4 * MIB; 2].map(|bytes| part(hostile, bytes));
        let others = max() - total() + KIB;
        add(others);
        enforce();
        assert!(caused.iter().all(Waiting::has_failed) && !polite.has_failed());
        drop((caused, polite));
        remove(others);
        assert_eq!((total(), backend.held()), (0, 0));
    }

    #[test]
    fn above_the_maximum_bodies_fail_until_enough_is_free() {
        let [holder, neighbour] = [connection(), connection()];
        let mut many: Vec<_> = (0..10).map(|_| holder.add_collected(MIB)).collect();
        let mut other = neighbour.add_collected(4 * MIB);
        let others = max() - total() + KIB;
        add(others);
        enforce();
        let failed = many.iter_mut().map(read).filter(Option::is_none).count();
        assert_eq!(failed, (max() - after()) / MIB + 1);
        assert_eq!(read(&mut other), Some(4 * MIB));
        remove(others);
    }

    #[test]
    fn failures_have_few_warnings_that_count_them_all() {
        let (mut failures, start) = (Failures::NONE, Instant::now());
        assert_eq!(failures.add(2, start), Some(2));
        for _ in 0..1000 {
            assert_eq!(failures.add(1, start), None);
        }
        assert_eq!(failures.add(1, start + WARNING), Some(1001));
    }

    #[test]
    fn unread_bytes_of_http1_make_memory_scarce_until_they_are_given_back() {
        let max = MAX_UNREAD.get();
        let [mut first, mut second] = [Unread::default(), Unread::default()];
        first.set(max);
        assert!(!is_scarce(), "the maximum is allowed");
        second.set(KIB);
        assert!(is_scarce() && !is_much());
        first.set(max - KIB);
        assert!(!is_scarce());
        first.set(max);
        assert!(is_scarce());
        drop(first);
        assert!(!is_scarce());
        drop(second);
        assert_eq!(HELD_UNREAD.get(), 0);
    }
}
