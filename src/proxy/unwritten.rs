//! What an HTTP/1.1 connection has got of a response and has not written to its client. While the client does not read, the
//! connection gets no more of it, so that the backend waits.

use std::cell::Cell;
use std::task::{Context, Waker};

use crate::byte_chain::READ_BUFFER;

/// The part of a response that is not written yet.
pub(crate) struct Unwritten {
    /// Bytes of the body.
    bytes: Cell<usize>,
    /// Allocated bytes behind them, where the body comes from.
    source: Cell<usize>,
    /// The task that waits until all is written.
    task: Cell<Option<Waker>>,
}

impl Default for Unwritten {
    fn default() -> Self {
        Self {
            bytes: Cell::new(0),
            source: Cell::new(READ_BUFFER),
            task: Cell::new(None),
        }
    }
}

impl Unwritten {
    /// Returns the bytes of the body.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Returns what is allocated for them.
    pub(super) fn allocated(&self) -> usize {
        match self.bytes.get() {
            0 => 0,
            bytes => bytes + self.source.get(),
        }
    }

    /// Adds a part of the body.
    pub(super) fn add(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes);
    }

    /// Sets what is allocated behind the body. As long as that is not known, it is a read buffer.
    pub(super) fn set_source(&self, allocated: usize) {
        self.source.set(allocated);
    }

    /// Records that all is written.
    pub(super) fn clear(&self) {
        self.bytes.set(0);
        self.source.set(READ_BUFFER);
        if let Some(task) = self.task.take() {
            task.wake();
        }
    }

    /// Makes the task wait until all is written. hyper alone does not go on after every flush.
    pub(super) fn wait(&self, cx: &Context<'_>) {
        self.task.set(Some(cx.waker().clone()));
    }
}
