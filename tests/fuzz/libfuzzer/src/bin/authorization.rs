//! The target `authorization`, for libFuzzer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use portcullis_fuzz::targets::authorization;

fuzz_target!(|data: &[u8]| authorization::check(data));
