//! A client of HTTP/3 over quinn, with the frames and field sections of `src/http3`. Sends what the test gives it, valid or not.

#![allow(
    dead_code,
    reason = "the client needs a part of what the files of src/http3 have"
)]

#[path = "../../../src/http3/error.rs"]
mod error;
#[path = "../../../src/http3/frame.rs"]
mod frame;
#[path = "../../../src/http3/huffman.rs"]
mod huffman;
#[path = "../../../src/http3/prefix_integer.rs"]
mod prefix_integer;
#[path = "../../../src/http3/qpack.rs"]
mod qpack;
#[path = "../../../src/http3/static_table.rs"]
mod static_table;
#[path = "../../../src/http3/varint.rs"]
mod varint;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use portcullis::ir::Transport;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    Connection, ConnectionError, Endpoint, EndpointConfig, ReadError, RecvStream, SendStream,
    TokioRuntime, TransportConfig,
};
use rustls::ClientConfig;
use rustls::version::TLS13;
use tokio::time::timeout;

use self::frame::{HeaderReader, Kind};
use crate::client::Answer;
use crate::harness::{TEST_TIMEOUT, tls};
use crate::scene::Scene;

/// What the proxy may send on a stream before the client reads.
const STREAM_WINDOW: u32 = 64 * 1024;
/// A type of streams that is reserved to be unknown (RFC 9114, 6.2.3).
pub(crate) const UNKNOWN_STREAM: u8 = 0x21;
/// Larger than any section of these tests.
const MAX_SECTION: usize = 1 << 20;

/// Returns the address of the QUIC port beside a TCP port.
pub(crate) fn quic_at(scene: &Scene, port: u16) -> SocketAddr {
    let binds = scene.last().binds;
    let mut found = binds
        .iter()
        .filter(|(bind, _)| bind.port == port && bind.transport == Transport::Quic);
    let (_, bound) = found.next().expect("a QUIC port");
    *bound.as_ref().expect("bound")
}

/// Waits, but not forever.
pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    timeout(TEST_TIMEOUT, future).await.expect("in time")
}

/// A client that accepts any certificate.
pub(crate) fn trusting() -> Arc<ClientConfig> {
    tls::client_of(&[&TLS13], &["h3"])
}

/// A connection.
pub(crate) struct Http3 {
    pub(crate) connection: Connection,
    endpoint: Endpoint,
    /// A connection whose control stream ends is closed.
    control: SendStream,
}

impl Http3 {
    /// Connects with this server name.
    pub(crate) async fn connect(address: SocketAddr, name: &str) -> Self {
        let connected = Self::try_connect(address, name, &trusting()).await;
        connected.expect("a handshake")
    }

    /// Connects with a TLS configuration.
    pub(crate) async fn try_connect(
        address: SocketAddr,
        name: &str,
        config: &Arc<ClientConfig>,
    ) -> Result<Self, ConnectionError> {
        Self::connect_from(Ipv4Addr::LOCALHOST.into(), address, name, config).await
    }

    /// Connects from an address of the loopback network.
    pub(crate) async fn connect_from(
        from: IpAddr,
        address: SocketAddr,
        name: &str,
        config: &Arc<ClientConfig>,
    ) -> Result<Self, ConnectionError> {
        let socket = UdpSocket::bind((from, 0)).expect("bound");
        let endpoint = Endpoint::new(
            EndpointConfig::default(),
            None,
            socket,
            Arc::new(TokioRuntime),
        );
        let endpoint = endpoint.expect("an endpoint");
        let crypto = QuicClientConfig::try_from((**config).clone()).expect("TLS 1.3");
        let mut config = quinn::ClientConfig::new(Arc::new(crypto));
        // Smaller than what tests send, so that the proxy waits for the client.
        let mut transport = TransportConfig::default();
        transport
            .stream_receive_window(STREAM_WINDOW.into())
            .receive_window((4 * STREAM_WINDOW).into());
        config.transport_config(Arc::new(transport));
        let connecting = endpoint.connect_with(config, address, name);
        let connection = within(connecting.expect("a name")).await?;
        let mut control = within(connection.open_uni()).await?;
        let mut settings = Vec::new();
        frame::write_control_stream(MAX_SECTION, &mut settings);
        // Fails if the connection has been closed meanwhile.
        let _ = control.write_all(&settings).await;
        Ok(Self {
            connection,
            endpoint,
            control,
        })
    }

