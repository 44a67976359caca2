//! A client's socket, plain or TLS, below hyper or h2. Reports reads and writes to the connection's
//! [`Activity`], and writes injected bytes between those of the upper layer.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};
use tokio_rustls::server::TlsStream;

use super::socket::{Socket, first_of, poll_last_write};
use super::splice::MaybeSocket;
use crate::proxy::activity::Activity;
use crate::proxy::client::injection::Injection;
use crate::upstream::byte_stream_by_variant;

/// Up to this size, copying buffers together is cheaper than a vectored write.
const SMALL_WRITE: usize = 1024;
/// Interval of checks for a reset by a client that has half-closed, or that has sent unread bytes.
const RESET_CHECK: Duration = Duration::from_secs(1);

/// A client's byte stream.
pub(crate) enum ClientIo {
    /// Plain text.
    Plain(TcpStream),
    /// TLS, terminated here.
    Tls(Box<TlsStream<Socket>>),
}

impl ClientIo {
    /// Becomes ready when the socket is readable: bytes, EOF or an error.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp().poll_read_ready(cx)
    }

    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.get_ref().0.tcp(),
        }
    }

    /// Reports whether the client has reset the connection. Makes a system call.
    pub(crate) fn has_failed(&self) -> bool {
        self.tcp().take_error().is_ok_and(|error| error.is_some())
    }

    /// Returns the address of the proxy as the client sees it. Makes a system call.
    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        self.tcp().local_addr().ok()
    }

    /// Makes the drop of the connection reset it, since what the client gets is cut: otherwise, it would read EOF.
    pub(crate) fn abort(&self) {
        let _ = SockRef::from(self.tcp()).set_linger(Some(Duration::ZERO));
    }

    /// Returns the raw socket, without data buffered in TLS.
    pub(crate) fn into_socket(self) -> TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.into_inner().0.into_tcp(),
        }
    }

    /// Returns the number of bytes that the kernel has taken from TLS. Zero for plain text, where
    /// nothing is buffered here.
    fn written_by_tls(&self) -> u64 {
        match self {
            Self::Plain(_) => 0,
            Self::Tls(stream) => stream.get_ref().0.written(),
        }
    }

    /// Writes although the socket is not reported to be writable.
    fn poll_last_write(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => poll_last_write(socket, cx, buf),
            Self::Tls(stream) => last_try(stream, |stream| stream.poll_write(cx, buf)),
        }
    }

    /// Flushes what TLS has buffered although the socket is not reported to be writable.
    fn poll_last_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(stream) => last_try(stream, |stream| stream.poll_flush(cx)),
        }
    }
}

/// Writes to TLS, whose writes to its socket do not wait until that is reported to be writable.
fn last_try<V>(
    stream: &mut TlsStream<Socket>,
    write: impl FnOnce(Pin<&mut TlsStream<Socket>>) -> V,
) -> V {
    stream.get_mut().0.is_last_try = true;
    let result = write(Pin::new(stream));
    stream.get_mut().0.is_last_try = false;
    result
}

impl MaybeSocket for ClientIo {
    fn with_socket<V>(&self, use_socket: impl FnOnce(&TcpStream) -> V) -> Option<V> {
        match self {
            Self::Plain(socket) => Some(use_socket(socket)),
            Self::Tls(_) => None,
        }
    }
}

byte_stream_by_variant!(ClientIo, this => *this, ClientIo::Plain, ClientIo::Tls);

/// A client's byte stream as hyper and h2 see it. `prefix` is read before the socket.
pub(crate) struct Observed {
    io: ClientIo,
    prefix: Bytes,
    activity: Rc<Activity>,
    injection: Rc<Injection>,
    peer: PeerWatch,
    /// Bytes that the kernel had taken from TLS when a write or flush was blocked last.
    written: u64,
}

/// Detects a client reset while the response is awaited and nothing reads from the socket.
enum PeerWatch {
    /// Off: the upper layer always reads.
    Off,
    /// On: waits for the socket to become readable, which includes a reset.
    Readable,
    /// Unread bytes would hide a reset: polls the socket for errors periodically.
    Unread(Pin<Box<Sleep>>),
}

impl Observed {
    /// Wraps `io`, whose first bytes were read as `prefix`, for an upper layer that always reads.
    pub(crate) fn new(
        io: ClientIo,
        prefix: Bytes,
        activity: Rc<Activity>,
        injection: Rc<Injection>,
    ) -> Self {
        Self {
            io,
            prefix,
            activity,
            injection,
            peer: PeerWatch::Off,
            written: 0,
        }
    }

