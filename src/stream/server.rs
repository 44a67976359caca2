//! The server of the stream: TLS and HTTP/2 connections of pods, and one session per authorized
//! request. Owns connection limits and timeouts.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rand::RngExt;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::authentication::{Authenticator, Identity, Refusal};
use super::hub::{Hub, Session};
use super::message::{POSITION, Position, Report};
use super::session::{self, SessionInputs};
use crate::ir::ObjectRef;
use crate::session_key::derived_secret;
use crate::status::lease::Leadership;
use crate::telemetry::metrics::SessionStats;

/// Maximum number of connections. A pod has one, or two while it moves to the leader.
const MAX_CONNECTIONS: usize = 8192;
/// Maximum number of connections per client address. Pods on the host network share the address of
/// their node, which runs some hundred pods at most.
const MAX_PER_PEER: usize = 1024;
/// Timeout of the TLS and HTTP/2 handshake, and maximum time of a connection without a session.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval and timeout of HTTP/2 pings, which detect a node that has died silently.
const PING: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));
/// Maximum interval of checks whether a connected pod still exists.
const CHECK: Duration = Duration::from_secs(50);
/// Maximum number of concurrent requests per connection.
const MAX_STREAMS: u32 = 4;
/// Maximum size of request headers in bytes. A token has about 1,100.
const MAX_HEADERS: u32 = 32 << 10;
/// Maximum size of a report in bytes.
const MAX_REPORT: usize = 64 << 10;
/// Delay after a failed accept. The usual cause is a lack of file descriptors, and an immediate
/// retry would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// State shared by all sessions.
pub(super) struct Shared {
    pub(super) hub: Arc<Hub>,
    pub(super) authenticator: Authenticator,
    pub(super) leadership: watch::Receiver<Leadership>,
    pub(super) session_secret: watch::Receiver<Option<Arc<str>>>,
    pub(super) stats: Arc<SessionStats>,
    pub(super) refusals: Refusals,
}

/// Derives the secret of a Gateway's session tokens. Its pods cannot infer the secret of another
/// Gateway.
fn session_secret(shared: &Shared, gateway: &ObjectRef) -> Option<String> {
    let master = shared.session_secret.borrow();
    let purpose = format!("sessions of {gateway}");
    master
        .as_deref()
        .map(|master| derived_secret(master, &purpose))
}

/// Logged refusals. Each is logged once, since a rejected client keeps retrying.
#[derive(Default)]
pub(super) struct Refusals(Mutex<BTreeSet<(ObjectRef, String)>>);

impl Refusals {
    /// Maximum number of remembered refusals. There are few reasons, but clients can invent names
    /// of Gateways.
    const MAX: usize = 1024;

    fn log(&self, gateway: &ObjectRef, message: &str) {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() < Self::MAX && logged.insert((gateway.clone(), message.to_owned())) {
            tracing::warn!("rejected a stream of {gateway}: {message}");
        }
    }
}

/// Accepts pods while polled, but not before there is a serving certificate.
pub(super) async fn serve(
    listener: TcpListener,
    shared: Arc<Shared>,
    mut tls: watch::Receiver<Option<Arc<ServerConfig>>>,
) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let peers = Arc::<Peers>::default();
    // The semaphore is never closed.
    // Acquired before the accept, so that excess connections wait in the kernel's backlog.
    while let Ok(permit) = permits.clone().acquire_owned().await {
        let Ok((stream, address)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(guard) = peers.count(address.ip()) else {
            continue;
        };
        let config = match tls.wait_for(Option::is_some).await {
            Ok(config) => config.clone(),
            Err(_) => return,
        };
        let shared = shared.clone();
        tokio::spawn(async move {
            if let Some(config) = config {
                connection(stream, config, shared).await;
            }
            drop((permit, guard));
        });
    }
}

/// Number of connections per client address.
#[derive(Default)]
struct Peers(Mutex<HashMap<IpAddr, usize>>);

