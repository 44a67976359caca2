//! Requests to the admin server of a data plane or a controller.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Maximum size of a page.
const PAGE_LIMIT: usize = 64 << 20;

/// An admin address, `[http://]HOST[:PORT]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminUrl {
    authority: http::uri::Authority,
}

impl FromStr for AdminUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is not an admin address; write one like http://127.0.0.1:19000");
        let rest = text.strip_prefix("http://").unwrap_or(text);
        let authority: http::uri::Authority = rest
            .strip_suffix('/')
            .unwrap_or(rest)
            .parse()
            .map_err(|_| wrong())?;
        let host = authority.host();
        let has_bad_port = authority.as_str() != host && authority.port_u16().is_none();
        // A port alone would be the host 0.0.74.56.
        let has_no_host = host.bytes().all(|byte| byte.is_ascii_digit());
        if authority.as_str().contains('@') || has_no_host || has_bad_port {
            return Err(wrong());
        }
        Ok(Self { authority })
    }
}

impl fmt::Display for AdminUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.authority.fmt(f)
    }
}

/// The proxy that a command asks.
#[derive(clap::Args, Clone, Debug)]
pub struct AdminFlags {
    /// Admin address of the proxy
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:19000")]
    pub(super) admin: AdminUrl,
    /// The token.
    #[command(flatten)]
    pub(super) token: TokenFlag,
}

/// The flag for the token of an admin address.
#[derive(clap::Args, Clone, Debug)]
pub struct TokenFlag {
    /// File with the token of the proxy's --admin-token-file, for an admin address that is not on loopback. The token is sent
    /// unencrypted
    #[arg(long, value_name = "FILE", env = "PORTCULLIS_ADMIN_TOKEN_FILE")]
    admin_token_file: Option<PathBuf>,
}

impl TokenFlag {
    /// Reads the token as the value of `Authorization`.
    ///
    /// # Errors
    /// When the file cannot be read, or is not that of a token.
    pub(super) fn read(&self) -> anyhow::Result<Option<HeaderValue>> {
        let Some(file) = &self.admin_token_file else {
            return Ok(None);
        };
        let read = || {
            let token = std::fs::read_to_string(file)?;
            let mut value = HeaderValue::try_from(format!("Bearer {}", token.trim()))?;
            value.set_sensitive(true);
            anyhow::Ok(Some(value))
        };
        read().with_context(|| format!("cannot use the admin token {}", file.display()))
    }
}

/// A response.
pub(super) struct Page {
    pub(super) status: StatusCode,
    headers: HeaderMap,
    /// The body; characters that are not UTF-8 are replaced.
    pub(super) body: String,
}

