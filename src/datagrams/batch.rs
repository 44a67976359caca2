//! Sends up to 32 datagrams to different addresses with one system call (sendmmsg). Linux only.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo};
use nix::sys::socket::{ControlMessage, MsgFlags, MultiHeaders, SockaddrStorage, sendmmsg};
use tokio::net::UdpSocket;

/// Maximum number of datagrams of one call.
pub(super) const MAX_BATCH: usize = 32;

/// Memory for what describes datagrams to the kernel. Messages without and with a local address have control messages of
/// different lengths, which must be filled.
pub(super) struct Headers {
    plain: MultiHeaders<SockaddrStorage>,
    from_ipv4: MultiHeaders<SockaddrStorage>,
    from_ipv6: MultiHeaders<SockaddrStorage>,
}

impl Default for Headers {
    fn default() -> Self {
        Self {
            plain: MultiHeaders::preallocate(MAX_BATCH, None),
            from_ipv4: MultiHeaders::preallocate(MAX_BATCH, Some(cmsg_space!(in_pktinfo))),
            from_ipv6: MultiHeaders::preallocate(MAX_BATCH, Some(cmsg_space!(in6_pktinfo))),
        }
    }
}

impl Headers {
    /// Sends datagrams, at most [`MAX_BATCH`], from one local address. Returns how many were sent.
    ///
    /// # Errors
    /// When the first one could not be sent.
    pub(super) fn send<'a>(
        &mut self,
        socket: &UdpSocket,
        from: Option<IpAddr>,
        datagrams: impl Iterator<Item = (SocketAddr, &'a [u8])>,
    ) -> io::Result<usize> {
        let mut addresses = [None; MAX_BATCH];
        let mut slices = [[IoSlice::new(&[])]; MAX_BATCH];
        let mut count = 0;
        for (index, (to, datagram)) in datagrams.take(MAX_BATCH).enumerate() {
            addresses[index] = Some(SockaddrStorage::from(to));
            slices[index] = [IoSlice::new(datagram)];
            count = index + 1;
        }
        let (addresses, slices) = (&addresses[..count], &slices[..count]);
        let send = |headers, control: &[ControlMessage<'_>]| {
            let descriptor = socket.as_raw_fd();
            let flags = MsgFlags::empty();
            sendmmsg(descriptor, headers, slices, addresses, control, flags).map(Iterator::count)
        };
        let sent = match from {
            None => send(&mut self.plain, &[]),
            Some(IpAddr::V4(from)) => {
                let from = ipv4(from);
                send(
                    &mut self.from_ipv4,
                    &[ControlMessage::Ipv4PacketInfo(&from)],
                )
            }
            Some(IpAddr::V6(from)) => {
                let from = ipv6(from);
                send(
                    &mut self.from_ipv6,
                    &[ControlMessage::Ipv6PacketInfo(&from)],
                )
            }
        };
        sent.map_err(Errno::into)
    }
}

fn ipv4(from: Ipv4Addr) -> in_pktinfo {
    in_pktinfo {
        ipi_ifindex: 0,
        ipi_spec_dst: in_addr {
            s_addr: u32::from_ne_bytes(from.octets()),
        },
        ipi_addr: in_addr { s_addr: 0 },
    }
}

fn ipv6(from: Ipv6Addr) -> in6_pktinfo {
    in6_pktinfo {
        ipi6_addr: in6_addr {
            s6_addr: from.octets(),
        },
        ipi6_ifindex: 0,
    }
}