impl Peers {
    /// Counts a connection until the guard is dropped; `None` if the address has too many.
    fn count(self: &Arc<Self>, address: IpAddr) -> Option<PeerGuard> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= MAX_PER_PEER {
            return None;
        }
        *count += 1;
        Some(PeerGuard {
            peers: self.clone(),
            address,
        })
    }
}

/// Guard of a counted connection.
struct PeerGuard {
    peers: Arc<Peers>,
    address: IpAddr,
}

impl Drop for PeerGuard {
    fn drop(&mut self) {
        let counts = &self.peers.0;
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut count) = counts.entry(self.address) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// Serves a connection. Ignores errors, since the pod reconnects.
async fn connection(stream: TcpStream, tls: Arc<ServerConfig>, shared: Arc<Shared>) {
    // Lines are small, and each should be sent at once.
    let _ = stream.set_nodelay(true);
    let handshake = timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(tls).accept(stream));
    let Ok(Ok(stream)) = handshake.await else {
        return;
    };
    let sessions = Arc::new(AtomicUsize::new(0));
    let of_service = sessions.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let (shared, sessions) = (shared.clone(), of_service.clone());
        async move { Ok::<_, Infallible>(respond(request, shared, sessions).await) }
    });
    let serving = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        _ = serving => {}
        () = idle(&sessions) => {}
    }
}

/// Returns when a connection was without a session for too long.
async fn idle(sessions: &AtomicUsize) {
    loop {
        sleep(HANDSHAKE_TIMEOUT).await;
        if sessions.load(Relaxed) == 0 {
            return;
        }
    }
}

type ResponseBody = Either<Full<Bytes>, Lines>;

async fn respond(
    request: Request<Incoming>,
    shared: Arc<Shared>,
    sessions: Arc<AtomicUsize>,
) -> Response<ResponseBody> {
    if request.method() != Method::POST {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "only POST");
    }
    let Some(gateway) = gateway_of(request.uri().path()) else {
        return refuse(StatusCode::NOT_FOUND, "path not found");
    };
    if !shared.hub.is_synced() {
        let message = "this controller has not listed the cluster yet";
        return refuse(StatusCode::SERVICE_UNAVAILABLE, message);
    }
    sessions.fetch_add(1, Relaxed);
    let guard = Counted(sessions);
    let identity = match admit(&request, &gateway, &shared).await {
        Ok(identity) => identity,
        Err(refusal) => {
            let status = refusal.status();
            shared.stats.refused(status);
            shared.refusals.log(&gateway, refusal.message());
            return refuse(status, refusal.message());
        }
    };
    let Some((session, revisions)) = shared.hub.connect(&gateway, &identity.pod) else {
        return refuse(StatusCode::NOT_FOUND, "the Gateway does not exist");
    };
    let have = position(&request, shared.hub.instance());
    let (lines, body) = mpsc::channel(1);
    let inputs = SessionInputs {
        revisions,
        leadership: shared.leadership.clone(),
        session_secret: session_secret(&shared, &gateway),
    };
    let incoming = request.into_body();
    tokio::spawn(async move {
        shared.stats.opened();
        tokio::select! {
            () = session::run(&shared.hub, &session, inputs, have, lines) => {}
            () = receive_reports(incoming, &shared.hub, &session) => {}
            () = until_token_invalid(&shared.authenticator, &identity) => {}
        }
        shared.hub.disconnect(&session);
        shared.stats.closed();
        drop(guard);
    });
    let mut response = Response::new(Either::Right(Lines(body)));
    let kind = HeaderValue::from_static("application/x-ndjson");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Returns when the token has expired or its pod is deleted. A live pod reconnects with a new token
/// and gets the changes since.
async fn until_token_invalid(authenticator: &Authenticator, identity: &Identity) {
    let expired = sleep(identity.lifetime());
    let gone = async {
        loop {
            let period = CHECK.mul_f64(rand::rng().random_range(0.5..1.0));
            sleep(period).await;
            if authenticator.is_deleted(identity).await {
                return;
            }
        }
    };
    tokio::select! {
        () = expired => {}
        () = gone => {}
    }
}

