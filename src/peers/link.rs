//! The connection to one other pod, which this one asks for tokens of keys that the other owns: one message at a time.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rand::RngExt;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::connection::{read, write};
use super::message::{MAX_ASKS, Malformed, read_response, request};
use crate::runtime::backoff::Backoff;
use crate::runtime::monotonic;
use crate::table::{Group, PendingAsk, Pod};

/// Maximum time of a connect with its handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time of a message and its response. A pod that takes longer counts as away.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Interval of messages without wishes, which show that both sides are there.
const KEEPALIVE: Duration = Duration::from_millis(400);
/// Delays between attempts to connect.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(100),
    longest: Duration::from_secs(2),
};

/// A connection to another pod, or the attempts to have one. Ends when dropped.
pub(super) struct Link {
    pub(super) pod: Arc<Pod>,
    state: Rc<State>,
    queue: mpsc::Sender<Vec<PendingAsk>>,
    task: JoinHandle<()>,
}

/// What a link shares with its task.
struct State {
    /// Whether it can take a message.
    is_free: Cell<bool>,
    /// Wishes of the next message.
    batch: RefCell<Vec<PendingAsk>>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Link {
    /// Starts to connect to a pod at `port`.
    pub(super) fn new(
        pod: Arc<Pod>,
        port: u16,
        client: Arc<ClientConfig>,
        group: Arc<Group>,
    ) -> Self {
        let (queue, batches) = mpsc::channel(1);
        let state = Rc::new(State {
            is_free: Cell::new(false),
            batch: RefCell::default(),
        });
        let task = spawn_local(run(
            pod.clone(),
            port,
            client,
            group,
            (state.clone(), batches),
        ));
        Self {
            pod,
            state,
            queue,
            task,
        }
    }

    /// Adds a wish to the next message. Returns false if it has no room, or cannot be sent now.
    pub(super) fn add(&self, wish: PendingAsk) -> bool {
        let mut batch = self.state.batch.borrow_mut();
        let has_room = self.state.is_free.get() && batch.len() < MAX_ASKS;
        if has_room {
            batch.push(wish);
        }
        has_room
    }

    /// Sends the message, if it has wishes.
    pub(super) fn send(&self) {
        let batch = self.state.batch.take();
        if !batch.is_empty() {
            self.state.is_free.set(false);
            // The task takes one message at a time, so that there is room.
            let _ = self.queue.try_send(batch);
        }
    }
}

async fn run(
    pod: Arc<Pod>,
    port: u16,
    client: Arc<ClientConfig>,
    group: Arc<Group>,
    (state, mut batches): (Rc<State>, mpsc::Receiver<Vec<PendingAsk>>),
) {
    let address = SocketAddr::new(pod.address, port);
    let mut failures = 0;
    let mut logged = false;
    loop {
        let failure = match connect(address, &client).await {
            Ok(mut stream) => {
                failures = 0;
                logged = false;
                let failure = exchange(&mut stream, &pod, &group, &state, &mut batches).await;
                state.is_free.set(false);
                failure
            }
            Err(error) => error,
        };
        if failure.kind() == io::ErrorKind::InvalidData {
            let faults = &group.counts.faults;
            faults.fetch_add(1, Relaxed);
        }
        if !logged && failures > 0 {
            logged = true;
            tracing::warn!(
                "pod {} ({address}) does not take part in limits and ends of sessions of the Gateway: {failure}; its share of limits is unused",
                pod.name
            );
        }
        let wait = BACKOFF.after(failures);
        failures += 1;
        sleep(wait.mul_f64(rand::rng().random_range(0.5..1.0))).await;
    }
}

/// Connects to a pod.
///
/// # Errors
/// When the pod cannot be reached, or is none of the Gateway.
pub(super) async fn connect(
    address: SocketAddr,
    client: &Arc<ClientConfig>,
) -> io::Result<TlsStream<TcpStream>> {
    let connected = async {
        let socket = TcpStream::connect(address).await?;
        // Messages are small, and each is waited for.
        socket.set_nodelay(true)?;
        let name = ServerName::IpAddress(address.ip().into());
        TlsConnector::from(client.clone())
            .connect(name, socket)
            .await
    };
    let connected = timeout(CONNECT_TIMEOUT, connected).await;
    connected.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no connection")))
}

/// Exchanges messages until the connection fails.
async fn exchange(
    stream: &mut TlsStream<TcpStream>,
    pod: &Pod,
    group: &Group,
    state: &State,
    batches: &mut mpsc::Receiver<Vec<PendingAsk>>,
) -> io::Error {
    // The first message shows that the other side accepts this one.
    let mut wishes = Vec::new();
    loop {
        if let Err(error) = send(stream, pod, group, &wishes).await {
            return error;
        }
        state.is_free.set(true);
        wishes = match timeout(KEEPALIVE, batches.recv()).await {
            Ok(Some(batch)) => batch,
            Ok(None) => std::future::pending().await,
            Err(_) => Vec::new(),
        };
    }
}

/// Sends wishes and applies the response.
async fn send(
    stream: &mut TlsStream<TcpStream>,
    pod: &Pod,
    group: &Group,
    wishes: &[PendingAsk],
) -> io::Result<()> {
    let name = group.view().name().clone();
    let message = request(&name, wishes.iter().map(|wish| wish.ask));
    write(stream, &message, TIMEOUT).await?;
    let response = read(stream, TIMEOUT).await?;
    let now = monotonic::nanos();
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let grants = read_response(&response, wishes.len());
    let grants = grants.map_err(|Malformed| invalid("a response is malformed"))?;
    for (wish, grant) in wishes.iter().zip(grants) {
        wish.apply(grant, now)
            .map_err(|_| invalid("a response grants more than was asked for"))?;
    }
    pod.has_answered(now);
    Ok(())
}
