//! Bytes that the proxy writes between those of hyper or h2, which own the connection: frames and
//! informational responses that these libraries do not send.

use std::cell::{Cell, RefCell};

use bytes::{Bytes, BytesMut};

/// Bytes waiting for a client that does not read, above which no informational response is added.
const MAX_WAITING: usize = 64 * 1024;

/// Bytes waiting to be written between two messages or frames of a connection.
pub(crate) struct Injection {
    queue: RefCell<BytesMut>,
    /// Whether the upper layer has no partially written message or frame.
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
    /// Adds bytes. They are written as soon as the upper layer is between messages or frames.
    pub(crate) fn push(&self, bytes: &[u8]) {
        self.queue.borrow_mut().extend_from_slice(bytes);
    }

    /// Adds bytes only if they precede all unwritten bytes of the upper layer, and few bytes are waiting. Returns whether
    /// they were added.
    pub(crate) fn push_next(&self, bytes: &[u8]) -> bool {
        let is_added = self.is_between.get() && self.queue.borrow().len() < MAX_WAITING;
        if is_added {
            self.push(bytes);
        }
        is_added
    }

    /// Closes the connection gracefully: the upper layer reads EOF and shuts it down.
    pub(crate) fn close(&self) {
        self.is_closed.set(true);
    }

    /// Reports whether the upper layer must read EOF.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Reports whether there are bytes to write before the next write of the upper layer.
    pub(in crate::proxy) fn is_next(&self) -> bool {
        self.is_between.get() && !self.is_empty()
    }

    /// Reports whether no bytes are waiting.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.borrow().is_empty()
    }

    /// Takes all waiting bytes.
    pub(in crate::proxy) fn take(&self) -> Option<Bytes> {
        let mut queue = self.queue.borrow_mut();
        (!queue.is_empty()).then(|| queue.split().freeze())
    }

    /// Returns bytes that could not be written.
    pub(in crate::proxy) fn put_back(&self, bytes: &[u8]) {
        let mut queue = self.queue.borrow_mut();
        let later = queue.split();
        queue.extend_from_slice(bytes);
        queue.extend_from_slice(&later);
    }

    /// Records whether the upper layer is between messages or frames.
    pub(in crate::proxy) fn set_between(&self, is_between: bool) {
        self.is_between.set(is_between);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_late_bytes() {
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
    fn rejects_more_for_a_client_that_does_not_read() {
        let injection = Injection::default();
        assert!(injection.push_next(&[0; MAX_WAITING - 1]));
        assert!(injection.push_next(b"ab"));
        assert!(!injection.push_next(b"c"));
        assert!(injection.take().is_some());
        assert!(injection.push_next(b"d"));
    }

    #[test]
    fn keeps_the_order_of_unwritten_bytes() {
        let injection = Injection::default();
        injection.push(b"ab");
        let mut bytes = injection.take().expect("something waits");
        injection.push(b"c");
        drop(bytes.split_to(1));
        injection.put_back(&bytes);
        assert_eq!(injection.take().as_deref(), Some(&b"bc"[..]));
    }
}
