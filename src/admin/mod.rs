//! The admin server: health, readiness and metrics for every client; configuration, explanations of
//! requests and status page for loopback clients. Read-only, but for the level of the log.

mod access;
mod api;
mod background;
mod config;
mod connections;
mod events;
mod explain;
mod history;
mod host;
mod log_level;
mod page;
mod problems;
mod recent;
mod response;
mod responses;
mod scrape;
mod shares;
mod since;
mod state;
mod stream;
mod tap;
mod thread;
mod token;
mod totals;
mod troubles;

use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, Ordering::Relaxed};
use std::time::Duration;

use http::header::{ACCEPT, ALLOW};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, request};
use http_body_util::Either;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use self::access::{Access, is_cross_site};
use self::background::compute;
use self::connections::RequestSeen;
pub use self::explain::FOUND;
use self::response::{Reply, respond, text};
pub use self::state::AdminState;
use self::stream::MAX_STREAM;
pub use self::thread::AdminThread;
pub use self::token::TokenFile;
use crate::runtime::shutdown::Shutdown;

const MAX_HEAD: usize = 16 * 1024;
const MAX_HEADERS: usize = 64;
const HEAD_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum lifetime of a connection, which serves one request, unless it is a tap. It closes connections of clients that
/// do not read the response: hyper has no write timeout.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Looks at the problems between two at the counters: each 30 s, which is enough where nobody asks.
const LOOKS: u32 = 5;

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
    let (levels, recent, recorded) = (state.clone(), state.clone(), state.clone());
    let serve =
        |stream, request_seen| connection(stream, request_seen, state.clone(), shutdown.clone());
    tokio::select! {
        () = connections::accept(listener, serve) => {}
        () = log_level::expire(&levels) => {}
        () = sample(&recent) => {}
        () = record(&recorded) => {}
        () = forced.forced() => {}
    }
}

/// Samples the problems and the counters periodically.
async fn sample(state: &Arc<AdminState>) {
    loop {
        for _ in 0..LOOKS {
            tokio::time::sleep(recent::PERIOD / LOOKS).await;
            // Without a sample, problems are known since later.
            let _ = compute(state, problems::note).await;
        }
        // Without a sample, what is recent is older.
        let _ = compute(state, AdminState::sample).await;
    }
}

/// Adds a step to the history periodically.
async fn record(state: &Arc<AdminState>) {
    loop {
        // Without a sample, the next one counts for both steps.
        let _ = compute(state, AdminState::record).await;
        tokio::time::sleep(history::STEP).await;
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
    let is_stream = Arc::new(AtomicBool::new(false));
    let goes_on = is_stream.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        request_seen.set();
        let (state, shutdown, goes_on) = (state.clone(), shutdown.clone(), goes_on.clone());
        async move {
            let (head, _) = request.into_parts();
            let response = handle(&head, access, &state, &shutdown).await;
            goes_on.store(matches!(response.body(), Either::Right(_)), Relaxed);
            Ok::<_, Infallible>(response)
        }
    });
    let exchange = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    let mut exchange = pin!(exchange);
    // The result of the exchange is ignored: errors are the client's.
    let in_time = timeout(CONNECTION_TIMEOUT, &mut exchange).await;
    if in_time.is_err() && is_stream.load(Relaxed) {
        let _ = timeout(MAX_STREAM, exchange).await;
    }
}

/// Whether the client asks for OpenMetrics. Others get it without exemplars, which look like the text format of Prometheus.
fn accepts_open_metrics(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter();
    let mut accepted = accepted.filter_map(|it| it.to_str().ok());
    accepted.any(|it| it.contains("application/openmetrics-text"))
}

async fn handle(
    request: &request::Parts,
    access: Access,
    state: &Arc<AdminState>,
    shutdown: &Shutdown,
) -> Reply {
    let access = access.with(request, state.token.as_ref()).await;
    let path = request.uri.path();
    if let Some(refusal) = refusal(request, access) {
        return refusal;
    }
    if let Some(asset) = page::asset(path) {
        return asset;
    }
    let query = request.uri.query();
    match path {
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/readyz" => readiness(state, shutdown),
        "/metrics" => {
            let with_exemplars = accepts_open_metrics(&request.headers);
            response::metrics(scrape::scrape(state, with_exemplars))
        }
        "/config" => {
            let with_values = config::asks_for_values(query);
            let work = move |state: &AdminState| config::json(&state.table.load(), with_values);
            match compute(state, work).await {
                Some(Ok(body)) => respond(StatusCode::OK, "application/json", body),
                Some(Err(_)) | None => text(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "the configuration cannot be serialized\n",
                ),
            }
        }
        "/explain" => explain::page(query, state).await,
        LOG_LEVEL if request.method == Method::PUT => log_level::put(query, state),
        LOG_LEVEL => log_level::get(),
        TAP => tap::open(query, state),
        EVENTS => events::open(state),
        path => match path.strip_prefix(api::PREFIX) {
            Some(name) => api::respond_to(name, query, state).await,
            None => text(
                StatusCode::NOT_FOUND,
                "see / /healthz /readyz /metrics /config /explain /api/v1/status\n",
            ),
        },
    }
}

/// The response to a request that is not permitted.
fn refusal(request: &request::Parts, access: Access) -> Option<Reply> {
    let path = request.uri.path();
    let is_write = request.method == Method::PUT && path == LOG_LEVEL;
    if !is_write && !matches!(request.method, Method::GET | Method::HEAD) {
        let mut refusal = text(
            StatusCode::METHOD_NOT_ALLOWED,
            "only GET and HEAD are allowed, and PUT of /api/v1/log-level\n",
        );
        let allowed = match path {
            LOG_LEVEL => "GET, HEAD, PUT",
            _ => "GET, HEAD",
        };
        let headers = refusal.headers_mut();
        headers.insert(ALLOW, HeaderValue::from_static(allowed));
        return Some(refusal);
    }
    let refusal = match access {
        _ if !is_local(path) => return None,
        Access::Local if (is_write || [TAP, EVENTS].contains(&path)) && is_cross_site(request) => (
            StatusCode::FORBIDDEN,
            "not permitted to web pages of other sites\n",
        ),
        Access::Local => return None,
        Access::Public => (
            StatusCode::FORBIDDEN,
            "available on loopback only: use kubectl port-forward, or request it from the machine itself, or send the token \
             of --admin-token-file\n",
        ),
        Access::Denied => (
            StatusCode::UNAUTHORIZED,
            "the token is not the one of --admin-token-file\n",
        ),
        Access::Foreign => (
            StatusCode::MISDIRECTED_REQUEST,
            "available under the names of this machine only: use localhost, 127.0.0.1 or [::1] as the host of the URL, \
             because a web page could make a browser request any other name\n",
        ),
    };
    Some(text(refusal.0, refusal.1))
}

/// The path of what happens.
const TAP: &str = "/api/v1/tap";
/// The path of what changes.
const EVENTS: &str = "/api/v1/events";
/// The path of the level of the log.
const LOG_LEVEL: &str = "/api/v1/log-level";

/// Reports whether a page is for clients of this machine only.
fn is_local(path: &str) -> bool {
    matches!(path, "/config" | "/explain") || path.starts_with(api::PREFIX) || page::is_part(path)
}

fn readiness(state: &AdminState, shutdown: &Shutdown) -> Reply {
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
mod tests;
