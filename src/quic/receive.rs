//! Reads the bound socket of an address on one worker, and hands datagrams to the workers of their connections. Must not know
//! connections.

use std::array;
use std::io::{self, IoSliceMut};
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use quinn::udp::{BATCH_SIZE, RecvMeta};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::yield_now;

use super::connection_id::Router;
use super::inbox::{Inbox, Received};
use super::socket::{BoundSocket, watched};

/// Number of buffers that one system call fills.
const RECEIVES: usize = if BATCH_SIZE < 16 { BATCH_SIZE } else { 16 };
/// Size of a buffer, which the kernel fills with joined datagrams. One cache line more, so that the first lines of all buffers
/// are not in one set of the processor's cache.
const SLOT: usize = 64 * 1024 + 64;
/// Number of calls before other tasks of the worker get their turn.
const BURST: usize = 4;

/// Reads a bound socket.
pub struct Receiver {
    socket: AsyncFd<Arc<BoundSocket>>,
    router: Router,
    inboxes: Box<[Inbox]>,
    /// 1 MiB, of which the kernel touches what datagrams fill.
    buffer: Box<[u8]>,
}

impl Receiver {
    /// Prepares to read a socket for workers, whose inboxes are in the order of the router's indices. Needs the runtime of
    /// the worker that reads.
    ///
    /// # Errors
    /// When the reactor cannot watch the socket.
    pub fn new(
        socket: Arc<BoundSocket>,
        router: Router,
        inboxes: impl IntoIterator<Item = Inbox>,
    ) -> io::Result<Self> {
        Ok(Self {
            // That it is writable does not matter here, and would be reported for each datagram that any worker sends.
            socket: watched(socket, Interest::READABLE)?,
            router,
            inboxes: inboxes.into_iter().collect(),
            buffer: vec![0; RECEIVES * SLOT].into(),
        })
    }

    /// Reads until the task is aborted. `on_dropped` counts datagrams that are not QUIC or had no room.
    ///
    /// # Errors
    /// When the runtime of the worker ends.
    pub async fn run(mut self, on_dropped: impl Fn(u64)) -> io::Result<()> {
        loop {
            let mut ready = self.socket.readable().await?;
            for _ in 0..BURST {
                let received = receive(self.socket.get_ref(), &mut self.buffer, |received| {
                    on_dropped(hand_over(&self.router, &self.inboxes, &received));
                });
                // Errors are those of datagrams that were sent before: others may wait behind them.
                if matches!(received, Ok(false)) {
                    ready.clear_ready();
                    break;
                }
            }
            yield_now().await;
        }
    }
}

/// Receives once, and passes on datagrams in the order of their arrival. Returns whether there may be more.
fn receive(
    socket: &BoundSocket,
    buffer: &mut [u8],
    mut handle: impl FnMut(Borrowed<'_>),
) -> io::Result<bool> {
    let mut metas = [RecvMeta::default(); RECEIVES];
    let received = {
        let mut slots = buffer.chunks_exact_mut(SLOT);
        let mut slots: [_; RECEIVES] =
            array::from_fn(|_| IoSliceMut::new(slots.next().unwrap_or_default()));
        socket
            .state
            .recv((&socket.socket).into(), &mut slots, &mut metas)
    };
    let count = match received {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        result => result?,
    };
    for (bytes, meta) in buffer.chunks_exact(SLOT).zip(&metas).take(count) {
        handle(Borrowed {
            bytes: &bytes[..meta.len],
            meta,
        });
    }
    Ok(count == RECEIVES)
}

/// What is in a buffer.
struct Borrowed<'a> {
    bytes: &'a [u8],
    meta: &'a RecvMeta,
}

/// Hands datagrams to their workers. Returns how many were dropped.
///
/// The kernel joins datagrams of one address, behind which there may be several connections.
fn hand_over(router: &Router, inboxes: &[Inbox], received: &Borrowed<'_>) -> u64 {
    let Borrowed { bytes, meta } = received;
    let length = meta.stride.max(1);
    let mut dropped = 0;
    let mut begin = 0;
    while begin < bytes.len() {
        let mut datagrams = bytes[begin..]
            .chunks(length)
            .map(|it| (router.route(it), it.len()));
        let (worker, first) = datagrams.next().unwrap_or((None, bytes.len()));
        let others = datagrams.take_while(|(other, _)| *other == worker);
        let end = begin + first + others.map(|(_, length)| length).sum::<usize>();
        let datagrams = &bytes[begin..end];
        let inbox = worker.and_then(|index| inboxes.get(index));
        let has_room = inbox.is_some_and(|inbox| {
            inbox.push(Received {
                bytes: Bytes::copy_from_slice(datagrams),
                length,
                peer: meta.addr,
                local: meta.dst_ip.filter(is_of_one_host),
                ecn: meta.ecn,
            })
        });
        if !has_room {
            dropped += datagrams.len().div_ceil(length) as u64;
        }
        begin = end;
    }
    // An empty datagram is not QUIC.
    dropped + u64::from(bytes.is_empty())
}

/// Nothing can be sent from the address of many hosts.
fn is_of_one_host(address: &IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !is_broadcast && !address.is_multicast()
}
