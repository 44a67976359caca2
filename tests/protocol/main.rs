//! Raw sockets against a running data plane: every malformed, hostile, slow or unusual input, and what it must get. The
//! names of the tests say the behaviour; the files are grouped by what the input is about.

#[path = "../harness/mod.rs"]
mod harness;

mod exchange;
mod fixture;
mod framing;
mod origin;
mod routing;
mod slow;
mod upgrade;
