//! What every Gateway's pods are to have and what they report: one feed per Gateway, numbered by this process. Knows no
//! connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;

use super::encode;
use super::log::Log;
use super::message::{Position, Serves};
use crate::api::core::EndpointSlice;
use crate::api::gateway::Gateway;
use crate::api::{Object, Resource};
use crate::ir::ObjectRef;
use crate::snapshot::Snapshot;
use crate::translate::Options;
use crate::translate::closure::{Closures, Difference, ObjectChange};

/// What a pod serves, by the name of the pod.
pub type PodReports = BTreeMap<String, PodReport>;

/// What pods serve, by Gateway. Pods that are not connected are not in it.
pub type Reports = BTreeMap<ObjectRef, PodReports>;

/// What one pod reported last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodReport {
    /// The session that it came by.
    session: u64,
    /// The revision of its Gateway's objects; `None` when it has reported none of this process yet.
    pub revision: Option<u64>,
    /// Ports that it could not bind, as listeners declare them, and why.
    pub unbound: BTreeMap<u16, String>,
    /// What is wrong with objects that it was given.
    pub problems: Vec<String>,
}

#[cfg(test)]
impl PodReport {
    /// The report of a pod that serves this revision.
    pub(crate) fn of_revision(revision: u64) -> Self {
        Self {
            session: 0,
            revision: Some(revision),
            unbound: BTreeMap::new(),
            problems: Vec::new(),
        }
    }
}

/// The feeds of all Gateways.
pub struct Hub {
    instance: String,
    feeds: Mutex<Feeds>,
    reports: watch::Sender<Reports>,
}

struct Feeds {
    /// Whether the cluster is known.
    is_synced: bool,
    closures: Closures,
    sessions: u64,
    /// Above all revisions of feeds that are gone: a pod that had one of those must not be taken for one that is behind.
    floor: u64,
    by_gateway: BTreeMap<ObjectRef, Feed>,
}

/// What the pods of one Gateway are to have.
#[derive(Debug)]
struct Feed {
    gateway: Arc<Gateway>,
    log: Log,
    /// The last revision that changed more than endpoints.
    configured: u64,
    revision: watch::Sender<u64>,
}

/// What a session is to send next.
#[derive(Debug)]
pub(super) enum Next {
    /// Nothing until the revision changes.
    Current,
    /// These lines, which lead to the revision.
    Lines(Vec<Bytes>, u64),
    /// Everything.
    Everything(Box<Snapshot>, u64),
    /// Nothing any more: the Gateway is gone, or is not ours.
    Gone,
}

/// A pod that is connected.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) gateway: ObjectRef,
    pub(super) pod: String,
    number: u64,
}

impl Hub {
    /// A hub without feeds, for a process that is told from others by `instance`. Pods translate what they get
    /// with these options.
    pub fn new(instance: String, options: Options) -> Self {
        let feeds = Feeds {
            is_synced: false,
            closures: Closures::new(options),
            sessions: 0,
            floor: 0,
            by_gateway: BTreeMap::new(),
        };
        Self {
            instance,
            feeds: Mutex::new(feeds),
            reports: watch::Sender::default(),
        }
    }

    /// What pods report.
    pub fn reports(&self) -> watch::Receiver<Reports> {
        self.reports.subscribe()
    }

    /// What tells this process from others.
    pub(super) fn instance(&self) -> &str {
        &self.instance
    }

    fn feeds(&self) -> MutexGuard<'_, Feeds> {
        // A feed is changed in one step, which cannot panic half-way.
        self.feeds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the cluster is known.
    pub(super) fn is_synced(&self) -> bool {
        self.feeds().is_synced
    }

    /// Feeds what is different in a state of the cluster. Returns, of each Gateway of ours, the revision that its pods must
    /// have reached to serve what is configured: that of the last change to more than endpoints, which come and go without
    /// anyone's configuring.
    pub(super) fn follow(&self, cluster: &Snapshot) -> BTreeMap<ObjectRef, u64> {
        let mut feeds = self.feeds();
        for (name, difference) in feeds.closures.follow(cluster) {
            let gateway = cluster.gateways.get(&name.namespace, &name.name);
            match (difference, gateway) {
                (Difference::Changed(changes), Some(gateway)) => {
                    feeds.change(&name, gateway, &changes);
                }
                _ => feeds.remove(&name),
            }
        }
        feeds.is_synced = true;
        let configured = |(name, feed): (&ObjectRef, &Feed)| (name.clone(), feed.configured);
        feeds.by_gateway.iter().map(configured).collect()
    }

