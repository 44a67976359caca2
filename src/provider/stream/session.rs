//! One connection to a controller, from connecting to its end: updates come out, reports go in. Knows nothing of what
//! updates change.

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

use super::StreamSettings;
use super::connect::{Target, connect};
use super::lines::{Lines, parse};
use crate::stream::message::{self, POSITION, Position, Report, Serves, Update};

/// From the beginning to the end of the TLS handshake. The kernel accepts connections for a controller that is frozen.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// From the beginning to the head of the response. The controller may have to ask the API server who connects.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// A controller that is frozen is left after both: within 5 s.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// What a controller may send ahead: the objects of all but the largest Gateways.
const WINDOW: u32 = 4 << 20;
/// Updates that may wait to be taken; further ones wait in the window.
const QUEUE: usize = 16;
/// Bytes of a refusal that are read, and characters that are shown.
const REFUSAL: usize = 4096;
const REFUSAL_SHOWN: usize = 300;

/// Why a connection has ended, or was none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// For people.
    pub(super) reason: String,
    /// Whether the controller has said what it must not: what it says next must not build on what it said before.
    pub(super) is_fault: bool,
}

impl Failure {
    /// The controller has said what it must not.
    pub(super) fn fault(reason: String) -> Self {
        Self {
            reason,
            is_fault: true,
        }
    }
}

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Self {
            reason,
            is_fault: false,
        }
    }
}

/// A connection, closed when dropped.
#[derive(Debug)]
pub(super) struct Session {
    updates: mpsc::Receiver<Update>,
    task: JoinHandle<Failure>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Session {
    /// Connects to `target` for what is new since `position`, and sends every report from the latest on.
    pub(super) fn start(
        settings: Arc<StreamSettings>,
        target: Target,
        position: Option<Position>,
        reports: watch::Receiver<Option<Serves>>,
    ) -> Self {
        let (sender, updates) = mpsc::channel(QUEUE);
        let task = tokio::spawn(async move {
            let failure = run(&settings, &target, position, reports, sender).await;
            match failure {
                Ok(never) => match never {},
                Err(failure) => failure,
            }
        });
        Self { updates, task }
    }

    /// The next update, or why there are no more. No update is lost when this is not awaited to its end.
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

/// Runs a connection to its end, which is always a failure: a stream has no other.
async fn run(
    settings: &StreamSettings,
    target: &Target,
    position: Option<Position>,
    reports: watch::Receiver<Option<Serves>>,
    updates: mpsc::Sender<Update>,
) -> Result<Infallible, Failure> {
    let now = Instant::now();
    let deadline = now + OPEN_TIMEOUT;
    let request = request(settings, position.as_ref())?;
    let (io, address) = connect(settings, target, now + CONNECT_TIMEOUT).await?;
    let (sender, mut connection) = Builder::new()
        .enable_push(false)
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .handshake::<_, Bytes>(io)
        .await
        .map_err(|error| format!("HTTP/2 with {address}: {error}"))?;
    let pings = connection.ping_pong();
    let mut exchange = pin!(exchange(sender, request, deadline, reports, updates));
    let failure = tokio::select! {
        biased;
        end = &mut exchange => end,
        // What has come before the end is there to be read, and knows how it ended.
        _ = connection => exchange.await,
        // Last, so that what has come while this thread was busy counts.
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
        .map_err(|_| format!("the token file {file} does not hold a token"))?;
    token.set_sensitive(true);
    let path = message::path(&settings.gateway.namespace, &settings.gateway.name);
    let mut request = Request::post(format!("https://{}{path}", settings.authority()))
        .header(AUTHORIZATION, token)
        .header(CONTENT_TYPE, "application/x-ndjson");
    if let Some(position) = position {
        request = request.header(POSITION, position.to_string());
    }
    request.body(()).map_err(|error| error.to_string())
}

/// Sends the request, and then reports for as long as updates come.
async fn exchange(
    sender: SendRequest<Bytes>,
    request: Request<()>,
    deadline: Instant,
    reports: watch::Receiver<Option<Serves>>,
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
        never = send_reports(body, reports) => match never {},
    }
}

/// The body of a response that is not a refusal.
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
        // A stream that has been reset has no window to give back to.
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
        while let Some(line) = lines.next().map_err(Failure::fault)? {
            let Some(update) = parse(&line).map_err(Failure::fault)? else {
                continue;
            };
            let sent = updates.send(update).await;
            sent.map_err(|_| "nobody listens".to_owned())?;
        }
        match body.data().await {
            Some(Ok(bytes)) => {
                lines.push(&bytes);
                // A stream that has been reset has no window to give back to.
                let _ = body.flow_control().release_capacity(bytes.len());
            }
            Some(Err(error)) => return Err(format!("the stream is cut: {error}").into()),
            None => return Err("the controller has ended the stream".to_owned().into()),
        }
    }
}

/// Sends the latest report and then every change of it; of several that come while the controller does not read, the last.
async fn send_reports(
    mut body: SendStream<Bytes>,
    mut reports: watch::Receiver<Option<Serves>>,
) -> Infallible {
    reports.mark_changed();
    while reports.changed().await.is_ok() {
        let Some(serves) = reports.borrow_and_update().clone() else {
            continue;
        };
        let Ok(mut line) = serde_json::to_vec(&Report::Serves(serves)) else {
            continue;
        };
        line.push(b'\n');
        if write(&mut body, line.into()).await.is_none() {
            break;
        }
    }
    // Reading finds out why. Dropping the body would reset the stream.
    pending().await
}

/// Writes as the window allows. `None` when the stream has ended.
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

/// Ends when the controller does not answer.
async fn ping(pings: Option<PingPong>) -> Result<Infallible, Failure> {
    let Some(mut pings) = pings else {
        return pending().await;
    };
    loop {
        sleep(PING_INTERVAL).await;
        match timeout(PING_TIMEOUT, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            // The stream knows why.
            Ok(Err(_)) => return pending().await,
            Err(_) => {
                let silence = PING_TIMEOUT.as_secs();
                return Err(format!("no answer to a ping for {silence} s").into());
            }
        }
    }
}
