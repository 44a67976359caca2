//! Pseudo-random numbers, and changes of bytes by them. The same seed gives the same numbers and changes.

use std::ops::Range;

/// The generator splitmix64.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number of this range; its start if it is empty.
    pub fn within(&mut self, range: Range<usize>) -> usize {
        range.start + (self.next_u64() % range.len().max(1) as u64) as usize
    }

    /// One of these.
    pub fn one<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.within(0..items.len()))
    }

    /// Changes one to four places of the first `size` bytes of `data`, and returns how many there are then: at most
    /// `max_size`. What libFuzzer does, without what it learns.
    pub fn mutate(&mut self, data: &mut [u8], size: usize, max_size: usize) -> usize {
        let mut bytes = data[..size].to_vec();
        for _ in 0..self.within(1..5) {
            self.change(&mut bytes);
        }
        bytes.truncate(max_size);
        data[..bytes.len()].copy_from_slice(&bytes);
        bytes.len()
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        let at = self.within(0..bytes.len());
        let end = self.within(at..bytes.len().min(at + 32)) + 1;
        match (self.within(0..6), bytes.get_mut(at)) {
            (0, Some(byte)) => *byte ^= 1 << self.within(0..8),
            (1, Some(byte)) => *byte = self.interesting(),
            (2, Some(_)) => drop(bytes.drain(at..end)),
            (3, Some(_)) => {
                let part = bytes[at..end].to_vec();
                let to = self.within(0..bytes.len());
                bytes.splice(to..to, part);
            }
            (4, Some(_)) => {
                let other = self.within(0..bytes.len());
                bytes.swap(at, other);
            }
            _ => bytes.insert(at, self.interesting()),
        }
    }

    /// A byte that means something to many parsers, or any.
    fn interesting(&mut self) -> u8 {
        let any = self.next_u64() as u8;
        let bytes = b"\0\t\r\n \"#%&,-./0:;=?@[\\]{}\x7f\x80\xff";
        match self.within(0..2) {
            0 => any,
            _ => self.one(bytes).copied().unwrap_or(any),
        }
    }
}
