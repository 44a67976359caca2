//! One connection to a controller, from connect to close: receives updates and sends reports.

use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Ping, PingPong, RecvStream, SendStream};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Request, StatusCode};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::connect::{Peer, connect};
use super::lines::{Lines, parse};
use super::settings::StreamSettings;
use crate::wire;
use crate::wire::{KeySetName, POSITION, Position, Report, Serves, Update};

/// Timeout of the connect and the TLS handshake. The kernel accepts connections even if the
/// controller process is frozen.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout until the response headers. The controller may have to request a TokenReview first.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// A frozen controller is detected within the sum of both: 5 s.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a controller may send nothing before a copy is served without it.
pub(super) const SILENCE: Duration = PING_INTERVAL.saturating_add(PING_TIMEOUT);
/// Flow-control window: enough for the objects of all but the largest Gateways.
const WINDOW: u32 = 4 << 20;
/// Capacity of the update queue. Further updates wait in the flow-control window.
const QUEUE: usize = 16;
/// Maximum number of key sets that wait to be asked for, while the controller does not read. Tokens ask again.
const MAX_ASKED: usize = 64;
/// Maximum bytes of an error response that are read, and characters that are shown.
const REFUSAL: usize = 4096;
const REFUSAL_SHOWN: usize = 300;

/// Why a connection has failed or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// Error message.
    pub(super) reason: String,
    /// Whether the controller violated the protocol, so that the next stream must start from the
    /// full state.
    pub(super) is_protocol_error: bool,
}

impl Failure {
    /// Creates a protocol error.
    pub(super) fn protocol_error(reason: String) -> Self {
        Self {
            reason,
            is_protocol_error: true,
        }
    }
}

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Self {
            reason,
            is_protocol_error: false,
        }
    }
}

/// A connection that closes on drop.
#[derive(Debug)]
pub(super) struct Session {
    updates: mpsc::Receiver<Update>,
    asked: mpsc::Sender<KeySetName>,
    task: JoinHandle<Failure>,
}

/// What is sent on a connection.
struct Outgoing {
    reports: watch::Receiver<Option<Serves>>,
    asked: mpsc::Receiver<KeySetName>,
}