    /// Goes on from another port, of the same or another address of the loopback network.
    pub(crate) fn move_to(&self, address: IpAddr) {
        let socket = UdpSocket::bind((address, 0)).expect("bound");
        self.endpoint.rebind(socket).expect("moved");
    }

    /// Waits until the proxy has read what it was sent so far, with a stream of an unknown type. `None` if the connection ends.
    pub(crate) async fn until_read(&self) -> Option<()> {
        let mut unknown = within(self.connection.open_uni()).await.ok()?;
        within(unknown.write_all(&[UNKNOWN_STREAM])).await.ok()?;
        within(unknown.stopped()).await.ok()?;
        Some(())
    }

    /// Opens a request stream.
    pub(crate) async fn stream(&self) -> Exchange {
        let opened = within(self.connection.open_bi()).await;
        let (send, receive) = opened.expect("a stream");
        Exchange::new(send, receive)
    }

    /// Sends the head of a request.
    pub(crate) async fn begin(
        &self,
        method: &str,
        host: &str,
        path: &str,
        fields: &[(&str, &str)],
    ) -> Exchange {
        let mut exchange = self.stream().await;
        let head = head(method, host, path, fields);
        within(exchange.send.write_all(&head)).await.expect("sent");
        exchange
    }

    /// Sends a request without a body, and reads the response.
    pub(crate) async fn ask(
        &self,
        method: &str,
        host: &str,
        path: &str,
        fields: &[(&str, &str)],
    ) -> Answer {
        let mut exchange = self.stream().await;
        let head = head(method, host, path, fields);
        within(exchange.send.write_all(&head)).await.expect("sent");
        exchange.send.finish().expect("open");
        exchange.answer().await
    }

    /// Sends a GET, and reads the response.
    pub(crate) async fn get(&self, host: &str, path: &str) -> Answer {
        self.ask("GET", host, path, &[]).await
    }

    /// Waits until the connection ends, and returns the code with which the proxy has closed it.
    pub(crate) async fn closed(&self) -> u64 {
        match within(self.connection.closed()).await {
            ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
            other => panic!("{other}"),
        }
    }

    /// Reads the control stream of the proxy up to a GOAWAY, and returns its id.
    pub(crate) async fn goaway(&self, control: &mut Option<Incoming>) -> u64 {
        if control.is_none() {
            let stream = within(self.connection.accept_uni()).await.expect("open");
            let mut stream = Incoming::new(stream);
            // The type of the stream.
            assert!(stream.fill().await.expect("open"));
            assert_eq!(stream.input.get_u8(), 0);
            *control = Some(stream);
        }
        let control = control.as_mut().expect("opened");
        loop {
            let frame = control.frame().await.expect("open").expect("a frame");
            if let Frame::GoAway(id) = frame {
                return id;
            }
        }
    }
}

/// Sends the first datagram of a client, and nothing after that, from an address of the loopback network. To be kept open.
pub(crate) async fn greet_from(
    from: IpAddr,
    address: SocketAddr,
    name: &str,
) -> tokio::net::UdpSocket {
    let socket = tokio::net::UdpSocket::bind((from, 0)).await.expect("bound");
    let itself = socket.local_addr().expect("an address");
    let mut datagram = [0; 2048];
    let config = trusting();
    let (length, _) = tokio::select! {
        received = socket.recv_from(&mut datagram) => received.expect("received"),
        _ = Http3::try_connect(itself, name, &config) => panic!("a handshake without a server"),
    };
    let sent = socket.send_to(&datagram[..length], address).await;
    sent.expect("sent");
    socket
}

/// Encodes the head of a request.
pub(crate) fn head(method: &str, host: &str, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let control = [
        (":method", method),
        (":scheme", "https"),
        (":authority", host),
        (":path", path),
    ];
    headers(&[&control[..], fields].concat())
}

/// Encodes a HEADERS frame.
pub(crate) fn headers(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame::write_headers(&mut frame, |output| {
        for (name, value) in fields {
            qpack::write(name, value.as_bytes(), false, output);
        }
    });
    frame
}

/// Encodes a DATA frame.
pub(crate) fn data(content: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame::write_data_header(content.len(), &mut frame);
    frame.extend_from_slice(content);
    frame
}

/// A frame of the proxy.
#[derive(Debug)]
pub(crate) enum Frame {
    Headers(HeaderMap, Option<u16>),
    Data(Bytes),
    GoAway(u64),
    Other,
}

