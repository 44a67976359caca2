//! A raw HTTP/1 client, plain or TLS, with a timeout for every read.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::TEST_TIMEOUT;
use super::http::{Body, Fields, Fill, Framing, Wire, framing};

/// A client's byte stream.
pub(crate) enum Io {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Io {
    /// Returns the socket.
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => &stream.sock,
        }
    }
}

impl Read for Io {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Io {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// A response.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) start: String,
    pub(crate) fields: Fields,
    pub(crate) body: Body,
    /// Status codes of informational responses before it.
    pub(crate) interim: Vec<u16>,
}

impl Response {
    /// Returns the body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body.bytes).into_owned()
    }

    /// Reports whether the server closes the connection after it.
    pub(crate) fn closes(&self) -> bool {
        self.fields
            .get("connection")
            .is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }
}

/// A raw client.
pub(crate) struct Client {
    pub(crate) wire: Wire<Io>,
}

impl Client {
    /// Connects in plain text.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self {
            wire: Wire::new(Io::Plain(socket(address))),
        }
    }

    /// Connects with TLS and ALPN HTTP/1.1; without SNI if `name` is empty.
    pub(crate) fn connect_tls(address: SocketAddr, name: &str) -> Self {
        let config = super::tls::client(&["http/1.1"]);
        Self::handshake(address, name, config).expect("the handshake succeeds")
    }

    /// Connects with a TLS configuration.
    pub(crate) fn handshake(
        address: SocketAddr,
        name: &str,
        config: Arc<ClientConfig>,
    ) -> io::Result<Self> {
        let mut socket = socket(address);
        let mut connection = connection(name, config);
        while connection.is_handshaking() {
            connection.complete_io(&mut socket)?;
        }
        let stream = StreamOwned::new(connection, socket);
        Ok(Self {
            wire: Wire::new(Io::Tls(Box::new(stream))),
        })
    }

    /// Returns the server's certificate.
    pub(crate) fn certificate(&self) -> Option<CertificateDer<'static>> {
        let Io::Tls(stream) = &self.wire.io else {
            return None;
        };
        let shown = stream.conn.peer_certificates()?.first()?;
        Some(shown.clone().into_owned())
    }

    /// Sets the read timeout.
    pub(crate) fn set_timeout(&mut self, time: Duration) {
        let socket = self.wire.io.socket();
        socket.set_read_timeout(Some(time)).expect("a time");
    }

    /// Sends bytes; false if the connection is closed.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.wire.write(bytes.as_ref())
    }

    /// Half-closes the connection.
    pub(crate) fn shutdown_write(&mut self) {
        let shut = self.wire.io.socket().shutdown(Shutdown::Write);
        shut.expect("the socket is open");
    }

    /// Reads the response to a request with `method`. Fails the test without one.
    pub(crate) fn response(&mut self, method: &str) -> Response {
        match self.try_response(method) {
            Ok(response) => response,
            Err(fill) => panic!("no response: {fill:?}, after {:?}", self.unread()),
        }
    }

    /// Reads the response to a request with `method`, or returns why there is none.
    pub(crate) fn try_response(&mut self, method: &str) -> Result<Response, Fill> {
        let mut interim = Vec::new();
        loop {
            let head = self.wire.head()?;
            let status = head
                .start
                .split(' ')
                .nth(1)
                .and_then(|code| code.parse().ok());
            let status: u16 = status.unwrap_or_else(|| panic!("a status line: {}", head.start));
            if (100..200).contains(&status) && status != 101 {
                interim.push(status);
                continue;
            }
            let body = if method == "HEAD" || matches!(status, 101 | 204 | 304) {
                Body {
                    complete: true,
                    ..Body::default()
                }
            } else {
                let framing = framing(&head.fields).unwrap_or(Framing::Close);
                self.wire.body(framing)
            };
            return Ok(Response {
                status,
                start: head.start,
                fields: head.fields,
                body,
                interim,
            });
        }
    }

    /// Sends a request and reads its response.
    pub(crate) fn round_trip(&mut self, request: impl AsRef<[u8]>) -> Response {
        let request = request.as_ref();
        self.send(request);
        let method = request.split(|byte| *byte == b' ').next();
        self.response(&String::from_utf8_lossy(method.unwrap_or_default()))
    }

    /// Reads until the connection closes, gracefully or not. Fails the test on timeout.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        loop {
            match self.wire.fill() {
                Fill::Bytes(_) => {}
                Fill::End | Fill::Failed(_) => return std::mem::take(&mut self.wire.buffer),
                Fill::Silent => panic!("the connection is still open, after {:?}", self.unread()),
            }
        }
    }

    /// Fails the test unless the connection closes without further data.
    pub(crate) fn ends(&mut self) {
        let rest = self.rest();
        assert!(
            rest.is_empty(),
            "more came: {}",
            String::from_utf8_lossy(&rest)
        );
    }

    fn unread(&self) -> String {
        String::from_utf8_lossy(&self.wire.buffer).into_owned()
    }
}

/// Returns a connected socket with read and write timeouts.
pub(crate) fn socket(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect_timeout(&address, TEST_TIMEOUT).expect("connected");
    socket.set_read_timeout(Some(TEST_TIMEOUT)).expect("a time");
    socket
        .set_write_timeout(Some(TEST_TIMEOUT))
        .expect("a time");
    socket.set_nodelay(true).expect("set");
    socket
}

/// Returns the client side of a TLS connection; without SNI if `name` is empty.
pub(crate) fn connection(name: &str, config: Arc<ClientConfig>) -> ClientConnection {
    // An IP address is never sent as SNI.
    let name = if name.is_empty() { "127.0.0.1" } else { name };
    let name = ServerName::try_from(name.to_owned()).expect("a server name");
    ClientConnection::new(config, name).expect("a connection")
}

/// Sends one GET on a new connection.
pub(crate) fn get(address: SocketAddr, host: &str, path: &str) -> Response {
    let mut client = Client::connect(address);
    client.round_trip(format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    ))
}
