//! The target `credentials`, for libFuzzer.

#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use portcullis_fuzz::targets::credentials;

fuzz_target!(|data: &[u8]| -> Corpus {
    match credentials::check(data) {
        true => Corpus::Keep,
        false => Corpus::Reject,
    }
});
