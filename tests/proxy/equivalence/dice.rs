//! Choices at random, which a seed determines.

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};

pub(super) struct Dice(StdRng);

impl Dice {
    pub(super) fn of_seed(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.0.random_range(0..100) < percent
    }

    pub(super) fn below(&mut self, count: usize) -> usize {
        self.0.random_range(0..count)
    }

    pub(super) fn one<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of.choose(&mut self.0).expect("not empty")
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        items.shuffle(&mut self.0);
    }

    /// Returns a path in canonical form.
    pub(super) fn path(&mut self) -> String {
        let segments = (0..self.below(4)).map(|_| self.one(&SEGMENTS));
        format!("/{}", segments.collect::<Vec<_>>().join("/"))
    }
}

/// Segments of paths, in canonical form.
const SEGMENTS: [&str; 9] = [
    "a",
    "b",
    "admin",
    "admin",
    "~u",
    "x.y",
    "caf%C3%A9",
    "a%2Fb",
    "p;v=1",
];
