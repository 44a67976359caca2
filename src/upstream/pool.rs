//! Idle HTTP/1.1 connections of one worker, by endpoint. Knows nothing of requests.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::http1::Connection;
use crate::clock::Clock;

/// The idle connections of one worker. The endpoint's id stands for everything that makes two connections differ.
pub(super) struct Pool {
    clock: Rc<Clock>,
    idle: RefCell<FxHashMap<u64, Vec<Idle>>>,
    max_idle: usize,
    timeout: u64,
}

struct Idle {
    connection: Connection,
    since: u64,
}

impl Pool {
    /// A pool that keeps at most `max_idle` connections per endpoint, each for at most `timeout`.
    pub(super) fn new(clock: Rc<Clock>, max_idle: usize, timeout: Duration) -> Self {
        Self {
            clock,
            idle: RefCell::default(),
            max_idle,
            timeout: timeout.as_millis() as u64,
        }
    }

    /// A connection to the endpoint that is still open, the last used first.
    pub(super) fn take(&self, endpoint: u64) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        let connections = idle.get_mut(&endpoint)?;
        while let Some(Idle { connection, .. }) = connections.pop() {
            if connection.is_idle() {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection whose exchange is complete.
    pub(super) fn put(&self, endpoint: u64, connection: Connection) {
        let mut idle = self.idle.borrow_mut();
        let connections = idle.entry(endpoint).or_default();
        if connections.len() < self.max_idle {
            connections.push(Idle {
                connection,
                since: self.clock.now(),
            });
        }
    }

    /// Closes connections that were idle for too long or that the backend has closed.
    pub(super) fn sweep(&self) {
        let oldest = self.clock.now().saturating_sub(self.timeout);
        self.idle.borrow_mut().retain(|_, connections| {
            connections.retain(|idle| idle.since >= oldest && idle.connection.is_idle());
            !connections.is_empty()
        });
    }
}
