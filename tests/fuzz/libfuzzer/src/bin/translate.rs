//! The target `translate`, for libFuzzer.

#![no_main]

use libfuzzer_sys::{Corpus, fuzz_mutator, fuzz_target, fuzzer_mutate};
use portcullis_fuzz::targets::translate;

fuzz_target!(|data: &[u8]| -> Corpus {
    match translate::check(data) {
        true => Corpus::Keep,
        false => Corpus::Reject,
    }
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    translate::mutate(data, size, max_size, seed, &mut fuzzer_mutate)
});
