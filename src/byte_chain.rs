//! A chain of bytes that owns its memory and knows how much that is. A slice of a read buffer keeps
//! the whole buffer allocated (8 to 516 KiB for what may be one byte), so the chain copies what it
//! is given and collects small parts in chunks.

use std::collections::VecDeque;
use std::mem;

use bytes::{Bytes, BytesMut};

/// Size from which data may stay in the buffer that it was read into. Smaller parts are copied: a peer that does not read
/// them would keep the buffer allocated, which is at least eight times as large.
pub const MIN_SLICE: usize = 8 * 1024;

/// Size of most buffers that responses are read into. The number of larger ones is bounded.
pub const READ_BUFFER: usize = 64 * 1024;

/// Reports whether bytes that wait stay in the buffer that they were read into, which counts as a whole then. Fewer are copied.
pub fn stay_in_read_buffer(waiting: usize) -> bool {
    waiting >= READ_BUFFER / 2
}

/// Copies bytes that wait out of the buffer that they were read into, unless they stay in it. Returns what stays allocated.
pub fn leave_read_buffer(waiting: &mut Bytes) -> usize {
    if stay_in_read_buffer(waiting.len()) {
        return READ_BUFFER;
    }
    *waiting = Bytes::copy_from_slice(waiting);
    waiting.len()
}

/// Minimum and maximum size of a chunk that collects small parts. Each chunk is as large as what is
/// in the chain before it, so that a chain allocates at most twice its length and a few chunks.
const MIN_CHUNK: usize = 256;
const MAX_CHUNK: usize = 16 * 1024;
/// Memory of a chunk apart from its data: its place in the chain, and the reference count and
/// capacity that `bytes` allocates for shared data.
const OVERHEAD: usize = size_of::<Chunk>() + 6 * size_of::<usize>();

/// A queue of bytes.
#[derive(Debug, Default)]
pub struct ByteChain {
    chunks: VecDeque<Chunk>,
    /// The chunk that collects small parts, after `chunks`.
    open: BytesMut,
    /// Number of bytes.
    len: usize,
    /// Memory of `chunks`.
    closed: usize,
}

/// A chunk that is not extended any more.
#[derive(Debug)]
struct Chunk {
    data: Bytes,
    allocated: usize,
}

impl ByteChain {
    /// Appends a copy of `data`.
    pub fn push(&mut self, data: &[u8]) {
        let is_first = self.is_empty();
        let room = self.open.capacity() - self.open.len();
        let (fits, rest) = data.split_at(room.min(data.len()));
        self.open.extend_from_slice(fits);
        self.len += data.len();
        if rest.is_empty() {
            return;
        }
        self.close();
        // Most bodies have one part: the first chunk has its exact size.
        let size = match is_first {
            true => rest.len(),
            false => rest.len().max(self.len.clamp(MIN_CHUNK, MAX_CHUNK)),
        };
        self.open = BytesMut::with_capacity(size);
        self.open.extend_from_slice(rest);
    }

    /// Removes and returns the first bytes: those of the first chunk.
    pub fn pop(&mut self) -> Option<Bytes> {
        if self.chunks.is_empty() {
            self.close();
        }
        let first = self.chunks.pop_front()?;
        self.closed -= first.allocated;
        self.len -= first.data.len();
        Some(first.data)
    }

    /// Returns the bytes in parts, without copying them.
    pub fn parts(&mut self) -> impl ExactSizeIterator<Item = &Bytes> {
        self.close();
        self.chunks.iter().map(|chunk| &chunk.data)
    }

    /// Moves all bytes to one chunk and returns them. Both share the memory.
    pub fn join(&mut self) -> Bytes {
        self.close();
        if self.chunks.len() > 1 {
            let mut joined = BytesMut::with_capacity(self.len);
            for chunk in mem::take(&mut self.chunks) {
                joined.extend_from_slice(&chunk.data);
            }
            (self.open, self.closed) = (joined, 0);
            self.close();
        }
        let first = self.chunks.front();
        first.map_or_else(Bytes::new, |chunk| chunk.data.clone())
    }

