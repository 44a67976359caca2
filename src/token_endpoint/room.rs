//! How many requests to providers run: bounded for each client and each namespace, which leaves half of what is free to others,
//! so that none takes their places.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use crate::ir::cidr::client_network;
use crate::ir::sharing::Text;

/// Requests of a client, of a namespace, and of all.
const MAX_OF_CLIENT: usize = 8;
const MAX_OF_NAMESPACE: usize = 32;
const MAX: usize = 256;
/// Requests of a namespace that run whatever others do.
const FIRST: usize = 4;

/// The requests that run, by namespace: the clients whose they are.
#[derive(Default)]
pub(super) struct Room(Mutex<FxHashMap<Text, Vec<IpAddr>>>);

/// The place of a request that runs.
pub(super) struct Entered {
    room: Arc<Room>,
    namespace: Text,
    client: IpAddr,
}

impl Room {
    /// Takes a place for a request of a client; `None` if there is none.
    pub(super) fn enter(self: &Arc<Self>, namespace: &Text, client: IpAddr) -> Option<Entered> {
        let client = client_network(client);
        let mut room = self.lock();
        let total: usize = room.values().map(Vec::len).sum();
        let free = MAX.saturating_sub(total);
        let running = room.entry(namespace.clone()).or_default();
        let of_client = running.iter().filter(|it| **it == client).count();
        // Afterwards it has no more than is free.
        let has_share = running.len() < MAX_OF_NAMESPACE && running.len() + 2 <= free;
        if of_client >= MAX_OF_CLIENT || running.len() >= FIRST && !has_share {
            return None;
        }
        running.push(client);
        Some(Entered {
            room: self.clone(),
            namespace: namespace.clone(),
            client,
        })
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<Text, Vec<IpAddr>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut room = self.room.lock();
        if let Some(running) = room.get_mut(&self.namespace) {
            if let Some(at) = running.iter().position(|it| *it == self.client) {
                running.swap_remove(at);
            }
            if running.is_empty() {
                room.remove(&self.namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn client_takes_no_place_of_others_and_namespace_none_of_others() {
        let room = Arc::<Room>::default();
        let (one, two) = (Text::from("one"), Text::from("two"));
        let first =
            (0..MAX_OF_CLIENT).map(|it| room.enter(&one, address(&format!("2001:db8::{it}"))));
        let first: Vec<_> = first.collect();
        assert!(first.iter().all(Option::is_some));
        assert!(room.enter(&one, address("2001:db8::ffff")).is_none());
        let others = (0..MAX).map_while(|it| room.enter(&one, address(&format!("10.0.0.{it}"))));
        let others: Vec<_> = others.collect();
        assert_eq!(others.len(), MAX_OF_NAMESPACE - MAX_OF_CLIENT);
        assert!(room.enter(&two, address("10.0.0.1")).is_some());
        drop(first);
        assert!(room.enter(&one, address("2001:db8::1")).is_some());
        drop(others);
        assert!(room.lock().is_empty());
    }

    #[test]
    fn many_namespaces_leave_each_other_one_places() {
        const NAMESPACES: usize = 100;
        let room = Arc::<Room>::default();
        let fill = |namespace: usize| {
            let namespace = Text::from(&*namespace.to_string());
            let enter = |it: usize| room.enter(&namespace, address(&format!("10.0.0.{it}")));
            (0..MAX).map_while(enter).collect::<Vec<_>>()
        };
        let entered: Vec<_> = (0..NAMESPACES).map(fill).collect();
        assert_eq!(entered[0].len(), MAX_OF_NAMESPACE);
        assert!(entered[7].len() > FIRST);
        assert!(entered.iter().all(|it| it.len() >= FIRST));
        let total: usize = entered.iter().map(Vec::len).sum();
        assert!(total <= MAX + FIRST * NAMESPACES, "{total}");
        drop(entered);
        assert!(room.lock().is_empty());
    }
}
