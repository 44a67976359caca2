//! The leader's state: translates each snapshot, and updates by what it changes the desired objects of Gateways, the
//! progress of their data planes, and the report. Other replicas do not translate: the result would be stale when they
//! become the leader.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use imbl::OrdSet;
use jiff::Timestamp;

use super::cluster_state::ClusterState;
use super::confirmation::Verdict;
use super::desired::PodSettings;
use super::expiry::{Expiry, ExpiryReport};
pub use super::progress::Observations;
use super::progress::Progress;
use super::translated::Translated;
use crate::api::gateway::GatewayClass;
use crate::api::{Object, Resource};
use crate::cluster::events::{EventReason, Events, Notice};
use crate::ir::{Ir, ObjectRef};
use crate::provider::Load;
use crate::provision::{ClassUsage, DesiredState, StreamEndpoint};
use crate::status::writer::Statuses;
use crate::status::{
    Confirmation, ConfirmedReport, HeldStatuses, LateRoutes, Unconfirmed, Unreadable, Unserved,
};
use crate::stream::Published;
use crate::translate::{Options, Translator};

/// State of the leader.
pub struct Leader {
    translator: Translator,
    /// What was translated last; `None` before the first snapshot.
    followed: Option<Followed>,
    cluster: ClusterState,
    progress: Progress,
    expiry: Expiry,
    unreadable: Arc<BTreeMap<ObjectRef, Unreadable>>,
    unserved: Unserved,
    /// Name of the controller in the entries of statuses.
    controller_name: Arc<str>,
    report: ConfirmedReport,
    held: HeldStatuses,
    late: LateRoutes,
}

/// What a snapshot changes.
pub struct Changes {
    /// Gateways for which the state of the cluster may have changed.
    gateways: BTreeSet<ObjectRef>,
    /// Objects that were added, changed or removed.
    objects: Vec<ObjectRef>,
}

/// A snapshot that was translated.
struct Followed {
    published: Arc<Published>,
    /// How pods reach the controller; `None` until the CA bundle is known.
    endpoint: Option<StreamEndpoint>,
    ir: Ir,
}

impl Leader {
    /// Creates the state of a new leader.
    pub fn new(options: Options) -> Self {
        Self {
            controller_name: options.controller_name.clone(),
            translator: Translator::new(options),
            followed: None,
            cluster: ClusterState::default(),
            progress: Progress::new(Instant::now()),
            expiry: Expiry::default(),
            unreadable: Arc::default(),
            unserved: Unserved::default(),
            report: ConfirmedReport::default(),
            held: HeldStatuses::default(),
            late: LateRoutes::default(),
        }
    }

    /// Translates published objects. Returns `None` if there are no new objects.
    pub fn follow(
        &mut self,
        published: &Arc<Published>,
        pods: &PodSettings,
        endpoint: Option<StreamEndpoint>,
    ) -> Option<Changes> {
        let is_current = |followed: &Followed| {
            Arc::ptr_eq(&followed.published, published) && followed.endpoint == endpoint
        };
        if self.followed.as_ref().is_some_and(is_current) {
            return None;
        }
        let load = &published.load;
        let served = self.followed.as_ref().map(|followed| &followed.ir);
        let translation = self.translator.translate(&load.snapshot, served);
        let now = Translated {
            snapshot: load.snapshot.clone(),
            report: translation.report,
            data_planes: translation.data_planes,
        };
        // Without the CA bundle, the desired objects are not published.
        let reached = endpoint.clone().unwrap_or_default();
        let gateways = (self.cluster).follow(now, &published.revisions, pods, &reached);
        let previous = self.followed.as_ref();
        let has_others = |it: &Followed| {
            let known = &it.published.load;
            known.problems != load.problems || known.waiting != load.waiting
        };
        if previous.is_none_or(has_others) {
            self.unreadable = Arc::new(unreadable(load));
            self.unserved = unserved(&load.waiting);
        }
        // To a new leader, all statuses are new.
        let objects = previous.map_or_else(Vec::new, |it| {
            let known = &it.published.load.snapshot;
            load.snapshot.names_changed_since(known)
        });
        self.followed = Some(Followed {
            published: published.clone(),
            endpoint,
            ir: translation.ir,
        });
        Some(Changes { gateways, objects })
    }

    /// Evaluates the data planes. `changed` is `None` if there are no new objects. Returns the statuses to write if they may
    /// differ from those before.
    pub fn evaluate(
        &mut self,
        changed: Option<Changes>,
        seen: Observations,
        events: &Events,
    ) -> Option<Statuses> {
        self.evaluate_at(Instant::now(), changed, seen, events)
    }

    fn evaluate_at(
        &mut self,
        now: Instant,
        changed: Option<Changes>,
        seen: Observations,
        events: &Events,
    ) -> Option<Statuses> {
        let is_new = changed.is_some();
        let states = self.progress.states().clone();
        let awaited = self.progress.awaited();
        let lagging = self.progress.lagging().clone();
        let (gateways, objects) = changed
            .map(|it| (it.gateways, it.objects))
            .unwrap_or_default();
        let is_other_version = seen.bundle_version != self.progress.seen().bundle_version;
        let turned = (self.progress).follow(&self.cluster, gateways, seen, now);
        for (gateway, verdict) in &turned {
            self.announce(gateway, verdict.as_ref(), events);
        }
        self.check_certificates(is_new, now, events);
        let is_same = !is_new
            && states.ptr_eq(self.progress.states())
            && awaited == self.progress.awaited()
            && lagging == *self.progress.lagging()
            && !is_other_version;
        (!is_same).then(|| self.statuses(&objects))
    }

