//! A pod of a controller: the program, a scripted controller and a client of the pod. `serving`
//! tests stream updates, `faults` failing controllers, `leader` moves between controllers, `trust`
//! certificates and tokens, `copies` restarts, `limits` several pods that share limits, `key_sets` keys
//! that the pod lacks.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod controller;
mod copies;
mod faults;
mod key_sets;
mod leader;
mod limits;
mod objects;
mod pod;
#[path = "../harness/ports.rs"]
mod ports;
mod service;
mod serving;
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
