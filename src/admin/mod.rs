//! The server for operators: health, readiness, metrics, the configuration and a page about it. Only reads; knows
//! nothing of traffic or of where objects come from.

pub mod io;
mod page;
mod served;

use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use self::io::{Io, TokioTimer};
use crate::shutdown::Shutdown;
use crate::status::{Served, StatusReport};
use crate::table::Table;
use crate::telemetry::metrics;
use crate::telemetry::{AccessLog, ProcessStats};

const MAX_CONNECTIONS: usize = 64;
const MAX_HEAD: usize = 16 * 1024;
const MAX_HEADERS: usize = 64;
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest life of a connection: scrapers come back, and a client that reads nothing must go.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(60);

/// What the server shows.
#[derive(Debug)]
pub struct AdminState {
    /// The table that is served.
    pub table: Arc<ArcSwap<Table>>,
    /// Whether the first configuration is complete and its ports are bound.
    pub ready: AtomicBool,
    /// What the first configuration is waited for, where that is known.
    pub waiting: ArcSwapOption<String>,
    /// Conditions of the objects, after binding.
    pub report: ArcSwap<StatusReport>,
    /// What is served of each Gateway, after binding.
    pub served: watch::Sender<Arc<Served>>,
    /// Numbers of the process.
    pub stats: ProcessStats,
    /// The access log, for its losses.
    pub access_log: AccessLog,
}

impl AdminState {
    /// The state before the first configuration.
    pub fn new(table: Arc<ArcSwap<Table>>, stats: ProcessStats, access_log: AccessLog) -> Self {
        Self {
            table,
            ready: AtomicBool::new(false),
            waiting: ArcSwapOption::empty(),
            report: ArcSwap::default(),
            served: watch::Sender::default(),
            stats,
            access_log,
        }
    }
}

/// Binds an address. `[::]` is every address, also where there is no IPv6.
///
/// # Errors
/// When it cannot be bound.
pub fn bind(address: SocketAddr) -> std::io::Result<std::net::TcpListener> {
    /// EAFNOSUPPORT when the kernel has no IPv6, EADDRNOTAVAIL when it is switched off.
    const LACKS_IPV6: [i32; 2] = [97, 99];
    let listener = match std::net::TcpListener::bind(address) {
        Err(error)
            if address.ip() == Ipv6Addr::UNSPECIFIED
                && error
                    .raw_os_error()
                    .is_some_and(|code| LACKS_IPV6.contains(&code)) =>
        {
            std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port()))
        }
        bound => bound,
    }?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves on `listener` until open connections are cut. Must run within a runtime; its tasks are spawned there.
pub async fn serve(listener: TcpListener, state: Arc<AdminState>, shutdown: Shutdown) {
    let mut forced = shutdown.clone();
    let serve = |stream| connection(stream, state.clone(), shutdown.clone());
    tokio::select! {
        () = io::accept(listener, MAX_CONNECTIONS, serve) => {}
        () = forced.forced() => {}
    }
}

async fn connection(stream: TcpStream, state: Arc<AdminState>, shutdown: Shutdown) {
    let mut forced = shutdown.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let (state, shutdown) = (state.clone(), shutdown.clone());
        async move { Ok::<_, Infallible>(answer(&request, &state, &shutdown).await) }
    });
    let exchange = http1::Builder::new()
        .timer(TokioTimer)
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        .serve_connection(Io(stream), service);
    // How a connection ends is the client's affair.
    tokio::select! {
        _ = timeout(CONNECTION_TIMEOUT, exchange) => {}
        () = forced.forced() => {}
    }
}

