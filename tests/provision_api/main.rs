//! Provisioning against an in-memory API server: the controller's reconciler and the resulting
//! objects.
//!
//! | subject | tests |
//! |---|---|
//! | ownership of objects, taken names, previous Gateways and versions | `ownership` |
//! | rejected and hanging requests, events | `failures` |
//! | repairs, deletions | `repair` |
//! | the finalizer of GatewayClasses | `classes` |
//! | rollouts to one Gateway after the other | `rollouts` |

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod classes;
mod failures;
mod ownership;
mod repair;
mod rollouts;
mod scene;
mod server;
