//! Bytes that the proxy writes to a client between those of hyper or h2, which own the connection: frames and
//! informational responses that those cannot send.

use std::cell::{Cell, RefCell};

use bytes::{Bytes, BytesMut};

/// What waits to be written between two messages or frames of one connection.
pub(crate) struct Injection {
    queue: RefCell<BytesMut>,
    /// Whether everything that the layer above has handed over is written.
    is_between: Cell<bool>,
    is_closed: Cell<bool>,
}

impl Default for Injection {
    fn default() -> Self {
        Self {
            queue: RefCell::default(),
            is_between: Cell::new(true),
            is_closed: Cell::new(false),
        }
    }
}

impl Injection {
    /// Adds bytes. They go out as soon as nothing of the layer above is half-written.
    pub(crate) fn push(&self, bytes: &[u8]) {
        self.queue.borrow_mut().extend_from_slice(bytes);
    }

    /// As [`Self::push`], but only if the bytes go out before anything that the layer above has yet to write. Returns
    /// whether they do.
    pub(crate) fn push_next(&self, bytes: &[u8]) -> bool {
        if self.is_between.get() {
            self.push(bytes);
        }
        self.is_between.get()
    }

    /// Ends the connection in order: the layer above reads its end, and shuts it down.
    pub(crate) fn close(&self) {
        self.is_closed.set(true);
    }

    /// Whether the layer above is to read the end of the connection.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Whether there are bytes that go out before the next write of the layer above.
    pub(super) fn is_next(&self) -> bool {
        self.is_between.get() && !self.is_empty()
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.borrow().is_empty()
    }

    /// Takes everything that waits.
    pub(super) fn take(&self) -> Option<Bytes> {
        let mut queue = self.queue.borrow_mut();
        (!queue.is_empty()).then(|| queue.split().freeze())
    }

    /// Returns what could not be written.
    pub(super) fn put_back(&self, bytes: &[u8]) {
        let mut queue = self.queue.borrow_mut();
        let later = queue.split();
        queue.extend_from_slice(bytes);
        queue.extend_from_slice(&later);
    }

    /// The layer above has written everything that it had, or begins to write.
    pub(super) fn set_between(&self, is_between: bool) {
        self.is_between.set(is_between);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_bytes_that_would_come_too_late() {
        let injection = Injection::default();
        assert!(injection.push_next(b"a"));
        injection.set_between(false);
        assert!(!injection.push_next(b"b"));
        assert!(!injection.is_next());
        injection.push(b"c");
        assert_eq!(injection.take().as_deref(), Some(&b"ac"[..]));
        assert!(injection.is_empty());
    }

    #[test]
    fn keeps_the_order_of_what_could_not_be_written() {
        let injection = Injection::default();
        injection.push(b"ab");
        let mut bytes = injection.take().expect("something waits");
        injection.push(b"c");
        drop(bytes.split_to(1));
        injection.put_back(&bytes);
        assert_eq!(injection.take().as_deref(), Some(&b"bc"[..]));
    }
}
