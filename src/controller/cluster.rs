//! The controller's loop: a snapshot is translated, the objects that its Gateways need are published, and statuses are
//! released as data planes confirm them. Owns the order of these steps; what applies, asks and writes is given to it.

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

/// How long a change waits until it is translated for its conditions: pods get it first, and confirm it meanwhile.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// The reason of events about replicas that do not serve the current configuration.
const REPLICA_BEHIND: &str = "ReplicaBehind";
/// The reason of events about certificates that are about to expire.
const CERTIFICATE_EXPIRING: &str = "CertificateExpiring";

/// What the loop follows.
pub struct Inputs {
    /// Objects of the cluster, as they have been fed to the pods of Gateways.
    pub published: watch::Receiver<Arc<Published>>,
    /// What the pods report that are connected to this process.
    pub reports: watch::Receiver<Reports>,
    /// Addresses of nodes, where they are wanted.
    pub nodes: watch::Receiver<BTreeSet<IpAddr>>,
    /// What could not be applied.
    pub failures: watch::Receiver<Failures>,
    /// The certificates that pods are to trust; nothing can be made for a Gateway before they are known.
    pub trusted: watch::Receiver<Option<Arc<str>>>,
    /// Whether this process is the one that applies and writes.
    pub leading: watch::Receiver<Leadership>,
    /// Version of the Gateway API's CRDs.
    pub bundle_version: watch::Receiver<Option<String>>,
}

/// What the loop publishes.
pub struct Outputs<P> {
    /// Objects that Gateways need.
    pub needs: watch::Sender<Option<Arc<DesiredState>>>,
    /// GatewayClasses of ours, and whether they are in use.
    pub uses: watch::Sender<ClassUsage>,
    /// Whether addresses of nodes are wanted.
    pub wants_nodes: watch::Sender<bool>,
    /// Gateways whose ready replicas all serve their latest state.
    pub serving: watch::Sender<BTreeSet<ObjectRef>>,
    /// What a person must act on.
    pub events: Events,
    /// Statuses to write; none while another process leads.
    pub statuses: watch::Sender<Option<Statuses>>,
    /// Takes note of a report; of none while another process leads, which alone can make one.
    pub publish: P,
}

/// Runs until the provider is gone.
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
        if inputs.leading.borrow_and_update().is_leader {
            let leader = leader.get_or_insert_with(|| Leader::new(options.clone()));
            until = leader.step(published, pods, &mut inputs, &mut outputs);
        } else {
            if leader.take().is_some() {
                // By the time that this leads again they would be old.
                outputs.needs.send_replace(None);
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
            Ok(()) = inputs.trusted.changed() => {}
            Ok(()) = inputs.leading.changed() => {}
            Ok(()) = inputs.bundle_version.changed() => {}
            () = deadline(until) => {}
        }
    }
}

/// What a process knows while it leads. Other processes translate nothing: the result would be old when they lead.
struct Leader {
    translator: Translator,
    state: Option<ClusterState>,
    confirmations: Confirmations,
    expiry: Expiry,
    /// What the last report was made of, beside the state.
    reported: Option<Observations>,
}

/// What the leader sees of the cluster beside the objects that it translates.
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

    /// Translates a new snapshot, judges the data planes, and publishes what has changed. Returns when to do so again even
    /// without a change.
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
        let verdicts = state.judge(&mut self.confirmations, &reports);
        drop(reports);
        let now = (Instant::now(), Timestamp::now());
        let found = self.expiry.look(&state.translation.ir, is_new, now);
        warn_of_expiry(state, found, &outputs.events);
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

    /// Translates a state of the cluster and publishes what its Gateways need. Returns whether it is a new one.
    fn follow<P>(
        &mut self,
        published: Arc<Published>,
        pods: &PodSettings,
        inputs: &mut Inputs,
        outputs: &Outputs<P>,
    ) -> bool {
        let endpoint = endpoint(inputs.trusted.borrow_and_update().as_deref(), pods);
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

/// How pods reach the controller, once it is known what they can trust.
fn endpoint(trusted: Option<&str>, pods: &PodSettings) -> Option<StreamEndpoint> {
    trusted.map(|ca| StreamEndpoint {
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
    outputs.needs.send_if_modified(|needs| {
        // Before anything can be made, nothing may be deleted either.
        let new = state.endpoint.is_some().then(|| state.needs.clone());
        let is_news = *needs != new;
        *needs = new;
        is_news
    });
    let data_planes = state.translation.data_planes.values();
    let mut types = data_planes.map(|data_plane| data_plane.parameters.service.kind);
    let wants_nodes = types.any(|kind| kind == Some(ServiceType::NodePort));
    outputs
        .wants_nodes
        .send_if_modified(|wants| std::mem::replace(wants, wants_nodes) != wants_nodes);
    let uses = state.uses();
    outputs.uses.send_if_modified(|known| {
        let is_news = *known != uses;
        *known = uses;
        is_news
    });
}

/// Publishes what the data planes have confirmed, and warns of replicas that are behind.
fn report<P>(state: &ClusterState, seen: &Observations, outputs: &mut Outputs<P>)
where
    P: FnMut(&Arc<Load>, Option<&Arc<StatusReport>>),
{
    let serving = ClusterState::serving(&seen.verdicts);
    outputs.serving.send_if_modified(|known| {
        let is_news = *known != serving;
        *known = serving;
        is_news
    });
    for (gateway, verdict) in &seen.verdicts {
        match verdict {
            Verdict::Lagging(message) => {
                state.warn(gateway, REPLICA_BEHIND, message.clone(), &outputs.events);
            }
            Verdict::Confirmed(_) => outputs.events.clear(gateway, REPLICA_BEHIND),
            Verdict::Awaited(_) | Verdict::Absent => {}
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

fn warn_of_expiry(state: &ClusterState, found: expiry::Report, events: &Events) {
    for (gateway, message) in found.expiring {
        state.warn(&gateway, CERTIFICATE_EXPIRING, message, events);
    }
    for gateway in found.renewed {
        events.clear(&gateway, CERTIFICATE_EXPIRING);
    }
}
