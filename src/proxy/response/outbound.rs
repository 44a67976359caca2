//! What the proxy sends on one stream of HTTP/3: frames, no faster than QUIC takes them. What QUIC does not take counts as memory
//! of the client. Must not know requests.

use std::cell::RefCell;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::slice;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use quinn::{SendStream, VarInt};

use crate::byte_chain::MIN_SLICE;
use crate::http2::{Bodies, Waiting};
use crate::http3::{self, Code};

/// Bytes that QUIC has not taken, above which no informational response is added.
const MAX_WAITING: usize = 64 * 1024;
/// Bytes of a response up to which it goes before those that are less urgent. A larger one has an equal share, so that no other
/// waits until it ends.
const MAX_URGENT: usize = 64 * 1024;
/// The priority of streams for QUIC, unless they are urgent.
const EQUAL: i32 = 0;

/// Returns a code as QUIC takes it.
pub(crate) fn wire_code(code: Code) -> VarInt {
    // All of them are small.
    VarInt::from_u32(code.value() as u32)
}

/// The client has stopped the stream, or the connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost;

/// The sending half of a stream.
pub(crate) struct Outbound(RefCell<State>);

struct State {
    stream: SendStream,
    /// Whole frames, and headers of frames whose content follows, that QUIC has not taken.
    unsent: BytesMut,
    /// Counts these while QUIC does not take them, and how many it counts.
    waiting: Option<(Waiting, usize)>,
    bodies: Rc<Bodies>,
    /// Bytes after which the stream is not urgent any more.
    urgent: usize,
    /// Whether the head of the response was added.
    has_head: bool,
    end: End,
    /// The task of the stream.
    task: Option<Waker>,
}

enum End {
    /// Completes with whether the client has received everything.
    Awaited(Pin<Box<dyn Future<Output = bool>>>),
    Acknowledged,
    Lost,
}

impl Outbound {
    /// Sends on a stream of the connection that has these bodies.
    pub(crate) fn new(stream: SendStream, bodies: &Rc<Bodies>) -> Self {
        let stopped = stream.stopped();
        // Without a code of the client, it has acknowledged the end of the stream.
        let end = Box::pin(async move { matches!(stopped.await, Ok(None)) });
        Self(RefCell::new(State {
            stream,
            unsent: BytesMut::new(),
            waiting: None,
            bodies: bodies.clone(),
            urgent: 0,
            has_head: false,
            end: End::Awaited(end),
            task: None,
        }))
    }

    /// Lets the response go before those of the connection that are less urgent, if it is short. Those that may wait (RFC 9218,
    /// 4.1) have an equal share with usual ones.
    pub(crate) fn set_urgency(&self, urgency: u8) {
        let priority = i32::from(http3::USUAL_URGENCY.saturating_sub(urgency));
        if priority > EQUAL {
            let state = &mut *self.0.borrow_mut();
            state.urgent = MAX_URGENT;
            // Fails only if the stream has ended.
            let _ = state.stream.set_priority(priority);
        }
    }

    /// Adds bytes of frames.
    pub(crate) fn push(&self, frames: &[u8]) {
        self.0.borrow_mut().unsent.extend_from_slice(frames);
    }

    /// Adds an informational response, unless the response has begun or much waits already. Clients wait for a 100.
    pub(crate) fn push_interim(&self, status: StatusCode, headers: &HeaderMap) {
        let state = &mut *self.0.borrow_mut();
        let has_room = state.unsent.len() < MAX_WAITING || status == StatusCode::CONTINUE;
        if state.has_head || !has_room {
            return;
        }
        let mut frame = Vec::new();
        http3::write_response(status, headers, &mut frame);
        state.unsent.extend_from_slice(&frame);
        let task = state.task.clone();
        let mut cx = Context::from_waker(task.as_ref().unwrap_or(Waker::noop()));
        // The task of the stream sends what is not taken now, and learns of errors.
        let _ = state.poll_flush(&mut cx);
    }

    /// Adds the head of the response.
    pub(crate) fn push_head(&self, status: StatusCode, headers: &HeaderMap) {
        let state = &mut *self.0.borrow_mut();
        state.has_head = true;
        let mut frame = Vec::new();
        http3::write_response(status, headers, &mut frame);
        state.unsent.extend_from_slice(&frame);
    }

