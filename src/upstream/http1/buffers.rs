//! Read buffers of one worker's upstream connections. A connection holds one only while there is
//! data to read, so that a few buffers, which stay in the processor's caches, serve all
//! connections.

use std::cell::{Cell, RefCell};
use std::mem;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use bytes::{Bytes, BytesMut};

use crate::byte_chain::{READ_BUFFER, stay_in_read_buffer};

/// Minimum free space for a read.
const MIN_SPACE: usize = 8 * 1024;
/// Size for long bodies, unless all buffers of that size are in use: fewer system calls per byte, and still within the L2
/// cache of most processors. mimalloc returns a block of more than 512 KiB to the system alone; smaller ones share pages of
/// 4 MiB, of which each stays while one of its blocks is in use.
pub(super) const LARGE: usize = 516 * 1024;
/// Maximum number of unused ordinary buffers.
const MAX_SPARE: usize = 16;
/// Maximum number of large buffers, including those that slow clients have not consumed yet.
const MAX_LARGE: usize = 16;
/// Maximum number of unused large buffers.
const MAX_SPARE_LARGE: usize = 2;

/// Unused buffers, most recently used last.
#[derive(Default)]
pub(in crate::upstream) struct Buffers {
    ordinary: RefCell<Vec<BytesMut>>,
    /// Responses to clients may still reference data of the last reads.
    large: RefCell<Vec<BytesMut>>,
    /// Number of large buffers, used or unused.
    large_count: Cell<usize>,
}

impl Buffers {
    fn take_ordinary(&self) -> BytesMut {
        if let Some(mut spare) = self.ordinary.borrow_mut().pop()
            // A response may still reference data of the last read. Then a new buffer is needed.
            && spare.try_reclaim(READ_BUFFER)
        {
            return spare;
        }
        BytesMut::with_capacity(READ_BUFFER)
    }

    fn put_ordinary(&self, mut buffer: BytesMut) {
        let mut spare = self.ordinary.borrow_mut();
        if spare.len() < MAX_SPARE && buffer.capacity() > 0 {
            buffer.clear();
            spare.push(buffer);
        }
    }

    /// Takes a large buffer, unless all are in use.
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

    /// Frees large buffers that have been unused for a while. Called periodically.
    pub(in crate::upstream) fn sweep(&self) {
        self.free_large(MAX_SPARE_LARGE);
    }

    /// Frees all unused buffers.
    pub(in crate::upstream) fn free_unused(&self) {
        self.ordinary.borrow_mut().clear();
        self.free_large(0);
    }

    /// Frees large buffers apart from the first ones.
    fn free_large(&self, spare: usize) {
        let mut seen = 0;
        self.large.borrow_mut().retain_mut(|buffer| {
            seen += 1;
            let keep = seen <= spare || !buffer.try_reclaim(LARGE);
            if !keep {
                self.large_count.set(self.large_count.get() - 1);
            }
            keep
        });
    }
}

/// The read buffer of one connection. Returned to the pool on drop.
pub(super) struct ReadBuffer {
    bytes: BytesMut,
    is_large: bool,
    /// What is allocated since it was compacted, until there is room for more. 0 if it was not.
    compacted: usize,
    home: Rc<Buffers>,
}

impl ReadBuffer {
    /// Creates a buffer without memory.
    pub(super) fn new(home: Rc<Buffers>) -> Self {
        Self {
            bytes: BytesMut::new(),
            is_large: false,
            compacted: 0,
            home,
        }
    }

