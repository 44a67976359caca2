//! The controller's loop: translates a snapshot, publishes the desired objects of its Gateways, and
//! releases statuses as data planes confirm them. Owns only the order of these steps. Other modules
//! apply objects and write statuses.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until};

pub use super::cluster_state::PodSettings;
use super::cluster_state::{ClusterState, Verdicts};
use super::confirmation::{Confirmations, Verdict};
use super::expiry::{self, Expiry};
use crate::api::parameters::ServiceType;
use crate::events::Events;
use crate::ir::ObjectRef;
use crate::provider::Load;
use crate::provision::{ClassUsage, DesiredState, Failures, StreamEndpoint};
use crate::status::StatusReport;
use crate::status::lease::Leadership;
use crate::status::writer::Statuses;
use crate::stream::Published;
use crate::stream::hub::Reports;
use crate::translate::{Options, Translator};

/// Delay between a change and its translation. Pods receive the change first and can confirm it in
/// this time.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// Reason of events about replicas that do not serve the current configuration.
const REPLICA_BEHIND: &str = "ReplicaBehind";
/// Reason of events about certificates that expire soon.
const CERTIFICATE_EXPIRING: &str = "CertificateExpiring";

/// Inputs of the loop.
pub struct Inputs {
    /// Objects of the cluster, after they were streamed to the pods of Gateways.
    pub published: watch::Receiver<Arc<Published>>,
    /// Reports of the pods that are connected to this process.
    pub reports: watch::Receiver<Reports>,
    /// Addresses of nodes, if requested by `wants_nodes`.
    pub nodes: watch::Receiver<BTreeSet<IpAddr>>,
    /// Provisioning failures by Gateway.
    pub failures: watch::Receiver<Failures>,
    /// CA bundle that pods trust. No Gateway is provisioned before it is known.
    pub ca_bundle: watch::Receiver<Option<Arc<str>>>,
    /// Whether this process is the leader. Only the leader provisions and writes.
    pub leadership: watch::Receiver<Leadership>,
    /// Version of the installed Gateway API CRDs.
    pub bundle_version: watch::Receiver<Option<String>>,
}

/// Outputs of the loop.
pub struct Outputs<P> {
    /// Desired objects of all Gateways.
    pub desired: watch::Sender<Option<Arc<DesiredState>>>,
    /// GatewayClasses of this controller, and whether they are in use.
    pub class_usage: watch::Sender<ClassUsage>,
    /// Whether addresses of nodes are needed.
    pub wants_nodes: watch::Sender<bool>,
    /// Gateways whose ready replicas all serve their latest revision.
    pub serving: watch::Sender<BTreeSet<ObjectRef>>,
    /// Kubernetes Events.
    pub events: Events,
    /// Statuses to write; `None` while this process is not the leader.
    pub statuses: watch::Sender<Option<Statuses>>,
    /// Called with each report, or with `None` while this process is not the leader.
    pub publish: P,
}

/// Runs until the provider drops its sender.
pub async fn run<P>(
    mut inputs: Inputs,
    options: Options,
    pods: &PodSettings,
    mut outputs: Outputs<P>,
) where
    P: FnMut(&Arc<Load>, Option<&Arc<StatusReport>>),
{
    let mut leader: Option<Leader> = None;
    loop {
        let published = inputs.published.borrow_and_update().clone();
        let mut until = None;
        if inputs.leadership.borrow_and_update().is_leader {
            let leader = leader.get_or_insert_with(|| Leader::new(options.clone()));
            until = leader.step(published, pods, &mut inputs, &mut outputs);
        } else {
            if leader.take().is_some() {
                // They would be stale when this process becomes the leader again.
                outputs.desired.send_replace(None);
                outputs.statuses.send_replace(None);
            }
            (outputs.publish)(&published.load, None);
        }
        tokio::select! {
            changed = inputs.published.changed() => {
                if changed.is_err() {
                    return;
                }
                sleep(DEBOUNCE).await;
            }
            Ok(()) = inputs.reports.changed() => {}
            Ok(()) = inputs.nodes.changed() => {}
            Ok(()) = inputs.failures.changed() => {}
            Ok(()) = inputs.ca_bundle.changed() => {}
            Ok(()) = inputs.leadership.changed() => {}
            Ok(()) = inputs.bundle_version.changed() => {}
            () = deadline(until) => {}
        }
    }
}

/// State of the leader. Other replicas do not translate: the result would be stale when they become
/// the leader.
struct Leader {
    translator: Translator,
    state: Option<ClusterState>,
    confirmations: Confirmations,
    expiry: Expiry,
    /// The observations on which the last report is based.
    reported: Option<Observations>,
}

/// Inputs of a report besides the translated objects.
#[derive(PartialEq, Eq)]
struct Observations {
    verdicts: Verdicts,
    nodes: BTreeSet<IpAddr>,
    failures: Failures,
    bundle_version: Option<String>,
}

impl Leader {
    fn new(options: Options) -> Self {
        Self {
            translator: Translator::new(options),
            state: None,
            confirmations: Confirmations::new(Instant::now()),
            expiry: Expiry::default(),
            reported: None,
        }
    }

