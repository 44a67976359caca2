//! A pod of a controller: the program, a controller that says whatever a test wants, and what a client of the pod sees.
//! `serving` looks at what streams change, `faults` at controllers that fail, `leader` at moves between controllers,
//! `trust` at certificates and tokens, `copies` at restarts.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod controller;
mod copies;
mod faults;
mod leader;
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

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Looks again and again until what is seen is as wanted. For what tells nobody of its changes.
fn eventually<T: Debug>(look: impl Fn() -> T, wanted: impl Fn(&T) -> bool) -> T {
    let start = Instant::now();
    loop {
        let seen = look();
        if wanted(&seen) {
            return seen;
        }
        assert!(start.elapsed() < PATIENCE, "still {seen:?}");
        thread::sleep(Duration::from_millis(10));
    }
}
