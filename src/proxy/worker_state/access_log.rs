//! The access log of one worker: decides when its buffer is passed on to the writer. Taps see the same records.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::request;
use tokio::sync::Notify;

use crate::ir::{GatewayLog, ObjectRef};
use crate::runtime::clock::Clock;
use crate::telemetry::access_log::{AccessLog, Completion, Connection, Line, WorkerLog};
use crate::telemetry::tap::Taps;

/// Delay from the first line of a buffer until the buffer is passed on, if it is not full before.
const GATHER: Duration = Duration::from_millis(20);

/// The access log of a worker.
pub(crate) struct RequestLog {
    log: Option<WorkerLog>,
    taps: Arc<Taps>,
    /// Notified when the buffer has its first line.
    began: Notify,
}

impl RequestLog {
    pub(in crate::proxy) fn new(log: &AccessLog, taps: Arc<Taps>) -> Self {
        Self {
            log: log.worker(),
            taps,
            began: Notify::new(),
        }
    }

    /// Begins the line of a request of `client`, an address; `None` if the log is disabled and no tap of all routes is open.
    pub(in crate::proxy) fn open(
        &self,
        client: &str,
        parts: &request::Parts,
        start: Instant,
        clock: &Clock,
    ) -> Option<Box<Line>> {
        match &self.log {
            Some(log) => Some(log.open(client, parts, start, clock.now())),
            None if self.taps.show_all_routes() => Some(Line::without_log(client, parts, start)),
            None => None,
        }
    }

    /// Reports whether a request without a line needs one for a tap, now that its route is known.
    #[inline]
    pub(in crate::proxy) fn needs_line(&self, route: &ObjectRef) -> bool {
        self.taps.is_open() && self.taps.show_route(route)
    }

    /// Returns the taps, if one is open.
    #[inline]
    pub(in crate::proxy) fn taps(&self) -> Option<&Taps> {
        self.taps.is_open().then_some(&*self.taps)
    }

    /// Writes the line of a request through a Gateway with these settings.
    pub(in crate::proxy) fn close(
        &self,
        line: Box<Line>,
        end: &Completion<'_>,
        settings: Option<&GatewayLog>,
    ) {
        self.write(|log| log.close(line, end, settings));
    }

    /// Reports whether the log of the process is written.
    pub(in crate::proxy) fn is_enabled(&self) -> bool {
        self.log.is_some()
    }

    /// Writes the line of a connection that has ended, through a Gateway with these settings.
    pub(in crate::proxy) fn log_connection(
        &self,
        connection: &Connection<'_>,
        clock: &Clock,
        settings: Option<&GatewayLog>,
    ) {
        self.write(|log| log.log_connection(connection, clock.now(), settings));
    }

    /// Writes to the log, if it is enabled. `write` returns true for the first line of a buffer.
    fn write(&self, write: impl FnOnce(&WorkerLog) -> bool) {
        if self.log.as_ref().is_some_and(write) {
            self.began.notify_one();
        }
    }

    /// Frees the memory of lines that is kept for reuse.
    pub(in crate::proxy) fn free_unused_lines(&self) {
        if let Some(log) = &self.log {
            log.free_unused();
        }
    }

    /// Passes on what was written, [`GATHER`] after the first line of a buffer. One timer serves all
    /// requests of that time, and an empty buffer needs none.
    pub(in crate::proxy) async fn run(&self) {
        let Some(log) = &self.log else { return };
        loop {
            self.began.notified().await;
            tokio::time::sleep(GATHER).await;
            log.flush();
        }
    }
}
