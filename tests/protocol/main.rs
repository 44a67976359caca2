//! Raw sockets against a running data plane: malformed, hostile, slow and unusual inputs, and their
//! outcomes. Files are grouped by the kind of input.

mod backends;
mod busy;
mod closing;
mod exchange;
mod fixture;
mod flood;
mod frames;
mod framing;
#[path = "../harness/mod.rs"]
mod harness;
mod http2;
mod neighbours;
mod origin;
mod routing;
mod slow;
mod slow_reader;
mod streams;
mod tls;
mod upgrade;