    /// Adds the beginning of a frame with content of this length, which [`Self::poll_content`] sends.
    pub(crate) fn push_content_header(&self, length: usize) {
        let mut header = Vec::new();
        http3::write_data_header(length, &mut header);
        self.push(&header);
    }

    /// Adds trailers.
    pub(crate) fn push_trailers(&self, trailers: &HeaderMap) {
        let mut frame = Vec::new();
        http3::write_trailers(trailers, &mut frame);
        self.push(&frame);
    }

    /// Ready when QUIC has taken everything that was added. Wakes the same task from then on.
    pub(crate) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        let state = &mut *self.0.borrow_mut();
        let task = state.task.get_or_insert_with(|| cx.waker().clone());
        task.clone_from(cx.waker());
        state.poll_flush(cx)
    }

    /// Reports whether what waits holds too much memory, so that the stream has to end.
    pub(crate) fn has_failed(&self) -> bool {
        self.0.borrow().has_failed()
    }

    /// Sends at least one byte of content. QUIC keeps the memory of large parts until they are acknowledged, and copies of
    /// small ones.
    pub(crate) fn poll_content(
        &self,
        cx: &mut Context<'_>,
        content: &mut Bytes,
    ) -> Poll<Result<(), Lost>> {
        let state = &mut *self.0.borrow_mut();
        ready!(state.poll_flush(cx))?;
        if content.len() < MIN_SLICE {
            let written = ready!(Pin::new(&mut state.stream).poll_write(cx, content));
            let written = written.map_err(|_| Lost)?;
            content.advance(written);
            state.count_urgent(written);
            return Poll::Ready(Ok(()));
        }
        let before = content.len();
        let parts = slice::from_mut(content);
        let written = ready!(pin!(state.stream.write_chunks(parts)).as_mut().poll(cx));
        state.count_urgent(before - content.len());
        Poll::Ready(written.map(|_| ()).map_err(|_| Lost))
    }

    /// Ends the stream after what was added. To be called once QUIC has taken that.
    pub(crate) fn finish(&self) {
        // Fails only if the stream has ended.
        let _ = self.0.borrow_mut().stream.finish();
    }

    /// Ready when the client has acknowledged all of a finished stream, or when the stream is lost.
    pub(crate) fn poll_end(&self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        let state = &mut *self.0.borrow_mut();
        if let End::Awaited(end) = &mut state.end {
            state.end = match ready!(end.as_mut().poll(cx)) {
                true => End::Acknowledged,
                false => End::Lost,
            };
        }
        Poll::Ready(match state.end {
            End::Acknowledged => Ok(()),
            End::Awaited(_) | End::Lost => Err(Lost),
        })
    }

    /// Ends the stream early.
    pub(crate) fn reset(&self, code: Code) {
        // Fails only if the stream has ended.
        let _ = self.0.borrow_mut().stream.reset(wire_code(code));
    }
}

impl State {
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Lost>> {
        while !self.unsent.is_empty() {
            let polled = Pin::new(&mut self.stream).poll_write(cx, &self.unsent);
            let Poll::Ready(written) = polled else {
                self.count(cx);
                return Poll::Pending;
            };
            let written = written.map_err(|_| Lost)?;
            self.unsent.advance(written);
            self.count_urgent(written);
        }
        self.waiting = None;
        Poll::Ready(Ok(()))
    }

    /// Counts bytes that QUIC has taken of an urgent response.
    fn count_urgent(&mut self, bytes: usize) {
        if self.urgent == 0 {
            return;
        }
        self.urgent = self.urgent.saturating_sub(bytes);
        if self.urgent == 0 {
            // Fails only if the stream has ended.
            let _ = self.stream.set_priority(EQUAL);
        }
    }

    /// Counts what waits, unless as much counts already.
    fn count(&mut self, cx: &Context<'_>) {
        let bytes = self.unsent.capacity();
        let counted = self.waiting.as_ref().map_or(0, |(_, counted)| *counted);
        if counted < bytes && !self.has_failed() {
            self.waiting = None;
            self.waiting = Some((Waiting::new(&self.bodies, bytes, cx), bytes));
        }
    }

