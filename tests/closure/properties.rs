//! Properties of closures over random clusters and random changes.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis::api::gateway::{Gateway, ListenerSet};
use portcullis::api::{ObjectRef, Resource};
use portcullis::ir::{Backend, BackendId, Ir, Port};
use portcullis::provision::data_plane::DataPlane;
use portcullis::snapshot::Snapshot;
use portcullis::status::{
    AncestorStatus, Condition, ConditionType, GatewayStatus, ListenerSetStatus, ListenerStatus,
    ParentStatus, Reason, ReleaseStatus, StatusReport,
};
use portcullis::translate::closure::{Closures, Difference, ObjectChange};
use portcullis::translate::{Mode, Options, PolicyVerdict, Translation, Translator, translate};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestRunner;
use serde_json::Value;

use crate::objects::{CONTROLLER, object};
use crate::permitted::{check_secrets, is_accepted};
use crate::releases::check_pods;
use crate::stories::cluster;
use crate::{decode, snapshot};

/// A change of a cluster.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Adds or replaces an object.
    Put(Value),
    /// Deletes an object.
    Delete(Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => object().prop_map(Step::Put),
        1 => any::<Index>().prop_map(Step::Delete),
    ]
}

pub(crate) fn take(cluster: &mut Snapshot, step: &Step) {
    match step {
        Step::Put(value) => drop(cluster.insert(decode(value))),
        Step::Delete(index) => {
            let names = names(cluster);
            if !names.is_empty() {
                assert!(cluster.remove(index.get(&names)));
            }
        }
    }
}

fn names(objects: &Snapshot) -> Vec<ObjectRef> {
    objects.names_changed_since(&Snapshot::default())
}

pub(crate) fn closures() -> Closures {
    Closures::new(Options::default())
}

pub(crate) fn options() -> Options {
    Options {
        controller_name: CONTROLLER.into(),
        mode: Mode::Dedicated,
        ..Options::default()
    }
}

pub(crate) fn run(objects: &Snapshot) -> Translation {
    translate(objects, None, &options())
}

/// Returns how policies on TLS apply in a cluster of which this is the translation, each way once.
fn tls_of(translator: &Translator, ir: &Ir) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for backend in ir.backends.iter() {
        let used = backend.id.tls.as_ref();
        if used.is_some() && backend.tls.is_none() {
            found.insert("mode None".to_owned());
        }
        if used.is_some_and(|used| used.client.is_some()) {
            found.insert("client certificate".to_owned());
        }
    }
    for port in &ir.ports {
        for listener in &port.listeners {
            let routes = listener.routes.iter();
            for rule in routes.flat_map(|attached| &attached.route.rules) {
                let policies = translator.backend_policies(&rule.id, &port.gateway, &listener.key);
                for policy in policies.into_iter().flat_map(|backend| backend.policies) {
                    let level = policy.level;
                    match policy.verdict {
                        PolicyVerdict::Applies if &*policy.policy.kind == "BackendTLSOverride" => {
                            found.insert(format!("override at level {level}"))
                        }
                        PolicyVerdict::Refuses(_) => found.insert("broken policy".to_owned()),
                        _ => false,
                    };
                }
            }
        }
    }
    found
}

/// Returns how routes of different kinds conflict in a cluster of which this is the report, each way once.
fn conflicts_of(report: &StatusReport) -> BTreeSet<String> {
    let parents = report.routes.iter().flat_map(|(_, parents)| parents.iter());
    let accepted = parents.map(|parent| &parent.conditions[0]);
    let conflicts = accepted.filter_map(|accepted| {
        let is_partial = accepted.message.contains("not attached to every listener");
        match (accepted.reason, is_partial) {
            (Reason::HostnameConflict, _) => Some("hostnames lost to another kind"),
            (_, true) => Some("hostnames of some listeners lost to another kind"),
            _ => None,
        }
    });
    conflicts.map(str::to_owned).collect()
}

