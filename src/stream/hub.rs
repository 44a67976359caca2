//! The state to stream and the reports of pods: one feed per Gateway, with revisions that are local
//! to this process.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use imbl::OrdMap;
use tokio::sync::{oneshot, watch};

use super::log::{Line, Log};
use super::ready::{Pods, ReadyPods};
use crate::api::core::EndpointSlice;
use crate::api::gateway::Gateway;
use crate::api::pod::Pod;
use crate::api::{Object, Resource};
use crate::ir::{Bind, ObjectRef, Transport};
use crate::key_requests::KeyRequests;
use crate::snapshot::Snapshot;
use crate::translate::Options;
use crate::translate::closure::{Closures, Difference, ObjectChange};
use crate::wire::{self, Binds, Position, Serves};

/// Reports of one Gateway's pods, by pod name.
pub type PodReports = BTreeMap<String, PodReport>;

/// Reports of connected pods, by Gateway.
pub type Reports = OrdMap<ObjectRef, Arc<PodReports>>;

/// The last report of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodReport {
    /// The session of the report.
    session: u64,
    /// Revision of the Gateway's objects in service; `None` before the first report of a revision
    /// of this process.
    pub revision: Option<u64>,
    /// TCP and UDP ports that could not be bound, on all addresses as listeners declare them, with the error.
    pub unbound: BTreeMap<Bind, String>,
    /// QUIC ports, as listeners declare them, with the error of each that could not be bound.
    pub quic: BTreeMap<u16, Option<String>>,
    /// Problems with received objects.
    pub problems: Vec<String>,
    /// Why the revision stays an earlier one than that in service, if that is not only for the moment.
    pub behind: Option<String>,
}

impl PodReport {
    /// Creates a report of a revision, without problems.
    pub fn of_revision(revision: u64) -> Self {
        Self {
            revision: Some(revision),
            ..Self::none(0)
        }
    }

    /// Returns the report of a session before its first one.
    fn none(session: u64) -> Self {
        Self {
            session,
            revision: None,
            unbound: BTreeMap::new(),
            quic: BTreeMap::new(),
            problems: Vec::new(),
            behind: None,
        }
    }

    /// Returns what a pod has reported in a session with this process, of this instance.
    fn of(session: u64, serves: Serves, our_instance: &str) -> Self {
        let Position { instance, revision } = serves.position;
        let binds = serves.binds;
        let Binds { tcp, udp, quic } = binds.unwrap_or_else(|| Binds {
            // Either may be meant.
            tcp: serves.unbound.clone(),
            udp: serves.unbound,
            quic: BTreeMap::new(),
        });
        let at = |transport| {
            let bind = move |port| Bind {
                transport,
                ..Bind::tcp(None, port)
            };
            move |(port, error): (u16, String)| (bind(port), error)
        };
        let tcp = tcp.into_iter().map(at(Transport::Tcp));
        let udp = udp.into_iter().map(at(Transport::Udp));
        Self {
            session,
            revision: (instance == our_instance).then_some(revision),
            unbound: tcp.chain(udp).collect(),
            quic,
            problems: serves.problems,
            behind: serves.behind,
        }
    }

    /// Reports whether the pod has bound a QUIC port.
    fn has_quic(&self, port: u16) -> bool {
        self.quic.get(&port).is_some_and(Option::is_none)
    }
}

/// The feeds of all Gateways.
pub struct Hub {
    instance: String,
    feeds: Mutex<Feeds>,
    reports: watch::Sender<Reports>,
    key_requests: Arc<KeyRequests>,
}

struct Feeds {
    /// Whether the first complete snapshot has arrived.
    is_synced: bool,
    closures: Closures,
    ready: ReadyPods,
    /// Number of sessions that have begun.
    sessions: u64,
    /// The session of each connected pod, by the UID of the pod.
    connected: HashMap<String, Current>,
    /// Lower bound for revisions of new feeds, above those of all deleted feeds. A pod with a
    /// revision of a deleted feed must not count as only slightly behind.
    floor: u64,
    by_gateway: BTreeMap<ObjectRef, Feed>,
    /// The revision of each feed's last change to anything but endpoints.
    configured: OrdMap<ObjectRef, u64>,
}

