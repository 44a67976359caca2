//! One request to a server that the author of a policy names: over HTTPS, to addresses that are permitted, within bounded
//! memory. Must not know what is asked, or when.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt, ready};
use http::header::{CONNECTION, HOST, USER_AGENT};
use http::uri::Scheme;
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::Builder;
use hyper::rt::{Read, Write};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::dns::{AllowedAddresses, Answer, Lookup, LookupError};
use crate::ir::ClientTls;
use crate::ir::tls::{AlpnProtocol, Authorities, SubjectName, TlsVersion, Verification};
use crate::tls;

/// Timeout of a connect to one of several addresses.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum size of a response head, in bytes.
const MAX_HEAD: usize = 16 * 1024;
const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("portcullis/", env!("CARGO_PKG_VERSION")));

/// A server that is asked instead of the host of a URI.
#[derive(Clone, Copy, Debug)]
pub struct Server<'a> {
    /// Its endpoints, in the order in which they are connected to until one accepts.
    pub endpoints: &'a [SocketAddr],
    /// TLS to it, whatever the scheme of the URI; `None` leaves it to the URI.
    pub tls: Option<&'a ClientTls>,
}

/// What requests need: names of servers, and the addresses that they may have.
#[derive(Debug)]
pub struct HttpsClient<L> {
    lookup: Arc<Mutex<L>>,
    allowed: Arc<AllowedAddresses>,
}

/// A response.
#[derive(Debug)]
pub struct WholeResponse {
    /// Its status.
    pub status: StatusCode,
    /// Its body.
    pub body: Bytes,
}

/// Why there is no response. Has no text of the response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpsError {
    /// No address of the server is permitted.
    Refused(String),
    /// The name, the connection, TLS or HTTP failed.
    Unreachable(String),
    /// The body is longer than permitted.
    TooLong,
}

type Addresses = BoxFuture<'static, Result<Answer, LookupError>>;

impl<L> Clone for HttpsClient<L> {
    fn clone(&self) -> Self {
        Self {
            lookup: self.lookup.clone(),
            allowed: self.allowed.clone(),
        }
    }
}

impl<L: Lookup> HttpsClient<L> {
    /// Creates a client. Requests go to public addresses and to those that are `allowed`.
    pub fn new(lookup: L, allowed: AllowedAddresses) -> Self {
        Self {
            lookup: Arc::new(Mutex::new(lookup)),
            allowed: Arc::new(allowed),
        }
    }

    /// Called when a request has failed: the configuration of the system may have changed.
    pub fn on_failure(&self) {
        let mut lookup = self.lookup.lock().unwrap_or_else(PoisonError::into_inner);
        lookup.on_failure();
    }

    /// Sends a request to `uri` and reads the response, of up to `max_body` bytes. Redirects are not followed.
    ///
    /// # Errors
    /// When there is no such response.
    pub async fn send(
        &self,
        uri: &Uri,
        authorities: &Authorities,
        request: Request<Full<Bytes>>,
        max_body: usize,
    ) -> Result<WholeResponse, HttpsError> {
        let host = host(uri);
        let found = self.addresses(host).await;
        let found = found.map_err(|error| unreachable(format!("{host}: {error}")))?;
        let permitted = found
            .addresses
            .iter()
            .filter(|it| self.allowed.permits(**it));
        let port = port(uri);
        let permitted = permitted.map(|address| SocketAddr::new(*address, port));
        let permitted: Vec<_> = permitted.collect();
        if permitted.is_empty() {
            return Err(HttpsError::Refused(format!(
                "{host} has no public address; --allow-jwks-address permits others"
            )));
        }
        let tls = of_uri(uri, authorities);
        send_to(&permitted, uri, tls.as_ref(), request, max_body).await
    }

    /// Does what [`Self::send`] does, with a server instead of the host.
    ///
    /// # Errors
    /// When there is no such response.
    pub async fn send_to_server(
        &self,
        server: Server<'_>,
        (uri, authorities): (&Uri, &Authorities),
        request: Request<Full<Bytes>>,
        max_body: usize,
    ) -> Result<WholeResponse, HttpsError> {
        let permitted = server.endpoints.iter().copied();
        let permitted = permitted.filter(|it| self.allowed.permits_endpoint(it.ip()));
        let permitted: Vec<_> = permitted.collect();
        if permitted.is_empty() {
            return Err(HttpsError::Refused(
                "no endpoint has an address that pods may have; --allow-jwks-address permits others"
                    .to_owned(),
            ));
        }
        let tls = server.tls.cloned();
        let tls = tls.or_else(|| of_uri(uri, authorities));
        send_to(&permitted, uri, tls.as_ref(), request, max_body).await
    }

