//! The admin server: health, readiness and metrics for every client; configuration, explanations of
//! requests and status page for loopback clients. Read-only.

mod api;
mod config;
mod connections;
mod explain;
mod host;
mod page;
mod response;
mod state;
mod thread;
mod troubles;

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, request};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use self::connections::RequestSeen;
pub use self::explain::FOUND;
use self::response::{respond, text};
pub use self::state::AdminState;
pub use self::thread::AdminThread;
use crate::runtime::shutdown::Shutdown;
use crate::telemetry::metrics;

const MAX_HEAD: usize = 16 * 1024;
const MAX_HEADERS: usize = 64;
const HEAD_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum lifetime of a connection, which serves one request. It closes connections of clients that
/// do not read the response: hyper has no write timeout.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Binds an address. `[::]` falls back to `0.0.0.0` on hosts without IPv6.
///
/// # Errors
/// When the address cannot be bound.
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

/// Serves on `listener` until shutdown is forced. Spawns tasks, so it must run within a runtime.
pub async fn serve(listener: TcpListener, state: Arc<AdminState>, shutdown: Shutdown) {
    let mut forced = shutdown.clone();
    let serve =
        |stream, request_seen| connection(stream, request_seen, state.clone(), shutdown.clone());
    tokio::select! {
        () = connections::accept(listener, serve) => {}
        () = forced.forced() => {}
    }
}

async fn connection(
    stream: TcpStream,
    request_seen: RequestSeen,
    state: Arc<AdminState>,
    shutdown: Shutdown,
) {
    let Ok((peer, local)) = stream
        .peer_addr()
        .and_then(|it| Ok((it, stream.local_addr()?)))
    else {
        return;
    };
    let access = Access::of(peer.ip(), local.ip());
    let service = service_fn(move |request: Request<Incoming>| {
        request_seen.set();
        let (state, shutdown) = (state.clone(), shutdown.clone());
        async move {
            let (head, _) = request.into_parts();
            Ok::<_, Infallible>(handle(&head, access, &state, &shutdown).await)
        }
    });
    let exchange = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    // The result of the exchange is ignored: errors are the client's.
    let _ = timeout(CONNECTION_TIMEOUT, exchange).await;
}

/// Which pages a connection may request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Health, readiness and metrics.
    Public,
    /// As [`Self::Public`]: the connection may request all pages, but the request names another host.
    Foreign,
    /// All pages.
    Local,
}

impl Access {
    /// Connections from loopback to loopback get full access, which includes those of `kubectl
    /// port-forward`.
    fn of(peer: IpAddr, local: IpAddr) -> Self {
        let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
        if is_loopback(peer) && is_loopback(local) {
            Self::Local
        } else {
            Self::Public
        }
    }
}

async fn handle(
    request: &request::Parts,
    access: Access,
    state: &AdminState,
    shutdown: &Shutdown,
) -> Response<Full<Bytes>> {
    if !matches!(request.method, Method::GET | Method::HEAD) {
        return text(
            StatusCode::METHOD_NOT_ALLOWED,
            "only GET and HEAD are allowed\n",
        );
    }
    let access = match access {
        Access::Local if !host::is_loopback(request) => Access::Foreign,
        access => access,
    };
    match (request.uri.path(), access) {
        ("/healthz", _) => text(StatusCode::OK, "ok\n"),
        ("/readyz", _) => readiness(state, shutdown),
        ("/metrics", _) => {
            let table = state.table.load_full();
            let dropped = state.access_log.dropped();
            let body = metrics::encode(table, state.stats.clone(), dropped, state.detail);
            respond(StatusCode::OK, metrics::CONTENT_TYPE, body)
        }
        (path, Access::Public) if is_local(path) => text(
            StatusCode::FORBIDDEN,
            "available on loopback only: use kubectl port-forward, or request it from the machine itself\n",
        ),
        (path, Access::Foreign) if is_local(path) => text(
            StatusCode::MISDIRECTED_REQUEST,
            "available under the names of this machine only: use localhost, 127.0.0.1 or [::1] as the host of the URL, \
             because a web page could make a browser request any other name\n",
        ),
        ("/", Access::Local) => respond(
            StatusCode::OK,
            "text/html; charset=utf-8",
            page::html(state),
        ),
        ("/config", Access::Local) => {
            let with_values = config::asks_for_values(request.uri.query());
            match config::json(&state.table.load(), with_values) {
                Ok(body) => respond(StatusCode::OK, "application/json", body),
                Err(_) => text(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "the configuration cannot be serialized\n",
                ),
            }
        }
        ("/explain", Access::Local) => {
            let query = request.uri.query().map(str::to_owned);
            explain::page(query, state).await
        }
        (path, Access::Local) if path.starts_with(api::PREFIX) => {
            match api::document(&path[api::PREFIX.len()..], state) {
                Some(document) => respond(StatusCode::OK, "application/json", document.to_string()),
                None => text(
                    StatusCode::NOT_FOUND,
                    "see /api/v1/status, ports, routes, backends, certificates and problems\n",
                ),
            }
        }
        _ => text(
            StatusCode::NOT_FOUND,
            "see / /healthz /readyz /metrics /config /explain /api/v1/status\n",
        ),
    }
}

/// Reports whether a page is for clients of this machine only.
fn is_local(path: &str) -> bool {
    matches!(path, "/" | "/config" | "/explain") || path.starts_with(api::PREFIX)
}

