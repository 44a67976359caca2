//! The byte stream of a connection to a backend, plain or TLS.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// A connected stream.
#[derive(Debug)]
pub enum Io {
    /// Plain text.
    Plain(TcpStream),
    /// TLS after its handshake.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Io {
    /// Reports whether the stream is open and has received nothing. Makes a system call only after
    /// an event.
    pub(super) fn is_idle(&mut self) -> bool {
        let mut byte = [0];
        match self {
            Self::Plain(io) => io
                .try_read(&mut byte)
                .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock),
            // A readable TLS socket may contain only session tickets, which the read consumes.
            Self::Tls(io) => Pin::new(io)
                .poll_read(
                    &mut Context::from_waker(Waker::noop()),
                    &mut ReadBuf::new(&mut byte),
                )
                .is_pending(),
        }
    }

    /// Makes the drop of the connection reset it, since the other side of its tunnel has failed.
    pub fn abort(&self) {
        let socket = match self {
            Self::Plain(io) => io,
            Self::Tls(io) => io.get_ref().0,
        };
        // Without the reset, the backend would read EOF.
        let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
    }

    /// Reports whether ALPN selected HTTP/2.
    pub(super) fn has_negotiated_http2(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(io) => io.get_ref().1.alpn_protocol() == Some(b"h2"),
        }
    }
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_read(cx, buffer),
            Self::Tls(io) => Pin::new(io).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_write(cx, bytes),
            Self::Tls(io) => Pin::new(io).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_write_vectored(cx, slices),
            Self::Tls(io) => Pin::new(io).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(io) => io.is_write_vectored(),
            Self::Tls(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_flush(cx),
            Self::Tls(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Self::Tls(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}