    fn has_failed(&self) -> bool {
        let waiting = self.waiting.as_ref();
        waiting.is_some_and(|(waiting, _)| waiting.has_failed())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::sync::Arc;
    use std::time::Duration;

    use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
    use quinn::{Connection, Endpoint, EndpointConfig, TokioRuntime};
    use rcgen::{CertificateParams, KeyPair};
    use rustls::RootCertStore;
    use rustls::crypto::aws_lc_rs::default_provider;
    use rustls::pki_types::PrivateKeyDer;
    use rustls::version::TLS13;
    use tokio::time::timeout;

    use super::*;
    use crate::http2::Windows;

    /// Only a failure takes so long.
    const DEADLINE: Duration = Duration::from_secs(60);
    const WINDOWS: Windows = Windows {
        initial: 0,
        full: 0,
        max_unread: usize::MAX,
    };

    fn endpoint(config: Option<quinn::ServerConfig>) -> Endpoint {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let runtime = Arc::new(TokioRuntime);
        Endpoint::new(EndpointConfig::default(), config, socket, runtime).unwrap()
    }

    /// Returns both ends of a connection, that of the server first.
    async fn connected() -> (Connection, Connection) {
        let key = KeyPair::generate().unwrap();
        let parameters = CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
        let certificate = parameters.self_signed(&key).unwrap().der().clone();
        let key: PrivateKeyDer<'static> = key.serialize_der().try_into().unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let server = rustls::ServerConfig::builder_with_provider(default_provider().into())
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let client = rustls::ClientConfig::builder_with_provider(default_provider().into())
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let server = Arc::new(QuicServerConfig::try_from(server).unwrap());
        let server = endpoint(Some(quinn::ServerConfig::with_crypto(server)));
        let client = Arc::new(QuicClientConfig::try_from(client).unwrap());
        let (client, to) = (quinn::ClientConfig::new(client), server.local_addr());
        let connecting = endpoint(None).connect_with(client, to.unwrap(), "a.test");
        let connecting = connecting.unwrap();
        let accepting = async { server.accept().await.unwrap().await.unwrap() };
        let both = timeout(DEADLINE, async { tokio::join!(accepting, connecting) }).await;
        let (server, client) = both.unwrap();
        (server, client.unwrap())
    }

    async fn outbound(connection: &Connection) -> Outbound {
        let stream = connection.open_uni().await.unwrap();
        Outbound::new(stream, &Bodies::new(WINDOWS, None))
    }

    /// Lets QUIC take content. It sends nothing before the task of the test waits.
    fn send(outbound: &Outbound, length: usize) {
        let mut content = Bytes::from(vec![0; length]);
        let mut cx = Context::from_waker(Waker::noop());
        while !content.is_empty() {
            let sent = outbound.poll_content(&mut cx, &mut content);
            assert_eq!(sent, Poll::Ready(Ok(())));
        }
    }

    #[tokio::test]
    async fn urgent_responses_go_before_others() {
        /// More than QUIC sends before something is acknowledged.
        const LENGTH: usize = 60_000;
        let (server, client) = connected().await;
        let (usual, urgent) = (outbound(&server).await, outbound(&server).await);
        urgent.set_urgency(0);
        send(&usual, LENGTH);
        send(&urgent, LENGTH);
        let arriving = async {
            let mut usual = client.accept_uni().await.unwrap();
            let mut urgent = client.accept_uni().await.unwrap();
            tokio::select! {
                biased;
                _ = usual.read_chunk(usize::MAX, true) => panic!("the other one comes first"),
                chunk = urgent.read_chunk(usize::MAX, true) => assert!(chunk.unwrap().is_some()),
            }
        };
        timeout(DEADLINE, arriving).await.unwrap();
    }

    #[tokio::test]
    async fn large_and_usual_responses_have_equal_shares() {
        let (server, _client) = connected().await;
        for (urgency, before, after) in [(0, 3, 0), (2, 1, 0), (3, 0, 0), (7, 0, 0)] {
            let outbound = outbound(&server).await;
            let priority = || outbound.0.borrow().stream.priority();
            outbound.set_urgency(urgency);
            assert_eq!(priority(), Ok(before), "{urgency}");
            send(&outbound, MAX_URGENT - 1);
            assert_eq!(priority(), Ok(before), "{urgency}");
            send(&outbound, 1);
            assert_eq!(priority(), Ok(after), "{urgency}");
        }
    }
}
