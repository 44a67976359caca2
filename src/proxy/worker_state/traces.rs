//! The sampled requests of one worker: decides when they are passed on to the exporter.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::telemetry::trace::{Item, TraceQueue, WorkerTraces};

/// Delay from the first request until it is passed on, if there are not many before.
const GATHER: Duration = Duration::from_millis(20);

/// The sampled requests of a worker.
pub(crate) struct SampledRequests {
    traces: WorkerTraces,
    /// Notified when the first request is added.
    began: Notify,
}

impl SampledRequests {
    pub(in crate::proxy) fn new(queue: Arc<TraceQueue>) -> Self {
        Self {
            traces: WorkerTraces::new(queue),
            began: Notify::new(),
        }
    }

    /// Adds an ended request, or its record of the access log.
    pub(in crate::proxy) fn add(&self, item: Item) {
        if self.traces.add(item) {
            self.began.notify_one();
        }
    }

    /// Passes on what was added, [`GATHER`] after the first request.
    pub(in crate::proxy) async fn run(&self) {
        loop {
            self.began.notified().await;
            tokio::time::sleep(GATHER).await;
            self.traces.flush();
        }
    }
}
