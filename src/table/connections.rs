//! Open connections of a port, in total and by client. Shared by the workers and by consecutive tables. Only connections
//! that a policy limits are counted.

use std::net::IpAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use crate::ir::cidr::client_network;
use crate::ir::keyed::KeyedMap;

/// The open connections of a port.
#[derive(Debug, Default)]
pub struct Connections {
    open: AtomicUsize,
    by_client: Mutex<KeyedMap<IpAddr, usize>>,
}

/// Maximum numbers of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Of all clients.
    pub total: Option<usize>,
    /// Of each client.
    pub per_client: Option<usize>,
}

/// An open connection, counted until dropped.
#[derive(Debug)]
pub struct CountedConnection {
    connections: Arc<Connections>,
    client: Option<IpAddr>,
}

impl Connections {
    /// Counts a connection. Returns `None` if there are too many.
    pub fn open(
        self: &Arc<Self>,
        client: IpAddr,
        limits: ConnectionLimits,
    ) -> Option<CountedConnection> {
        let before = self.open.fetch_add(1, Relaxed);
        let mut counted = CountedConnection {
            connections: self.clone(),
            client: None,
        };
        if limits.total.is_some_and(|maximum| before >= maximum) {
            return None;
        }
        if let Some(maximum) = limits.per_client {
            let client = client_network(client);
            let mut by_client = self.by_client();
            let open = by_client.get(&client).copied().unwrap_or(0);
            if open >= maximum {
                // Before the connection is dropped, which locks them too.
                drop(by_client);
                return None;
            }
            by_client.insert(client, open + 1);
            counted.client = Some(client);
        }
        Some(counted)
    }

    fn by_client(&self) -> std::sync::MutexGuard<'_, KeyedMap<IpAddr, usize>> {
        self.by_client
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.connections.open.fetch_sub(1, Relaxed);
        let Some(client) = self.client else { return };
        let mut by_client = self.connections.by_client();
        match by_client.get_mut(&client) {
            Some(open) if *open > 1 => *open -= 1,
            _ => {
                by_client.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(total: usize, per_client: usize) -> ConnectionLimits {
        ConnectionLimits {
            total: Some(total),
            per_client: Some(per_client),
        }
    }

    #[test]
    fn counts_in_total_and_by_client() {
        let connections = Arc::new(Connections::default());
        let open = |client: &str| connections.open(client.parse().unwrap(), limits(4, 2));
        let first = open("192.0.2.1").expect("the first");
        let second = open("::ffff:192.0.2.1").expect("the second of one client");
        assert!(open("192.0.2.1").is_none(), "the third of one client");
        let other = open("2001:db8::1").expect("the third");
        let same = open("2001:db8::ffff:1").expect("the fourth");
        assert!(open("2001:db8::2").is_none(), "of one network");
        assert!(open("192.0.2.2").is_none(), "the fifth");
        drop(first);
        let again = open("192.0.2.1").expect("one less");
        drop((second, other, same, again));
        assert_eq!(connections.open.load(Relaxed), 0);
        assert!(connections.by_client().is_empty());
    }
}
