//! Provisioning against an in-memory API server: the controller's reconciler and the resulting
//! objects.
//!
//! | subject | tests |
//! |---|---|
//! | whose an object is, names that are taken, former Gateways and versions | `ownership` |
//! | refusals, requests that hang, events | `failures` |
//! | repairs, deletions | `repair` |
//! | one Gateway after the other | `rollouts` |

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod failures;
mod ownership;
mod repair;
mod rollouts;
mod scene;
mod server;
