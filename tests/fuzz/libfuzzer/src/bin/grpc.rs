//! The target `grpc`, for libFuzzer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use portcullis_fuzz::targets::grpc;

fuzz_target!(|data: &[u8]| grpc::check(data));
