//! `portcullis echo`: a demo backend that responds with the received request as JSON, over HTTP/1.1 and HTTP/2 with
//! prior knowledge, or both over TLS with `--tls`.

use std::convert::Infallible;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::certificate::self_signed;

const MAX_CONNECTIONS: usize = 1024;
/// Delay after a failed accept. The usual cause is a lack of file descriptors; an immediate retry would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
const MAX_BODY: u64 = 1 << 30;
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0";

/// Respond to every request with the received request as JSON (a demo backend).
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis echo --listen 127.0.0.1:9001 --name stable
  curl http://127.0.0.1:9001/hello

Exit codes: 0 after SIGTERM or Ctrl-C, 1 if the address cannot be bound, 2 for wrong usage.")]
pub struct Args {
    /// Address to listen on; port 0 selects a free port
    #[arg(
        long,
        value_name = "ADDR",
        env = "PORTCULLIS_ECHO_LISTEN",
        value_parser = super::value::socket_address
    )]
    listen: SocketAddr,
    /// Name in responses
    #[arg(
        long,
        value_name = "NAME",
        default_value = "echo",
        env = "PORTCULLIS_ECHO_NAME"
    )]
    name: String,
    /// Serve TLS with a self-signed certificate that is generated at start
    #[arg(long, env = "PORTCULLIS_ECHO_TLS")]
    tls: bool,
}

/// Serves until SIGTERM or Ctrl-C.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(args.listen)
            .await
            .with_context(|| format!("cannot listen on {}", args.listen))?;
        let tls = if args.tls { Some(acceptor()?) } else { None };
        let scheme = if args.tls { "https" } else { "http" };
        let address = listener.local_addr()?;
        let name = &args.name;
        // Serves also if nobody reads this.
        drop(writeln!(
            io::stdout(),
            "{name} listens on {scheme}://{address}"
        ));
        tokio::select! {
            () = serve_with(listener, &args.name, tls) => {}
            result = super::signals::stopped() => result?,
        }
        Ok(())
    })
}

/// Serves plain HTTP on `listener` until the future is dropped. Responses contain `name`.
pub async fn serve(listener: TcpListener, name: &str) {
    serve_with(listener, name, None).await;
}

/// Like [`serve`], over TLS if there is an acceptor.
pub async fn serve_with(listener: TcpListener, name: &str, tls: Option<TlsAcceptor>) {
    let name: Arc<str> = name.into();
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    // `acquire_owned` fails only on a closed semaphore, and nothing closes it.
    while let Ok(permit) = permits.clone().acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let served = connection(stream, name.clone(), tls.clone());
        tokio::spawn(async move {
            served.await;
            drop(permit);
        });
    }
}

/// Returns an acceptor with a self-signed certificate.
pub fn acceptor() -> anyhow::Result<TlsAcceptor> {
    let demo = self_signed(&["localhost", "127.0.0.1", "::1"])?;
    let chain = CertificateDer::pem_slice_iter(demo.certificate.as_bytes())
        .collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(demo.key.as_bytes())?;
    let mut config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn connection(stream: TcpStream, name: Arc<str>, tls: Option<TlsAcceptor>) {
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else {
        if let Ok(Some(http2)) = timeout(HEAD_TIMEOUT, speaks_http2(&stream)).await {
            exchange(stream, name, http2).await;
        }
        return;
    };
    if let Ok(Ok(stream)) = timeout(HEAD_TIMEOUT, tls.accept(stream)).await {
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        exchange(stream, name, http2).await;
    }
}

/// Reports whether the client sends the HTTP/2 connection preface, without consuming it. `None` if the connection is
/// closed.
async fn speaks_http2(stream: &TcpStream) -> Option<bool> {
    let mut first = [0; H2_PREFACE.len()];
    loop {
        let length = stream
            .peek(&mut first)
            .await
            .ok()
            .filter(|length| *length > 0)?;
        if first[..length] != H2_PREFACE[..length] {
            return Some(false);
        }
        if length == H2_PREFACE.len() {
            return Some(true);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn exchange<S>(stream: S, name: Arc<str>, http2: bool)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let name = name.clone();
        async move { Ok::<_, Infallible>(respond(request, &name).await) }
    });
    // Errors of a connection are the client's, and are ignored.
    let _ = if http2 {
        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .serve_connection(TokioIo::new(stream), service)
            .await
    } else {
        hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service)
            .await
    };
}

async fn respond(request: Request<Incoming>, name: &str) -> Response<Full<Bytes>> {
    let (head, mut body) = request.into_parts();
    let body_bytes = match read(&mut body).await {
        Ok(bytes) => bytes,
        Err(status) => {
            let mut response = Response::new(Full::default());
            *response.status_mut() = status;
            return response;
        }
    };
    let received = json!({
        "name": name,
        "method": head.method.as_str(),
        "path": head.uri.path_and_query().map_or("/", |path| path.as_str()),
        "authority": head.uri.authority().map(|authority| authority.as_str()),
        "version": format!("{:?}", head.version),
        "headers": headers(&head.headers),
        "body_bytes": body_bytes,
    });
    let mut response = Response::new(Full::from(format!("{received:#}\n")));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Reads the whole body and returns its length.
async fn read(body: &mut Incoming) -> Result<u64, StatusCode> {
    let mut length = 0;
    loop {
        match timeout(BODY_TIMEOUT, body.frame()).await {
            Err(_) => return Err(StatusCode::REQUEST_TIMEOUT),
            Ok(None) => return Ok(length),
            Ok(Some(Err(_))) => return Err(StatusCode::BAD_REQUEST),
            Ok(Some(Ok(frame))) => length += frame.data_ref().map_or(0, |data| data.len() as u64),
        }
        if length > MAX_BODY {
            return Err(StatusCode::PAYLOAD_TOO_LARGE);
        }
    }
}

/// Header values by name; a list if a header has several.
fn headers(headers: &HeaderMap) -> Value {
    headers
        .keys()
        .map(|name| {
            let mut values: Vec<Value> = headers
                .get_all(name)
                .iter()
                .map(|value| String::from_utf8_lossy(value.as_bytes()).into())
                .collect();
            let value = if values.len() == 1 {
                values.swap_remove(0)
            } else {
                values.into()
            };
            (name.to_string(), value)
        })
        .collect::<serde_json::Map<_, _>>()
        .into()
}
