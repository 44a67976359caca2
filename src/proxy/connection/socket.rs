//! A client's socket below TLS. Counts the bytes that it takes: TLS buffers whole records, so that
//! a long flush makes progress that only the socket observes.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A TCP socket that counts written bytes.
pub(crate) struct Socket {
    tcp: TcpStream,
    written: u64,
    /// Whether writes do not wait until the kernel reports room.
    pub(super) is_last_try: bool,
    /// What was received before, and is still to be read.
    received: Bytes,
}

impl Socket {
    /// Wraps a socket from which `received` was read, and of which nothing is counted yet.
    pub(crate) fn new(tcp: TcpStream, received: Bytes) -> Self {
        Self {
            tcp,
            written: 0,
            is_last_try: false,
            received,
        }
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
            return Pin::new(&mut socket.tcp).poll_read(cx, buf);
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