#[cfg(test)]
impl Session {
    /// A connection that gets these updates.
    pub(super) fn of(updates: mpsc::Receiver<Update>) -> Self {
        let (asked, _) = mpsc::channel(1);
        Self {
            updates,
            asked,
            task: tokio::spawn(std::future::pending()),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Session {
    /// Connects to `peer` and requests changes since `position`. Sends the latest report and
    /// every later one.
    pub(super) fn start(
        settings: Arc<StreamSettings>,
        peer: Peer,
        position: Option<Position>,
        reports: watch::Receiver<Option<Serves>>,
    ) -> Self {
        let (sender, updates) = mpsc::channel(QUEUE);
        let (asked, asking) = mpsc::channel(MAX_ASKED);
        let outgoing = Outgoing {
            reports,
            asked: asking,
        };
        let task = tokio::spawn(async move {
            let failure = run(&settings, &peer, position, outgoing, sender).await;
            match failure {
                Ok(never) => match never {},
                Err(failure) => failure,
            }
        });
        Self {
            updates,
            asked,
            task,
        }
    }

    /// Asks for key sets.
    pub(super) fn ask(&self, key_sets: Vec<KeySetName>) {
        for key_set in key_sets {
            // What does not fit is lost.
            let _ = self.asked.try_send(key_set);
        }
    }

    /// Returns the next update, or why the connection has ended. Cancel safe: no update is lost.
    pub(super) async fn next(&mut self) -> Result<Update, Failure> {
        if let Some(update) = self.updates.recv().await {
            return Ok(update);
        }
        match (&mut self.task).await {
            Ok(failure) => Err(failure),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err("cancelled".to_owned().into()),
        }
    }
}

/// Runs a connection until it ends, which is always a failure.
async fn run(
    settings: &StreamSettings,
    peer: &Peer,
    position: Option<Position>,
    outgoing: Outgoing,
    updates: mpsc::Sender<Update>,
) -> Result<Infallible, Failure> {
    let now = Instant::now();
    let deadline = now + OPEN_TIMEOUT;
    let request = request(settings, position.as_ref())?;
    let (io, address) = connect(settings, peer, now + CONNECT_TIMEOUT).await?;
    let (sender, mut connection) = Builder::new()
        .enable_push(false)
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .handshake::<_, Bytes>(io)
        .await
        .map_err(|error| format!("HTTP/2 with {address}: {error}"))?;
    let pings = connection.ping_pong();
    let mut exchange = pin!(exchange(sender, request, deadline, outgoing, updates));
    let failure = tokio::select! {
        biased;
        end = &mut exchange => end,
        // The exchange still reads data that was received before the end, and knows the cause.
        _ = connection => exchange.await,
        // Polled last, so that data received while this thread was busy counts as a sign of life.
        end = ping(pings) => end,
    };
    failure.map_err(|failure| Failure {
        reason: format!("{address}: {}", failure.reason),
        ..failure
    })
}

fn request(settings: &StreamSettings, position: Option<&Position>) -> Result<Request<()>, String> {
    let file = settings.token_file.display();
    let token = std::fs::read_to_string(&settings.token_file)
        .map_err(|error| format!("the token file {file} cannot be read: {error}"))?;
    let mut token = HeaderValue::try_from(format!("Bearer {}", token.trim()))
        .map_err(|_| format!("the token file {file} does not contain a valid token"))?;
    token.set_sensitive(true);
    let path = wire::path(&settings.gateway.namespace, &settings.gateway.name);
    let mut request = Request::post(format!("https://{}{path}", settings.authority()))
        .header(AUTHORIZATION, token)
        .header(CONTENT_TYPE, "application/x-ndjson");
    if let Some(position) = position {
        request = request.header(POSITION, position.to_string());
    }
    request.body(()).map_err(|error| error.to_string())
}

/// Sends the request, then sends reports while updates arrive.
async fn exchange(
    sender: SendRequest<Bytes>,
    request: Request<()>,
    deadline: Instant,
    outgoing: Outgoing,
    updates: mpsc::Sender<Update>,
) -> Result<Infallible, Failure> {
    let lost = |error: h2::Error| format!("the connection is lost: {error}");
    let mut sender = sender.ready().await.map_err(lost)?;
    let (response, body) = sender.send_request(request, false).map_err(lost)?;
    let updates = async {
        let body = timeout_at(deadline, accepted(response))
            .await
            .map_err(|_| format!("no response within {} s", OPEN_TIMEOUT.as_secs()))??;
        read(body, updates).await
    };
    tokio::select! {
        end = updates => end,
        never = send_reports(body, outgoing) => match never {},
    }
}

/// Returns the body of a successful response.
async fn accepted(response: ResponseFuture) -> Result<RecvStream, Failure> {
    let response = response.await;
    let response = response.map_err(|error| format!("no response: {error}"))?;
    let (head, mut body) = response.into_parts();
    if head.status == StatusCode::OK {
        return Ok(body);
    }
    let mut text = Vec::new();
    while let Some(Ok(bytes)) = body.data().await
        && text.len() < REFUSAL
    {
        text.extend_from_slice(&bytes);
        // A reset stream has no window to release.
        let _ = body.flow_control().release_capacity(bytes.len());
    }
    let text = String::from_utf8_lossy(&text);
    let text: String = text.trim().chars().take(REFUSAL_SHOWN).collect();
    let text = text.replace(char::is_control, " ");
    Err(format!("refused with status {}: {text}", head.status).into())
}

/// Reads updates until the body ends.
async fn read(mut body: RecvStream, updates: mpsc::Sender<Update>) -> Result<Infallible, Failure> {
    let mut lines = Lines::default();
    loop {
        while let Some(line) = lines.next().map_err(Failure::protocol_error)? {
            let Some(update) = parse(&line).map_err(Failure::protocol_error)? else {
                continue;
            };
            let sent = updates.send(update).await;
            sent.map_err(|_| "the receiver of updates is dropped".to_owned())?;
        }
        match body.data().await {
            Some(Ok(bytes)) => {
                lines.push(&bytes);
                // A reset stream has no window to release.
                let _ = body.flow_control().release_capacity(bytes.len());
            }
            Some(Err(error)) => return Err(format!("the stream was aborted: {error}").into()),
            None => return Err("the controller ended the stream".to_owned().into()),
        }
    }
}

/// Sends the latest report and every change, and requests for key sets. Skips intermediate reports
/// while the controller does not read.
async fn send_reports(
    mut body: SendStream<Bytes>,
    Outgoing {
        mut reports,
        mut asked,
    }: Outgoing,
) -> Infallible {
    reports.mark_changed();
    loop {
        let report = tokio::select! {
            changed = reports.changed() => match changed {
                Ok(()) => reports.borrow_and_update().clone().map(Report::Serves),
                Err(_) => break,
            },
            Some(key_set) = asked.recv() => Some(Report::RefreshKeySet(key_set)),
        };
        let Some(Ok(mut line)) = report.map(|report| serde_json::to_vec(&report)) else {
            continue;
        };
        line.push(b'\n');
        if write(&mut body, line.into()).await.is_none() {
            break;
        }
    }
    // The reader reports the cause. Dropping the body would reset the stream.
    pending().await
}

/// Writes all bytes as the window allows. `None` if the stream has ended.
async fn write(body: &mut SendStream<Bytes>, mut bytes: Bytes) -> Option<()> {
    while !bytes.is_empty() {
        body.reserve_capacity(bytes.len());
        let capacity = std::future::poll_fn(|cx| body.poll_capacity(cx)).await;
        let capacity = capacity?.ok()?;
        let piece = bytes.split_to(capacity.min(bytes.len()));
        body.send_data(piece, false).ok()?;
    }
    Some(())
}

/// Fails when the controller does not respond to a ping in time.
async fn ping(pings: Option<PingPong>) -> Result<Infallible, Failure> {
    let Some(mut pings) = pings else {
        return pending().await;
    };
    loop {
        sleep(PING_INTERVAL).await;
        match timeout(PING_TIMEOUT, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            // The reader reports the cause.
            Ok(Err(_)) => return pending().await,
            Err(_) => {
                let silence = PING_TIMEOUT.as_secs();
                return Err(format!("no response to a ping for {silence} s").into());
            }
        }
    }
}
