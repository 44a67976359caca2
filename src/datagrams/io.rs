//! Receives and sends datagrams of any socket of a worker, with its buffers.

use std::array;
use std::cell::RefCell;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::UdpSocket;

#[cfg(target_os = "linux")]
use super::batch::Headers;
use super::merge::merge;
use super::run::Datagrams;

#[cfg(not(target_os = "linux"))]
type Headers = ();

/// Number of buffers that one system call fills.
const RECEIVES: usize = if quinn_udp::BATCH_SIZE < 16 {
    quinn_udp::BATCH_SIZE
} else {
    16
};
/// Size of a buffer. The largest datagram has 65,507 bytes (RFC 768, with the header of RFC 791), and so do the joined ones.
/// One cache line more, so that the first lines of all buffers are not in one set of the processor's cache.
const SLOT: usize = 64 * 1024 + 64;

/// Makes the kernel join datagrams, where it can.
pub fn join_received(socket: &UdpSocket) {
    // A kernel that does not know the option passes on each datagram by itself.
    #[cfg(target_os = "linux")]
    let _ = nix::sys::socket::setsockopt(socket, nix::sys::socket::sockopt::UdpGroSegment, &true);
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}

/// Makes the kernel tell the address to which datagrams were sent.
///
/// # Errors
/// When the kernel refuses.
pub fn with_local_address(socket: &UdpSocket) -> io::Result<()> {
    use nix::sys::socket::{setsockopt, sockopt};
    if socket.local_addr()?.is_ipv4() {
        setsockopt(socket, sockopt::Ipv4PacketInfo, &true)?;
    } else {
        setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)?;
    }
    Ok(())
}

/// What a worker needs to receive and send datagrams of any socket: about 1 MiB, of which the kernel touches what
/// datagrams fill.
pub struct DatagramIo {
    /// Made for a socket that is closed again. That of a socket sets options that forbid fragments.
    state: UdpSocketState,
    received: RefCell<Box<[u8]>>,
    pub(super) headers: RefCell<Headers>,
}

impl DatagramIo {
    /// Allocates the buffers.
    ///
    /// # Errors
    /// When no socket can be opened.
    pub fn new() -> io::Result<Self> {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        Ok(Self {
            state: UdpSocketState::new((&socket).into())?,
            received: RefCell::new(vec![0; RECEIVES * SLOT].into()),
            headers: RefCell::default(),
        })
    }

