//! Raw sockets against a running data plane: every malformed, hostile, slow or unusual input, and what it must get. The
//! names of the tests say the behaviour; the files are grouped by what the input is about.

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
mod origin;
mod routing;
mod slow;
mod streams;
mod tls;
mod upgrade;