    /// Reports whether `data` follows the first `offset` bytes.
    pub fn has_at(&self, mut offset: usize, mut data: &[u8]) -> bool {
        let closed = self.chunks.iter().map(|chunk| &chunk.data[..]);
        for part in closed.chain([&self.open[..]]) {
            let skipped = offset.min(part.len());
            offset -= skipped;
            let part = &part[skipped..];
            let (compared, rest) = data.split_at(part.len().min(data.len()));
            if !part.starts_with(compared) {
                return false;
            }
            data = rest;
        }
        data.is_empty()
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Reports whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the memory that the chain holds.
    pub fn allocated(&self) -> usize {
        match self.open.capacity() {
            0 => self.closed,
            open => self.closed + open + OVERHEAD,
        }
    }

    /// Ends the open chunk.
    fn close(&mut self) {
        if !self.open.is_empty() {
            let allocated = self.open.capacity() + OVERHEAD;
            let data = mem::take(&mut self.open).freeze();
            self.closed += allocated;
            self.chunks.push_back(Chunk { data, allocated });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(chain: &mut ByteChain) -> Vec<u8> {
        std::iter::from_fn(|| chain.pop()).flatten().collect()
    }

    #[test]
    fn returns_bytes_in_order() {
        for step in [1, 3, 255, 257, 20_000] {
            let sent: Vec<u8> = (0..50_000_u32).map(|i| (i % 251) as u8).collect();
            let (mut chain, mut received) = (ByteChain::default(), Vec::new());
            for (i, part) in sent.chunks(step).enumerate() {
                chain.push(part);
                if i % 7 == 0 {
                    received.extend(chain.pop().unwrap());
                }
            }
            let kept: Vec<u8> = chain.parts().flatten().copied().collect();
            assert_eq!(chain.len(), kept.len());
            assert_eq!([received, kept].concat(), sent, "step {step}");
        }
    }

    #[test]
    fn single_bytes_cost_at_most_twice_their_number() {
        let mut chain = ByteChain::default();
        for count in 1..=100_000 {
            chain.push(b"x");
            let bound = 2 * count + MIN_CHUNK + (2 + 10 + count / MAX_CHUNK) * OVERHEAD;
            let allocated = chain.allocated();
            assert!((count..=bound).contains(&allocated), "{allocated} {count}");
        }
        assert_eq!((chain.len(), text(&mut chain).len()), (100_000, 100_000));
        assert_eq!((chain.allocated(), chain.is_empty()), (0, true));
    }

    #[test]
    fn copies_release_the_read_buffer() {
        let mut buffer = BytesMut::with_capacity(64 * 1024);
        buffer.extend_from_slice(b"small part");
        let slice = buffer.split().freeze();
        let mut chain = ByteChain::default();
        chain.push(&slice);
        drop(slice);
        assert!(buffer.try_reclaim(64 * 1024));
        assert_eq!(chain.allocated(), b"small part".len() + OVERHEAD);
    }

    #[test]
    fn compares_bytes_across_chunks() {
        let sent: Vec<u8> = (0..50_000_u32).map(|i| (i % 251) as u8).collect();
        for step in [1, 255, 20_000] {
            let mut chain = ByteChain::default();
            sent.chunks(step).for_each(|part| chain.push(part));
            let allocated = chain.allocated();
            for (from, to) in [
                (0, 50_000),
                (0, 1),
                (300, 40_000),
                (49_999, 50_000),
                (50_000, 50_000),
            ] {
                assert!(chain.has_at(from, &sent[from..to]), "{from} {to} {step}");
                assert!(!chain.has_at(from + 1, &sent[from..to]) || from == to);
            }
            let longer = [&sent[49_000..], b"x"].concat();
            assert!(!chain.has_at(49_000, &longer) && !chain.has_at(60_000, b"x"));
            let mut other = sent.clone();
            other[30_000] ^= 1;
            assert!(chain.has_at(0, &other[..30_000]) && !chain.has_at(0, &other[..30_001]));
            assert_eq!(chain.allocated(), allocated);
        }
    }

    #[test]
    fn joins_all_parts_without_keeping_them() {
        let mut chain = ByteChain::default();
        assert_eq!(chain.join(), "");
        for part in ["a", "b", "c"] {
            chain.push(part.as_bytes());
            assert!(chain.parts().len() > 0);
        }
        assert_eq!(chain.join(), "abc");
        assert_eq!(chain.allocated(), 3 + OVERHEAD);
        chain.push(b"d");
        assert_eq!(chain.join(), "abcd");
        assert_eq!(text(&mut chain), b"abcd");
    }
}