    /// The Gateway of this name, if it is ours.
    pub(super) fn gateway(&self, name: &ObjectRef) -> Option<Arc<Gateway>> {
        let feeds = self.feeds();
        feeds.by_gateway.get(name).map(|feed| feed.gateway.clone())
    }

    /// Connects a pod, and returns beside its session the revisions of its Gateway; they end when the Gateway is gone.
    /// `None` when it is.
    pub(super) fn connect(
        &self,
        gateway: &ObjectRef,
        pod: &str,
    ) -> Option<(Session, watch::Receiver<u64>)> {
        let mut feeds = self.feeds();
        feeds.sessions += 1;
        let number = feeds.sessions;
        let revisions = feeds.by_gateway.get(gateway)?.revision.subscribe();
        drop(feeds);
        let report = PodReport {
            session: number,
            revision: None,
            unbound: BTreeMap::new(),
            problems: Vec::new(),
        };
        self.reports.send_modify(|reports| {
            let pods = reports.entry(gateway.clone()).or_default();
            pods.insert(pod.to_owned(), report);
        });
        let session = Session {
            gateway: gateway.clone(),
            pod: pod.to_owned(),
            number,
        };
        Some((session, revisions))
    }

    /// Takes note of what a pod serves. A pod that has connected anew speaks by its last session only.
    pub(super) fn report(&self, session: &Session, serves: Serves) {
        let Position { instance, revision } = serves.position;
        let report = PodReport {
            session: session.number,
            revision: (instance == self.instance).then_some(revision),
            unbound: serves.unbound,
            problems: serves.problems,
        };
        self.reports.send_if_modified(|reports| {
            let pods = reports.get_mut(&session.gateway);
            let Some(known) = pods.and_then(|pods| pods.get_mut(&session.pod)) else {
                return false;
            };
            let is_news = known.session == session.number && *known != report;
            if is_news {
                *known = report;
            }
            is_news
        });
    }

    /// A session is over.
    pub(super) fn disconnect(&self, session: &Session) {
        self.reports.send_if_modified(|reports| {
            let Some(pods) = reports.get_mut(&session.gateway) else {
                return false;
            };
            let known = pods.get(&session.pod);
            if known.is_none_or(|known| known.session != session.number) {
                return false;
            }
            pods.remove(&session.pod);
            if pods.is_empty() {
                reports.remove(&session.gateway);
            }
            true
        });
    }

    /// What a pod that has this revision lacks.
    pub(super) fn next(&self, gateway: &ObjectRef, have: Option<u64>) -> Next {
        let feeds = self.feeds();
        let Some(feed) = feeds.by_gateway.get(gateway) else {
            return Next::Gone;
        };
        let revision = feed.log.revision();
        match have.map(|have| feed.log.since(have)) {
            Some(Some(lines)) if lines.is_empty() => Next::Current,
            Some(Some(lines)) => Next::Lines(lines, revision),
            _ => match feeds.closures.get(gateway) {
                Some(objects) => Next::Everything(Box::new(objects.clone()), revision),
                None => Next::Gone,
            },
        }
    }
}

impl Feeds {
    /// The objects of a Gateway change.
    fn change(&mut self, name: &ObjectRef, gateway: &Arc<Gateway>, changes: &[ObjectChange]) {
        let floor = self.floor;
        let new = || Feed {
            gateway: gateway.clone(),
            log: Log::after(floor),
            configured: floor,
            revision: watch::Sender::new(floor),
        };
        let feed = self.by_gateway.entry(name.clone()).or_insert_with(new);
        let revision = feed.log.revision() + 1;
        feed.log.push(encode::changes(changes, revision));
        feed.gateway = gateway.clone();
        if !changes.iter().all(is_of_endpoints) {
            feed.configured = revision;
        }
        feed.revision.send_replace(revision);
    }

    /// A Gateway is gone, or is not ours any more.
    fn remove(&mut self, gateway: &ObjectRef) {
        // Its sessions notice that it is dropped.
        if let Some(feed) = self.by_gateway.remove(gateway) {
            self.floor = self.floor.max(feed.log.revision() + 1);
        }
    }
}

fn is_of_endpoints(change: &ObjectChange) -> bool {
    match change {
        ObjectChange::Put(object) => matches!(object, Object::EndpointSlice(_)),
        ObjectChange::Delete(name) => *name.kind == *EndpointSlice::KIND,
    }
}

#[cfg(test)]
mod tests;