/// The objects and changes of one Gateway.
#[derive(Debug)]
struct Feed {
    gateway: Arc<Gateway>,
    log: Log,
    revision: watch::Sender<u64>,
    /// Its ready pods, without the name of the pod that this is sent to.
    pods: watch::Sender<Arc<wire::ReadyPods>>,
}

/// The next thing that a session sends.
#[derive(Debug)]
pub(super) enum Next {
    /// Nothing, until the next revision.
    Current,
    /// Changes up to the revision, without the commit.
    Changes(Vec<Arc<Line>>, u64),
    /// The full state.
    FullState(Box<Snapshot>, u64),
    /// Nothing any more: the Gateway is deleted or belongs to another controller.
    Gone,
}

/// A connected pod.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) gateway: ObjectRef,
    pub(super) pod: String,
    pod_uid: String,
    number: u64,
}

/// A session that has begun.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) session: Session,
    /// Revisions of the Gateway's objects. Closes when the Gateway is deleted.
    pub(super) revisions: watch::Receiver<u64>,
    /// Ready pods of the Gateway, without the name of this one.
    pub(super) pods: watch::Receiver<Arc<wire::ReadyPods>>,
    /// Closes when another session of the pod begins.
    pub(super) replaced: oneshot::Receiver<Infallible>,
}

/// The session of a pod. Dropped when another one begins.
struct Current {
    number: u64,
    _replaced: oneshot::Sender<Infallible>,
}

impl Hub {
    /// Creates an empty hub. `instance` identifies this process. Pods translate with `options`.
    pub fn new(instance: String, options: Options) -> Self {
        let feeds = Feeds {
            is_synced: false,
            closures: Closures::new(options),
            ready: ReadyPods::default(),
            sessions: 0,
            connected: HashMap::new(),
            floor: 0,
            by_gateway: BTreeMap::new(),
            configured: OrdMap::new(),
        };
        Self {
            instance,
            feeds: Mutex::new(feeds),
            reports: watch::Sender::default(),
            key_requests: Arc::default(),
        }
    }

    /// Reports of connected pods.
    pub fn reports(&self) -> watch::Receiver<Reports> {
        self.reports.subscribe()
    }

    /// Key sets that pods ask for.
    pub fn key_requests(&self) -> Arc<KeyRequests> {
        self.key_requests.clone()
    }

    /// Identity of this process.
    pub(super) fn instance(&self) -> &str {
        &self.instance
    }

    fn feeds(&self) -> MutexGuard<'_, Feeds> {
        // A change to the feeds cannot panic half-way, so a poisoned lock still guards consistent
        // data.
        self.feeds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports whether the first complete snapshot has arrived.
    pub(super) fn is_synced(&self) -> bool {
        self.feeds().is_synced
    }

    /// Feeds the differences in a snapshot. Returns, for each Gateway of this controller, the
    /// revision that its pods must reach to serve the current configuration. Later revisions change
    /// only endpoints, which do not count as configuration.
    pub fn follow(&self, cluster: &Snapshot) -> OrdMap<ObjectRef, u64> {
        let mut feeds = self.feeds();
        let ready = feeds.ready.follow(cluster);
        for (name, difference) in feeds.closures.follow(cluster) {
            let gateway = cluster.gateways.get(&name.namespace, &name.name);
            match (difference, gateway) {
                (Difference::Changed(changes), Some(gateway)) => {
                    feeds.change(&name, gateway, changes);
                }
                _ => feeds.remove(&name),
            }
        }
        for (gateway, pods) in ready {
            if let Some(feed) = feeds.by_gateway.get(&gateway) {
                feed.set_pods(pods, self.reports.borrow().get(&gateway));
            }
        }
        feeds.is_synced = true;
        feeds.configured.clone()
    }

