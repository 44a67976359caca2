//! The server of the stream: TLS and HTTP/2 connections of pods, and one session per authorized
//! request. Owns connection limits and timeouts.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rand::RngExt;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::authentication::{Authenticator, Identity, Refusal, no_gateway};
use super::hub::{Connected, Hub, Session};
use super::pending::{Pending, PendingConnection};
use super::reports::{self, TooLong};
use super::reviews;
use super::session::{self, SessionInputs};
use crate::ir::ObjectRef;
use crate::settings::session_key::derived_secret;
use crate::status::lease::Leadership;
use crate::telemetry::metrics::SessionStats;
use crate::wire::{KeySetName, POSITION, Position, Report, SessionSecrets};

/// Timeout of the TLS and HTTP/2 handshake, and maximum time of a connection without a session.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval and timeout of HTTP/2 pings, which detect a node that has died silently.
const PING: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));
/// Maximum interval of checks whether a connected pod still exists.
const CHECK: Duration = Duration::from_secs(50);
/// Maximum number of concurrent requests per connection.
const MAX_STREAMS: u32 = 4;
/// Flow-control window of requests, and maximum bytes of responses that wait for the client's window. Reports are
/// small, and a session has no queue.
const WINDOW: u32 = 64 << 10;
/// Delay of every refusal on a connection after the first, so that retries without pause are slow.
const REFUSAL_DELAY: Duration = Duration::from_secs(1);
/// Time to deliver the end of a session before its connection closes.
const LINGER: Duration = Duration::from_secs(1);
/// Maximum size of request headers in bytes. A token has about 1,100.
const MAX_HEADERS: u32 = 12 << 10;
/// Delay after a failed accept. The usual cause is a lack of file descriptors, and an immediate
/// retry would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// State shared by all sessions.
pub(super) struct Shared {
    pub(super) hub: Arc<Hub>,
    pub(super) authenticator: Authenticator,
    pub(super) leadership: watch::Receiver<Leadership>,
    pub(super) session_secret: watch::Receiver<Option<Arc<SessionSecrets>>>,
    pub(super) stats: Arc<SessionStats>,
    pub(super) refusals: Refusals,
}

/// Derives the secrets of a Gateway's session tokens. Its pods cannot infer those of another
/// Gateway.
fn session_secret(shared: &Shared, gateway: &ObjectRef) -> Option<SessionSecrets> {
    let masters = shared.session_secret.borrow();
    let purpose = format!("sessions of {gateway}");
    let derived = |master: &String| derived_secret(master, &purpose);
    let masters = masters.as_deref()?;
    Some(SessionSecrets {
        secret: derived(&masters.secret),
        accepted: masters.accepted.as_ref().map(derived),
    })
}

/// Logged refusals. Each is logged once, since a rejected client keeps retrying.
#[derive(Default)]
pub(super) struct Refusals(Mutex<BTreeSet<(Option<ObjectRef>, String)>>);

impl Refusals {
    /// Maximum number of remembered refusals. There are few reasons, but many Gateways. Beyond it, all are forgotten and may
    /// be logged again.
    const MAX: usize = 16_384;

    /// Logs a refusal. Clients can invent names of Gateways: those that do not exist share one line for each reason.
    fn log(&self, gateway: &ObjectRef, exists: bool, message: &str) {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (exists.then(|| gateway.clone()), message.to_owned());
        if logged.contains(&key) {
            return;
        }
        if logged.len() >= Self::MAX {
            logged.clear();
        }
        logged.insert(key);
        tracing::warn!("rejected a stream of {gateway}: {message}");
    }
}

/// Accepts pods while polled, but not before there is a serving certificate.
pub(super) async fn serve(
    listener: TcpListener,
    shared: Arc<Shared>,
    mut tls: watch::Receiver<Option<Arc<ServerConfig>>>,
) {
    let pending = Arc::<Pending>::default();
    loop {
        let Ok((stream, address)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let config = match tls.wait_for(Option::is_some).await {
            Ok(config) => config.clone(),
            Err(_) => return,
        };
        let Some(config) = config else {
            continue;
        };
        let place = pending.enter(reviews::counted(address.ip()));
        let client = Arc::new(Client {
            shared: shared.clone(),
            address: place.address(),
            place,
            sessions: watch::Sender::new(0),
            was_refused: AtomicBool::new(false),
        });
        tokio::spawn(connection(stream, config, client));
    }
}

/// The client of a connection.
struct Client {
    shared: Arc<Shared>,
    place: PendingConnection,
    address: IpAddr,
    /// Number of sessions on the connection.
    sessions: watch::Sender<usize>,
    was_refused: AtomicBool,
}

/// Serves a connection. Ignores errors, since the pod reconnects.
async fn connection(stream: TcpStream, tls: Arc<ServerConfig>, client: Arc<Client>) {
    // Lines are small, and each should be sent at once.
    let _ = stream.set_nodelay(true);
    let (of_service, of_idle) = (client.clone(), client.clone());
    let serving = async move {
        let handshake = timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(tls).accept(stream));
        let Ok(Ok(stream)) = handshake.await else {
            return;
        };
        let service = service_fn(move |request: Request<Incoming>| {
            let client = of_service.clone();
            async move { Ok::<_, Infallible>(respond(request, &client).await) }
        });
        let serving = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING.0)
            .keep_alive_timeout(PING.1)
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEADERS)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_send_buf_size(WINDOW as usize)
            .serve_connection(TokioIo::new(stream), service);
        tokio::select! {
            _ = serving => {}
            () = idle(&of_idle) => {}
        }
    };
    tokio::select! {
        () = serving => {}
        () = client.place.evicted() => {}
    }
}

