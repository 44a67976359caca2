//! The target `http2_backend`, for libFuzzer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use portcullis_fuzz::targets::http2_backend;

fuzz_target!(|data: &[u8]| http2_backend::check(data));
