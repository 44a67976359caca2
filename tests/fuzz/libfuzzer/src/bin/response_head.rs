//! The target `response_head`, for libFuzzer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use portcullis_fuzz::targets::response_head;

fuzz_target!(|data: &[u8]| response_head::check(data));