/// The part of a translation that concerns one Gateway.
#[derive(Debug, PartialEq)]
struct Part {
    ports: Vec<Arc<Port>>,
    backends: BTreeMap<BackendId, Option<Arc<Backend>>>,
    class: Vec<Condition>,
    gateway: Option<GatewayStatus>,
    listener_sets: BTreeMap<ObjectRef, ListenerSetStatus>,
    routes: BTreeMap<ObjectRef, Vec<ParentStatus>>,
    policies: BTreeMap<ObjectRef, AncestorStatus>,
    xbackends: BTreeMap<ObjectRef, ParentStatus>,
    /// Without the condition Programmed, which depends on all Gateways.
    release_backends: BTreeMap<ObjectRef, (Vec<Condition>, Vec<ReleaseStatus>)>,
    data_plane: Option<Arc<DataPlane>>,
}

impl Part {
    /// Extracts the part of a Gateway. `cluster` defines which ListenerSets belong to the Gateway.
    fn new(translation: &Translation, cluster: &Snapshot, gateway: &Gateway) -> Self {
        let Translation {
            ir,
            report,
            data_planes,
        } = translation;
        let name = gateway.object_ref();
        let sets: BTreeSet<_> = sets_of(cluster, &name).map(Resource::object_ref).collect();
        let ports = ir.ports.iter().filter(|port| port.gateway == name);
        let ports: Vec<_> = ports.cloned().collect();
        let class = ObjectRef::gateway_api("GatewayClass", "", &gateway.spec.gateway_class_name);
        let is_set = |(set, status): &(&ObjectRef, &Arc<ListenerSetStatus>)| {
            sets.contains(*set) && is_admitted(status)
        };
        let listener_sets = report.listener_sets.iter().filter(is_set);
        Self {
            backends: backends(&ports, ir),
            ports,
            class: report
                .gateway_classes
                .get(&class)
                .map(|conditions| conditions.to_vec())
                .unwrap_or_default(),
            gateway: report.gateways.get(&name).map(|status| {
                let mut status = GatewayStatus::clone(status);
                leave_references_out(&mut status.listeners);
                status
            }),
            listener_sets: listener_sets
                .map(|(set, it)| {
                    let mut status = ListenerSetStatus::clone(it);
                    leave_references_out(&mut status.listeners);
                    (set.clone(), status)
                })
                .collect(),
            routes: routes(report, |parent| *parent == name || sets.contains(parent)),
            policies: policies(report, &name),
            xbackends: xbackends(report, &name),
            release_backends: release_backends(report, &name),
            data_plane: data_planes.get(&name).cloned(),
        }
    }
}

/// Reports whether a Gateway admits a ListenerSet, of which no listener may be valid. A closure does not contain others.
fn is_admitted(set: &ListenerSetStatus) -> bool {
    use Reason::{Invalid, NotAllowed, ParentNotAccepted};
    let mut accepted = set.conditions.iter();
    let accepted = accepted.find(|it| it.kind == ConditionType::Accepted);
    accepted.is_none_or(|it| !matches!(it.reason, Invalid | NotAllowed | ParentNotAccepted))
}

/// Removes the verdict on the references of listeners that are not accepted. A closure does not contain what these name.
fn leave_references_out(listeners: &mut [ListenerStatus]) {
    for listener in listeners
        .iter_mut()
        .filter(|it| !is_accepted(&it.conditions))
    {
        Arc::make_mut(&mut listener.conditions).retain(|it| it.kind != ConditionType::ResolvedRefs);
    }
}

pub(crate) fn sets_of<'a>(
    objects: &'a Snapshot,
    gateway: &ObjectRef,
) -> impl Iterator<Item = &'a ListenerSet> {
    let sets = objects.listener_sets.iter().map(AsRef::as_ref);
    sets.filter(move |set: &&ListenerSet| {
        let parent = &set.spec.parent_ref;
        let namespace = parent.namespace.as_ref().unwrap_or(&set.metadata.namespace);
        (&**namespace, &*parent.name) == (&*gateway.namespace, &*gateway.name)
    })
}

/// Returns the backends with traffic from these ports.
fn backends(ports: &[Arc<Port>], ir: &Ir) -> BTreeMap<BackendId, Option<Arc<Backend>>> {
    let listeners = ports.iter().flat_map(|port| &port.listeners);
    let routes = listeners.flat_map(|listener| listener.routes.iter());
    let rules = routes.flat_map(|attached| &attached.route.rules);
    let ids = rules.flat_map(|rule| rule.backends());
    ids.map(|id| (id.clone(), ir.backend(id).cloned()))
        .collect()
}

