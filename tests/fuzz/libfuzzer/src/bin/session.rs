//! The target `session`, for libFuzzer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use portcullis_fuzz::targets::session;

fuzz_target!(|data: &[u8]| session::check(data));
