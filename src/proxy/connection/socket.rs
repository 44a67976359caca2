//! A client's socket below TLS. Counts the bytes that it takes: TLS buffers whole records, so that
//! a long flush makes progress that only the socket observes.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::proxy::worker_state::budget::{Budget, Held};

/// Bytes of a handshake that do not count: those of a usual one.
const FREE: usize = 8 * 1024;

/// What was received of a handshake that is not complete, or of a ClientHello that waits for its backend.
pub(super) struct Received {
    bytes: usize,
    /// Buffers that have these bytes.
    buffers: usize,
    held: Option<Held>,
    budget: Rc<Budget>,
    client: IpAddr,
}

impl Received {
    /// Counts what a client sends in the budget of its worker.
    pub(super) fn new(budget: &Rc<Budget>, client: IpAddr) -> Self {
        Self {
            bytes: 0,
            buffers: 1,
            held: None,
            budget: budget.clone(),
            client,
        }
    }

    /// Sets how many buffers have the bytes, from the next ones on.
    pub(super) fn set_buffers(&mut self, buffers: usize) {
        self.buffers = buffers;
    }

    /// Records that the bytes are in one buffer of their size. They count until this is dropped.
    pub(super) fn shrink(&mut self) {
        if let Some(held) = &mut self.held {
            // Fewer than before are always permitted.
            held.resize(self.bytes);
        }
    }

    /// Adds bytes. Fails if the heads and handshakes of the client hold too much.
    pub(super) fn add(&mut self, bytes: usize) -> io::Result<()> {
        self.bytes += bytes;
        if self.bytes <= FREE {
            return Ok(());
        }
        let new = || Held::none(&self.budget.share(self.client));
        // A buffer that grows has up to twice what is in it.
        let allocated = 2 * self.buffers * self.bytes;
        match self.held.get_or_insert_with(new).resize_first(allocated) {
            true => Ok(()),
            false => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }
}

/// A TCP socket that counts written bytes.
pub(crate) struct Socket {
    tcp: TcpStream,
    written: u64,
    /// Whether writes do not wait until the kernel reports room.
    pub(super) is_last_try: bool,
    /// What was received before, and is still to be read.
    received: Bytes,
    /// Counts what is received before the end of the handshake.
    handshake: Option<Box<Received>>,
}

impl Socket {
    /// Wraps a socket from which `received` was read, and of which nothing is counted yet.
    pub(crate) fn new(tcp: TcpStream, received: Bytes) -> Self {
        Self {
            tcp,
            written: 0,
            is_last_try: false,
            received,
            handshake: None,
        }
    }

    /// Counts what is received until the end of the handshake.
    pub(super) fn counting(self, handshake: Received) -> Self {
        Self {
            handshake: Some(Box::new(handshake)),
            ..self
        }
    }

    /// Records that the handshake is complete.
    pub(super) fn on_handshake_end(&mut self) {
        self.handshake = None;
    }

    /// Returns the socket itself, for readiness and options.
    pub(crate) fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Returns the socket itself, which is no longer counted.
    pub(crate) fn into_tcp(self) -> TcpStream {
        self.tcp
    }

    /// Returns the number of bytes that the kernel has taken.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    fn count(&mut self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(count)) = result {
            self.written += count as u64;
        }
        result
    }
}

/// Writes to a socket that is not reported to be writable. Linux reports it only when a third of the socket's buffer is
/// free, which takes a slow client that reads all the time longer than a timeout; it takes bytes as soon as any are free.
pub(super) fn poll_last_write(
    tcp: &mut TcpStream,
    cx: &mut Context<'_>,
    buf: &[u8],
) -> Poll<io::Result<usize>> {
    match SockRef::from(&*tcp).send(buf) {
        // Registers the waker.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Pin::new(tcp).poll_write(cx, buf)
        }
        sent => Poll::Ready(sent),
    }
}

/// Returns the first buffer that has bytes, which a write may take alone.
pub(super) fn first_of<'a>(bufs: &'a [IoSlice<'_>]) -> &'a [u8] {
    bufs.iter()
        .find(|buf| !buf.is_empty())
        .map_or(&[], |buf| buf)
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let socket = self.get_mut();
        if socket.received.is_empty() {
            let Some(handshake) = &mut socket.handshake else {
                return Pin::new(&mut socket.tcp).poll_read(cx, buf);
            };
            let before = buf.filled().len();
            let read = Pin::new(&mut socket.tcp).poll_read(cx, buf);
            handshake.add(buf.filled().len() - before)?;
            return read;
        }
        let count = buf.remaining().min(socket.received.len());
        buf.put_slice(&socket.received.split_to(count));
        // Releases the memory.
        if socket.received.is_empty() {
            socket.received = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let socket = self.get_mut();
        let result = match socket.is_last_try {
            false => Pin::new(&mut socket.tcp).poll_write(cx, buf),
            true => poll_last_write(&mut socket.tcp, cx, buf),
        };
        socket.count(result)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.is_last_try {
            return self.poll_write(cx, first_of(bufs));
        }
        let socket = self.get_mut();
        let result = Pin::new(&mut socket.tcp).poll_write_vectored(cx, bufs);
        socket.count(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_of_a_client_share_what_they_may_hold() {
        const LARGE: usize = 32 * 1024;
        const MIB: usize = 1024 * 1024;
        // Of one of many workers, which has 4 MiB.
        let budget = Budget::of_unfinished(64);
        let received = |client| Received::new(&budget, IpAddr::from([192, 0, 2, client]));
        let mut usual = received(1);
        assert!(usual.add(FREE).is_ok());
        assert_eq!(budget.held(), 0);
        let begin = || {
            let mut large = received(1);
            large.add(LARGE).ok().map(|()| large)
        };
        let hostile: Vec<_> = std::iter::from_fn(begin).collect();
        assert_eq!(hostile.len(), 2 * MIB / (2 * LARGE));
        assert_eq!(
            usual.add(1).map_err(|error| error.kind()),
            Err(io::ErrorKind::OutOfMemory)
        );
        assert!(received(2).add(LARGE).is_ok());
        drop((hostile, usual));
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn hello_counts_in_both_buffers_and_then_as_what_is_forwarded() {
        const LARGE: usize = 32 * 1024;
        let budget = Budget::of_unfinished(1);
        let mut hello = Received::new(&budget, IpAddr::from([192, 0, 2, 1]));
        hello.set_buffers(2);
        assert!(hello.add(FREE).is_ok() && budget.held() == 0);
        assert!(hello.add(LARGE - FREE).is_ok());
        assert_eq!(budget.held(), 4 * LARGE);
        hello.shrink();
        assert_eq!(budget.held(), LARGE);
        drop(hello);
        assert_eq!(budget.held(), 0);
    }
}