/// Returns the status of routes for their parents among these that accept them. A closure contains no others.
fn routes(
    report: &StatusReport,
    is_parent: impl Fn(&ObjectRef) -> bool,
) -> BTreeMap<ObjectRef, Vec<ParentStatus>> {
    let mut routes: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (route, parents) in report.routes.iter() {
        for status in parents.iter() {
            let parent = &status.parent_ref;
            let namespace = parent.namespace.as_deref().unwrap_or(&route.namespace);
            let name = ObjectRef::new(&parent.group, &parent.kind, namespace, &parent.name);
            if is_parent(&name) && is_accepted(&status.conditions) {
                routes
                    .entry(route.clone())
                    .or_default()
                    .push(status.clone());
            }
        }
    }
    routes
}

/// Returns the status of policies for a Gateway, without those that lack a target, and without the verdict on what an
/// AccessPolicy that has no effect says. A closure contains neither Services that no route of its Gateway refers to nor routes of
/// other Gateways, nor the credentials of such a policy or of one on a listener or rule that does not exist, and only the
/// controller, which has the whole cluster, writes conditions.
fn policies(report: &StatusReport, gateway: &ObjectRef) -> BTreeMap<ObjectRef, AncestorStatus> {
    let mut policies = BTreeMap::new();
    for (policy, ancestors) in &report.policies {
        let of_gateway = |status: &&AncestorStatus| {
            let ancestor = &status.ancestor_ref;
            ancestor.namespace.as_deref() == Some(&*gateway.namespace)
                && ancestor.name == *gateway.name
        };
        let Some(mut status) = ancestors.iter().find(of_gateway).cloned() else {
            continue;
        };
        if &*policy.kind == "AccessPolicy" && is_overridden(&status) {
            let of_credentials = [ConditionType::Accepted, ConditionType::ResolvedRefs];
            let conditions = &mut status.conditions;
            conditions.retain(|it| !of_credentials.contains(&it.kind));
        }
        let first = &status.conditions[0];
        let names_target = first.message.contains("spec.targetRefs: ");
        if first.reason != Reason::TargetNotFound && !names_target {
            policies.insert(policy.clone(), status);
        }
    }
    policies
}

/// Reports whether a policy has no effect on a Gateway.
pub(crate) fn is_overridden(status: &AncestorStatus) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|it| it.kind == ConditionType::Programmed && it.reason == Reason::Overridden)
}

/// Returns the status entries of XBackends for a Gateway.
fn xbackends(report: &StatusReport, gateway: &ObjectRef) -> BTreeMap<ObjectRef, ParentStatus> {
    let of_gateway = |status: &&ParentStatus| {
        let parent = &status.parent_ref;
        parent.namespace.as_deref() == Some(&*gateway.namespace) && parent.name == *gateway.name
    };
    let backends = report.backends.iter();
    backends
        .filter_map(|(backend, parents)| {
            let status = parents.iter().find(of_gateway)?;
            Some((backend.clone(), status.clone()))
        })
        .collect()
}

/// Returns the statuses of ReleaseBackends that routes of a Gateway refer to.
fn release_backends(
    report: &StatusReport,
    gateway: &ObjectRef,
) -> BTreeMap<ObjectRef, (Vec<Condition>, Vec<ReleaseStatus>)> {
    let all = report.release_backends.iter();
    let own = all.filter(|(_, status)| status.gateways.contains(gateway));
    own.map(|(name, status)| {
        let conditions = status.conditions[..2].to_vec();
        (name.clone(), (conditions, status.releases.clone()))
    })
    .collect()
}

/// Checks that every closure translates to the same as the cluster for its Gateway, and that each of our Gateways has
/// one.
pub(crate) fn check_translations(cluster: &Snapshot, closures: &Closures) {
    check_translation(&run(cluster), cluster, closures);
}