async fn answer<B>(
    request: &Request<B>,
    state: &AdminState,
    shutdown: &Shutdown,
) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    }
    match request.uri().path() {
        "/" => respond(
            StatusCode::OK,
            "text/html; charset=utf-8",
            page::html(state),
        ),
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/readyz" => readiness(state, shutdown),
        "/metrics" => {
            let table = state.table.load_full();
            let dropped = state.access_log.dropped();
            let body = metrics::encode(table, state.stats.clone(), dropped);
            respond(StatusCode::OK, metrics::CONTENT_TYPE, body)
        }
        "/served" => served::answer(request, state).await,
        "/config" => match serde_json::to_string_pretty(&*state.table.load().ir) {
            Ok(body) => respond(StatusCode::OK, "application/json", body),
            Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "cannot be shown\n"),
        },
        _ => text(
            StatusCode::NOT_FOUND,
            "see / /healthz /readyz /metrics /config /served\n",
        ),
    }
}

fn readiness(state: &AdminState, shutdown: &Shutdown) -> Response<Full<Bytes>> {
    if shutdown.is_leaving() {
        text(StatusCode::SERVICE_UNAVAILABLE, "leaving\n")
    } else if state.ready.load(Ordering::Acquire) {
        text(StatusCode::OK, "ready\n")
    } else {
        let reason = match &*state.waiting.load() {
            Some(waiting) => format!("not configured yet: {waiting}\n"),
            None => "not configured yet\n".to_owned(),
        };
        text(StatusCode::SERVICE_UNAVAILABLE, &reason)
    }
}

fn text(status: StatusCode, body: &str) -> Response<Full<Bytes>> {
    respond(status, "text/plain; charset=utf-8", body.to_owned())
}

fn respond(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    for (name, value) in [
        (CONTENT_TYPE, content_type),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (
            HeaderName::from_static("content-security-policy"),
            "default-src 'none'; style-src 'unsafe-inline'",
        ),
    ] {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;
    use crate::settings::Drain;
    use crate::shutdown;

    fn state() -> AdminState {
        let table = Arc::new(ArcSwap::from_pointee(Table::empty()));
        AdminState::new(table, ProcessStats::default(), AccessLog::disabled())
    }

    async fn get(path: &str, state: &AdminState, shutdown: &Shutdown) -> (u16, String) {
        let request = Request::get(path).body(()).unwrap();
        let response = answer(&request, state, shutdown).await;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn readiness_follows_configuration_and_leaving() {
        let (trigger, shutdown) = shutdown::new(Drain::default());
        let state = state();
        assert_eq!(get("/healthz", &state, &shutdown).await.0, 200);
        assert_eq!(get("/readyz", &state, &shutdown).await.0, 503);
        let reason = "waiting for the controller";
        state.waiting.store(Some(Arc::new(reason.to_owned())));
        assert!(get("/readyz", &state, &shutdown).await.1.contains(reason));
        state.ready.store(true, Ordering::Release);
        assert_eq!(get("/readyz", &state, &shutdown).await.0, 200);
        trigger.drain();
        assert_eq!(get("/readyz", &state, &shutdown).await.0, 503);
        assert_eq!(get("/healthz", &state, &shutdown).await.0, 200);
    }

    #[tokio::test]
    async fn every_page_answers() {
        let (_trigger, shutdown) = shutdown::new(Drain::default());
        let state = state();
        assert!(get("/", &state, &shutdown).await.1.contains("/metrics"));
        assert!(
            get("/metrics", &state, &shutdown)
                .await
                .1
                .ends_with("# EOF\n")
        );
        assert!(
            get("/config", &state, &shutdown)
                .await
                .1
                .contains("\"ports\"")
        );
        assert_eq!(get("/nothing", &state, &shutdown).await.0, 404);
        let request = Request::post("/config").body(()).unwrap();
        assert_eq!(answer(&request, &state, &shutdown).await.status(), 405);
    }

    #[tokio::test]
    async fn an_oversized_head_is_refused() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (_trigger, shutdown) = shutdown::new(Drain::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, Arc::new(state()), shutdown));
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "GET / HTTP/1.1\r\nHost: x\r\nX: {}",
            "a".repeat(2 * MAX_HEAD)
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    }
}