    /// Like [`Self::new`], for an upper layer that does not read while a request is served.
    pub(crate) fn watching_peer(self) -> Self {
        Self {
            peer: PeerWatch::Readable,
            ..self
        }
    }

    /// Returns the byte stream and the unread prefix.
    pub(crate) fn into_parts(self) -> (ClientIo, Bytes) {
        (self.io, self.prefix)
    }

    /// Writes; in the last try of a write, also to a socket that is not reported to be writable.
    fn poll_out(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.activity.is_last_write() {
            false => Pin::new(&mut self.io).poll_write(cx, buf),
            true => self.io.poll_last_write(cx, buf),
        }
    }

    fn wrote(&mut self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match result {
            Poll::Pending => self.blocked(),
            Poll::Ready(_) => self.activity.on_written(),
        }
        result
    }

    /// Reports a blocked write or flush, and before it the bytes that went out nevertheless.
    fn blocked(&mut self) {
        let written = self.io.written_by_tls();
        if written > self.written {
            self.written = written;
            self.activity.on_written();
        }
        self.activity.on_write_blocked();
    }

    /// Writes the injected bytes before those of the upper layer.
    fn poll_injected(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(mut bytes) = self.injection.take() {
            while !bytes.is_empty() {
                let Poll::Ready(written) = self.poll_out(cx, &bytes) else {
                    self.injection.put_back(&bytes);
                    self.blocked();
                    return Poll::Pending;
                };
                match written? {
                    0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    count => bytes.advance(count),
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Returns an error if the client has reset the connection.
    fn check_peer(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let ClientIo::Plain(socket) = &self.io else {
            return Ok(());
        };
        if self.activity.requests() == 0 {
            if matches!(self.peer, PeerWatch::Unread(_)) {
                self.peer = PeerWatch::Readable;
            }
            return Ok(());
        }
        let is_due = match &mut self.peer {
            PeerWatch::Off => false,
            PeerWatch::Readable => socket.poll_read_ready(cx).is_ready(),
            PeerWatch::Unread(pause) => pause.as_mut().poll(cx).is_ready(),
        };
        if is_due {
            if let Some(error) = socket.take_error()? {
                return Err(error);
            }
            // Readable without an error: EOF or unread bytes, with which the socket stays readable.
            let mut pause = Box::pin(sleep(RESET_CHECK));
            // Registers the waker. A new timer is never ready.
            let _ = pause.as_mut().poll(cx);
            self.peer = PeerWatch::Unread(pause);
        }
        Ok(())
    }
}

impl AsyncRead for Observed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.injection.is_closed() {
            return Poll::Ready(Ok(()));
        }
        if !self.prefix.is_empty() {
            let count = self.prefix.len().min(buf.remaining());
            buf.put_slice(&self.prefix[..count]);
            self.prefix.advance(count);
            self.activity.on_read(count);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let result = Pin::new(&mut self.io).poll_read(cx, buf);
        let count = buf.filled().len() - before;
        if count > 0 {
            self.activity.on_read(count);
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
        if self.injection.is_next() {
            ready!(self.poll_injected(cx))?;
        }
        self.injection.set_between(false);
        let result = self.poll_out(cx, buf);
        self.wrote(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        if total > SMALL_WRITE {
            if self.activity.is_last_write() {
                return self.poll_write(cx, first_of(bufs));
            }
            if self.injection.is_next() {
                ready!(self.poll_injected(cx))?;
            }
            self.injection.set_between(false);
            let result = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
            return self.wrote(result);
        }
        let mut joined = [0; SMALL_WRITE];
        let mut end = 0;
        for buf in bufs {
            joined[end..end + buf.len()].copy_from_slice(buf);
            end += buf.len();
        }
        self.poll_write(cx, &joined[..end])
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper and h2 flush only complete messages or frames.
        ready!(self.poll_injected(cx))?;
        let flushed = match self.activity.is_last_write() {
            false => Pin::new(&mut self.io).poll_flush(cx)?,
            true => self.io.poll_last_flush(cx)?,
        };
        match flushed {
            Poll::Pending => {
                self.blocked();
                Poll::Pending
            }
            Poll::Ready(()) => {
                self.injection.set_between(true);
                self.activity.on_flushed();
                Poll::Ready(self.check_peer(cx))
            }
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;

    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, RootCertStore, ServerConfig};
    use socket2::SockRef;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpSocket};
    use tokio_rustls::{TlsAcceptor, TlsConnector, client};

    use super::*;
    use crate::proxy::activity::Phase;
    use crate::runtime::clock::Clock;
    use crate::settings::Limits;

    /// Returns a TLS connection whose server side blocks after few bytes until the client reads.
    async fn connected() -> (TlsStream<Socket>, client::TlsStream<TcpStream>) {
        let name = "a.example";
        let key = rcgen::generate_simple_self_signed([name.to_owned()]).expect("a certificate");
        let certificate = key.cert.der().clone();
        let private = PrivateKeyDer::try_from(key.signing_key.serialize_der()).expect("a key");
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).expect("a root");
        let server = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], private);
        let client = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(16 * 1024).expect("set");
        let (ours, theirs) = tokio::join!(listener.accept(), socket.connect(address));
        let (ours, theirs) = (ours.expect("accepted").0, theirs.expect("connected"));
        let sized = SockRef::from(&ours).set_send_buffer_size(16 * 1024);
        sized.expect("set");
        let acceptor = TlsAcceptor::from(Arc::new(server.expect("a configuration")));
        let connector = TlsConnector::from(Arc::new(client));
        let name = ServerName::try_from(name).expect("a name");
        let (ours, theirs) = tokio::join!(
            acceptor.accept(Socket::new(ours, Bytes::new())),
            connector.connect(name, theirs)
        );
        (ours.expect("agreed"), theirs.expect("agreed"))
    }

    #[tokio::test]
    async fn reports_the_end_of_a_blocked_flush() {
        let (ours, mut theirs) = connected().await;
        let activity = Activity::connection(&Clock::new(), &Rc::default(), false);
        activity.on_request();
        let io = ClientIo::Tls(Box::new(ours));
        let mut observed = Observed::new(io, Bytes::new(), activity.clone(), Rc::default());
        let piece = [0; 16 * 1024];
        poll_fn(|cx| {
            loop {
                let written = Pin::new(&mut observed).poll_write(cx, &piece);
                assert!(written.is_ready(), "a flush is blocked before a write is");
                if Pin::new(&mut observed).poll_flush(cx).is_pending() {
                    return Poll::Ready(());
                }
            }
        })
        .await;
        assert!(activity.is_write_blocked());
        let mut buffer = vec![0; 64 * 1024];
        let read = async { while theirs.read(&mut buffer).await.is_ok_and(|count| count > 0) {} };
        tokio::select! {
            flushed = poll_fn(|cx| Pin::new(&mut observed).poll_flush(cx)) => flushed.expect("flushed"),
            () = read => unreachable!("the connection stays open"),
        }
        assert!(!activity.is_write_blocked());
    }

    #[tokio::test]
    async fn progress_of_a_blocked_flush_restarts_the_write_timeout() {
        let (ours, mut theirs) = connected().await;
        let clock = Clock::new();
        let limits = Rc::new(Limits {
            write_timeout: Duration::from_millis(1000),
            ..Limits::default()
        });
        let activity = Activity::connection(&clock, &limits, false);
        activity.on_request();
        let io = ClientIo::Tls(Box::new(ours));
        let mut observed = Observed::new(io, Bytes::new(), activity.clone(), Rc::default());
        let piece = [0; 16 * 1024];
        poll_fn(|cx| {
            while Pin::new(&mut observed).poll_write(cx, &piece).is_ready() {}
            Poll::Ready(())
        })
        .await;
        clock.advance(600);
        let before = observed.io.written_by_tls();
        let mut buffer = vec![0; 4 * 1024];
        let progress = poll_fn(|cx| {
            let flushed = Pin::new(&mut observed).poll_flush(cx);
            assert!(flushed.is_pending(), "less was buffered than is read");
            if observed.io.written_by_tls() > before {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        });
        let read = async { while theirs.read(&mut buffer).await.is_ok_and(|count| count > 0) {} };
        tokio::select! {
            biased;
            () = progress => {}
            () = read => unreachable!("the connection stays open"),
        }
        clock.advance(1200);
        let due = poll_fn(|cx| Poll::Ready(activity.poll_due(cx))).await;
        assert!(due.is_pending(), "600 ms after the last progress");
        clock.advance(1600);
        let due = poll_fn(|cx| Poll::Ready(activity.poll_due(cx))).await;
        assert_eq!(due, Poll::Ready(Phase::Write));
    }
}
