//! The access log of one worker: decides when its buffer is passed on to the writer.

use std::time::{Duration, Instant};

use http::request;
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::telemetry::access_log::{AccessLog, Completion, RequestTexts, WorkerLog};

/// Delay from the first line of a buffer until the buffer is passed on, if it is not full before.
const GATHER: Duration = Duration::from_millis(20);

/// The access log of a worker.
pub(crate) struct RequestLog {
    log: Option<WorkerLog>,
    /// Notified when the buffer has its first line.
    began: Notify,
}

impl RequestLog {
    pub(super) fn new(log: &AccessLog) -> Self {
        Self {
            log: log.worker(),
            began: Notify::new(),
        }
    }

    /// Copies what the line of a request needs of its head; `None` if the log is disabled.
    pub(super) fn open(
        &self,
        parts: &request::Parts,
        start: Instant,
        clock: &Clock,
    ) -> Option<Box<RequestTexts>> {
        let log = self.log.as_ref()?;
        Some(log.open(parts, start, clock.now()))
    }

    /// Writes the line of a request.
    pub(super) fn close(&self, texts: Box<RequestTexts>, end: &Completion<'_>) {
        let is_first = |log: &WorkerLog| log.close(texts, end);
        if self.log.as_ref().is_some_and(is_first) {
            self.began.notify_one();
        }
    }

    /// Passes on what was written, [`GATHER`] after the first line of a buffer. One timer serves all
    /// requests of that time, and an empty buffer needs none.
    pub(super) async fn run(&self) {
        let Some(log) = &self.log else { return };
        loop {
            self.began.notified().await;
            tokio::time::sleep(GATHER).await;
            log.flush();
        }
    }
}
