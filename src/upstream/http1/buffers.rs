//! The read buffers of one worker's connections to backends. A connection has one only while something is there to be
//! read, so that a few, always the same and still in the processor's caches, serve all. Knows nothing of what is read.

use std::cell::{Cell, RefCell};
use std::mem;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use bytes::{Bytes, BytesMut};

/// Room for a head and what comes with it, and for any body while every large buffer is in use.
pub(super) const ORDINARY: usize = 64 * 1024;
/// Room that is worth a read.
const ENOUGH: usize = 8 * 1024;
/// Room for long bodies: fewer system calls for each byte, and still within most processors' second-level cache.
pub(super) const LARGE: usize = 512 * 1024;
/// Ordinary buffers that are kept while no connection needs them.
const SPARE: usize = 16;
/// Large buffers at one time, those included that clients have yet to take. Slow clients get no more of them.
const MAX_LARGE: usize = 16;
/// Large buffers that are kept while no connection needs them.
const SPARE_LARGE: usize = 2;

/// Buffers that no connection needs now, the last used first.
#[derive(Default)]
pub(in crate::upstream) struct Buffers {
    ordinary: RefCell<Vec<BytesMut>>,
    /// What was read into them last may still be on its way to clients.
    large: RefCell<Vec<BytesMut>>,
    /// Large buffers that are there, with a connection or not.
    large_count: Cell<usize>,
}

impl Buffers {
    fn take_ordinary(&self) -> BytesMut {
        if let Some(mut spare) = self.ordinary.borrow_mut().pop()
            // Parts of what was read last may still be on their way to the client; then the buffer stays theirs.
            && spare.try_reclaim(ORDINARY)
        {
            return spare;
        }
        BytesMut::with_capacity(ORDINARY)
    }

    fn put_ordinary(&self, mut buffer: BytesMut) {
        let mut spare = self.ordinary.borrow_mut();
        if spare.len() < SPARE && buffer.capacity() > 0 {
            buffer.clear();
            spare.push(buffer);
        }
    }

    /// A large buffer, unless all of them are in use.
    fn take_large(&self) -> Option<BytesMut> {
        let mut spare = self.large.borrow_mut();
        let free = spare
            .iter_mut()
            .rposition(|buffer| buffer.try_reclaim(LARGE));
        if let Some(index) = free {
            return Some(spare.remove(index));
        }
        if self.large_count.get() == MAX_LARGE {
            return None;
        }
        self.large_count.set(self.large_count.get() + 1);
        Some(BytesMut::with_capacity(LARGE))
    }

    fn put_large(&self, mut buffer: BytesMut) {
        buffer.clear();
        self.large.borrow_mut().push(buffer);
    }

    /// Gives up large buffers that were of no use for a while. To be called now and then.
    pub(in crate::upstream) fn sweep(&self) {
        let mut seen = 0;
        self.large.borrow_mut().retain_mut(|buffer| {
            seen += 1;
            let keep = seen <= SPARE_LARGE || !buffer.try_reclaim(LARGE);
            if !keep {
                self.large_count.set(self.large_count.get() - 1);
            }
            keep
        });
    }
}

/// The read buffer of one connection. Goes back where it came from when dropped.
pub(super) struct ReadBuffer {
    bytes: BytesMut,
    is_large: bool,
    home: Rc<Buffers>,
}

impl ReadBuffer {
    /// A buffer without memory.
    pub(super) fn new(home: Rc<Buffers>) -> Self {
        Self {
            bytes: BytesMut::new(),
            is_large: false,
            home,
        }
    }

    /// Makes room for the next read: [`ORDINARY`] at first, and more when more than that is expected. What is unread
    /// leaves less.
    pub(super) fn make_room(&mut self, expected: usize) {
        if expected > ORDINARY && self.bytes.is_empty() {
            if self.is_large && self.bytes.try_reclaim(LARGE) {
                return;
            }
            self.release();
            if let Some(large) = self.home.take_large() {
                (self.bytes, self.is_large) = (large, true);
                return;
            }
        }
        if self.has_room() {
            return;
        }
        self.leave_large();
        if self.bytes.capacity() == 0 {
            self.bytes = self.home.take_ordinary();
        }
        if !self.has_room() {
            self.bytes.reserve(ENOUGH);
        }
    }

