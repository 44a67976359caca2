//! The target `client_certificate`, for libFuzzer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use portcullis_fuzz::targets::client_certificate;

fuzz_target!(|data: &[u8]| client_certificate::check(data));
