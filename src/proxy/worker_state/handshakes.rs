//! TLS handshakes in progress on one worker. At the limit, a new handshake evicts the oldest one of the client that has most:
//! honest clients finish quickly, so the oldest ones are stalled, and a client that begins many takes no place of others.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use tokio::sync::oneshot;

use crate::ir::cidr::client_network;

/// The handshakes of one worker.
pub(crate) struct Handshakes {
    limit: usize,
    next: Cell<u64>,
    in_progress: RefCell<InProgress>,
}

/// The handshakes of one client, by age.
type OfClient = BTreeMap<u64, oneshot::Sender<()>>;
/// How many a client has, and its oldest one. The greatest loses one.
type EvictionKey = (usize, Reverse<u64>);

#[derive(Default)]
struct InProgress {
    count: usize,
    by_client: HashMap<IpAddr, OfClient>,
    eviction_order: BTreeMap<EvictionKey, IpAddr>,
}

/// Guard of a handshake in progress.
pub(crate) struct Handshake<'a> {
    handshakes: &'a Handshakes,
    client: IpAddr,
    key: u64,
    evicted: oneshot::Receiver<()>,
}

impl Handshakes {
    /// Allows at most `limit` concurrent handshakes, at least one.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            next: Cell::new(0),
            in_progress: RefCell::default(),
        }
    }

    /// Starts a handshake of a client and evicts one if there are too many.
    pub(crate) fn begin(&self, client: IpAddr) -> Handshake<'_> {
        let client = client_network(client);
        let key = self.next.replace(self.next.get() + 1);
        let (sender, evicted) = oneshot::channel();
        let mut in_progress = self.in_progress.borrow_mut();
        if in_progress.count >= self.limit {
            in_progress.evict();
        }
        in_progress.change(client, |of_client| of_client.insert(key, sender));
        Handshake {
            handshakes: self,
            client,
            key,
            evicted,
        }
    }
}

impl InProgress {
    fn evict(&mut self) {
        if let Some((_, client)) = self.eviction_order.last_key_value() {
            let client = *client;
            self.change(client, BTreeMap::pop_first);
        }
    }

    /// Changes the handshakes of a client, and its key for eviction.
    fn change<T>(&mut self, client: IpAddr, change: impl FnOnce(&mut OfClient) -> T) {
        let of_client = self.by_client.entry(client).or_default();
        if let Some(key) = eviction_key(of_client) {
            self.eviction_order.remove(&key);
        }
        self.count -= of_client.len();
        change(of_client);
        self.count += of_client.len();
        match eviction_key(of_client) {
            Some(key) => {
                self.eviction_order.insert(key, client);
            }
            None => {
                self.by_client.remove(&client);
            }
        }
    }
}

/// Returns the key of a client with these handshakes.
fn eviction_key(of_client: &OfClient) -> Option<EvictionKey> {
    let (oldest, _) = of_client.first_key_value()?;
    Some((of_client.len(), Reverse(*oldest)))
}

impl Handshake<'_> {
    /// Completes on eviction.
    pub(crate) async fn evicted(&mut self) {
        // The sender never sends a value: eviction drops it, which completes the receiver.
        let _ = (&mut self.evicted).await;
    }
}

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        let mut in_progress = self.handshakes.in_progress.borrow_mut();
        in_progress.change(self.client, |of_client| of_client.remove(&self.key));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn client(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    async fn is_evicted(handshake: &mut Handshake<'_>) -> bool {
        timeout(Duration::ZERO, handshake.evicted()).await.is_ok()
    }

    #[tokio::test]
    async fn evicts_oldest_handshake_above_the_limit() {
        let handshakes = Handshakes::new(2);
        let mut first = handshakes.begin(client(1));
        let done = handshakes.begin(client(2));
        drop(done);
        let mut second = handshakes.begin(client(3));
        let _third = handshakes.begin(client(4));
        first.evicted().await;
        assert!(!is_evicted(&mut second).await);
    }

    #[tokio::test]
    async fn client_with_most_handshakes_loses_its_oldest() {
        let handshakes = Handshakes::new(4);
        let mut polite = handshakes.begin(client(2));
        let mut hostile: Vec<_> = (0..3).map(|_| handshakes.begin(client(1))).collect();
        let _next = handshakes.begin(client(1));
        hostile[0].evicted().await;
        assert!(!is_evicted(&mut polite).await && !is_evicted(&mut hostile[1]).await);
        let _other = handshakes.begin(client(3));
        hostile[1].evicted().await;
        assert!(!is_evicted(&mut polite).await && !is_evicted(&mut hostile[2]).await);
        drop((polite, hostile));
        let in_progress = handshakes.in_progress.borrow();
        assert_eq!((in_progress.count, in_progress.by_client.len()), (2, 2));
        assert_eq!(in_progress.eviction_order.len(), 2);
    }
}
