//! A value that a node may have, and that changes without a new node. Reading costs one load where there is none.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};

use arc_swap::ArcSwapOption;

/// A value that may be absent.
#[derive(Debug)]
pub(super) struct OptionalCell<T> {
    is_set: AtomicBool,
    value: ArcSwapOption<T>,
}

impl<T> Default for OptionalCell<T> {
    fn default() -> Self {
        Self {
            is_set: AtomicBool::new(false),
            value: ArcSwapOption::empty(),
        }
    }
}

impl<T> OptionalCell<T> {
    /// Replaces the value. Only one thread at a time may call this.
    pub(super) fn set(&self, value: Option<Arc<T>>) {
        let is_set = value.is_some();
        self.value.store(value);
        // A reader that sees the flag sees the value, or a later one.
        self.is_set.store(is_set, Release);
    }

    #[inline]
    pub(super) fn is_set(&self) -> bool {
        self.is_set.load(Acquire)
    }

    /// Returns the value.
    #[inline]
    pub(super) fn get(&self) -> Option<Arc<T>> {
        if !self.is_set() {
            return None;
        }
        self.value.load_full()
    }
}