    fn has_room(&self) -> bool {
        self.bytes.capacity() - self.bytes.len() >= ENOUGH
    }

    /// Moves what is unread of a full large buffer to memory of its own, so that none grows.
    fn leave_large(&mut self) {
        if self.is_large {
            let unread = BytesMut::from(&self.bytes[..]);
            self.release();
            self.bytes = unread;
        }
    }

    /// Gives the memory back; what is unread is lost.
    pub(super) fn release(&mut self) {
        let bytes = mem::take(&mut self.bytes);
        if mem::take(&mut self.is_large) {
            self.home.put_large(bytes);
        } else {
            self.home.put_ordinary(bytes);
        }
    }

    /// What is unread, for good.
    pub(super) fn into_unread(mut self) -> Bytes {
        self.leave_large();
        mem::take(&mut self.bytes).freeze()
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        self.release();
    }
}

impl Deref for ReadBuffer {
    type Target = BytesMut;

    fn deref(&self) -> &BytesMut {
        &self.bytes
    }
}

impl DerefMut for ReadBuffer {
    fn deref_mut(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `text` and takes it off the buffer, as bytes for a client.
    fn read(buffer: &mut ReadBuffer, text: &[u8]) -> Bytes {
        buffer.extend_from_slice(text);
        buffer.split().freeze()
    }

    #[test]
    fn slow_clients_do_not_get_every_buffer() {
        let home = Rc::new(Buffers::default());
        let mut unread = Vec::new();
        for _ in 0..2 * MAX_LARGE {
            let mut buffer = ReadBuffer::new(home.clone());
            buffer.make_room(LARGE);
            unread.push(read(&mut buffer, b"slow"));
        }
        assert_eq!(home.large_count.get(), MAX_LARGE);
        let mut buffer = ReadBuffer::new(home.clone());
        buffer.make_room(LARGE);
        assert!(!buffer.is_large && buffer.capacity() >= ORDINARY);
        unread.clear();
        buffer.make_room(LARGE);
        assert!(buffer.is_large);
        drop(buffer);
        home.sweep();
        assert_eq!(home.large_count.get(), SPARE_LARGE);
    }

    #[test]
    fn a_client_that_keeps_up_has_one_buffer() {
        let home = Rc::new(Buffers::default());
        let mut buffer = ReadBuffer::new(home.clone());
        for _ in 0..10 {
            buffer.make_room(LARGE);
            assert!(buffer.capacity() >= LARGE);
            drop(read(&mut buffer, &[0; 4096]));
        }
        assert_eq!(home.large_count.get(), 1);
    }

    #[test]
    fn a_large_buffer_that_is_used_up_goes_back() {
        let home = Rc::new(Buffers::default());
        for _ in 0..2 * MAX_LARGE {
            let mut buffer = ReadBuffer::new(home.clone());
            buffer.make_room(LARGE);
            assert!(buffer.is_large);
            let text = vec![7; buffer.capacity()];
            drop(read(&mut buffer, &text));
            buffer.make_room(ORDINARY);
            assert!(!buffer.is_large);
        }
        assert_eq!(home.large_count.get(), 1);
    }

    #[test]
    fn unread_bytes_survive_every_change_of_room() {
        let home = Rc::new(Buffers::default());
        let mut buffer = ReadBuffer::new(home.clone());
        buffer.make_room(LARGE);
        let text = vec![7; buffer.capacity() - 1];
        buffer.extend_from_slice(&text);
        buffer.make_room(LARGE);
        assert!(!buffer.is_large && buffer.capacity() > text.len() + ENOUGH - 1);
        assert_eq!(buffer.into_unread(), text);
        assert_eq!(home.large.borrow().len(), 1);
    }
}
