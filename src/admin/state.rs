//! What the admin server shows of a process.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::{Notify, Semaphore};

use super::token::TokenFile;
use crate::status::StatusReport;
use crate::table::Table;
use crate::telemetry::metrics::Detail;
use crate::telemetry::{AccessLog, ProcessStats};

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
    /// Counters of the process.
    pub stats: ProcessStats,
    /// The access log, for its count of dropped records.
    pub access_log: AccessLog,
    /// What the series of requests are about.
    pub detail: Detail,
    /// The token that gives others what clients on loopback have.
    pub token: Option<TokenFile>,
    /// Notified when the level of the log is set.
    pub(super) level_set: Notify,
    /// Permits one explanation of a request at a time.
    pub(super) explaining: Arc<Semaphore>,
}

impl AdminState {
    /// The state before the first configuration.
    pub fn new(table: Arc<ArcSwap<Table>>, stats: ProcessStats, access_log: AccessLog) -> Self {
        Self {
            table,
            ready: AtomicBool::new(false),
            waiting: ArcSwapOption::empty(),
            report: ArcSwap::default(),
            stats,
            access_log,
            detail: Detail::default(),
            token: None,
            level_set: Notify::new(),
            explaining: Arc::new(Semaphore::new(1)),
        }
    }
}
