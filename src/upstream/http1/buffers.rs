//! The read buffers of one worker's connections to backends. A connection has one only while something is there to be
//! read, so that a few, always the same and still in the processor's caches, serve all. Knows nothing of what is read.

use std::cell::RefCell;

use bytes::BytesMut;

use super::READ_SIZE;

/// Buffers that are kept while no connection needs them.
const SPARE: usize = 16;

/// Buffers that no connection needs now, the last used first.
#[derive(Default)]
pub(in crate::upstream) struct Buffers(RefCell<Vec<BytesMut>>);

impl Buffers {
    /// An empty buffer with room for [`READ_SIZE`] bytes.
    pub(super) fn take(&self) -> BytesMut {
        if let Some(mut spare) = self.0.borrow_mut().pop()
            // Parts of what was read last may still be on their way to the client; then the buffer stays theirs.
            && spare.try_reclaim(READ_SIZE)
        {
            return spare;
        }
        BytesMut::with_capacity(READ_SIZE)
    }

    /// Takes a buffer back, with nothing in it that anyone waits for.
    pub(super) fn put(&self, mut buffer: BytesMut) {
        let mut spare = self.0.borrow_mut();
        if spare.len() < SPARE && buffer.capacity() > 0 {
            buffer.clear();
            spare.push(buffer);
        }
    }
}
