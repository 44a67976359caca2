//! File descriptors of the process: raises the limit, and divides what it allows between clients,
//! connections to backends, and everything else, so that none takes what the others need.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors of a process without connections: listeners, logs, files that are read, name servers,
/// the API server or controller. Rounded up.
const OWN: usize = 48;
/// Descriptors of a worker's event loop, rounded up.
const PER_WORKER: usize = 4;
/// Maximum number of descriptors for connections of the admin server.
const ADMIN: usize = 64;
/// Share of the limit that the admin server gets at most.
const ADMIN_SHARE: usize = 8;
/// Maximum number of sessions of a UDP port.
const MAX_UDP_SESSIONS: usize = 16_384;
/// Maximum number of sessions of all UDP ports, for their memory: anybody can begin one with a datagram.
const MAX_ALL_UDP_SESSIONS: usize = 32_768;
/// Maximum number of client connections if none is configured.
pub const DEFAULT_CONNECTIONS: usize = 65_536;

/// The division of the process's descriptors.
#[derive(Debug)]
pub struct Descriptors {
    limit: usize,
    needed: usize,
    clients: usize,
    backends: usize,
    open_backends: AtomicUsize,
    /// Descriptors that clients have taken while few were left.
    by_client: Mutex<BTreeMap<IpAddr, usize>>,
    udp_ports: AtomicUsize,
}

impl Descriptors {
    /// Raises the soft limit of the process to the hard one, and divides it. A client needs a second
    /// descriptor, for the connection to its backend. Warns if the limit does not suffice for the
    /// connections that are configured; `None` stands for as many of [`DEFAULT_CONNECTIONS`] as the
    /// limit allows.
    pub fn claim(max_connections: Option<usize>, workers: usize) -> Self {
        let mut limit = getrlimit(Resource::Nofile);
        if limit.current != limit.maximum {
            let raised = Rlimit {
                current: limit.maximum,
                maximum: limit.maximum,
            };
            match setrlimit(Resource::Nofile, raised) {
                Ok(()) => limit = raised,
                Err(error) => tracing::warn!("cannot raise the limit of file descriptors: {error}"),
            }
        }
        // `None` stands for no limit.
        let limit = limit.current.unwrap_or(u64::MAX);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let divided = Self::divide(
            limit,
            max_connections.unwrap_or(DEFAULT_CONNECTIONS),
            workers,
        );
        match divided.shortage() {
            Some(shortage) if max_connections.is_some() => tracing::warn!("{shortage}"),
            Some(shortage) => tracing::info!("{shortage}"),
            None => {}
        }
        divided
    }

    fn divide(limit: usize, max_connections: usize, workers: usize) -> Self {
        let own = OWN + PER_WORKER * workers + ADMIN.min(limit / ADMIN_SHARE);
        let rest = limit.saturating_sub(own);
        let clients = max_connections.min((rest / 2).max(1));
        Self {
            limit,
            needed: max_connections.saturating_mul(2).saturating_add(own),
            clients,
            backends: rest.saturating_sub(clients).max(1),
            open_backends: AtomicUsize::new(0),
            by_client: Mutex::default(),
            udp_ports: AtomicUsize::new(0),
        }
    }

    /// Returns the maximum number of client connections.
    pub fn clients(&self) -> usize {
        self.clients
    }

    /// Returns what to tell the operator; `None` if the limit suffices for the maximum of
    /// connections.
    fn shortage(&self) -> Option<String> {
        (self.needed > self.limit).then(|| {
            format!(
                "the limit of {} file descriptors allows {} client connections with one backend connection each; \
                 --max-connections needs {}: raise the hard limit (ulimit -n, LimitNOFILE=), or set \
                 --max-connections to at most {}",
                self.limit, self.clients, self.needed, self.clients
            )
        })
    }

    /// Reports whether connections to backends take most of their share, so that idle ones must
    /// close.
    pub fn is_tight(&self) -> bool {
        self.open_backends.load(Relaxed) >= self.ample()
    }

    /// Returns the number of connections to backends up to which nobody's are counted.
    fn ample(&self) -> usize {
        self.backends - self.backends / 4
    }

    /// Counts a descriptor for a client. Returns false if the client would then hold more of those that were taken while few
    /// were left than are `free` for others.
    #[cold]
    fn count(&self, client: IpAddr, free: usize) -> bool {
        let mut by_client = self.by_client();
        let held = by_client.get(&client).copied().unwrap_or_default();
        let has_share = held + 2 <= free;
        if has_share {
            by_client.insert(client, held + 1);
        }
        has_share
    }

    #[cold]
    fn stop_counting(&self, client: IpAddr) {
        let mut by_client = self.by_client();
        if let Some(held) = by_client.get_mut(&client) {
            *held -= 1;
            if *held == 0 {
                by_client.remove(&client);
            }
        }
    }