    fn addresses(&self, host: &str) -> Addresses {
        let Ok(address) = host.parse::<IpAddr>() else {
            let mut lookup = self.lookup.lock().unwrap_or_else(PoisonError::into_inner);
            return lookup.lookup(host);
        };
        let answer = Answer {
            addresses: vec![address],
            ttl: Duration::ZERO,
        };
        ready(Ok(answer)).boxed()
    }
}

/// Sends a request to one of several addresses.
async fn send_to(
    addresses: &[SocketAddr],
    uri: &Uri,
    tls: Option<&ClientTls>,
    request: Request<Full<Bytes>>,
    max_body: usize,
) -> Result<WholeResponse, HttpsError> {
    let request = addressed(uri, request)?;
    let stream = connect(addresses).await?;
    let Some(tls) = tls else {
        return exchange(request, TokioIo::new(stream), max_body).await;
    };
    let client = tls::client_config(tls);
    let client = client.map_err(|error| unreachable(format!("TLS: {error}")))?;
    let connector = TlsConnector::from(client.config);
    let stream = connector.connect(client.server_name, stream).await;
    let stream = stream.map_err(|error| unreachable(format!("TLS handshake: {error}")))?;
    exchange(request, TokioIo::new(stream), max_body).await
}

/// Returns the TLS that a URI asks for.
fn of_uri(uri: &Uri, authorities: &Authorities) -> Option<ClientTls> {
    if uri.scheme() == Some(&Scheme::HTTP) {
        return None;
    }
    let host = host(uri);
    Some(ClientTls {
        server_name: host.into(),
        verification: Verification {
            authorities: authorities.clone(),
            names: vec![SubjectName::Hostname(host.into())],
            pins: Vec::new(),
        },
        client_certificate: None,
        min_version: TlsVersion::Tls12,
        alpn: vec![AlpnProtocol::Http11],
    })
}

/// Returns the host, without the brackets of an IPv6 address.
fn host(uri: &Uri) -> &str {
    uri.host().unwrap_or_default().trim_matches(['[', ']'])
}

fn port(uri: &Uri) -> u16 {
    let default = match uri.scheme() == Some(&Scheme::HTTP) {
        true => 80,
        false => 443,
    };
    uri.port_u16().unwrap_or(default)
}

/// Adds to a request where it is sent.
fn addressed(
    uri: &Uri,
    mut request: Request<Full<Bytes>>,
) -> Result<Request<Full<Bytes>>, HttpsError> {
    let path = uri.path_and_query().map_or("/", |it| it.as_str());
    let invalid = |error: http::Error| unreachable(error.to_string());
    *request.uri_mut() = path
        .parse()
        .map_err(|error| invalid(http::Error::from(error)))?;
    let host = uri.authority().map_or("", |it| it.as_str());
    let host = HeaderValue::from_str(host).map_err(|error| invalid(http::Error::from(error)))?;
    let headers = request.headers_mut();
    headers.insert(HOST, host);
    headers.insert(USER_AGENT, AGENT);
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(request)
}

async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, HttpsError> {
    let mut last = None;
    for address in addresses {
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = Some(error.kind().to_string()),
            Err(_) => last = Some("the connect timed out".to_owned()),
        }
    }
    Err(unreachable(last.unwrap_or_default()))
}

/// Sends the request and reads the response.
async fn exchange(
    request: Request<Full<Bytes>>,
    stream: impl Read + Write + Unpin + Send + 'static,
    max_body: usize,
) -> Result<WholeResponse, HttpsError> {
    let handshake = Builder::new()
        .max_buf_size(MAX_HEAD)
        .handshake(stream)
        .await;
    let (mut sender, connection) = handshake.map_err(|error| lost(&error))?;
    let response = async {
        let response = sender.send_request(request).await;
        read(response.map_err(|error| lost(&error))?, max_body).await
    };
    let mut response = std::pin::pin!(response);
    tokio::select! {
        response = &mut response => response,
        // What was received before the end may be the whole response.
        _ = connection => response.await,
    }
}

async fn read(response: Response<Incoming>, max_body: usize) -> Result<WholeResponse, HttpsError> {
    let status = response.status();
    let body = Limited::new(response.into_body(), max_body).collect().await;
    let body = body.map_err(|error| match error.downcast::<hyper::Error>() {
        Ok(error) => lost(&error),
        Err(_) => HttpsError::TooLong,
    })?;
    let body = body.to_bytes();
    Ok(WholeResponse { status, body })
}

fn lost(error: &hyper::Error) -> HttpsError {
    unreachable(format!("HTTP: {error}"))
}

fn unreachable(problem: String) -> HttpsError {
    HttpsError::Unreachable(problem)
}