    /// Translates a new snapshot, evaluates the data planes, and publishes changes. Returns when to
    /// run again without a change.
    fn step<P>(
        &mut self,
        published: Arc<Published>,
        pods: &PodSettings,
        inputs: &mut Inputs,
        outputs: &mut Outputs<P>,
    ) -> Option<Instant>
    where
        P: FnMut(&Arc<Load>, Option<&Arc<StatusReport>>),
    {
        let is_new = self.follow(published, pods, inputs, outputs);
        let state = self.state.as_ref()?;
        let reports = inputs.reports.borrow_and_update();
        let verdicts = state.evaluate(&mut self.confirmations, &reports);
        drop(reports);
        let now = (Instant::now(), Timestamp::now());
        let found = self.expiry.check(&state.translation.ir, is_new, now);
        warn_of_expiring_certificates(state, found, &outputs.events);
        let deadlines = verdicts.values().filter_map(Verdict::deadline);
        let until = deadlines.chain(self.expiry.next()).min();
        let seen = Observations {
            verdicts,
            nodes: inputs.nodes.borrow_and_update().clone(),
            failures: inputs.failures.borrow_and_update().clone(),
            bundle_version: inputs.bundle_version.borrow_and_update().clone(),
        };
        if is_new || self.reported.as_ref() != Some(&seen) {
            report(state, &seen, outputs);
            self.reported = Some(seen);
        }
        until
    }

    /// Translates published objects and publishes the desired state. Returns whether there were new
    /// objects.
    fn follow<P>(
        &mut self,
        published: Arc<Published>,
        pods: &PodSettings,
        inputs: &mut Inputs,
        outputs: &Outputs<P>,
    ) -> bool {
        let endpoint = endpoint(inputs.ca_bundle.borrow_and_update().as_deref(), pods);
        let is_current = |state: &ClusterState| {
            Arc::ptr_eq(&state.published, &published) && state.endpoint == endpoint
        };
        if self.state.as_ref().is_some_and(is_current) {
            return false;
        }
        let previous = self.state.as_ref();
        let served = previous.map(|state| &state.translation.ir);
        let translation = self.translator.translate(&published.load.snapshot, served);
        let new = ClusterState::new(published, translation, (pods, endpoint), previous);
        let gateways = &new.translation.report.gateways;
        self.confirmations
            .retain(|gateway| gateways.contains_key(gateway));
        publish(outputs, &new);
        self.state = Some(new);
        true
    }
}

/// Returns how pods reach the controller; `None` until the CA bundle is known.
fn endpoint(ca_bundle: Option<&str>, pods: &PodSettings) -> Option<StreamEndpoint> {
    ca_bundle.map(|ca| StreamEndpoint {
        url: pods.controller_url.clone(),
        ca: ca.to_owned(),
        arguments: pods.arguments.clone(),
    })
}

async fn deadline(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}

fn publish<P>(outputs: &Outputs<P>, state: &ClusterState) {
    outputs.desired.send_if_modified(|desired| {
        // `None` until the CA bundle is known. Without it, nothing may be created or deleted.
        let new = state.endpoint.is_some().then(|| state.desired.clone());
        let is_changed = *desired != new;
        *desired = new;
        is_changed
    });
    let data_planes = state.translation.data_planes.values();
    let mut types = data_planes.map(|data_plane| data_plane.parameters.service.kind);
    let wants_nodes = types.any(|kind| kind == Some(ServiceType::NodePort));
    outputs
        .wants_nodes
        .send_if_modified(|wants| std::mem::replace(wants, wants_nodes) != wants_nodes);
    let class_usage = state.class_usage();
    outputs.class_usage.send_if_modified(|known| {
        let is_changed = *known != class_usage;
        *known = class_usage;
        is_changed
    });
}

/// Publishes the report as far as data planes have confirmed it, and warns of lagging replicas.
fn report<P>(state: &ClusterState, seen: &Observations, outputs: &mut Outputs<P>)
where
    P: FnMut(&Arc<Load>, Option<&Arc<StatusReport>>),
{
    let serving = ClusterState::serving(&seen.verdicts);
    outputs.serving.send_if_modified(|known| {
        let is_changed = *known != serving;
        *known = serving;
        is_changed
    });
    for (gateway, verdict) in &seen.verdicts {
        match verdict {
            Verdict::Lagging(message) => {
                state.warn(gateway, REPLICA_BEHIND, message.clone(), &outputs.events);
            }
            Verdict::Confirmed(_) => outputs.events.clear(gateway, REPLICA_BEHIND),
            Verdict::Awaited(_) | Verdict::Absent(_) => {}
        }
    }
    let version = seen.bundle_version.as_deref();
    let report = state.report(&seen.verdicts, &seen.failures, &seen.nodes, version);
    let report = Arc::new(report);
    (outputs.publish)(&state.published.load, Some(&report));
    let held = Arc::new(state.held(&seen.verdicts));
    outputs
        .statuses
        .send_replace(Some(Statuses { report, held }));
}

fn warn_of_expiring_certificates(
    state: &ClusterState,
    found: expiry::ExpiryReport,
    events: &Events,
) {
    for (gateway, message) in found.expiring {
        state.warn(&gateway, CERTIFICATE_EXPIRING, message, events);
    }
    for gateway in found.renewed {
        events.clear(&gateway, CERTIFICATE_EXPIRING);
    }
}
