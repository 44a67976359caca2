//! Datagrams to many receivers that leave one socket together. Must not know who puts them there.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::UdpSocket;

use super::io::DatagramIo;
use super::run::Datagrams;

/// Maximum number of bytes. The largest batch that is received fits.
const BYTES: usize = 128 * 1024;
/// Maximum number of entries, since datagrams may have few bytes or none.
const ENTRIES: usize = 1024;

/// Datagrams that wait until the tasks of a turn have added theirs. Until the first one, it holds no memory.
#[derive(Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

/// Datagrams to one receiver.
#[derive(Clone, Copy)]
struct Entry {
    to: SocketAddr,
    from: Option<IpAddr>,
    start: usize,
    end: usize,
    length: usize,
}

impl Outbox {
    /// Reports whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Reports whether these datagrams may be added.
    pub fn has_room(&self, datagrams: &Datagrams<'_>) -> bool {
        self.entries.len() < ENTRIES && self.bytes.len() + datagrams.bytes.len() <= BYTES
    }

    /// Adds datagrams for `to`, which leave from the local address `from`, or from that which the routes of the host give.
    pub fn push(&mut self, to: SocketAddr, from: Option<IpAddr>, datagrams: &Datagrams<'_>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(datagrams.bytes);
        self.entries.push(Entry {
            to,
            from,
            start,
            end: self.bytes.len(),
            length: datagrams.length,
        });
    }

    /// Sends everything. Returns how many datagrams the kernel did not take.
    pub fn send(&mut self, io: &DatagramIo, socket: &UdpSocket) -> usize {
        let mut dropped = 0;
        let mut rest = &*self.entries;
        while let Some((first, others)) = rest.split_first() {
            let datagrams = self.datagrams(first);
            if datagrams.count() > 1 {
                let result = io.send_several(socket, first.to, first.from, &datagrams);
                dropped += result.unwrap_or(datagrams.count());
                rest = others;
                continue;
            }
            match self.send_singles(io, socket, rest) {
                Ok(sent) => rest = &rest[sent.max(1)..],
                // The next ones may have another way.
                Err(_) => {
                    dropped += 1;
                    rest = others;
                }
            }
        }
        self.entries.clear();
        self.bytes.clear();
        dropped
    }

    /// Sends the first entry, which has one datagram, and those behind it that have one and leave from the same address.
    /// Returns how many were sent.
    #[cfg(target_os = "linux")]
    fn send_singles(
        &self,
        io: &DatagramIo,
        socket: &UdpSocket,
        entries: &[Entry],
    ) -> io::Result<usize> {
        let from = entries[0].from;
        let is_same = |it: &&Entry| it.from == from && self.datagrams(it).count() == 1;
        let same = entries.iter().take_while(is_same);
        let datagrams = same.map(|it| (it.to, self.datagrams(it).bytes));
        io.headers.borrow_mut().send(socket, from, datagrams)
    }

    /// Sends the first entry, which has one datagram. Returns 1.
    #[cfg(not(target_os = "linux"))]
    fn send_singles(
        &self,
        io: &DatagramIo,
        socket: &UdpSocket,
        entries: &[Entry],
    ) -> io::Result<usize> {
        let first = &entries[0];
        match io.send_several(socket, first.to, first.from, &self.datagrams(first))? {
            0 => Ok(1),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn datagrams(&self, entry: &Entry) -> Datagrams<'_> {
        Datagrams {
            peer: entry.to,
            local: entry.from,
            bytes: &self.bytes[entry.start..entry.end],
            length: entry.length,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::io::with_local_address;
    use super::*;

    async fn bound(address: [u8; 4]) -> (UdpSocket, SocketAddr) {
        let socket = UdpSocket::bind((Ipv4Addr::from(address), 0)).await.unwrap();
        let address = socket.local_addr().unwrap();
        (socket, address)
    }

    async fn received(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
        let mut buffer = vec![0; 2000];
        let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
        buffer.truncate(length);
        (buffer, from)
    }

    fn datagrams(bytes: &[u8], length: usize) -> Datagrams<'_> {
        Datagrams {
            peer: (Ipv4Addr::UNSPECIFIED, 0).into(),
            local: None,
            bytes,
            length,
        }
    }

    #[tokio::test]
    async fn each_receiver_gets_its_own_from_the_address_that_is_meant() {
        const RECEIVERS: usize = 100;
        let io = DatagramIo::new().unwrap();
        for wildcard in ["0.0.0.0:0", "[::]:0"] {
            let socket = UdpSocket::bind(wildcard).await.unwrap();
            with_local_address(&socket).unwrap();
            let map = |address: Ipv4Addr| match wildcard {
                "[::]:0" => IpAddr::from(address.to_ipv6_mapped()),
                _ => address.into(),
            };
            let mut outbox = Outbox::default();
            let mut receivers = Vec::new();
            for index in 0..RECEIVERS {
                let (receiver, to) = bound([127, 0, 0, 1]).await;
                // Runs of one address, of none, and one with several datagrams for the same receiver.
                let from = Ipv4Addr::new(127, 0, 0, 1 + (index / 40) as u8);
                let text = format!("a{index:02}b{index:02}");
                let length = if index % 10 == 7 { 3 } else { 6 };
                let to = SocketAddr::new(map(Ipv4Addr::LOCALHOST), to.port());
                let meant = (index % 4 < 3).then(|| map(from));
                outbox.push(to, meant, &datagrams(text.as_bytes(), length));
                receivers.push((receiver, text, length, meant));
            }
            assert_eq!(outbox.send(&io, &socket), 0);
            assert!(outbox.is_empty());
            for (receiver, text, length, meant) in &receivers {
                for part in text.as_bytes().chunks(*length) {
                    let (bytes, from) = received(receiver).await;
                    assert_eq!(bytes, part);
                    assert_eq!(from.port(), socket.local_addr().unwrap().port());
                    if let Some(meant) = meant {
                        assert_eq!(from.ip(), meant.to_canonical());
                    }
                }
            }
        }
    }

    #[test]
    fn number_of_empty_datagrams_is_bounded() {
        let (mut outbox, empty) = (Outbox::default(), datagrams(b"", 0));
        for _ in 0..2 * ENTRIES {
            if outbox.has_room(&empty) {
                outbox.push(empty.peer, None, &empty);
            }
        }
        assert_eq!(outbox.entries.len(), ENTRIES);
    }

    #[tokio::test]
    async fn datagram_that_cannot_be_sent_stops_no_other() {
        let io = DatagramIo::new().unwrap();
        let (socket, _) = bound([127, 0, 0, 1]).await;
        let (receiver, to) = bound([127, 0, 0, 1]).await;
        let mut outbox = Outbox::default();
        // The socket has an IPv4 address, and may not send to a broadcast address.
        for to in [
            "[::1]:9".parse().unwrap(),
            to,
            (Ipv4Addr::BROADCAST, 9).into(),
            to,
        ] {
            outbox.push(to, None, &datagrams(b"text", 4));
        }
        assert_eq!(outbox.send(&io, &socket), 2);
        for _ in 0..2 {
            assert_eq!(received(&receiver).await.0, b"text");
        }
    }
}