fn readiness(state: &AdminState, shutdown: &Shutdown) -> Response<Full<Bytes>> {
    if shutdown.is_terminating() {
        text(StatusCode::SERVICE_UNAVAILABLE, "shutting down\n")
    } else if state.ready.load(Ordering::Acquire) {
        text(StatusCode::OK, "ready\n")
    } else {
        let waiting = state.waiting.load();
        let reason = waiting.as_deref().map_or("not configured yet", |it| it);
        text(StatusCode::SERVICE_UNAVAILABLE, &format!("{reason}\n"))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;
    use crate::runtime::shutdown;
    use crate::settings::Drain;
    use crate::table::Table;
    use crate::telemetry::access_log::AccessLog;
    use crate::telemetry::metrics::ProcessStats;
    use arc_swap::ArcSwap;

    fn state() -> AdminState {
        let table = Arc::new(ArcSwap::from_pointee(Table::empty()));
        AdminState::new(table, ProcessStats::default(), AccessLog::disabled())
    }

    async fn get(
        path: &str,
        access: Access,
        state: &AdminState,
        shutdown: &Shutdown,
    ) -> (u16, String) {
        let request = Request::get(path).header("host", "localhost:19000");
        let (request, ()) = request.body(()).unwrap().into_parts();
        let response = handle(&request, access, state, shutdown).await;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn readiness_follows_configuration_and_shutdown() {
        let (trigger, shutdown) = shutdown::new(Drain::default());
        let state = state();
        let status = async |path| get(path, Access::Public, &state, &shutdown).await.0;
        assert_eq!(status("/healthz").await, 200);
        assert_eq!(status("/readyz").await, 503);
        state.ready.store(true, Ordering::Release);
        assert_eq!(status("/readyz").await, 200);
        trigger.drain();
        assert_eq!(status("/readyz").await, 503);
        assert_eq!(status("/healthz").await, 200);
    }

    #[tokio::test]
    async fn loopback_clients_get_every_page() {
        let (_trigger, shutdown) = shutdown::new(Drain::default());
        let state = state();
        let page = async |path| get(path, Access::Local, &state, &shutdown).await;
        assert!(page("/").await.1.contains("/metrics"));
        assert!(page("/metrics").await.1.ends_with("# EOF\n"));
        assert!(page("/config").await.1.contains("\"ports\""));
        let (status, text) = page("/explain?request=http://a/").await;
        assert_eq!(status, 200);
        assert!(text.contains("in service: no configuration"), "{text}");
        assert!(text.contains("the configuration opens no port"), "{text}");
        let (status, text) = page("/explain").await;
        assert_eq!(status, 400);
        assert!(
            text.contains("`request` is missing; write /explain?request="),
            "{text}"
        );
        assert_eq!(page("/nothing").await.0, 404);
        let request = Request::post("/config").body(()).unwrap();
        let (request, ()) = request.into_parts();
        let response = handle(&request, Access::Local, &state, &shutdown).await;
        assert_eq!(response.status(), 405);
    }

    #[tokio::test]
    async fn loopback_clients_must_name_this_machine() {
        let (_trigger, shutdown) = shutdown::new(Drain::default());
        let state = state();
        let explain = "/explain?request=http://a/";
        for (path, expected) in [
            ("/", 421),
            ("/config", 421),
            (explain, 421),
            ("/metrics", 200),
        ] {
            let request = Request::get(path).header("host", "rebound.example:19000");
            let (request, ()) = request.body(()).unwrap().into_parts();
            let response = handle(&request, Access::Local, &state, &shutdown).await;
            assert_eq!(response.status(), expected, "{path}");
            if expected == 421 {
                let body = response.into_body().collect().await.unwrap().to_bytes();
                assert!(str::from_utf8(&body).unwrap().contains("localhost"));
            }
        }
    }

    #[tokio::test]
    async fn remote_clients_get_only_health_readiness_and_metrics() {
        let (_trigger, shutdown) = shutdown::new(Drain::default());
        let state = state();
        let page = async |path| get(path, Access::Public, &state, &shutdown).await;
        assert_eq!(page("/healthz").await.0, 200);
        assert!(page("/metrics").await.1.ends_with("# EOF\n"));
        let explain = "/explain?request=http://a/";
        for path in ["/", "/config", "/config?values=true", explain] {
            let (status, body) = page(path).await;
            assert_eq!(
                (status, body.contains("port-forward")),
                (403, true),
                "{path}"
            );
        }
    }

    #[test]
    fn only_loopback_to_loopback_is_local() {
        let access =
            |peer: &str, local: &str| Access::of(peer.parse().unwrap(), local.parse().unwrap());
        for (peer, local) in [
            ("127.0.0.1", "127.0.0.1"),
            ("127.9.0.1", "127.0.0.1"),
            ("::1", "::1"),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.1"),
        ] {
            assert_eq!(access(peer, local), Access::Local, "{peer} {local}");
        }
        for (peer, local) in [
            ("10.0.0.7", "10.0.0.8"),
            // A pod that connects to its own pod address is not an operator.
            ("10.0.0.8", "10.0.0.8"),
            ("127.0.0.1", "10.0.0.8"),
            ("10.0.0.7", "127.0.0.1"),
            ("fd00::1", "fd00::2"),
            ("::ffff:10.0.0.7", "::ffff:10.0.0.8"),
        ] {
            assert_eq!(access(peer, local), Access::Public, "{peer} {local}");
        }
    }

    #[tokio::test]
    async fn rejects_oversized_request_head() {
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
        let mut response = String::new();
        let _ = stream.read_to_string(&mut response).await;
        assert!(response.starts_with("HTTP/1.1 431"), "{response}");
    }
}