    /// Reserves space for the next read: [`READ_BUFFER`], or more if more data is expected. Unread data reduces the space.
    pub(super) fn make_room(&mut self, expected: usize) {
        self.compacted = 0;
        if expected > READ_BUFFER && self.bytes.is_empty() {
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
        self.move_unread();
        if self.bytes.is_empty() {
            // What is left is the end of a buffer, or what compacting has left.
            self.release();
            self.bytes = self.home.take_ordinary();
        }
        if !self.has_room() {
            self.bytes.reserve(MIN_SPACE);
        }
    }

    fn has_room(&self) -> bool {
        self.bytes.capacity() - self.bytes.len() >= MIN_SPACE
    }

    /// Moves the unread data of a full large buffer to its own allocation, so that the buffer does
    /// not grow.
    fn move_unread(&mut self) {
        if self.is_large {
            let unread = BytesMut::from(&self.bytes[..]);
            self.release();
            self.bytes = unread;
        }
    }

    /// Releases the memory and discards unread data.
    pub(super) fn release(&mut self) {
        let bytes = mem::take(&mut self.bytes);
        if mem::take(&mut self.is_large) {
            self.home.put_large(bytes);
        } else {
            self.home.put_ordinary(bytes);
        }
    }

    /// Gives the memory back while nobody reads on, apart from that of the unread data. Returns the bytes that stay
    /// allocated.
    pub(super) fn compact(&mut self) -> usize {
        if self.compacted > 0 && !self.bytes.is_empty() {
            return self.compacted;
        }
        if stay_in_read_buffer(self.bytes.len()) {
            return match self.is_large {
                true => READ_BUFFER,
                false => self.bytes.len().max(READ_BUFFER),
            };
        }
        let unread = BytesMut::from(&self.bytes[..]);
        self.release();
        self.bytes = unread;
        self.compacted = self.bytes.len();
        self.compacted
    }

    /// Returns the unread data.
    pub(super) fn into_unread(mut self) -> Bytes {
        self.move_unread();
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

    /// Reads `text` and takes it from the buffer, like data for a client.
    fn read(buffer: &mut ReadBuffer, text: &[u8]) -> Bytes {
        buffer.extend_from_slice(text);
        buffer.split().freeze()
    }

    #[test]
    fn bounds_large_buffers_of_slow_clients() {
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
        assert!(!buffer.is_large && buffer.capacity() >= READ_BUFFER);
        unread.clear();
        buffer.make_room(LARGE);
        assert!(buffer.is_large);
        drop(buffer);
        home.sweep();
        assert_eq!(home.large_count.get(), MAX_SPARE_LARGE);
    }

    #[test]
    fn reuses_one_buffer_for_a_fast_client() {
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
    fn returns_used_large_buffer() {
        let home = Rc::new(Buffers::default());
        for _ in 0..2 * MAX_LARGE {
            let mut buffer = ReadBuffer::new(home.clone());
            buffer.make_room(LARGE);
            assert!(buffer.is_large);
            let text = vec![7; buffer.capacity()];
            drop(read(&mut buffer, &text));
            buffer.make_room(READ_BUFFER);
            assert!(!buffer.is_large);
        }
        assert_eq!(home.large_count.get(), 1);
    }

    #[test]
    fn unused_buffers_are_freed_and_used_ones_stay() {
        let home = Rc::new(Buffers::default());
        let mut buffers: Vec<_> = (0..3).map(|_| ReadBuffer::new(home.clone())).collect();
        for (buffer, size) in buffers.iter_mut().zip([READ_BUFFER, LARGE, LARGE]) {
            buffer.make_room(size);
        }
        let unread = read(&mut buffers[2], b"slow");
        drop(buffers);
        home.free_unused();
        let kept = || (home.ordinary.borrow().len(), home.large_count.get());
        assert_eq!(kept(), (0, 1));
        drop(unread);
        home.free_unused();
        assert_eq!(kept(), (0, 0));
    }

    #[test]
    fn compact_buffer_keeps_its_unread_bytes_alone() {
        let home = Rc::new(Buffers::default());
        for (size, length, kept) in [
            (READ_BUFFER, 0, 0),
            (READ_BUFFER, 100, 100),
            (READ_BUFFER, READ_BUFFER / 2, READ_BUFFER),
            (LARGE, READ_BUFFER / 2, READ_BUFFER),
            (LARGE, 100, 100),
        ] {
            let mut buffer = ReadBuffer::new(home.clone());
            buffer.make_room(size);
            let text = vec![7; length];
            let taken = read(&mut buffer, &[0; 100]);
            buffer.extend_from_slice(&text);
            assert_eq!(buffer.compact(), kept, "{length} of {size}");
            assert_eq!(buffer[..], text);
            assert!(kept == READ_BUFFER || buffer.capacity() <= length);
            buffer.make_room(READ_BUFFER);
            assert_eq!(buffer[..], text);
            assert!(buffer.capacity() - length >= MIN_SPACE);
            drop(taken);
        }
    }

    #[test]
    fn compact_buffer_is_not_copied_again() {
        let mut buffer = ReadBuffer::new(Rc::new(Buffers::default()));
        buffer.make_room(READ_BUFFER);
        buffer.extend_from_slice(&[7; 1000]);
        assert_eq!(buffer.compact(), 1000);
        let _taken = buffer.split_to(100);
        let address = buffer.as_ptr();
        assert_eq!((buffer.compact(), buffer.as_ptr()), (1000, address));
        let _rest = buffer.split();
        assert_eq!((buffer.compact(), buffer.capacity()), (0, 0));
    }

    #[test]
    fn keeps_unread_bytes_across_resizes() {
        let home = Rc::new(Buffers::default());
        let mut buffer = ReadBuffer::new(home.clone());
        buffer.make_room(LARGE);
        let text = vec![7; buffer.capacity() - 1];
        buffer.extend_from_slice(&text);
        buffer.make_room(LARGE);
        assert!(!buffer.is_large && buffer.capacity() > text.len() + MIN_SPACE - 1);
        assert_eq!(buffer.into_unread(), text);
        assert_eq!(home.large.borrow().len(), 1);
    }
}
