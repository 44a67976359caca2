//! Test clients: one connection each, HTTP/1.1 or HTTP/2, plain or TLS.
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::harness::TEST_TIMEOUT;
use crate::origin::{Payload, empty, full};

/// A complete response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) body: Bytes,
}

impl Answer {
    /// Returns a header value; empty if missing.
    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).map(|value| value.to_str());
        value.map_or("", |value| value.expect("text"))
    }

    /// Returns the body as text.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    /// Returns the request that an echo backend received.
    pub(crate) fn received(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        serde_json::from_slice(&self.body).expect("an echo")
    }

    /// Returns name of the echo backend, or the status.
    pub(crate) fn name(&self) -> String {
        if self.status != 200 {
            return self.status.to_string();
        }
        self.received()["name"].as_str().expect("a name").to_owned()
    }
}

enum Sender {
    Http1(http1::SendRequest<Payload>),
    Http2(http2::SendRequest<Payload>),
}

/// One connection.
pub(crate) struct Client {
    sender: Sender,
    /// Completes when the connection ends.
    pub(crate) connection: JoinHandle<hyper::Result<()>>,
}

impl Client {
    /// HTTP/1.1 in plain text.
    pub(crate) async fn http1(address: SocketAddr) -> Self {
        Self::http1_on(connect(address).await).await
    }

    /// HTTP/2 with prior knowledge.
    pub(crate) async fn http2(address: SocketAddr) -> Self {
        Self::http2_on(connect(address).await).await
    }

    /// A client of each version, in plain text.
    pub(crate) async fn both(address: SocketAddr) -> [Self; 2] {
        [Self::http1(address).await, Self::http2(address).await]
    }

    /// Connects with TLS and ALPN.
    pub(crate) async fn tls(address: SocketAddr, name: &str, config: &Arc<ClientConfig>) -> Self {
        let stream = handshake(address, name, config).await.expect("a handshake");
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            Self::http2_on(stream).await
        } else {
            Self::http1_on(stream).await
        }
    }

    /// HTTP/1.1 on a stream.
    pub(crate) async fn http1_on<S>(stream: S) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("ready");
        Self {
            sender: Sender::Http1(sender),
            connection: tokio::spawn(connection),
        }
    }

    /// HTTP/2 on a stream.
    pub(crate) async fn http2_on<S>(stream: S) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("ready");
        Self {
            sender: Sender::Http2(sender),
            connection: tokio::spawn(connection),
        }
    }

    /// Starts a request in the form of this connection's HTTP version.
    pub(crate) fn request(&self, method: Method, host: &str, path: &str) -> http::request::Builder {
        let request = Request::builder().method(method);
        match self.sender {
            Sender::Http1(_) => request.uri(path).header("host", host),
            Sender::Http2(_) => request.uri(format!("http://{host}{path}")),
        }
    }

    /// Sends a request; returns the response head.
    pub(crate) async fn send(
        &mut self,
        request: Request<Payload>,
    ) -> hyper::Result<Response<Incoming>> {
        let answer = async {
            match &mut self.sender {
                Sender::Http1(sender) => {
                    sender.ready().await?;
                    sender.send_request(request).await
                }
                Sender::Http2(sender) => {
                    sender.ready().await?;
                    sender.send_request(request).await
                }
            }
        };
        timeout(TEST_TIMEOUT, answer)
            .await
            .expect("an answer in time")
    }

    /// Sends a request; returns the complete response.
    pub(crate) async fn fetch(&mut self, request: Request<Payload>) -> Answer {
        whole(self.send(request).await.expect("an answer")).await
    }

    /// Sends a GET; returns the complete response.
    pub(crate) async fn get(&mut self, host: &str, path: &str) -> Answer {
        let request = self.request(Method::GET, host, path);
        self.fetch(request.body(empty()).expect("a request")).await
    }

    /// Sends a GET with headers; returns the complete response.
    pub(crate) async fn get_with(
        &mut self,
        host: &str,
        path: &str,
        fields: &[(&str, &str)],
    ) -> Answer {
        let mut request = self.request(Method::GET, host, path);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        self.fetch(request.body(empty()).expect("a request")).await
    }

    /// Sends a POST; returns the complete response.
    pub(crate) async fn post(&mut self, host: &str, path: &str, body: &'static str) -> Answer {
        let request = self.request(Method::POST, host, path);
        self.fetch(request.body(full(body)).expect("a request"))
            .await
    }

    /// Waits until the connection ends.
    pub(crate) async fn ended(self) {
        let ended = timeout(TEST_TIMEOUT, self.connection).await;
        // The result is ignored: tests check responses.
        let _ = ended.expect("ended in time").expect("no panic");
    }
}

