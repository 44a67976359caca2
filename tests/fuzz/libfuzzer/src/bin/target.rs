//! The target `target`, for libFuzzer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use portcullis_fuzz::targets::target;

fuzz_target!(|data: &[u8]| target::check(data));
