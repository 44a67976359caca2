//! The target `client_hello`, for libFuzzer.

#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use portcullis_fuzz::targets::client_hello;

fuzz_target!(|data: &[u8]| client_hello::check(data));

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    client_hello::mutate(data, size, max_size, seed, &mut fuzzer_mutate)
});