/// Returns when a connection has had no session for too long, or its last session has ended.
async fn idle(client: &Client) {
    let mut sessions = client.sessions.subscribe();
    loop {
        let opened = sessions.wait_for(|sessions| *sessions > 0);
        if !matches!(timeout(HANDSHAKE_TIMEOUT, opened).await, Ok(Ok(_))) {
            return;
        }
        if sessions.wait_for(|sessions| *sessions == 0).await.is_err() {
            return;
        }
        sleep(LINGER).await;
    }
}

type ResponseBody = Either<Full<Bytes>, Lines>;

async fn respond(request: Request<Incoming>, client: &Arc<Client>) -> Response<ResponseBody> {
    if request.method() != Method::POST {
        let mut refusal = refuse(StatusCode::METHOD_NOT_ALLOWED, "only POST");
        let headers = refusal.headers_mut();
        headers.insert(ALLOW, HeaderValue::from_static("POST"));
        return refusal;
    }
    let Some(gateway) = gateway_of(request.uri().path()) else {
        return refuse(StatusCode::NOT_FOUND, "path not found");
    };
    let shared = &client.shared;
    if !shared.hub.is_synced() {
        let message = "this controller has not listed the cluster yet";
        return refuse(StatusCode::SERVICE_UNAVAILABLE, message);
    }
    let busy = client.place.busy();
    let admitted = admit(&request, &gateway, client).await;
    drop(busy);
    let (identity, connected) = match admitted {
        Ok(admitted) => admitted,
        Err(refusal) => {
            let status = refusal.status();
            shared.stats.refused(status);
            let exists = shared.hub.gateway(&gateway).is_some();
            shared.refusals.log(&gateway, exists, refusal.message());
            if client.was_refused.swap(true, Relaxed) {
                sleep(REFUSAL_DELAY).await;
            }
            return refuse(status, refusal.body());
        }
    };
    let Connected {
        session,
        revisions,
        pods,
        replaced,
    } = connected;
    let have = position(&request, shared.hub.instance());
    let (lines, body) = mpsc::channel(1);
    let inputs = SessionInputs {
        revisions,
        pods,
        leadership: shared.leadership.clone(),
        session_secret: session_secret(shared, &gateway),
    };
    let incoming = request.into_body();
    client.place.authenticated();
    let guard = Counted::new(client.clone());
    let shared = shared.clone();
    tokio::spawn(async move {
        shared.stats.opened();
        tokio::select! {
            () = session::run(&shared.hub, &session, inputs, have, lines) => {}
            () = receive_reports(incoming, &shared.hub, &session) => {}
            () = until_token_invalid(&shared.authenticator, &identity) => {}
            // A pod has one session: the sender is dropped when the next one begins.
            _ = replaced => {}
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

/// Counts a session of a connection.
struct Counted(Arc<Client>);

impl Counted {
    fn new(client: Arc<Client>) -> Self {
        client.sessions.send_modify(|sessions| *sessions += 1);
        Self(client)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.sessions.send_modify(|sessions| *sessions -= 1);
    }
}

/// Authenticates and authorizes the pod of a request, and begins its session.
async fn admit(
    request: &Request<Incoming>,
    gateway: &ObjectRef,
    client: &Client,
) -> Result<(Identity, Connected), Refusal> {
    let header = request.headers().get(AUTHORIZATION);
    let header = header.and_then(|header| header.to_str().ok());
    let token = header.and_then(|header| header.strip_prefix("Bearer "));
    let token = token.ok_or_else(|| {
        Refusal::Unauthenticated("there is no bearer token in the request".to_owned())
    })?;
    let Shared {
        hub, authenticator, ..
    } = &*client.shared;
    let found = hub.gateway(gateway);
    let identity = authenticator
        .admit(token.trim(), found.as_deref(), client.address)
        .await?;
    let connected = hub.connect(gateway, &identity.pod, &identity.pod_uid);
    Ok((identity, connected.ok_or_else(no_gateway)?))
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

/// Passes the reports of a pod to the hub. Returns when one is oversized.
async fn receive_reports(body: Incoming, hub: &Hub, session: &Session) {
    let record = |report| match report {
        Report::Serves(serves) => hub.report(session, serves),
        Report::RefreshKeySet(KeySetName { namespace, name }) => {
            hub.refresh_key_set(session, &namespace, &name);
        }
    };
    let TooLong = reports::receive(body, record).await;
    let Session { gateway, pod, .. } = session;
    tracing::warn!("pod {pod} of {gateway} sent an oversized report");
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
    fn parses_gateway_paths() {
        let path = crate::wire::path("infra", "edge");
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

    #[test]
    fn names_that_clients_invent_share_a_line_of_the_log() {
        let refusals = Refusals::default();
        let names = ["one", "other"].map(|name| ObjectRef::gateway_api("Gateway", "infra", name));
        for (exists, lines) in [(false, 1), (true, 3)] {
            for name in &names {
                refusals.log(name, exists, "why");
            }
            assert_eq!(refusals.0.lock().unwrap().len(), lines);
        }
    }

    #[test]
    fn refusals_that_were_logged_are_bounded() {
        let refusals = Refusals::default();
        for number in 0..=Refusals::MAX {
            let name = number.to_string();
            let gateway = ObjectRef::gateway_api("Gateway", "infra", &name);
            refusals.log(&gateway, true, "why");
        }
        assert_eq!(refusals.0.lock().unwrap().len(), 1);
    }
}
