//! Logout tokens between pods: each pod sends those that providers have sent to it to all others, which verify them as if providers
//! had sent them. Must not know what is in a token.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use arc_swap::ArcSwap;
use rand::RngExt;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::sleep;
use tokio_rustls::server::TlsStream;

use super::connection::{read, write};
use super::link::connect;
use super::message::{LogoutMessage, Malformed, answer, logout, read_answer, read_logout};
use crate::runtime::backoff::Backoff;
use crate::runtime::monotonic;
use crate::table::{Logout, Logouts, Pod, Table, View};

/// Maximum time of a token or an answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Delays until what a pod has not heard is sent again.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(100),
    longest: Duration::from_secs(5),
};

/// Sends tokens to all other pods.
pub(super) struct Couriers {
    port: u16,
    client: Arc<ClientConfig>,
    logouts: Arc<Logouts>,
    /// The number of the last token.
    last: watch::Sender<u64>,
    all: Vec<Courier>,
}

/// Sends tokens to another pod while it is ready. Ends when dropped.
struct Courier {
    pod: Arc<Pod>,
    task: JoinHandle<()>,
}

impl Drop for Courier {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Couriers {
    /// Prepares for pods, which listen on `port`.
    pub(super) fn new(port: u16, client: &Arc<ClientConfig>, logouts: &Arc<Logouts>) -> Self {
        Self {
            port,
            client: client.clone(),
            logouts: logouts.clone(),
            last: watch::Sender::default(),
            all: Vec::new(),
        }
    }

    /// Sends to the pods of a view, and no longer to those that have left. Those that are new get all tokens of the last minutes.
    pub(super) fn follow(&mut self, view: &View) {
        let others: Vec<_> = view.others().map(|(_, pod)| pod).collect();
        self.all
            .retain(|it| others.iter().any(|pod| Arc::ptr_eq(pod, &it.pod)));
        for pod in others {
            if !self.all.iter().any(|it| Arc::ptr_eq(pod, &it.pod)) {
                let address = SocketAddr::new(pod.address, self.port);
                let (client, logouts) = (self.client.clone(), self.logouts.clone());
                let task = spawn_local(run(address, client, logouts, self.last.subscribe()));
                let pod = pod.clone();
                self.all.push(Courier { pod, task });
            }
        }
    }

    /// Notices tokens that were added.
    pub(super) fn notice(&self) {
        let last = self.logouts.last();
        self.last.send_if_modified(|known| {
            let is_new = *known != last;
            *known = last;
            is_new
        });
    }
}

async fn run(
    address: SocketAddr,
    client: Arc<ClientConfig>,
    logouts: Arc<Logouts>,
    mut last: watch::Receiver<u64>,
) {
    // The numbers of tokens that need not be sent again.
    let mut heard: BTreeSet<u64> = BTreeSet::new();
    let mut failures = 0;
    loop {
        last.mark_unchanged();
        let mut current = logouts.current(monotonic::nanos());
        let first = current.first().map_or(u64::MAX, |it| it.number);
        heard = heard.split_off(&first);
        current.retain(|it| !heard.contains(&it.number));
        if current.is_empty() {
            failures = 0;
            if last.changed().await.is_err() {
                return;
            }
        } else if !send(address, &client, &current, &mut heard)
            .await
            .unwrap_or(false)
        {
            let wait = BACKOFF.after(failures);
            failures += 1;
            sleep(wait.mul_f64(rand::rng().random_range(0.5..1.0))).await;
        }
    }
}

/// Sends tokens to a pod, and adds the numbers of those that need not be sent again. Returns whether that are all.
async fn send(
    address: SocketAddr,
    client: &Arc<ClientConfig>,
    tokens: &[Arc<Logout>],
    heard: &mut BTreeSet<u64>,
) -> io::Result<bool> {
    let mut stream = connect(address, client).await?;
    let mut are_all = true;
    for token in tokens {
        let message = LogoutMessage {
            policy: (&*token.policy.namespace, &*token.policy.name),
            token: &token.token,
            at: token.at,
        };
        let is_heard = match logout(message) {
            Some(message) => {
                write(&mut stream, &message, TIMEOUT).await?;
                let answer = read(&mut stream, TIMEOUT).await?;
                let malformed = |Malformed| io::Error::from(io::ErrorKind::InvalidData);
                read_answer(&answer).map_err(malformed)?
            }
            // No pod takes it.
            None => true,
        };
        if is_heard {
            heard.insert(token.number);
        }
        are_all &= is_heard;
    }
    Ok(are_all)
}

/// Ends sessions by the tokens of another pod until its connection ends or it breaks the protocol.
pub(super) async fn hear(
    mut stream: TlsStream<TcpStream>,
    table: &ArcSwap<Table>,
    faults: &AtomicU64,
) {
    loop {
        let message = match read(&mut stream, TIMEOUT).await {
            Ok(message) => message,
            Err(error) => {
                let is_fault = error.kind() == io::ErrorKind::InvalidData;
                faults.fetch_add(u64::from(is_fault), Relaxed);
                return;
            }
        };
        let Ok(logout) = read_logout(&message) else {
            faults.fetch_add(1, Relaxed);
            return;
        };
        let table = table.load();
        let is_heard = table.hear_logout(logout.policy, logout.token, logout.at);
        drop(table);
        let answered = write(&mut stream, &answer(is_heard), TIMEOUT).await;
        if answered.is_err() {
            return;
        }
    }
}
