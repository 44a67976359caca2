//! Datagrams in batches: several are received, or sent, with one system call. The kernel joins datagrams of one length and
//! one sender (GRO), and divides them again where they are sent (GSO). Buffers are those of a worker. Must not know what the
//! datagrams are, and does not change whether they may be fragmented.

#[cfg(target_os = "linux")]
mod batch;
mod io;
mod merge;
mod outbox;
mod run;

pub use self::io::{DatagramIo, join_received, with_local_address};
pub use self::outbox::Outbox;
pub use self::run::Datagrams;