/// What the proxy sends on a stream.
pub(crate) struct Incoming {
    pub(crate) stream: RecvStream,
    header: HeaderReader,
    input: Bytes,
}

impl Incoming {
    pub(crate) fn new(stream: RecvStream) -> Self {
        Self {
            stream,
            header: HeaderReader::default(),
            input: Bytes::new(),
        }
    }

    async fn fill(&mut self) -> Result<bool, ReadError> {
        let chunk = within(self.stream.read_chunk(usize::MAX, true)).await?;
        let has_more = chunk.is_some();
        self.input = chunk.map(|chunk| chunk.bytes).unwrap_or_default();
        Ok(has_more)
    }

    /// Reads a frame. `None` at the end of the stream.
    pub(crate) async fn frame(&mut self) -> Result<Option<Frame>, ReadError> {
        let (kind, length) = loop {
            if let Some(header) = self.header.read(&mut self.input) {
                break header;
            }
            if !self.fill().await? {
                return Ok(None);
            }
        };
        let length = usize::try_from(length).expect("a length");
        let mut payload = BytesMut::new();
        while payload.len() < length {
            if self.input.is_empty() {
                assert!(self.fill().await?, "the stream ends within a frame");
            }
            let part = self.input.len().min(length - payload.len());
            payload.extend_from_slice(&self.input.split_to(part));
        }
        Ok(Some(match kind {
            Kind::Data => Frame::Data(payload.freeze()),
            Kind::Headers => {
                let (fields, status) = decoded(&payload);
                Frame::Headers(fields, status)
            }
            Kind::GoAway => {
                let id = varint::Partial::default().read(&mut payload.freeze());
                Frame::GoAway(id.expect("an id"))
            }
            _ => Frame::Other,
        }))
    }
}

/// Returns the fields of a section, and its status.
fn decoded(section: &[u8]) -> (HeaderMap, Option<u16>) {
    let (mut fields, mut status) = (HeaderMap::new(), None);
    qpack::decode(section, MAX_SECTION, |line| {
        if line.name == b":status" {
            let text = std::str::from_utf8(line.value).expect("text");
            status = Some(text.parse().expect("a number"));
        } else {
            let name = HeaderName::from_lowercase(line.name).expect("a name");
            fields.append(name, HeaderValue::from_bytes(line.value).expect("a value"));
        }
        Ok(())
    })
    .expect("a section");
    (fields, status)
}

/// A request and its response.
pub(crate) struct Exchange {
    pub(crate) send: SendStream,
    pub(crate) receive: Incoming,
    /// Status codes of informational responses.
    pub(crate) interim: Vec<u16>,
}

impl Exchange {
    fn new(send: SendStream, receive: RecvStream) -> Self {
        Self {
            send,
            receive: Incoming::new(receive),
            interim: Vec::new(),
        }
    }

    /// Sends bytes of the request stream.
    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        within(self.send.write_all(bytes)).await.expect("sent");
    }

    /// Reads the next frame, if the stream is not reset.
    pub(crate) async fn frame(&mut self) -> Option<Frame> {
        self.receive.frame().await.expect("not reset")
    }

    /// Reads the head of the response.
    pub(crate) async fn head(&mut self) -> (u16, HeaderMap) {
        loop {
            let frame = self.frame().await.expect("a response");
            let Frame::Headers(fields, Some(status)) = frame else {
                panic!("{frame:?} instead of a head");
            };
            match status {
                100..200 => self.interim.push(status),
                _ => return (status, fields),
            }
        }
    }

    /// Reads the response.
    pub(crate) async fn answer(&mut self) -> Answer {
        let (status, headers) = self.head().await;
        let (mut body, mut trailers) = (BytesMut::new(), None);
        while let Some(frame) = self.frame().await {
            match frame {
                Frame::Data(data) => body.extend_from_slice(&data),
                Frame::Headers(fields, None) => trailers = Some(fields),
                other => panic!("{other:?} in a response"),
            }
        }
        Answer {
            status,
            headers,
            trailers,
            body: body.freeze(),
        }
    }

    /// Waits until the proxy resets the response, and returns its code.
    pub(crate) async fn reset(&mut self) -> u64 {
        loop {
            match self.receive.frame().await {
                Ok(Some(_)) => {}
                Err(ReadError::Reset(code)) => return code.into_inner(),
                other => panic!("{other:?} instead of a reset"),
            }
        }
    }
}
