//! Endpoints that were chosen for a request outside of the proxy, in order.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::ir::FailureMode;
use crate::table::{Endpoint, Endpoints};

/// Endpoints for the attempts of a request: each attempt gets the next one, and the first one follows the last one. One that
/// could not be connected to gets no other attempt before a retry.
pub struct Chosen {
    /// At least one, and each once.
    entries: Vec<Entry>,
    /// Index of the one that the last attempt got.
    last: usize,
    failure_mode: FailureMode,
    is_over: bool,
}

struct Entry {
    address: SocketAddr,
    /// Id of its endpoint, if that could not be connected to.
    unreachable: Option<u64>,
}

impl Chosen {
    /// Chooses these endpoints; `None` if there are none. The mode says what follows if no one of them is left: the request
    /// fails, or it is balanced.
    pub fn of(addresses: Vec<SocketAddr>, failure_mode: FailureMode) -> Option<Box<Self>> {
        let mut entries: Vec<Entry> = Vec::with_capacity(addresses.len());
        for address in addresses {
            if entries.iter().all(|entry| entry.address != address) {
                entries.push(Entry {
                    address,
                    unreachable: None,
                });
            }
        }
        let last = entries.len().checked_sub(1)?;
        Some(Box::new(Self {
            entries,
            last,
            failure_mode,
            is_over: false,
        }))
    }

    /// Returns the next endpoint that the backend has and that can be connected to, if possible another one than `refused`.
    pub(super) fn next<'a>(
        &mut self,
        endpoints: &'a Endpoints,
        refused: Option<u64>,
    ) -> Option<&'a Arc<Endpoint>> {
        let found = self.find(endpoints, refused);
        // The endpoint that refused the request may accept it on another connection.
        let found = found.or_else(|| self.find(endpoints, None));
        let Some((at, endpoint)) = found else {
            self.is_over = self.failure_mode == FailureMode::Open;
            return None;
        };
        self.last = at;
        Some(endpoint)
    }

    fn find<'a>(
        &self,
        endpoints: &'a Endpoints,
        refused: Option<u64>,
    ) -> Option<(usize, &'a Arc<Endpoint>)> {
        let count = self.entries.len();
        let mut indexes = (1..=count).map(|step| (self.last + step) % count);
        indexes.find_map(|at| {
            let entry = &self.entries[at];
            let endpoint = endpoints.find_picked(entry.address)?;
            let is_left = entry.unreachable.is_none() && refused != Some(endpoint.id);
            is_left.then_some((at, endpoint))
        })
    }

    /// Reports whether no endpoint was left, so that this and all later attempts are balanced.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Records that the endpoint of the last attempt, which has this id, could not be connected to. Returns whether another
    /// one may be.
    pub(super) fn on_unreachable(&mut self, id: u64) -> bool {
        self.entries[self.last].unreachable = Some(id);
        let mut entries = self.entries.iter();
        self.failure_mode == FailureMode::Open || entries.any(|entry| entry.unreachable.is_none())
    }

    /// Permits connecting to all of them again.
    pub(super) fn begin_retry(&mut self) {
        for entry in &mut self.entries {
            entry.unreachable = None;
        }
    }

    /// Returns these ids, and those of the endpoints that could not be connected to.
    pub(super) fn with_unreachable(&self, ids: &[u64]) -> Vec<u64> {
        let unreachable = self.entries.iter().filter_map(|entry| entry.unreachable);
        ids.iter().copied().chain(unreachable).collect()
    }

    /// Reports whether another endpoint than the one with this id is left.
    pub(super) fn has_other(&self, endpoints: &Endpoints, id: u64) -> bool {
        let entries = self.entries.iter();
        let mut left = entries.filter(|entry| entry.unreachable.is_none());
        left.any(|entry| {
            let endpoint = endpoints.find_picked(entry.address);
            endpoint.is_some_and(|endpoint| endpoint.id != id)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir;
    use crate::table::{Backend, Transport};

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn backend(ports: &[u16]) -> Backend {
        let ir = ir::Backend::plain(ports.iter().copied().map(address).collect());
        Backend::new(&ir, Transport::Plain, Arc::default())
    }

    fn chosen(ports: &[u16], failure_mode: FailureMode) -> Box<Chosen> {
        let addresses = ports.iter().copied().map(address).collect();
        Chosen::of(addresses, failure_mode).unwrap()
    }

    #[test]
    fn attempts_go_down_the_list_of_endpoints_that_the_backend_has() {
        let backend = backend(&[1, 2, 3]);
        let endpoints = backend.endpoints();
        let mut chosen = chosen(&[3, 9, 1, 3], FailureMode::Close);
        let mut next = |refused| {
            let next = chosen.next(&endpoints, refused);
            next.map(|endpoint| endpoint.address.port())
        };
        assert_eq!(
            [next(None), next(None), next(None)],
            [Some(3), Some(1), Some(3)]
        );
        let id = |port| endpoints.find_picked(address(port)).unwrap().id;
        assert_eq!([next(Some(id(1))), next(Some(id(1)))], [Some(3), Some(3)]);
        assert_eq!(next(Some(id(3))), Some(1));
        assert!(chosen.has_other(&endpoints, id(1)));
        assert_eq!(chosen.next(&endpoints, None).unwrap().id, id(3));
        assert!(chosen.on_unreachable(id(3)));
        assert!(!chosen.has_other(&endpoints, id(1)));
        // Another one is not left.
        assert_eq!(chosen.next(&endpoints, Some(id(1))).unwrap().id, id(1));
    }

    #[test]
    fn list_ends_when_no_endpoint_of_it_can_be_connected_to() {
        let ports = [1, 2, 3, 4, 5];
        let backend = backend(&[1, 2, 3, 4, 5, 6]);
        let endpoints = backend.endpoints();
        for failure_mode in [FailureMode::Close, FailureMode::Open] {
            let is_open = failure_mode == FailureMode::Open;
            let mut chosen = chosen(&ports, failure_mode);
            for port in ports {
                let next = chosen.next(&endpoints, None).unwrap();
                assert_eq!(next.address.port(), port);
                assert_eq!(chosen.on_unreachable(next.id), is_open || port < 5);
            }
            assert!(!chosen.is_over());
            assert!(chosen.next(&endpoints, None).is_none());
            assert_eq!(chosen.is_over(), is_open);
            let excluded = chosen.with_unreachable(&[0]);
            let is_left = |it: &&Arc<Endpoint>| !excluded.contains(&it.id);
            let left = endpoints.iter().filter(is_left);
            let left: Vec<_> = left.map(|endpoint| endpoint.address).collect();
            assert_eq!(left, [address(6)]);
            chosen.begin_retry();
            assert_eq!(chosen.with_unreachable(&[0]), [0]);
            assert_eq!(chosen.is_over(), is_open);
        }
    }

    #[test]
    fn no_endpoint_is_no_choice() {
        assert!(Chosen::of(Vec::new(), FailureMode::Open).is_none());
        let backend = backend(&[1]);
        let endpoints = backend.endpoints();
        for (failure_mode, is_over) in [(FailureMode::Open, true), (FailureMode::Close, false)] {
            let mut foreign = chosen(&[9], failure_mode);
            assert!(foreign.next(&endpoints, None).is_none());
            assert_eq!(foreign.is_over(), is_over);
        }
    }
}
