//! The target `route_match`, for libFuzzer.

#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use portcullis_fuzz::targets::route_match;

fuzz_target!(|data: &[u8]| -> Corpus {
    match route_match::check(data) {
        true => Corpus::Keep,
        false => Corpus::Reject,
    }
});
