//! What the admin server shows of a process.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::{Notify, Semaphore};

use super::history::History;
use super::recent::{DroppedLines, Recent};
use super::since::Since;
use super::token::TokenFile;
use super::totals::Totals;
use crate::finding::Finding;
use crate::provider::file::Locations;
use crate::settings::metrics::MetricsDetail;
use crate::status::StatusReport;
use crate::table::Table;
use crate::telemetry::{AccessLog, ProcessStats, log};

/// Maximum number of open streams of events.
pub(super) const MAX_EVENT_STREAMS: usize = 8;

/// State that the admin server shows.
#[derive(Debug)]
pub struct AdminState {
    /// The table in service.
    pub table: Arc<ArcSwap<Table>>,
    /// Whether the first configuration is complete, and its ports are bound as far as they must be.
    pub ready: AtomicBool,
    /// Why the process is not ready, if known.
    pub waiting: ArcSwapOption<String>,
    /// Conditions of all objects, after binding.
    pub report: ArcSwap<StatusReport>,
    /// What is wrong with files, and with objects that cannot be read.
    pub files: ArcSwap<Vec<Finding>>,
    /// What is wrong with the configuration in service although it is valid.
    pub warnings: ArcSwap<BTreeSet<Finding>>,
    /// Where objects are, if they come from files.
    pub locations: Arc<ArcSwap<Locations>>,
    /// Counters of the process.
    pub stats: ProcessStats,
    /// The access log, for its count of dropped records.
    pub access_log: AccessLog,
    /// How detailed metrics of requests are.
    pub detail: MetricsDetail,
    /// The token that gives others what clients on loopback have.
    pub token: Option<TokenFile>,
    /// Notified when the level of the log is set.
    pub(super) level_set: Notify,
    /// The counters of some minutes ago.
    pub(super) recent: Recent,
    /// What happened in the last minutes.
    pub(super) history: History,
    /// Since when each problem is known.
    pub(super) since: Since,
    /// Permits one computation for a client at a time.
    pub(super) computing: Arc<Semaphore>,
    /// Permits a few streams of events.
    pub(super) event_streams: Arc<Semaphore>,
}

impl AdminState {
    /// The state before the first configuration.
    pub fn new(table: Arc<ArcSwap<Table>>, stats: ProcessStats, access_log: AccessLog) -> Self {
        Self {
            table,
            ready: AtomicBool::new(false),
            waiting: ArcSwapOption::empty(),
            report: ArcSwap::default(),
            files: ArcSwap::default(),
            warnings: ArcSwap::default(),
            locations: Arc::default(),
            stats,
            access_log,
            detail: MetricsDetail::default(),
            token: None,
            level_set: Notify::new(),
            recent: Recent::default(),
            history: History::default(),
            since: Since::default(),
            computing: Arc::new(Semaphore::new(1)),
            event_streams: Arc::new(Semaphore::new(MAX_EVENT_STREAMS)),
        }
    }

    /// Samples the counters: what happened before the last sample but one is no longer recent.
    pub fn sample(&self) {
        let dropped = self.dropped_lines();
        self.recent.sample(&self.table.load(), &self.stats, dropped);
    }

    /// Adds what happened since the last call to the history.
    pub(super) fn record(&self) {
        let totals = Totals::of(&self.table.load(), &self.stats);
        self.history.sample(totals, Instant::now());
    }

    /// Lines of the logs that were dropped since the start.
    pub(super) fn dropped_lines(&self) -> DroppedLines {
        DroppedLines {
            access_log: self.access_log.dropped(),
            log: log::dropped(),
        }
    }
}
