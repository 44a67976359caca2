//! The target `http2_client`, for libFuzzer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use portcullis_fuzz::targets::http2_client;

fuzz_target!(|data: &[u8]| http2_client::check(data));