    fn statuses(&mut self, changed: &[ObjectRef]) -> Statuses {
        let parents = self.cluster.parents.clone();
        let mut report = self.report.follow(Confirmation {
            translated: self.cluster.now.report.clone(),
            states: self.progress.states().clone(),
            parents: parents.clone(),
            unreadable: self.unreadable.clone(),
            bundle_version: self.progress.seen().bundle_version.clone(),
        });
        let awaited = self.progress.awaited();
        let held = self.held.follow(&report, &parents, changed, &awaited);
        let unconfirmed = Unconfirmed {
            awaited: &awaited,
            lagging: self.progress.lagging(),
        };
        (self.late).follow(&mut report, &parents, changed, unconfirmed);
        let (unreadable, controller) = (&self.unreadable, &self.controller_name);
        self.unserved.explain(&mut report, unreadable, controller);
        Statuses {
            report: Arc::new(report),
            held,
        }
    }

    /// Returns the desired objects of all Gateways.
    pub fn desired(&self) -> &DesiredState {
        self.cluster.desired()
    }

    /// Reports whether addresses of nodes are needed.
    pub fn wants_nodes(&self) -> bool {
        self.cluster.wants_nodes()
    }

    /// Returns the GatewayClasses of this controller, and whether a Gateway uses them.
    pub fn class_usage(&self) -> ClassUsage {
        self.cluster.class_usage()
    }

    /// Returns the Gateways whose ready replicas all serve their latest revision.
    pub fn serving(&self) -> &OrdSet<ObjectRef> {
        self.progress.serving()
    }

    /// Returns when to evaluate again without a change.
    pub fn deadline(&self) -> Option<Instant> {
        self.progress
            .deadline()
            .into_iter()
            .chain(self.expiry.next())
            .min()
    }

    /// Warns of replicas that lag.
    fn announce(&self, gateway: &ObjectRef, verdict: Option<&Verdict>, events: &Events) {
        match verdict {
            Some(Verdict::Lagging(message, _)) => {
                self.warn(gateway, EventReason::ReplicaBehind, message.clone(), events);
            }
            Some(Verdict::Confirmed(_)) => events.clear(gateway, EventReason::ReplicaBehind),
            Some(Verdict::Awaited(..) | Verdict::Absent(_)) | None => {}
        }
    }

    /// Warns of certificates that expire soon.
    fn check_certificates(&mut self, is_new: bool, now: Instant, events: &Events) {
        let Some(followed) = &self.followed else {
            return;
        };
        let now = (now, Timestamp::now());
        let ExpiryReport { expiring, renewed } = self.expiry.check(&followed.ir.ports, is_new, now);
        for (gateway, message) in expiring {
            self.warn(&gateway, EventReason::CertificateExpiring, message, events);
        }
        for gateway in renewed {
            events.clear(&gateway, EventReason::CertificateExpiring);
        }
    }

    /// Emits a warning event about a Gateway.
    fn warn(&self, gateway: &ObjectRef, reason: EventReason, message: String, events: &Events) {
        let gateways = &self.cluster.now.snapshot.gateways;
        if let Some(object) = gateways.get(&gateway.namespace, &gateway.name) {
            events.notify(Notice {
                object: gateway.clone(),
                version: "v1",
                served_as: None,
                uid: object.metadata.uid.to_string(),
                reason,
                action: "Program",
                message,
            });
        }
    }
}

/// Returns the objects that cannot be parsed or wait for policies, and policies of which only a part is known.
fn unreadable(load: &Load) -> BTreeMap<ObjectRef, Unreadable> {
    let waiting: BTreeSet<_> = load.waiting.iter().map(name_of).collect();
    let unserved = load.problems.iter().filter(|problem| !problem.is_served);
    let of_object = unserved.filter_map(|problem| {
        let object = problem.object.clone()?;
        let why = Unreadable {
            generation: problem.generation,
            message: problem.text(),
            is_pending: waiting.contains(&object),
        };
        Some((object, why))
    });
    of_object.collect()
}

/// Returns the parents of routes, and the classes of Gateways.
fn unserved(waiting: &[Object]) -> Unserved {
    let mut unserved = Unserved::default();
    for object in waiting {
        if let Object::Gateway(gateway) = object {
            let class = &gateway.spec.gateway_class_name;
            let class = ObjectRef::gateway_api(GatewayClass::KIND, "", class);
            unserved.gateways.insert(name_of(object), class);
        }
        let parents = object.parent_refs();
        if !parents.is_empty() {
            unserved.routes.insert(name_of(object), parents.to_vec());
        }
    }
    unserved
}

fn name_of(object: &Object) -> ObjectRef {
    let metadata = object.meta();
    object
        .kind()
        .object_ref(&metadata.namespace, &metadata.name)
}

#[cfg(test)]
mod tests;