impl Page {
    /// Returns a header, if it is text.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Timeout of a document.
pub(super) const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Gets a document of `/api/v1/`.
///
/// # Errors
/// When the proxy cannot be reached, refuses the request or has no such document.
pub(super) fn document(proxy: &AdminFlags, name: &str) -> anyhow::Result<Value> {
    exchange(proxy, &Method::GET, name)
}

/// Exchanges a request for a document of `/api/v1/`. `name` includes the query.
///
/// # Errors
/// When the proxy cannot be reached or refuses the request.
pub(super) fn exchange(proxy: &AdminFlags, method: &Method, name: &str) -> anyhow::Result<Value> {
    let path = format!("/api/v1/{name}");
    let page = answer(proxy, method, &path)?;
    if page.status != StatusCode::OK {
        return Err(refused(proxy, &path, &page));
    }
    let url = &proxy.admin;
    serde_json::from_str(&page.body).with_context(|| format!("{path} of {url} is not JSON"))
}

/// Asks whether the process is ready, and why not if it is not.
///
/// # Errors
/// When the process cannot be reached, or responds with anything else.
pub(super) fn readiness(proxy: &AdminFlags) -> anyhow::Result<(bool, String)> {
    const PATH: &str = "/readyz";
    let page = answer(proxy, &Method::GET, PATH)?;
    match page.status {
        StatusCode::OK => Ok((true, page.body)),
        StatusCode::SERVICE_UNAVAILABLE => Ok((false, page.body)),
        _ => Err(refused(proxy, PATH, &page)),
    }
}

/// The error of a response with another status than a command expects.
fn refused(proxy: &AdminFlags, path: &str, page: &Page) -> anyhow::Error {
    anyhow::anyhow!(
        "{} responds {} to {path}: {}",
        proxy.admin,
        page.status,
        page.body.trim()
    )
}

/// Exchanges a request for a response, in a limited time. `path` includes the query.
fn answer(proxy: &AdminFlags, method: &Method, path: &str) -> anyhow::Result<Page> {
    let url = &proxy.admin;
    let token = proxy.token.read()?;
    let page = runtime()?.block_on(async {
        let exchange = async { page(request(url, method, path, token).await?).await };
        timeout(DOCUMENT_TIMEOUT, exchange).await
    });
    page.with_context(|| {
        format!(
            "no response of {url} within {} s",
            DOCUMENT_TIMEOUT.as_secs()
        )
    })?
    .with_context(|| format!("cannot ask {url}"))
}

/// Creates the runtime of a command.
pub(super) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// Gets a page. `path` includes the query. Does not limit the time.
pub(super) async fn get(
    url: &AdminUrl,
    path: &str,
    token: Option<HeaderValue>,
) -> anyhow::Result<Page> {
    page(request(url, &Method::GET, path, token).await?).await
}

/// Sends a request without a body. `path` includes the query. Does not limit the time.
pub(super) async fn request(
    url: &AdminUrl,
    method: &Method,
    path: &str,
    token: Option<HeaderValue>,
) -> anyhow::Result<Response<Incoming>> {
    const PORT: u16 = 80;
    let host = url.authority.host().trim_matches(['[', ']']);
    let port = url.authority.port_u16().unwrap_or(PORT);
    let socket = TcpStream::connect((host, port))
        .await
        .context("cannot connect to the address of --admin")?;
    send(socket, url.authority.as_str(), (method, path), token).await
}

/// Sends a request without a body on a connection, which ends with the body of the response. `path` includes the query. Does
/// not limit the time.
pub(super) async fn send<S>(
    socket: S,
    authority: &str,
    (method, path): (&Method, &str),
    token: Option<HeaderValue>,
) -> anyhow::Result<Response<Incoming>>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
    // Ends with the body of the response. Errors of it are those of the exchange.
    tokio::spawn(connection);
    let mut request = http::Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::HOST, authority)
        .body(Empty::<Bytes>::new())?;
    if let Some(token) = token {
        let headers = request.headers_mut();
        headers.insert(http::header::AUTHORIZATION, token);
    }
    Ok(sender.send_request(request).await?)
}

/// Reads a response with its body.
pub(super) async fn page(response: Response<Incoming>) -> anyhow::Result<Page> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, PAGE_LIMIT).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(Page {
        status: head.status,
        headers: head.headers,
        body: String::from_utf8_lossy(&body.to_bytes()).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_admin_addresses() {
        for (text, authority) in [
            ("http://127.0.0.1:19000", "127.0.0.1:19000"),
            ("127.0.0.1:19000", "127.0.0.1:19000"),
            ("localhost:19000/", "localhost:19000"),
            ("http://[::1]:19000/", "[::1]:19000"),
            ("http://pod.example.com", "pod.example.com"),
        ] {
            let url: AdminUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), authority);
        }
        for text in [
            "",
            "https://a:1",
            "http://",
            "http://a/metrics",
            "127.0.0.1:19000/explain",
            "http://u@a",
            "a:port",
            "19000",
            ":19000",
        ] {
            assert!(text.parse::<AdminUrl>().is_err(), "{text}");
        }
    }
}