/// The same of a cluster of which `whole` is the translation.
fn check_translation(whole: &Translation, cluster: &Snapshot, closures: &Closures) {
    for gateway in cluster.gateways.iter() {
        let name = gateway.object_ref();
        let closure = closures.get(&name);
        assert_eq!(
            closure.is_some(),
            whole.report.gateways.contains_key(&name),
            "{name}"
        );
        let Some(closure) = closure else {
            continue;
        };
        assert_eq!(closure.gateways.keys().count(), 1, "{name}");
        let alone = run(closure);
        let expected = Part::new(whole, cluster, gateway);
        assert_eq!(Part::new(&alone, cluster, gateway), expected, "{name}");
        for (route, parents) in &alone.report.routes {
            let lost =
                |parent: &ParentStatus| parent.conditions[0].reason == Reason::HostnameConflict;
            assert!(
                !parents.iter().all(lost),
                "{route} is in the closure of {name}"
            );
        }
        let own: BTreeSet<_> = expected.backends.into_keys().collect();
        let unknown = alone.ir.backends.iter().find(|it| !own.contains(&it.id));
        // Rules that respond with 500 have backends as well, which get no traffic.
        assert!(unknown.is_none_or(|it| whole.ir.backend(&it.id).is_some()));
        check_secrets(cluster, closure, &whole.report, gateway);
        check_pods(closure);
    }
}

/// Applies differences to copies of closures.
pub(crate) fn apply(
    copies: &mut BTreeMap<ObjectRef, Snapshot>,
    differences: BTreeMap<ObjectRef, Difference>,
) {
    for (gateway, difference) in differences {
        match difference {
            Difference::Gone => assert!(copies.remove(&gateway).is_some()),
            Difference::Changed(changes) => {
                assert!(!changes.is_empty());
                let copy = copies.entry(gateway).or_default();
                for change in changes {
                    let is_news = match change {
                        ObjectChange::Put(object) => copy.insert(object),
                        ObjectChange::Delete(name) => copy.remove(&name),
                    };
                    assert!(
                        is_news,
                        "a difference contains an object that did not change"
                    );
                }
            }
        }
    }
}

pub(crate) fn check(
    cluster: &Snapshot,
    closures: &Closures,
    copies: &BTreeMap<ObjectRef, Snapshot>,
) {
    let mut anew = self::closures();
    let of_all: BTreeSet<_> = anew.follow(cluster).into_keys().collect();
    assert_eq!(of_all, copies.keys().cloned().collect());
    for (gateway, copy) in copies {
        assert_eq!(closures.get(gateway), Some(copy), "{gateway}");
        assert_eq!(anew.get(gateway), Some(copy), "{gateway}");
    }
}

pub(crate) fn runner(cases: u32) -> TestRunner {
    TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: 2_000,
        ..ProptestConfig::default()
    })
}

#[test]
fn closure_translates_to_the_same_as_the_cluster() {
    let seen = RefCell::new(BTreeMap::new());
    let result = runner(400).run(&cluster(10..80), |objects| {
        let cluster = snapshot(objects);
        let mut translator = Translator::new(options());
        let whole = translator.translate(&cluster, None);
        let tls = tls_of(&translator, &whole.ir);
        for what in tls.into_iter().chain(conflicts_of(&whole.report)) {
            *seen.borrow_mut().entry(what).or_insert(0) += 1;
        }
        let mut closures = closures();
        closures.follow(&cluster);
        check_translation(&whole, &cluster, &closures);
        Ok(())
    });
    result.unwrap();
    let seen = seen.into_inner();
    for what in [
        "override at level route",
        "override at level listener-set",
        "override at level gateway",
        "override at level consumer",
        "override at level producer",
        "mode None",
        "broken policy",
        "client certificate",
        "hostnames lost to another kind",
        "hostnames of some listeners lost to another kind",
    ] {
        let count = seen.get(what).copied().unwrap_or(0);
        assert!(count >= 10, "{what}: in {count} of 400 clusters; {seen:?}");
    }
}

#[test]
fn incremental_closures_equal_new_ones() {
    let steps = (cluster(0..60), vec(step(), 1..100), 1..4_usize);
    let result = runner(150).run(&steps, |(objects, steps, burst)| {
        let mut cluster = snapshot(objects);
        let (mut closures, mut copies) = (closures(), BTreeMap::new());
        apply(&mut copies, closures.follow(&cluster));
        check(&cluster, &closures, &copies);
        for steps in steps.chunks(burst) {
            steps.iter().for_each(|step| take(&mut cluster, step));
            apply(&mut copies, closures.follow(&cluster));
            check(&cluster, &closures, &copies);
        }
        check_translations(&cluster, &closures);
        assert!(closures.follow(&cluster).is_empty());
        Ok(())
    });
    result.unwrap();
}