    /// Receives once, and passes on the datagrams in the order of their arrival. Returns whether there may be more.
    ///
    /// # Errors
    /// The error of an earlier datagram that was sent.
    pub fn receive(
        &self,
        socket: &UdpSocket,
        handle: impl FnMut(Datagrams<'_>),
    ) -> io::Result<bool> {
        let buffer = &mut *self.received.borrow_mut();
        let mut metas = [RecvMeta::default(); RECEIVES];
        let count = {
            let mut slots = buffer.chunks_exact_mut(SLOT);
            let mut slots: [_; RECEIVES] =
                array::from_fn(|_| IoSliceMut::new(slots.next().unwrap_or_default()));
            self.receive_slots(socket, &mut slots, &mut metas)?
        };
        merge(buffer, SLOT, &metas[..count], handle);
        Ok(count == RECEIVES)
    }

    /// Returns the number of filled slots. Fewer than all of them mean that nothing is left, which saves the call that would
    /// find that out.
    fn receive_slots(
        &self,
        socket: &UdpSocket,
        slots: &mut [IoSliceMut<'_>; RECEIVES],
        metas: &mut [RecvMeta; RECEIVES],
    ) -> io::Result<usize> {
        let mut received = Ok(0);
        let _ = socket.try_io(Interest::READABLE, || {
            received = self.state.recv(socket.into(), slots, metas);
            match &received {
                Ok(count) if *count < RECEIVES => Err(ErrorKind::WouldBlock.into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    Err(ErrorKind::WouldBlock.into())
                }
                // Datagrams may wait behind an error.
                Ok(_) | Err(_) => Ok(()),
            }
        });
        match received {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            result => result,
        }
    }

    /// Sends datagrams with a socket that is connected to `to`. Returns how many the kernel did not take. Does not wait for
    /// the socket's first event, as tokio does.
    ///
    /// # Errors
    /// `ConnectionRefused` when the host of `to` has refused an earlier datagram. Then none was sent.
    pub fn send(
        &self,
        socket: &UdpSocket,
        to: SocketAddr,
        datagrams: &Datagrams<'_>,
    ) -> io::Result<usize> {
        match datagrams.count() {
            1 => match SockRef::from(socket).send(datagrams.bytes) {
                Ok(_) => Ok(0),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => Err(error),
                Err(_) => Ok(1),
            },
            _ => self.send_several(socket, to, None, datagrams),
        }
    }

    /// Sends datagrams with one call if the kernel can divide them, else one by one. Returns how many it did not take.
    pub(super) fn send_several(
        &self,
        socket: &UdpSocket,
        to: SocketAddr,
        from: Option<IpAddr>,
        datagrams: &Datagrams<'_>,
    ) -> io::Result<usize> {
        let send = |contents, segment_size| {
            let transmit = Transmit {
                destination: to,
                ecn: None,
                contents,
                segment_size,
                src_ip: from,
            };
            self.state.try_send(socket.into(), &transmit)
        };
        if self.state.max_gso_segments() > 1 {
            match send(datagrams.bytes, Some(datagrams.length)) {
                Ok(()) => return Ok(0),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Err(error),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(datagrams.count()),
                // They are longer than what the link takes, or the driver of the link cannot divide.
                Err(_) => {}
            }
        }
        let mut dropped = 0;
        for (index, datagram) in datagrams.iter().enumerate() {
            match send(datagram, None) {
                Ok(()) => {}
                Err(error) if index == 0 && error.kind() == ErrorKind::ConnectionRefused => {
                    return Err(error);
                }
                Err(_) => dropped += 1,
            }
        }
        Ok(dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn connected() -> (UdpSocket, UdpSocket, SocketAddr) {
        let (one, two) = (bound().await, bound().await);
        let (of_one, of_two) = (one.local_addr().unwrap(), two.local_addr().unwrap());
        one.connect(of_two).await.unwrap();
        two.connect(of_one).await.unwrap();
        (one, two, of_two)
    }

    async fn bound() -> UdpSocket {
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap()
    }

    /// Receives this number of datagrams.
    async fn receive(io: &DatagramIo, socket: &UdpSocket, count: usize) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while all.len() < count {
            socket.readable().await.unwrap();
            let add = |datagrams: Datagrams<'_>| all.extend(datagrams.iter().map(<[u8]>::to_vec));
            io.receive(socket, add).unwrap();
        }
        all
    }

    #[tokio::test]
    async fn datagrams_keep_their_boundaries() {
        let io = DatagramIo::new().unwrap();
        for joins in [false, true] {
            let (one, two, to) = connected().await;
            if joins {
                join_received(&two);
            }
            let bytes: Vec<u8> = (0..20_000).map(|index| (index % 251) as u8).collect();
            for length in [1, 3, 400, 1200, 20_000] {
                let bytes = &bytes[..bytes.len().min(length * 60 - length / 2)];
                let datagrams = Datagrams {
                    peer: to,
                    local: None,
                    bytes,
                    length,
                };
                assert_eq!(io.send(&one, to, &datagrams).unwrap(), 0);
                let expected: Vec<_> = bytes.chunks(length).map(<[u8]>::to_vec).collect();
                let received = receive(&io, &two, expected.len()).await;
                assert!(received == expected, "{length} bytes");
            }
        }
    }

    #[tokio::test]
    async fn receives_more_datagrams_than_slots_of_all_lengths() {
        let io = DatagramIo::new().unwrap();
        let (one, two, _) = connected().await;
        let lengths = [0, 1, 1, 2, 1, 0, 0, 65_507, 1200, 1200, 1200, 300, 1200];
        let sent: Vec<_> = (0..3 * RECEIVES)
            .map(|index| vec![index as u8; lengths[index % lengths.len()]])
            .collect();
        // The buffer of the socket does not take all of them at once.
        for sent in sent.chunks(RECEIVES) {
            for datagram in sent {
                one.send(datagram).await.unwrap();
            }
            assert!(receive(&io, &two, sent.len()).await == sent);
        }
    }

    #[tokio::test]
    async fn refusal_is_an_error_before_what_follows() {
        let io = DatagramIo::new().unwrap();
        let (one, two, to) = connected().await;
        drop(two);
        let datagrams = Datagrams {
            peer: to,
            local: None,
            bytes: b"abcd",
            length: 1,
        };
        assert_eq!(io.send(&one, to, &datagrams).unwrap(), 0);
        let error = io.send(&one, to, &datagrams).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
}
