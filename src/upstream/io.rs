//! The byte stream of a connection to a backend, plain or TLS.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::ir::backend_policy::Connection;
use crate::ir::http2::Http2Windows;
use crate::runtime::descriptors::BackendDescriptor;
use crate::table::{BackendCounts, ConnectionSlot};
use crate::upstream::byte_stream::byte_stream_by_variant;
use crate::upstream::peer_watch::{Reads, expect_acknowledgements};
#[cfg(target_os = "linux")]
use crate::upstream::sock_diag;
use crate::upstream::unanswered::Unacknowledged;

/// A connected stream.
#[derive(Debug)]
pub struct Io {
    stream: Stream,
    /// Whether the backend is expected to read promptly.
    reads: Reads,
    /// Counts the socket until it is closed.
    _descriptor: BackendDescriptor,
    /// What the policy of the backend says of the connection.
    terms: Option<Box<Terms>>,
}

/// What the policy of a backend says of a connection to it.
#[derive(Debug)]
pub(super) struct Terms {
    /// Count the connection for its backend and its endpoint, if they are limited.
    slots: [Option<ConnectionSlot>; 2],
    /// Requests that it may still carry.
    left: Option<u32>,
    /// Idle timeout in milliseconds.
    idle: Option<u64>,
    /// Maximum number of streams, and windows, of HTTP/2.
    http2: (Option<u32>, Http2Windows),
}

impl Terms {
    pub(super) fn new(connection: &Connection, slots: [Option<ConnectionSlot>; 2]) -> Self {
        Self {
            slots,
            left: connection.max_requests,
            idle: connection.idle.map(|idle| idle.as_millis() as u64),
            http2: (connection.max_streams, connection.windows),
        }
    }
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    /// After its handshake.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Io {
    /// A stream in plain text.
    pub(super) fn plain(stream: TcpStream, descriptor: BackendDescriptor, reads: Reads) -> Self {
        Self {
            reads,
            stream: Stream::Plain(stream),
            _descriptor: descriptor,
            terms: None,
        }
    }

    /// A stream with TLS, after its handshake.
    pub(super) fn tls(
        stream: TlsStream<TcpStream>,
        descriptor: BackendDescriptor,
        reads: Reads,
    ) -> Self {
        Self {
            reads,
            stream: Stream::Tls(Box::new(stream)),
            _descriptor: descriptor,
            terms: None,
        }
    }

    /// Sets what the policy of the backend says of the connection.
    pub(super) fn with_terms(self, terms: Option<Box<Terms>>) -> Self {
        Self { terms, ..self }
    }

    /// Sets whether the backend is expected to read promptly what it is sent. Makes a system call after a change.
    pub(super) fn expect_reads(&mut self, reads: Reads) {
        if std::mem::replace(&mut self.reads, reads) != reads {
            expect_acknowledgements(self.tcp(), reads);
        }
    }

    /// Counts a request that the connection has carried. Returns whether it may carry another one.
    pub(super) fn count_request(&mut self) -> bool {
        let left = self.terms.as_mut().and_then(|terms| terms.left.as_mut());
        left.is_none_or(|left| {
            *left = left.saturating_sub(1);
            *left > 0
        })
    }

    /// Returns how many requests it may carry, if they are limited.
    pub(super) fn max_requests(&self) -> Option<u32> {
        self.terms.as_ref()?.left
    }

    /// Returns its own idle timeout in milliseconds.
    pub(super) fn idle_timeout(&self) -> Option<u64> {
        self.terms.as_ref()?.idle
    }

    /// Returns the maximum number of streams, and the windows, of a connection of HTTP/2.
    pub(super) fn http2(&self) -> (Option<u32>, Http2Windows) {
        let terms = self.terms.as_ref();
        terms.map(|terms| terms.http2).unwrap_or_default()
    }

    /// Reports whether other connections of the backend or the endpoint were refused since this time, for want of slots.
    pub(super) fn is_wanted(&self, since: u64) -> bool {
        self.counts().any(|counts| counts.is_wanted(since))
    }

    /// Returns what counts the connection.
    pub(super) fn counts(&self) -> impl Iterator<Item = &Arc<BackendCounts>> {
        let slots = self.terms.iter().flat_map(|terms| &terms.slots);
        slots.flatten().map(ConnectionSlot::counts)
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

    /// Returns what was sent and is not acknowledged, if that can be known. Makes system calls.
    pub fn unacknowledged(&self) -> Option<Unacknowledged> {
        #[cfg(target_os = "linux")]
        {
            let socket = self.tcp();
            sock_diag::unacknowledged(socket.local_addr().ok()?, socket.peer_addr().ok()?)
        }
        #[cfg(not(target_os = "linux"))]
        None
    }

    /// Makes the drop of the connection reset it, since the other side of its tunnel has failed.
    pub fn abort(&self) {
        // Without the reset, the backend would read EOF.
        let _ = SockRef::from(self.tcp()).set_linger(Some(Duration::ZERO));
    }

    /// Returns the socket below it.
    pub(super) fn tcp(&self) -> &TcpStream {
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

byte_stream_by_variant!(Io, this => this.stream, Stream::Plain, Stream::Tls);
