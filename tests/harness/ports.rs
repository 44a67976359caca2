//! Free ports for programs that need explicit port numbers.

#![allow(
    dead_code,
    reason = "some targets need free ports only, others closed addresses"
)]

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// First port; the range lies below Linux's ephemeral ports, so that no other socket gets one by
/// chance.
const FIRST: u32 = 10_240;
const COUNT: u32 = 20_000;

/// Reserves free ports that no other call in this process returns.
pub(crate) fn free_ports<const N: usize>() -> [u16; N] {
    [(); N].map(|()| free_port())
}

/// Returns an address where nothing listens for as long as this process runs.
pub(crate) fn closed_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

fn free_port() -> u16 {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    // Other processes start elsewhere in the range.
    let start = process::id().wrapping_mul(97);
    loop {
        let next = start.wrapping_add(TAKEN.fetch_add(1, Relaxed));
        let port = u16::try_from(FIRST + next % COUNT).expect("in range");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
