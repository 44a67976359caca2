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
use tokio::time::{Instant, sleep};
use tokio_rustls::server::TlsStream;

use super::connection::{read, write};
use super::link::connect;
use super::message::{LogoutMessage, Malformed, answer, logout, read_answer, read_logout};
use crate::runtime::backoff::Backoff;
use crate::runtime::monotonic;
use crate::table::{Logout, Logouts, Pod, Table, View};

/// How long a pod that is no longer ready gets tokens: it may drain, and serves requests of its clients meanwhile.
const LEAVING: Duration = Duration::from_secs(300);
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

/// Sends tokens to another pod. Ends when dropped.
struct Courier {
    pod: Arc<Pod>,
    /// Since when the pod is not ready.
    left: Option<Instant>,
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

    /// Sends to the pods of a view, and for some minutes to those that have left: a pod that drains serves sessions, too. Those
    /// that are new get all tokens of the last minutes.
    pub(super) fn follow(&mut self, view: &View, now: Instant) {
        let ready: Vec<_> = view.others().map(|(_, pod)| pod).collect();
        for courier in &mut self.all {
            let is_ready = ready.iter().any(|pod| Arc::ptr_eq(pod, &courier.pod));
            let left = courier.left.unwrap_or(now);
            courier.left = (!is_ready).then_some(left);
        }
        let is_replaced = |it: &Courier| ready.iter().any(|pod| replaces(pod, &it.pod));
        self.all.retain(|it| it.left.is_none() || !is_replaced(it));
        for pod in ready {
            if !self.all.iter().any(|it| Arc::ptr_eq(pod, &it.pod)) {
                let address = SocketAddr::new(pod.address, self.port);
                let (client, logouts) = (self.client.clone(), self.logouts.clone());
                let task = spawn_local(run(address, client, logouts, self.last.subscribe()));
                let (pod, left) = (pod.clone(), None);
                self.all.push(Courier { pod, left, task });
            }
        }
    }

    /// Notices tokens that were added, and pods that have left for long.
    pub(super) fn notice(&mut self, now: Instant) {
        let stays = |it: &Courier| it.left.is_none_or(|left| now < left + LEAVING);
        self.all.retain(stays);
        let last = self.logouts.last();
        self.last.send_if_modified(|known| {
            let is_new = *known != last;
            *known = last;
            is_new
        });
    }
}

/// Reports whether a pod takes the place of one that has left.
fn replaces(pod: &Pod, left: &Pod) -> bool {
    pod.name == left.name || pod.address == left.address
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

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use tokio::task::LocalSet;

    use super::*;
    use crate::peers::identity::Identity;
    use crate::table::Group;

    /// Names and last bytes of addresses.
    fn list(group: &Group, pods: &[(&str, u8)]) {
        let address = |last: u8| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
        let pods = pods.iter().map(|(name, last)| (*name, address(*last)));
        group.set_pods("a", pods);
    }

    fn names(couriers: &Couriers) -> Vec<&str> {
        couriers.all.iter().map(|it| &*it.pod.name).collect()
    }

    #[tokio::test]
    async fn pods_that_have_left_get_tokens_for_some_minutes() {
        let (group, logouts) = (Group::default(), Arc::<Logouts>::default());
        let identity = Identity::from_secret("a").unwrap();
        let mut couriers = Couriers::new(1, &identity.logouts, &logouts);
        let tasks = LocalSet::new();
        let test = async {
            let begun = Instant::now();
            list(&group, &[("a", 1), ("b", 2), ("c", 3)]);
            couriers.follow(&group.view(), begun);
            list(&group, &[("a", 1), ("c", 3)]);
            couriers.follow(&group.view(), begun);
            couriers.notice(begun + LEAVING - Duration::from_millis(1));
            assert_eq!(names(&couriers), ["b", "c"]);
            let later = begun + LEAVING;
            couriers.notice(later);
            assert_eq!(names(&couriers), ["c"]);
            // One that is ready again, and one whose address is that of another pod.
            list(&group, &[("a", 1)]);
            couriers.follow(&group.view(), later);
            list(&group, &[("a", 1), ("c", 3)]);
            couriers.follow(&group.view(), later);
            couriers.notice(later + LEAVING);
            assert_eq!(names(&couriers), ["c"]);
            list(&group, &[("a", 1), ("d", 3)]);
            couriers.follow(&group.view(), later);
            assert_eq!(names(&couriers), ["d"]);
        };
        tasks.run_until(test).await;
    }
}
