//! The last sampled request of a rule in a worker, or of a backend, whose trace its metrics refer to. Only sampled requests
//! and readers of metrics touch it.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use super::outcomes::Outcome;

/// A sampled request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exemplar {
    /// How it ended.
    pub outcome: Outcome,
    /// Duration as the metrics count it.
    pub elapsed: Duration,
    /// Its trace.
    pub trace_id: [u8; 16],
    /// When it ended.
    pub time: SystemTime,
}

/// The last sampled request, if there was one.
#[derive(Debug, Default)]
pub(super) struct LastSampled(OnceLock<Box<Mutex<Exemplar>>>);

impl LastSampled {
    /// Replaces it, unless a reader is reading it: a worker does not wait.
    pub(super) fn set(&self, exemplar: Exemplar) {
        let last = self.0.get_or_init(|| Box::new(Mutex::new(exemplar)));
        if let Ok(mut last) = last.try_lock() {
            *last = exemplar;
        }
    }

    pub(super) fn get(&self) -> Option<Exemplar> {
        let last = self.0.get()?;
        Some(*last.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
