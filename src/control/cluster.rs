//! The controller's loop: translates a snapshot, publishes the desired objects of its Gateways, and
//! releases statuses as data planes confirm them. Owns only the order of these steps. Other modules
//! apply objects and write statuses.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdSet;
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until};

pub use super::desired::PodSettings;
use super::leader::{Leader, Observations};
use crate::cluster::events::Events;
use crate::ir::ObjectRef;
use crate::provider::Load;
use crate::provision::{ClassUsage, DesiredState, Failures, StreamEndpoint};
use crate::runtime::optional::or_pending;
use crate::status::StatusReport;
use crate::status::lease::Leadership;
use crate::status::writer::Statuses;
use crate::stream::Published;
use crate::stream::hub::Reports;
use crate::translate::Options;

/// Delay between a change and its translation. Pods receive the change first and can confirm it in
/// this time.
const DEBOUNCE: Duration = Duration::from_millis(20);

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
    pub serving: watch::Sender<OrdSet<ObjectRef>>,
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
            step(leader, &published, pods, &mut inputs, &mut outputs);
            until = leader.deadline();
        } else {
            if leader.take().is_some() {
                // They would be stale when this process becomes the leader again.
                outputs.desired.send_replace(None);
                outputs.statuses.send_replace(None);
                outputs.class_usage.send_replace(ClassUsage::new());
                outputs.serving.send_replace(OrdSet::new());
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
            () = or_pending(until.map(|until| sleep_until(until.into()))) => {}
        }
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

/// Translates new objects, evaluates the data planes, and publishes changes.
fn step<P>(
    leader: &mut Leader,
    published: &Arc<Published>,
    pods: &PodSettings,
    inputs: &mut Inputs,
    outputs: &mut Outputs<P>,
) where
    P: FnMut(&Arc<Load>, Option<&Arc<StatusReport>>),
{
    let endpoint = endpoint(inputs.ca_bundle.borrow_and_update().as_deref(), pods);
    let is_reachable = endpoint.is_some();
    let changed = leader.follow(published, pods, endpoint);
    if changed.is_some() {
        publish(leader, is_reachable, outputs);
    }
    let seen = Observations {
        reports: inputs.reports.borrow_and_update().clone(),
        nodes: inputs.nodes.borrow_and_update().clone(),
        failures: inputs.failures.borrow_and_update().clone(),
        bundle_version: inputs.bundle_version.borrow_and_update().clone(),
    };
    let Some(statuses) = leader.evaluate(changed, seen, &outputs.events) else {
        return;
    };
    send(&outputs.serving, leader.serving().clone());
    (outputs.publish)(&published.load, Some(&statuses.report));
    outputs.statuses.send_replace(Some(statuses));
}

/// Publishes what the cluster needs.
fn publish<P>(leader: &Leader, is_reachable: bool, outputs: &Outputs<P>) {
    // Without the CA bundle, nothing may be created or deleted.
    outputs.desired.send_if_modified(|known| {
        let desired = is_reachable.then(|| leader.desired());
        let is_changed = known.as_deref() != desired;
        if is_changed {
            *known = desired.cloned().map(Arc::new);
        }
        is_changed
    });
    send(&outputs.wants_nodes, leader.wants_nodes());
    send(&outputs.class_usage, leader.class_usage());
}

/// Sends a value, unless it is the same as before.
fn send<T: PartialEq>(sender: &watch::Sender<T>, value: T) {
    sender.send_if_modified(|known| {
        let is_changed = *known != value;
        *known = value;
        is_changed
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::time::timeout;

    use super::*;
    use crate::api::Kind;
    use crate::cluster::events;
    use crate::snapshot::Snapshot;
    use crate::translate::{CONTROLLER_NAME, Mode};

    /// Returns a cluster with a GatewayClass of this controller.
    fn published() -> Arc<Published> {
        let class = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
            "metadata": {"name": "portcullis"}, "spec": {"controllerName": CONTROLLER_NAME},
        });
        let kind = Kind::find("gateway.networking.k8s.io/v1", "GatewayClass").unwrap();
        let mut snapshot = Snapshot::default();
        snapshot.insert(kind.decode(&class).unwrap());
        let load = Load {
            snapshot: Arc::new(snapshot),
            ..Load::default()
        };
        Arc::new(Published {
            load: Arc::new(load),
            ..Published::default()
        })
    }

    async fn until<T>(sender: &watch::Sender<T>, wanted: impl Fn(&T) -> bool) {
        let mut receiver = sender.subscribe();
        let found = timeout(Duration::from_secs(60), receiver.wait_for(wanted)).await;
        assert!(found.is_ok_and(|found| found.is_ok()));
    }

    #[tokio::test]
    async fn withdraws_what_would_be_stale_when_it_leads_again() {
        let published = watch::Sender::new(published());
        let leadership = watch::Sender::new(Leadership {
            is_leader: true,
            ..Leadership::default()
        });
        let inputs = Inputs {
            published: published.subscribe(),
            reports: watch::channel(Reports::default()).1,
            nodes: watch::channel(BTreeSet::new()).1,
            failures: watch::channel(Failures::new()).1,
            ca_bundle: watch::channel(Some(Arc::from("CA"))).1,
            leadership: leadership.subscribe(),
            bundle_version: watch::channel(None).1,
        };
        let desired = watch::Sender::new(None);
        let class_usage = watch::Sender::new(ClassUsage::new());
        let serving = watch::Sender::new(OrdSet::new());
        let statuses = watch::Sender::new(None);
        let (events, _publisher) = events::channel("test");
        let outputs = Outputs {
            desired: desired.clone(),
            class_usage: class_usage.clone(),
            wants_nodes: watch::Sender::new(false),
            serving: serving.clone(),
            events,
            statuses: statuses.clone(),
            publish: |_: &Arc<Load>, _: Option<&Arc<StatusReport>>| {},
        };
        let options = Options {
            mode: Mode::Dedicated,
            ..Options::default()
        };
        let pods = PodSettings {
            image: "image".to_owned(),
            controller_url: String::new(),
            arguments: Vec::new(),
        };
        let test = async {
            until(&statuses, Option::is_some).await;
            assert!(desired.borrow().is_some());
            assert_eq!(class_usage.borrow().get("portcullis"), Some(&false));
            serving.send_replace(OrdSet::unit(ObjectRef::gateway_api("Gateway", "a", "b")));
            leadership.send_replace(Leadership::default());
            until(&serving, OrdSet::is_empty).await;
            assert!(desired.borrow().is_none());
            assert!(statuses.borrow().is_none());
            assert!(class_usage.borrow().is_empty());
        };
        tokio::select! {
            () = run(inputs, options, &pods, outputs) => panic!("it has ended"),
            () = test => {}
        }
    }
}
