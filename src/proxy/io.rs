//! A client's socket, plain or TLS, that tells its [`Activity`] when bytes move. Knows nothing of HTTP.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::activity::Activity;

/// Bytes up to which copying pieces together costs less than handing the kernel a list of them.
const SMALL_WRITE: usize = 1024;

/// A client's byte stream.
pub(crate) enum ClientIo {
    /// Plain text.
    Plain(TcpStream),
    /// TLS, terminated here.
    Tls(Box<TlsStream<TcpStream>>),
}

impl ClientIo {
    /// Ready when the socket has something to read: bytes, its end or an error.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(socket) => socket.poll_read_ready(cx),
            Self::Tls(stream) => stream.get_ref().0.poll_read_ready(cx),
        }
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// A client's byte stream under observation, with bytes to be read before those of the socket.
pub(crate) struct Observed {
    io: ClientIo,
    prefix: Bytes,
    activity: Rc<Activity>,
}

impl Observed {
    /// Observes `io`, whose first bytes have been read as `prefix`.
    pub(crate) fn new(io: ClientIo, prefix: Bytes, activity: Rc<Activity>) -> Self {
        Self {
            io,
            prefix,
            activity,
        }
    }

    /// The byte stream, and the prefix that was not read yet.
    pub(crate) fn into_parts(self) -> (ClientIo, Bytes) {
        (self.io, self.prefix)
    }

    fn wrote(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match result {
            Poll::Pending => self.activity.on_write_blocked(),
            Poll::Ready(_) => self.activity.on_written(),
        }
        result
    }
}

impl AsyncRead for Observed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.prefix.is_empty() {
            let count = self.prefix.len().min(buf.remaining());
            buf.put_slice(&self.prefix[..count]);
            self.prefix.advance(count);
            self.activity.on_read();
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let result = Pin::new(&mut self.io).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.activity.on_read();
        }
        result
    }
}

impl AsyncWrite for Observed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write(cx, buf);
        self.wrote(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        if total > SMALL_WRITE {
            let result = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
            return self.wrote(result);
        }
        let mut joined = [0; SMALL_WRITE];
        let mut end = 0;
        for buf in bufs {
            joined[end..end + buf.len()].copy_from_slice(buf);
            end += buf.len();
        }
        let result = Pin::new(&mut self.io).poll_write(cx, &joined[..end]);
        self.wrote(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.io).poll_flush(cx);
        if result.is_pending() {
            self.activity.on_write_blocked();
        }
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