/// Counts a session, or a request that may become one, so that its connection does not count as
/// idle.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Authenticates and authorizes the pod of a request.
async fn admit(
    request: &Request<Incoming>,
    gateway: &ObjectRef,
    shared: &Shared,
) -> Result<Identity, Refusal> {
    let header = request.headers().get(AUTHORIZATION);
    let header = header.and_then(|header| header.to_str().ok());
    let token = header.and_then(|header| header.strip_prefix("Bearer "));
    let token = token.ok_or_else(|| {
        Refusal::Unauthenticated("there is no bearer token in the request".to_owned())
    })?;
    let identity = shared.authenticator.identify(token.trim()).await?;
    let found = shared.hub.gateway(gateway);
    let found = found.ok_or_else(|| {
        Refusal::Forbidden(format!("{gateway} does not belong to this controller"))
    })?;
    shared.authenticator.authorize(&identity, &found).await?;
    Ok(identity)
}

/// Parses the Gateway of a stream path.
fn gateway_of(path: &str) -> Option<ObjectRef> {
    let names = path.strip_prefix("/v1alpha1/gateways/")?;
    let (namespace, name) = names.strip_suffix("/stream")?.split_once('/')?;
    let is_name = |name: &str| !name.is_empty() && !name.contains('/');
    let are_names = is_name(namespace) && is_name(name);
    are_names.then(|| ObjectRef::gateway_api("Gateway", namespace, name))
}

/// Returns the revision that the pod has of this process's instance.
fn position(request: &Request<Incoming>, instance: &str) -> Option<u64> {
    let header = request.headers().get(POSITION)?.to_str().ok()?;
    let position: Position = header.parse().ok()?;
    (position.instance == instance).then_some(position.revision)
}

fn refuse(status: StatusCode, message: &str) -> Response<ResponseBody> {
    let mut response = Response::new(Either::Left(Full::from(message.to_owned())));
    *response.status_mut() = status;
    response
}

/// Passes reports to the hub until the body ends or cannot be read. A pod may stop reporting and
/// continue to read.
async fn receive_reports(mut body: Incoming, hub: &Hub, session: &Session) {
    let mut buffer = BytesMut::new();
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(data) = frame.into_data() else {
            continue;
        };
        buffer.extend_from_slice(&data);
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line = buffer.split_to(end);
            buffer.advance(1);
            // Skips lines of kinds that this version does not know.
            if let Ok(Report::Serves(serves)) = serde_json::from_slice(&line) {
                hub.report(session, serves);
            }
        }
        if buffer.len() > MAX_REPORT {
            let Session { gateway, pod, .. } = session;
            return tracing::warn!("pod {pod} of {gateway} sent an oversized report");
        }
    }
    std::future::pending().await
}

/// Lines as a response body.
struct Lines(mpsc::Receiver<Bytes>);

impl Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let lines = self.0.poll_recv(cx);
        lines.map(|lines| lines.map(|lines| Ok(Frame::data(lines))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_connections_per_address() {
        let peers = Arc::<Peers>::default();
        let (one, other) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let mut guards: Vec<_> = (0..MAX_PER_PEER).map(|_| peers.count(one)).collect();
        assert!(guards.iter().all(Option::is_some));
        assert!(peers.count(one).is_none() && peers.count(other).is_some());
        guards.pop();
        assert!(peers.count(one).is_some());
        guards.clear();
        assert!(peers.0.lock().unwrap().is_empty());
    }

    #[test]
    fn parses_gateway_paths() {
        let path = super::super::message::path("infra", "edge");
        let gateway = ObjectRef::gateway_api("Gateway", "infra", "edge");
        assert_eq!(gateway_of(&path), Some(gateway));
        for other in [
            "/",
            "/v1alpha1/gateways/a/stream",
            "/v1alpha1/gateways/a/b/c/stream",
        ] {
            assert_eq!(gateway_of(other), None, "{other}");
        }
    }
}
