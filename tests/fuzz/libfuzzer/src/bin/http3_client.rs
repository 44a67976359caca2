//! The target `http3_client`, for libFuzzer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use portcullis_fuzz::targets::http3_client;

fuzz_target!(|data: &[u8]| http3_client::check(data));
