//! Datagrams of one sender in one piece of memory.

use std::net::{IpAddr, SocketAddr};

/// Datagrams of one sender, all of one length but the last, which may be shorter.
#[derive(Clone, Copy, Debug)]
pub struct Datagrams<'a> {
    /// Who sent them.
    pub peer: SocketAddr,
    /// The local address to which they were sent, if the socket was asked to tell it.
    pub local: Option<IpAddr>,
    /// One after the other.
    pub bytes: &'a [u8],
    /// Length of each.
    pub length: usize,
}

impl<'a> Datagrams<'a> {
    /// Returns how many there are.
    pub fn count(&self) -> usize {
        count(self.bytes.len(), self.length)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (bytes, length) = (self.bytes, self.length);
        (0..self.count()).map(move |index| {
            let rest = &bytes[index * length..];
            &rest[..length.min(rest.len())]
        })
    }
}

/// Returns the number of datagrams of a length that have these bytes.
pub(super) fn count(bytes: usize, length: usize) -> usize {
    bytes.div_ceil(length.max(1)).max(1)
}
