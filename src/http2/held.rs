//! Memory of the bodies of one worker, and which of them fails when it is too much.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::rc::{Rc, Weak};

use slab::Slab;

use super::bodies::{Bodies, BodyError};

/// Bytes of a worker above which connections that hold some of them get small windows.
pub(super) const HIGH: usize = 16 * 1024 * 1024;
/// Maximum bytes of a worker.
const MAX: usize = 48 * 1024 * 1024;
/// What is left when they were exceeded.
const AFTER: usize = MAX / 8 * 7;

thread_local!(static WORKER: Worker = Worker::default());

/// A worker is a thread.
#[derive(Default)]
struct Worker {
    held: Cell<usize>,
    /// Number of collections so far: the time of a read, as far as it matters here.
    now: Cell<u64>,
    connections: RefCell<Slab<Weak<Bodies>>>,
}

/// Adds a connection; returns its key.
pub(super) fn register(bodies: Weak<Bodies>) -> usize {
    WORKER.with(|worker| worker.connections.borrow_mut().insert(bodies))
}

/// Removes a connection.
pub(super) fn unregister(key: usize) {
    // Fails only while the thread ends.
    let _ = WORKER.try_with(|worker| worker.connections.borrow_mut().try_remove(key));
}

/// Returns the bytes that the worker holds.
pub(super) fn total() -> usize {
    WORKER.with(|worker| worker.held.get())
}

/// Counts bytes.
pub(super) fn add(bytes: usize) {
    WORKER.with(|worker| worker.held.set(worker.held.get() + bytes));
}

/// Stops counting bytes.
pub(super) fn remove(bytes: usize) {
    // Fails only while the thread ends.
    let _ = WORKER.try_with(|worker| worker.held.set(worker.held.get().saturating_sub(bytes)));
}

/// Returns the number of collections so far.
pub(super) fn now() -> u64 {
    WORKER.with(|worker| worker.now.get())
}

/// Counts a collection; returns the number so far.
pub(super) fn advance() -> u64 {
    WORKER.with(|worker| worker.now.set(worker.now.get() + 1));
    now()
}

/// Fails bodies if the worker holds too much: those of the connection that holds most first, and of
/// these the ones whose readers have been idle longest.
pub(super) fn enforce() {
    if total() <= MAX {
        return;
    }
    let mut connections: Vec<Rc<Bodies>> = WORKER.with(|worker| {
        let connections = worker.connections.borrow();
        let alive = connections.iter().filter_map(|(_, it)| it.upgrade());
        alive.collect()
    });
    connections.sort_by_key(|bodies| Reverse(bodies.held()));
    let mut failed = 0;
    for bodies in &connections {
        for key in bodies.by_idle_time() {
            if total() <= AFTER {
                break;
            }
            bodies.fail(key, BodyError::TooSlow);
            failed += 1;
        }
    }
    tracing::warn!(
        failed,
        "ended HTTP/2 streams that are not read: they hold too much memory"
    );
}
