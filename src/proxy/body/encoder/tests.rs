//! Tests of the memory of encoders. What they write is tested with bodies.

use std::cell::Cell;
use std::rc::Rc;

use brotli::enc::{Allocator, SliceWrapper, SliceWrapperMut};

use super::*;

/// Counts the bytes that brotli takes.
#[derive(Clone, Default)]
struct Counting {
    now: Rc<Cell<usize>>,
    most: Rc<Cell<usize>>,
}

#[derive(Default)]
struct Cells<T>(Vec<T>);

impl<T> SliceWrapper<T> for Cells<T> {
    fn slice(&self) -> &[T] {
        &self.0
    }
}

impl<T> SliceWrapperMut<T> for Cells<T> {
    fn slice_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T: Clone + Default> Allocator<T> for Counting {
    type AllocatedMemory = Cells<T>;

    fn alloc_cell(&mut self, length: usize) -> Cells<T> {
        self.now.set(self.now.get() + length * size_of::<T>());
        self.most.set(self.most.get().max(self.now.get()));
        Cells(vec![T::default(); length])
    }

    fn free_cell(&mut self, cells: Cells<T>) {
        self.now
            .set(self.now.get() - cells.0.len() * size_of::<T>());
    }
}

impl BrotliAlloc for Counting {}

/// Inputs that make encoders take most: without repetitions, with some, and with many.
fn inputs() -> [Vec<u8>; 3] {
    let mut state = 1_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let noise: Vec<u8> = (0..1 << 20).map(|_| random() as u8).collect();
    let words: Vec<String> = (0..500)
        .map(|_| format!("{:x}", random() % 65_536))
        .collect();
    let mut text = String::new();
    while text.len() < 1 << 20 {
        text.push_str(&words[random() as usize % words.len()]);
        text.push(' ');
    }
    let zeros = vec![0; 1 << 20];
    [noise, text.into_bytes(), zeros]
}

/// Encodes `input` without flushes, in pieces. Calls `measure` after each step.
fn encode(
    input: &[u8],
    mut step: impl FnMut(Operation, &[u8], &mut [u8]) -> Result<Step, EncoderFailure>,
) {
    let mut output = vec![0; 16 * 1024];
    for piece in input.chunks(16 * 1024) {
        let mut piece = piece;
        while !piece.is_empty() {
            let done = step(Operation::Process, piece, &mut output).unwrap();
            piece = &piece[done.taken..];
        }
    }
    while !step(Operation::Finish, &[], &mut output)
        .unwrap()
        .is_complete
    {}
}

#[test]
fn encoders_stay_within_their_memory() {
    for level in [Level::Fast, Level::Default, Level::Best] {
        for input in inputs() {
            let allocator = Counting::default();
            let mut brotli = Brotli::new(level, allocator.clone());
            encode(&input, |operation, input, output| {
                brotli.step(operation, input, output)
            });
            let most = allocator.most.get() + size_of::<Brotli<StandardAlloc>>();
            let limit = Encoder::memory(Encoding::Brotli);
            assert!(most <= limit, "{level:?}: brotli takes {most} bytes");
            let mut zstd = zstd(level, None).unwrap();
            encode(&input, |operation, input, output| {
                zstd_step(&mut zstd, operation, input, output)
            });
            let most = zstd.sizeof();
            let limit = Encoder::memory(Encoding::Zstd);
            assert!(most <= limit, "{level:?}: zstd takes {most} bytes");
        }
    }
}