/// Returns headers, or trailers, with these names and values in order.
pub(crate) fn header_map(lines: &[(String, String)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
        headers.append(name, HeaderValue::from_str(value).expect("a value"));
    }
    headers
}

/// Reads a complete response.
pub(crate) async fn whole(response: Response<Incoming>) -> Answer {
    let (head, body) = response.into_parts();
    let body = timeout(TEST_TIMEOUT, body.collect())
        .await
        .expect("in time");
    let body = body.expect("a whole body");
    Answer {
        status: head.status.as_u16(),
        headers: head.headers,
        trailers: body.trailers().cloned(),
        body: body.to_bytes(),
    }
}

/// Sends one GET on a new connection.
pub(crate) async fn get(address: SocketAddr, host: &str, path: &str) -> Answer {
    Client::http1(address).await.get(host, path).await
}

/// Returns a plain connection.
pub(crate) async fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).await.expect("connected");
    stream.set_nodelay(true).expect("a socket");
    stream
}

/// Waits until the port is closed.
pub(crate) async fn refuses(address: SocketAddr) {
    let refused = async {
        while TcpStream::connect(address).await.is_ok() {
            // Closed sockets have no notification.
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(TEST_TIMEOUT, refused)
        .await
        .expect("refused in time");
}

/// Performs a TLS handshake.
pub(crate) async fn handshake(
    address: SocketAddr,
    name: &str,
    config: &Arc<ClientConfig>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let name = name.to_owned().try_into().expect("a server name");
    let connecting =
        TlsConnector::from(config.clone()).connect(name, TcpStream::connect(address).await?);
    timeout(TEST_TIMEOUT, connecting)
        .await
        .expect("a handshake in time")
}

/// Writes raw bytes.
pub(crate) async fn write_text<S: AsyncWrite + Unpin>(stream: &mut S, bytes: impl AsRef<[u8]>) {
    let written = async {
        stream.write_all(bytes.as_ref()).await?;
        stream.flush().await
    };
    let written = timeout(TEST_TIMEOUT, written).await;
    written.expect("written in time").expect("written");
}

/// Reads until `end`; returns everything so far.
pub(crate) async fn read_until<S: AsyncRead + Unpin>(stream: &mut S, end: &str) -> String {
    let mut heard = Vec::new();
    while !heard.ends_with(end.as_bytes()) {
        let byte = timeout(TEST_TIMEOUT, stream.read_u8())
            .await
            .expect("in time");
        let heard_so_far = String::from_utf8_lossy(&heard).into_owned();
        heard.push(byte.unwrap_or_else(|error| panic!("{error} after {heard_so_far:?}")));
    }
    String::from_utf8(heard).expect("text")
}

/// Reads to the end.
pub(crate) async fn read_all<S: AsyncRead + Unpin>(stream: &mut S) -> Vec<u8> {
    let mut heard = Vec::new();
    let read = timeout(TEST_TIMEOUT, stream.read_to_end(&mut heard)).await;
    // A reset ends the stream as well.
    let _ = read.expect("an end in time");
    heard
}