    /// Returns the Gateway of this name, if it belongs to this controller.
    pub(super) fn gateway(&self, name: &ObjectRef) -> Option<Arc<Gateway>> {
        let feeds = self.feeds();
        feeds.by_gateway.get(name).map(|feed| feed.gateway.clone())
    }

    /// Begins a session of a pod and ends its previous one. `None` if the Gateway does not exist.
    ///
    /// While the previous session was still connected, its last report stays until the next one: the pod serves what it
    /// served, even if another client began the new session with the pod's token.
    pub(super) fn connect(
        &self,
        gateway: &ObjectRef,
        pod: &str,
        pod_uid: &str,
    ) -> Option<Connected> {
        let mut feeds = self.feeds();
        let feed = feeds.by_gateway.get(gateway)?;
        let (revisions, pods) = (feed.revision.subscribe(), feed.pods.subscribe());
        feeds.sessions += 1;
        let number = feeds.sessions;
        let (sender, replaced) = oneshot::channel();
        let current = Current {
            number,
            _replaced: sender,
        };
        let previous = feeds.connected.insert(pod_uid.to_owned(), current);
        // Within the lock, so that sessions and reports change in the same order.
        self.reports.send_modify(|reports| {
            let pods = Arc::make_mut(reports.entry(gateway.clone()).or_default());
            let known = pods.get_mut(pod);
            let known = known.filter(|known| {
                previous
                    .as_ref()
                    .is_some_and(|previous| previous.number == known.session)
            });
            match known {
                Some(known) => known.session = number,
                None => {
                    pods.insert(pod.to_owned(), PodReport::none(number));
                }
            }
        });
        feeds.update_pods(gateway, &self.reports);
        drop(feeds);
        let session = Session {
            gateway: gateway.clone(),
            pod: pod.to_owned(),
            pod_uid: pod_uid.to_owned(),
            number,
        };
        Some(Connected {
            session,
            revisions,
            pods,
            replaced,
        })
    }

    /// Records the report of a pod. After a reconnect, only reports of the last session count.
    pub(super) fn report(&self, session: &Session, serves: Serves) {
        let report = PodReport::of(session.number, serves, &self.instance);
        let is_changed = self.reports.send_if_modified(|reports| {
            let known = reports.get(&session.gateway);
            let known = known.and_then(|pods| pods.get(&session.pod));
            let is_changed = known.is_some_and(|it| it.session == session.number && *it != report);
            if is_changed && let Some(pods) = reports.get_mut(&session.gateway) {
                Arc::make_mut(pods).insert(session.pod.clone(), report);
            }
            is_changed
        });
        if is_changed {
            self.feeds().update_pods(&session.gateway, &self.reports);
        }
    }

    /// Asks for a key set of the pod's Gateway. Ignores others.
    pub(super) fn refresh_key_set(&self, session: &Session, namespace: &str, name: &str) {
        let feeds = self.feeds();
        let objects = feeds.closures.get(&session.gateway);
        let known = objects.and_then(|objects| objects.key_sets.get(namespace, name));
        if let Some(known) = known {
            self.key_requests.ask(&known.object_ref());
        }
    }

    /// Ends a session.
    pub(super) fn disconnect(&self, session: &Session) {
        let mut feeds = self.feeds();
        let current = feeds.connected.get(&session.pod_uid);
        if current.is_some_and(|current| current.number == session.number) {
            feeds.connected.remove(&session.pod_uid);
        }
        self.reports.send_if_modified(|reports| {
            let known = reports.get(&session.gateway);
            let known = known.and_then(|pods| pods.get(&session.pod));
            if known.is_none_or(|known| known.session != session.number) {
                return false;
            }
            let Some(pods) = reports.get_mut(&session.gateway) else {
                return false;
            };
            let pods = Arc::make_mut(pods);
            pods.remove(&session.pod);
            if pods.is_empty() {
                reports.remove(&session.gateway);
            }
            true
        });
        feeds.update_pods(&session.gateway, &self.reports);
    }

