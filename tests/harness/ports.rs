//! Ports for programs that must be told theirs. Knows nothing of what listens there.

use std::net::{Ipv4Addr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Below the range that Linux takes ports of outgoing connections and of port 0 from: nobody gets one of these unasked.
const FIRST: u32 = 10_240;
const COUNT: u32 = 20_000;

/// Ports that are free, and that no other call in this process gets.
pub(crate) fn free_ports<const N: usize>() -> [u16; N] {
    [(); N].map(|()| free_port())
}

fn free_port() -> u16 {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    // Another process begins elsewhere.
    let start = process::id().wrapping_mul(97);
    loop {
        let next = start.wrapping_add(TAKEN.fetch_add(1, Relaxed));
        let port = u16::try_from(FIRST + next % COUNT).expect("in range");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
