//! The target `proxy_protocol`, for libFuzzer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use portcullis_fuzz::targets::proxy_protocol;

fuzz_target!(|data: &[u8]| proxy_protocol::check(data));
