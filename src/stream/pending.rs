//! Connections without an authenticated pod. Their number is limited per address and in total. A new connection is
//! always accepted: the oldest one of the address with the most connections ends for it, idle ones first.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Maximum number of connections without a pod per address. Pods on the host network share the address of their node,
/// which runs some hundred pods at most.
const MAX_PER_ADDRESS: usize = 256;
/// Maximum number of connections without a pod.
const MAX_TOTAL: usize = 1024;

/// All connections without a pod.
#[derive(Default)]
pub(super) struct Pending(Mutex<Connections>);

#[derive(Default)]
struct Connections {
    next: u64,
    total: usize,
    by_address: HashMap<IpAddr, BTreeMap<u64, Arc<Connection>>>,
}

/// A connection that may have to end.
#[derive(Default)]
struct Connection {
    evicted: Notify,
    /// Number of requests whose token is being checked.
    requests: AtomicUsize,
}

/// Place of a connection, until it is dropped or its pod is authenticated.
pub(super) struct PendingConnection {
    pending: Arc<Pending>,
    connection: Arc<Connection>,
    address: IpAddr,
    number: u64,
}

/// Marks a connection as busy with a request.
pub(super) struct Busy(Arc<Connection>);

impl Pending {
    fn connections(&self) -> MutexGuard<'_, Connections> {
        // No change to the connections can panic half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a new connection a place. Evicts another one if there are too many.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> PendingConnection {
        let mut connections = self.connections();
        let of_address = connections.by_address.get(&address);
        if of_address.is_some_and(|those| those.len() >= MAX_PER_ADDRESS) {
            connections.evict(address);
        } else if connections.total >= MAX_TOTAL {
            let addresses = connections.by_address.iter();
            let most = addresses.max_by_key(|(_, those)| those.len());
            if let Some(address) = most.map(|(address, _)| *address) {
                connections.evict(address);
            }
        }
        let number = connections.next;
        connections.next += 1;
        connections.total += 1;
        let connection = Arc::<Connection>::default();
        let of_address = connections.by_address.entry(address).or_default();
        of_address.insert(number, connection.clone());
        PendingConnection {
            pending: self.clone(),
            connection,
            address,
            number,
        }
    }
}

impl Connections {
    fn evict(&mut self, address: IpAddr) {
        let Some(those) = self.by_address.get(&address) else {
            return;
        };
        let idle = those
            .iter()
            .find(|(_, one)| one.requests.load(Relaxed) == 0);
        let Some((number, connection)) = idle.or_else(|| those.first_key_value()) else {
            return;
        };
        connection.evicted.notify_one();
        let number = *number;
        self.remove(address, number);
    }

    fn remove(&mut self, address: IpAddr, number: u64) {
        let Some(those) = self.by_address.get_mut(&address) else {
            return;
        };
        if those.remove(&number).is_some() {
            self.total -= 1;
        }
        if those.is_empty() {
            self.by_address.remove(&address);
        }
    }
}

impl PendingConnection {
    /// Returns the address of the connection.
    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns when the connection must end.
    pub(super) async fn evicted(&self) {
        self.connection.evicted.notified().await;
    }

    /// Marks the connection as busy until the guard is dropped.
    pub(super) fn busy(&self) -> Busy {
        self.connection.requests.fetch_add(1, Relaxed);
        Busy(self.connection.clone())
    }

    /// Frees the place: the connection has an authenticated pod.
    pub(super) fn authenticated(&self) {
        let mut connections = self.pending.connections();
        connections.remove(self.address, self.number);
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        self.authenticated();
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn is_evicted(place: &PendingConnection) -> bool {
        place.evicted().now_or_never().is_some()
    }

    #[test]
    fn new_connection_evicts_the_oldest_idle_one_of_its_address() {
        let pending = Arc::<Pending>::default();
        let (one, other) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let places: Vec<_> = (0..MAX_PER_ADDRESS).map(|_| pending.enter(one)).collect();
        let elsewhere = pending.enter(other);
        let busy = places[0].busy();
        let new = pending.enter(one);
        assert!(!is_evicted(&places[0]) && is_evicted(&places[1]));
        assert!(!is_evicted(&elsewhere) && !is_evicted(&new));
        drop(busy);
        places[2].authenticated();
        let _place = pending.enter(one);
        assert!(!is_evicted(&places[0]));
        let _place = pending.enter(one);
        assert!(is_evicted(&places[0]) && !is_evicted(&places[2]));
    }

    #[test]
    fn full_server_evicts_from_the_address_with_the_most_connections() {
        let pending = Arc::<Pending>::default();
        let address = |number: usize| IpAddr::from([10, 0, 1, u8::try_from(number).unwrap()]);
        let places: Vec<_> = (0..MAX_TOTAL)
            .map(|number| pending.enter(address(number % 5)))
            .collect();
        let most = pending.connections().by_address[&address(0)].len();
        assert!(MAX_TOTAL / 5 < most && most < MAX_PER_ADDRESS);
        let extra: Vec<_> = (10..200)
            .map(|number| pending.enter(address(number)))
            .collect();
        assert!(!extra.iter().any(is_evicted));
        assert_eq!(places.iter().filter(|place| is_evicted(place)).count(), 190);
        assert_eq!(pending.connections().total, MAX_TOTAL);
        drop((places, extra));
        let connections = pending.connections();
        assert_eq!((connections.total, connections.by_address.len()), (0, 0));
    }
}
