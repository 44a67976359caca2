//! What provisioning does to a cluster: an API server in memory, the controller's part that writes objects, and what is
//! there afterwards.
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
