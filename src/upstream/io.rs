//! The byte stream of a connection to a backend, plain or TLS.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::runtime::descriptors::BackendDescriptor;
use crate::table::ConnectionSlot;

/// A connected stream.
#[derive(Debug)]
pub struct Io {
    stream: Stream,
    /// Counts the socket until it is closed.
    _descriptor: BackendDescriptor,
    /// Counts the connection for its backend, if they are limited.
    slot: Option<ConnectionSlot>,
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    /// After its handshake.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Io {
    /// A stream in plain text.
    pub(super) fn plain(stream: TcpStream, descriptor: BackendDescriptor) -> Self {
        Self {
            stream: Stream::Plain(stream),
            _descriptor: descriptor,
            slot: None,
        }
    }

    /// A stream with TLS, after its handshake.
    pub(super) fn tls(stream: TlsStream<TcpStream>, descriptor: BackendDescriptor) -> Self {
        Self {
            stream: Stream::Tls(Box::new(stream)),
            _descriptor: descriptor,
            slot: None,
        }
    }

    /// Makes the connection count for its backend until it is closed.
    pub(super) fn counted(self, slot: Option<ConnectionSlot>) -> Self {
        Self { slot, ..self }
    }

    /// Reports whether other connections of the backend were refused since this time, for want of slots.
    pub(super) fn is_wanted(&self, since: u64) -> bool {
        self.slot.as_ref().is_some_and(|slot| slot.is_wanted(since))
    }

    /// Reports whether the stream has TLS.
    pub(super) fn is_tls(&self) -> bool {
        matches!(self.stream, Stream::Tls(_))
    }

    /// Reports whether the stream is open and has received nothing. Makes a system call only after
    /// an event.
    pub(super) fn is_idle(&mut self) -> bool {
        let mut byte = [0];
        match &mut self.stream {
            Stream::Plain(io) => io
                .try_read(&mut byte)
                .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock),
            // A readable TLS socket may contain only session tickets, which the read consumes.
            Stream::Tls(io) => Pin::new(io)
                .poll_read(
                    &mut Context::from_waker(Waker::noop()),
                    &mut ReadBuf::new(&mut byte),
                )
                .is_pending(),
        }
    }

    /// Reports whether the backend has reset the connection. Makes a system call.
    pub fn has_failed(&self) -> bool {
        self.tcp().take_error().is_ok_and(|error| error.is_some())
    }

    /// Makes the drop of the connection reset it, since the other side of its tunnel has failed.
    pub fn abort(&self) {
        // Without the reset, the backend would read EOF.
        let _ = SockRef::from(self.tcp()).set_linger(Some(Duration::ZERO));
    }

    fn tcp(&self) -> &TcpStream {
        match &self.stream {
            Stream::Plain(io) => io,
            Stream::Tls(io) => io.get_ref().0,
        }
    }

    /// Returns the socket, if there is nothing above it.
    pub fn plain_socket(&self) -> Option<&TcpStream> {
        match &self.stream {
            Stream::Plain(io) => Some(io),
            Stream::Tls(_) => None,
        }
    }

    /// Reports whether ALPN selected HTTP/2.
    pub(super) fn has_negotiated_http2(&self) -> bool {
        match &self.stream {
            Stream::Plain(_) => false,
            Stream::Tls(io) => io.get_ref().1.alpn_protocol() == Some(b"h2"),
        }
    }
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(io) => Pin::new(io).poll_read(cx, buffer),
            Stream::Tls(io) => Pin::new(io).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Plain(io) => Pin::new(io).poll_write(cx, bytes),
            Stream::Tls(io) => Pin::new(io).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Plain(io) => Pin::new(io).poll_write_vectored(cx, slices),
            Stream::Tls(io) => Pin::new(io).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(io) => io.is_write_vectored(),
            Stream::Tls(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(io) => Pin::new(io).poll_flush(cx),
            Stream::Tls(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Stream::Tls(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}
