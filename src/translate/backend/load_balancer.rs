//! Load balancers of applications whose endpoints are in releases. A kind of backend that supports this parses its part
//! of `spec.loadBalancer` of a ReleaseBackend, and returns the ports and pods.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::api::core::ServicePort;
use crate::ir::ObjectRef;
use crate::snapshot::Snapshot;

use super::super::reason::{Fault, Reason};
use super::registry::{BackendKind, backend_kind, balancing_kinds};

/// The load-balancer support of a kind of backend.
pub(super) struct LoadBalancerKind {
    /// Parses the configuration of a ReleaseBackend in a namespace. Each fault is appended to the path of the
    /// configuration, for example `.name is missing`.
    pub(super) read: fn(&str, &Value) -> Result<LoadBalancer, Vec<String>>,
    /// Returns the labelled objects of a namespace, for ReleaseBackends without a configuration.
    pub(super) marked: fn(&Snapshot, &str) -> Vec<LoadBalancer>,
    /// The labels of such objects, for messages.
    pub(super) marks: &'static str,
    /// Finds the ports and pods of a load balancer. Reason `Invalid` means that the configuration is at fault.
    pub(super) find: for<'a> fn(&'a Snapshot, &LoadBalancer) -> Result<Balanced<'a>, Fault>,
}

/// A parsed configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoadBalancer {
    /// The object with the ports.
    pub(super) object: ObjectRef,
    /// The pods that are its endpoints.
    pub(super) pods: PodSelection,
}

/// The pods that are endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PodSelection {
    /// The pods that the EndpointSlices of the object name.
    OfObject,
    /// The pods with these labels.
    Labels(BTreeMap<String, String>),
    /// The pods with the labels in the selector of the object, except for these keys.
    WithoutKeys(BTreeSet<String>),
}

/// The ports and pods of a load balancer.
#[derive(Clone, Debug)]
pub(super) struct Balanced<'a> {
    /// Its ports.
    pub(super) ports: &'a [ServicePort],
    /// The labels of the pods that are its endpoints; `None` if its EndpointSlices name them.
    pub(super) labels: Option<BTreeMap<String, String>>,
}

/// The load balancer that is used, of those that an object configures.
pub(super) struct Chosen {
    pub(super) result: Result<(&'static LoadBalancerKind, LoadBalancer), Fault>,
    /// Why other configurations are not used.
    pub(super) unused: Vec<String>,
}

/// Selects one of the configurations of an object in `namespace`: the first in the order of `kinds`.
pub(super) fn choose(
    kinds: &[&'static BackendKind],
    snapshot: &Snapshot,
    namespace: &str,
    configured: &BTreeMap<String, Value>,
) -> Chosen {
    if configured.is_empty() {
        return Chosen {
            result: only_marked(kinds, snapshot, namespace),
            unused: Vec::new(),
        };
    }
    let mut served: Option<(&str, &'static LoadBalancerKind, LoadBalancer)> = None;
    let (mut unused, mut faults) = (Vec::new(), Vec::new());
    let mut usable = BTreeSet::new();
    for kind in kinds {
        let (Some(reader), Some(value)) = (kind.load_balancer, configured.get(kind.gvk)) else {
            continue;
        };
        usable.insert(kind.gvk);
        match ((reader.read)(namespace, value), &served) {
            (Err(found), _) => {
                faults.extend(found.iter().map(|it| format!("{}{it}", path(kind.gvk))));
            }
            (Ok(read), None) => served = Some((kind.gvk, reader, read)),
            (Ok(_), Some((first, ..))) => unused.push(format!(
                "{} is not used: {first} comes first in --backend-kinds",
                path(kind.gvk)
            )),
        }
    }
    let others = configured.keys().filter(|key| !usable.contains(&***key));
    unused.extend(others.map(|key| why_unusable(kinds, key)));
    let result = match served {
        _ if !faults.is_empty() => Err(Fault::new(Reason::Invalid, faults.join("; "))),
        Some((_, reader, read)) => Ok((reader, read)),
        None => {
            let message = format!(
                "no key of spec.loadBalancer is usable: {}",
                unused.join("; ")
            );
            unused.clear();
            Err(Fault::new(Reason::InvalidKind, message))
        }
    };
    Chosen { result, unused }
}

/// Returns the path of the configuration of a kind.
pub(super) fn path(gvk: &str) -> String {
    format!("spec.loadBalancer[{gvk:?}]")
}

/// Returns the labelled objects of a namespace.
pub(super) fn marked(
    kinds: &[&'static BackendKind],
    snapshot: &Snapshot,
    namespace: &str,
) -> Vec<(&'static LoadBalancerKind, LoadBalancer)> {
    let readers = kinds.iter().filter_map(|kind| kind.load_balancer);
    let of_kind = |reader: &'static LoadBalancerKind| {
        let objects = (reader.marked)(snapshot, namespace).into_iter();
        objects.map(move |object| (reader, object))
    };
    readers.flat_map(of_kind).collect()
}

/// Returns the only labelled object of a namespace.
fn only_marked(
    kinds: &[&'static BackendKind],
    snapshot: &Snapshot,
    namespace: &str,
) -> Result<(&'static LoadBalancerKind, LoadBalancer), Fault> {
    let mut found = marked(kinds, snapshot, namespace);
    let problem = match (found.len(), found.pop()) {
        (1, Some(one)) => return Ok(one),
        (0, _) | (_, None) => {
            let marks = |kind: &&BackendKind| {
                let marks = kind.load_balancer?.marks;
                Some(format!(
                    "no {} of namespace {namespace} has {marks}",
                    kind.name.1
                ))
            };
            let none: Vec<_> = kinds
                .iter()
                .copied()
                .filter_map(|kind| marks(&kind))
                .collect();
            match none.is_empty() {
                true => "no kind of load balancer is enabled".to_owned(),
                false => none.join(", "),
            }
        }
        (_, Some(last)) => {
            found.push(last);
            let names: Vec<_> = found.iter().map(|(_, it)| it.object.to_string()).collect();
            format!("several objects have the label: {}", names.join(", "))
        }
    };
    let message = format!(
        "spec.loadBalancer is missing, and {problem}; kinds that can be named there: {}",
        supported()
    );
    Err(Fault::new(Reason::BackendNotFound, message))
}

fn supported() -> String {
    let kinds: Vec<_> = balancing_kinds().collect();
    kinds.join(", ")
}

fn why_unusable(kinds: &[&'static BackendKind], key: &str) -> String {
    let is_enabled = kinds.iter().any(|kind| kind.gvk == key);
    let why = match backend_kind(key) {
        Some(kind) if kind.load_balancer.is_some() && !is_enabled => {
            "the kind is not enabled; --backend-kinds enables it".to_owned()
        }
        _ => format!(
            "the kind is not supported as a load balancer; supported: {}",
            supported()
        ),
    };
    format!("{} is ignored: {why}", path(key))
}

#[cfg(test)]
mod tests;