    fn by_client(&self) -> MutexGuard<'_, BTreeMap<IpAddr, usize>> {
        self.by_client
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Descriptors {
    /// More than a process can use.
    fn default() -> Self {
        Self::divide(usize::MAX, usize::MAX, 0)
    }
}

/// The descriptor of a connection to a backend, until dropped.
#[derive(Debug)]
pub struct BackendDescriptor {
    descriptors: Arc<Descriptors>,
    /// The client for which it counts. In a box, since most count for none.
    client: Option<Box<IpAddr>>,
}

impl BackendDescriptor {
    /// Takes a descriptor; `None` if all are in use. While few are left, also if the client, an address or a network, has as
    /// many of these as are free. `None` as the client stands for the process and for what clients share.
    pub fn take(descriptors: &Arc<Descriptors>, client: Option<IpAddr>) -> Option<Self> {
        let before = descriptors.open_backends.fetch_add(1, Relaxed);
        let mut taken = Self {
            descriptors: descriptors.clone(),
            client: None,
        };
        if before >= descriptors.backends {
            return None;
        }
        if before >= descriptors.ample()
            && let Some(client) = client
        {
            if !descriptors.count(client, descriptors.backends - before) {
                return None;
            }
            taken.client = Some(Box::new(client));
        }
        Some(taken)
    }
}

impl Drop for BackendDescriptor {
    fn drop(&mut self) {
        self.descriptors.open_backends.fetch_sub(1, Relaxed);
        if let Some(client) = self.client.take() {
            self.descriptors.stop_counting(*client);
        }
    }
}

/// The part of a UDP port in the sessions of the process, each of which has a socket, until dropped.
#[derive(Debug)]
pub struct UdpShare(Arc<Descriptors>);

impl UdpShare {
    /// Adds a port, with which the others share from now on.
    pub fn new(descriptors: &Arc<Descriptors>) -> Self {
        descriptors.udp_ports.fetch_add(1, Relaxed);
        Self(descriptors.clone())
    }

    /// Returns the maximum number of sessions of the port now. Leaves half of the descriptors for connections to backends.
    pub fn sessions(&self) -> usize {
        let all = (self.0.backends / 2).min(MAX_ALL_UDP_SESSIONS);
        let ports = self.0.udp_ports.load(Relaxed).max(1);
        (all / ports).clamp(1, MAX_UDP_SESSIONS)
    }
}

impl Drop for UdpShare {
    fn drop(&mut self) {
        self.0.udp_ports.fetch_sub(1, Relaxed);
    }
}

/// Reports whether the process, or the system, has no descriptor left: EMFILE or ENFILE.
pub fn are_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(23 | 24))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_has_a_descriptor_for_a_backend() {
        for limit in [256, 1024, 20_000, 1 << 20, usize::MAX] {
            let divided = Descriptors::divide(limit, 65_536, 2);
            assert!(divided.clients() <= divided.backends, "{divided:?}");
            let all = divided.clients.saturating_add(divided.backends);
            assert!(all + OWN <= limit, "{divided:?}");
            let suffices = limit >= 131_072 + OWN + 2 * PER_WORKER + ADMIN;
            assert_eq!(divided.shortage().is_none(), suffices, "{divided:?}");
        }
        assert_eq!(Descriptors::divide(1 << 20, 65_536, 2).clients(), 65_536);
        assert!(Descriptors::divide(256, 65_536, 2).clients() >= 64);
    }

    #[test]
    fn shortage_names_both_numbers_and_what_to_set() {
        let shortage = Descriptors::divide(1024, 65_536, 2).shortage().unwrap();
        assert!(
            shortage.contains("limit of 1024") && shortage.contains("needs 131192"),
            "{shortage}"
        );
        assert!(shortage.contains("LimitNOFILE") && shortage.contains("--max-connections"));
    }

    #[test]
    fn backends_take_at_most_their_share() {
        let descriptors = Arc::new(Descriptors::divide(0, 65_536, 1));
        let one = BackendDescriptor::take(&descriptors, None);
        assert!(one.is_some() && descriptors.is_tight());
        assert!(BackendDescriptor::take(&descriptors, None).is_none());
        drop(one);
        assert!(BackendDescriptor::take(&descriptors, None).is_some());
    }

    #[test]
    fn client_leaves_a_part_of_the_last_quarter_to_others() {
        let descriptors = Arc::new(Descriptors::divide(1024, 65_536, 1));
        let all = descriptors.backends;
        let take_all = |client: Option<[u8; 4]>| {
            let take = || BackendDescriptor::take(&descriptors, client.map(IpAddr::from));
            std::iter::from_fn(take).collect::<Vec<_>>()
        };
        let hostile = take_all(Some([192, 0, 2, 1]));
        let most = all - all / 8;
        assert!((most - 1..=most).contains(&hostile.len()), "of {all}");
        let polite = take_all(Some([192, 0, 2, 2]));
        assert!(polite.len() >= all / 16 - 1, "{} of {all}", polite.len());
        drop((hostile, polite));
        assert!(descriptors.by_client().is_empty() && !descriptors.is_tight());
        let again = take_all(Some([192, 0, 2, 2]));
        assert!((most - 1..=most).contains(&again.len()), "of {all}");
        let of_process = take_all(None);
        assert_eq!(again.len() + of_process.len(), all);
    }

    #[test]
    fn udp_ports_share_their_sessions_evenly() {
        for (limit, all) in [(1 << 20, MAX_ALL_UDP_SESSIONS), (20_000, 4971), (256, 43)] {
            let descriptors = Arc::new(Descriptors::divide(limit, 65_536, 1));
            let only = UdpShare::new(&descriptors);
            assert_eq!(only.sessions(), all.min(MAX_UDP_SESSIONS));
            let others: Vec<_> = (1..20).map(|_| UdpShare::new(&descriptors)).collect();
            assert_eq!(only.sessions(), all / 20);
            drop(others);
            assert_eq!(only.sessions(), all.min(MAX_UDP_SESSIONS));
        }
    }
}
