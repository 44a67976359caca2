//! The target `stream`, for libFuzzer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use portcullis_fuzz::targets::stream;

fuzz_target!(|data: &[u8]| stream::check(data));
