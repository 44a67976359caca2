//! Joins received datagrams of one sender and one length, so that they leave together. Must not know sockets.

use std::net::{IpAddr, SocketAddr};

use quinn_udp::RecvMeta;

use super::run::{Datagrams, count};

/// Maximum number of datagrams that the kernel divides (UDP_MAX_SEGMENTS of older kernels).
const MAX_DATAGRAMS: usize = 64;
/// Maximum number of their bytes: those of one datagram.
const MOST_BYTES: usize = 65_507;
/// Maximum length of datagrams that are joined: an Ethernet frame without headers. The kernel does not divide into
/// fragments.
const LONGEST: usize = 1472;

/// Datagrams that may become more.
struct Run {
    peer: SocketAddr,
    local: Option<IpAddr>,
    start: usize,
    end: usize,
    length: usize,
}

impl Run {
    fn new(start: usize, meta: &RecvMeta) -> Self {
        Self {
            peer: meta.addr,
            local: meta.dst_ip.filter(is_of_one_host),
            start,
            end: start + meta.len,
            length: meta.stride,
        }
    }

    /// Reports whether what was received next may be appended: only the last datagram may be shorter.
    fn accepts(&self, meta: &RecvMeta) -> bool {
        let is_same = meta.addr == self.peer && meta.dst_ip.filter(is_of_one_host) == self.local;
        if !is_same || meta.len == 0 || !(1..=LONGEST).contains(&self.length) {
            return false;
        }
        let bytes = self.end - self.start;
        let is_last = meta.len == meta.stride && meta.len < self.length;
        let is_next = meta.stride == self.length || is_last;
        let all = bytes + meta.len;
        let fits = all <= MOST_BYTES && count(all, self.length) <= MAX_DATAGRAMS;
        bytes.is_multiple_of(self.length) && is_next && fits
    }

    fn datagrams<'a>(&self, buffer: &'a [u8]) -> Datagrams<'a> {
        Datagrams {
            peer: self.peer,
            local: self.local,
            bytes: &buffer[self.start..self.end],
            length: self.length,
        }
    }
}

/// Nothing can be sent from the address of many hosts.
fn is_of_one_host(address: &IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !is_broadcast && !address.is_multicast()
}

/// Passes on received datagrams in order. Each slot of the buffer has one, or several that the kernel has joined; an entry of
/// `metas` describes it.
pub(super) fn merge(
    buffer: &mut [u8],
    slot: usize,
    metas: &[RecvMeta],
    mut handle: impl FnMut(Datagrams<'_>),
) {
    let mut run = None::<Run>;
    for (index, meta) in metas.iter().enumerate() {
        let start = index * slot;
        match &mut run {
            Some(run) if run.accepts(meta) => {
                buffer.copy_within(start..start + meta.len, run.end);
                run.end += meta.len;
            }
            _ => {
                if let Some(complete) = run.replace(Run::new(start, meta)) {
                    handle(complete.datagrams(buffer));
                }
            }
        }
    }
    if let Some(last) = run {
        handle(last.datagrams(buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: usize = 100;

    /// What was received: port of the sender, last byte of the local address, length of each datagram, and the bytes.
    type Received<'a> = (u16, u8, usize, &'a str);

    /// Merges; returns the same for what leaves together.
    fn merged(received: &[Received<'_>]) -> Vec<(u16, u8, usize, String)> {
        let mut buffer = vec![b'.'; SLOT * received.len()];
        let mut metas = Vec::new();
        for (index, (port, local, length, bytes)) in received.iter().enumerate() {
            buffer[index * SLOT..][..bytes.len()].copy_from_slice(bytes.as_bytes());
            let mut meta = RecvMeta::default();
            meta.addr = ([127, 0, 0, 1], *port).into();
            meta.dst_ip = Some([127, 0, 0, *local].into());
            (meta.len, meta.stride) = (bytes.len(), *length);
            metas.push(meta);
        }
        let mut runs = Vec::new();
        merge(&mut buffer, SLOT, &metas, |datagrams| {
            let Some(IpAddr::V4(local)) = datagrams.local else {
                panic!("no local address");
            };
            let text = String::from_utf8(datagrams.bytes.to_vec()).unwrap();
            runs.push((
                datagrams.peer.port(),
                local.octets()[3],
                datagrams.length,
                text,
            ));
        });
        runs
    }

    fn run(port: u16, local: u8, length: usize, text: &str) -> (u16, u8, usize, String) {
        (port, local, length, text.to_owned())
    }

    #[test]
    fn joins_datagrams_of_one_length_and_a_shorter_last_one() {
        let received = [
            (1, 1, 2, "aa"),
            (1, 1, 2, "bbcc"),
            (1, 1, 1, "d"),
            (1, 1, 2, "ee"),
        ];
        let expected = [run(1, 1, 2, "aabbccd"), run(1, 1, 2, "ee")];
        assert_eq!(merged(&received), expected);
    }

    #[test]
    fn separates_senders_addresses_and_longer_datagrams() {
        let received = [
            (1, 1, 2, "aa"),
            (2, 1, 2, "bb"),
            (2, 2, 2, "cc"),
            (2, 2, 3, "ddd"),
            (2, 2, 2, "eeff"),
            (2, 2, 2, "g"),
        ];
        let all: Vec<_> = received
            .iter()
            .map(|it| run(it.0, it.1, it.2, it.3))
            .collect();
        assert_eq!(merged(&received[..4]), all[..4]);
        // The kernel has joined datagrams that are shorter than the ones before, and the last of its own is shorter.
        assert_eq!(merged(&[(2, 2, 3, "ddd"), (2, 2, 2, "eef")]).len(), 2);
        assert_eq!(merged(&[(2, 2, 2, "eef"), (2, 2, 2, "gg")]).len(), 2);
    }

    #[test]
    fn empty_datagrams_stay_apart() {
        let received = [
            (1, 1, 2, "aa"),
            (1, 1, 0, ""),
            (1, 1, 0, ""),
            (1, 1, 2, "bb"),
        ];
        let runs = merged(&received);
        let lengths: Vec<_> = runs.iter().map(|run| run.3.len()).collect();
        assert_eq!(lengths, [2, 0, 0, 2]);
    }

    #[test]
    fn kernel_can_divide_what_is_joined() {
        let received = vec![(1, 1, 1, "a"); MAX_DATAGRAMS + 1];
        let counts: Vec<_> = merged(&received).iter().map(|run| run.3.len()).collect();
        assert_eq!(counts, [MAX_DATAGRAMS, 1]);
        let mut meta = RecvMeta::default();
        (meta.len, meta.stride) = (LONGEST + 1, LONGEST + 1);
        assert!(!Run::new(0, &meta).accepts(&meta));
        (meta.len, meta.stride) = (LONGEST * 44, LONGEST);
        assert!(!Run::new(0, &meta).accepts(&meta));
    }
}