    /// Returns what a pod at this revision needs.
    pub(super) fn next(&self, gateway: &ObjectRef, have: Option<u64>) -> Next {
        let mut feeds = self.feeds();
        let Some(feed) = feeds.by_gateway.get_mut(gateway) else {
            return Next::Gone;
        };
        let revision = feed.log.revision();
        match have.and_then(|have| feed.log.since(have)) {
            Some(_) if have == Some(revision) => Next::Current,
            Some(changes) => Next::Changes(changes, revision),
            None => match feeds.closures.get(gateway) {
                Some(objects) => Next::FullState(Box::new(objects.clone()), revision),
                None => Next::Gone,
            },
        }
    }
}

impl Feed {
    /// Tells the pods which of them are ready, and the ports whose HTTP/3 all of these serve: no pod may tell clients of a port
    /// that another one does not have.
    fn set_pods(&self, pods: Pods, reports: Option<&Arc<PodReports>>) {
        let Pods {
            addresses,
            udp_ports,
        } = pods;
        let report = |pod: &String| reports.and_then(|reports| reports.get(pod));
        let is_served = |port: &u16| {
            let mut ready = addresses.keys().map(report);
            ready.all(|report| report.is_some_and(|report| report.has_quic(*port)))
        };
        let http3 = udp_ports.into_iter().filter(is_served).collect();
        let now = wire::ReadyPods {
            own: String::new(),
            http3,
            ready: addresses,
        };
        self.pods.send_if_modified(|known| {
            let is_changed = **known != now;
            if is_changed {
                *known = Arc::new(now);
            }
            is_changed
        });
    }
}

impl Feeds {
    /// Applies changes to the objects of a Gateway.
    fn change(&mut self, name: &ObjectRef, gateway: &Arc<Gateway>, changes: Vec<ObjectChange>) {
        let (floor, ready) = (self.floor, &self.ready);
        let new = || {
            let feed = Feed {
                gateway: gateway.clone(),
                log: Log::after(floor),
                revision: watch::Sender::new(floor),
                pods: watch::Sender::default(),
            };
            // It has had no session.
            feed.set_pods(ready.of(name), None);
            feed
        };
        let feed = self.by_gateway.entry(name.clone()).or_insert_with(new);
        let is_of_endpoints = changes.iter().all(is_of_endpoints);
        feed.log.push(changes);
        let revision = feed.log.revision();
        feed.gateway = gateway.clone();
        feed.revision.send_replace(revision);
        if !is_of_endpoints || !self.configured.contains_key(name) {
            self.configured.insert(name.clone(), revision);
        }
    }

    /// Tells the pods of a Gateway what follows from reports that have changed.
    fn update_pods(&self, gateway: &ObjectRef, reports: &watch::Sender<Reports>) {
        if let Some(feed) = self.by_gateway.get(gateway) {
            feed.set_pods(self.ready.of(gateway), reports.borrow().get(gateway));
        }
    }

    /// Removes a Gateway that is deleted or belongs to another controller.
    fn remove(&mut self, gateway: &ObjectRef) {
        // Dropping the feed closes the channels of its sessions.
        if let Some(feed) = self.by_gateway.remove(gateway) {
            self.floor = self.floor.max(feed.log.revision() + 1);
            self.configured.remove(gateway);
        }
    }
}

/// Reports whether a change concerns endpoints only. Pods are streamed for their labels, which put the endpoints of a
/// ReleaseBackend into releases.
fn is_of_endpoints(change: &ObjectChange) -> bool {
    match change {
        ObjectChange::Put(object) => matches!(object, Object::EndpointSlice(_) | Object::Pod(_)),
        ObjectChange::Delete(name) => [EndpointSlice::KIND, Pod::KIND].contains(&&*name.kind),
    }
}

#[cfg(test)]
mod tests;
