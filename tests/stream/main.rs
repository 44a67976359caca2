//! A pod of a controller: the program, a scripted controller and a client of the pod. `serving`
//! tests stream updates, `faults` failing controllers, `leader` moves between controllers, `trust`
//! certificates and tokens, `copies` restarts, `limits`, `shared_keys` and `cost` several pods that share limits,
//! `key_sets` keys that the pod lacks, `churn` policies that change under load.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod churn;
mod client;
mod controller;
mod copies;
mod cost;
mod faults;
mod key_sets;
mod leader;
mod limits;
mod objects;
mod pod;
#[path = "../harness/ports.rs"]
mod ports;
#[path = "../harness/scale.rs"]
mod scale;
mod service;
mod serving;
mod shared_keys;
mod trust;

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

/// Timeout of any wait on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Polls until `look` returns the wanted value.
fn eventually<T: Debug>(look: impl Fn() -> T, wanted: impl Fn(&T) -> bool) -> T {
    let start = Instant::now();
    loop {
        let seen = look();
        if wanted(&seen) {
            return seen;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "still {seen:?}");
        // What is looked at has no change notification.
        thread::sleep(Duration::from_millis(10));
    }
}
