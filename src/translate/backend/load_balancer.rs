//! Load balancers of applications whose endpoints are in releases. A kind of backend that supports this parses its part
//! of `spec.loadBalancer` of a ReleaseBackend, and returns the ports and pods.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::reason::{Fault, Reason};
use super::kind::BackendKind;
use crate::translate::backend::kind::{Kinds, LoadBalancer, LoadBalancerKind};
use crate::translate::input::Input;

/// The load balancer that is used, of those that an object configures.
pub(super) struct Chosen {
    pub(super) result: Result<(&'static LoadBalancerKind, LoadBalancer), Fault>,
    /// Why other configurations are not used.
    pub(super) unused: Vec<String>,
}

/// Selects one of the configurations of an object in `namespace`: the first in the order of `kinds`, which
/// are enabled.
pub(super) fn choose(
    all: Kinds,
    kinds: &[&'static BackendKind],
    input: &Input<'_>,
    namespace: &str,
    configured: &BTreeMap<String, Value>,
) -> Chosen {
    if configured.is_empty() {
        return Chosen {
            result: only_marked(all, kinds, input, namespace),
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
    unused.extend(others.map(|key| why_unusable(all, kinds, key)));
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
    input: &Input<'_>,
    namespace: &str,
) -> Vec<(&'static LoadBalancerKind, LoadBalancer)> {
    let readers = kinds.iter().filter_map(|kind| kind.load_balancer);
    let of_kind = |reader: &'static LoadBalancerKind| {
        let objects = (reader.marked)(input, namespace).into_iter();
        objects.map(move |object| (reader, object))
    };
    readers.flat_map(of_kind).collect()
}

/// Returns the only labelled object of a namespace.
fn only_marked(
    all: Kinds,
    kinds: &[&'static BackendKind],
    input: &Input<'_>,
    namespace: &str,
) -> Result<(&'static LoadBalancerKind, LoadBalancer), Fault> {
    let mut found = marked(kinds, input, namespace);
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
        "spec.loadBalancer is missing, and {problem}; supported kinds: {}",
        supported(all)
    );
    Err(Fault::new(Reason::BackendNotFound, message))
}

fn supported(all: Kinds) -> String {
    let kinds: Vec<_> = all.balancing().collect();
    kinds.join(", ")
}

fn why_unusable(all: Kinds, kinds: &[&'static BackendKind], key: &str) -> String {
    let is_enabled = kinds.iter().any(|kind| kind.gvk == key);
    let why = match all.with_gvk(key) {
        Some(kind) if kind.load_balancer.is_some() && !is_enabled => {
            "the kind is not enabled; --backend-kinds enables it".to_owned()
        }
        _ => format!(
            "the kind is not supported as a load balancer; supported: {}",
            supported(all)
        ),
    };
    format!("{} is ignored: {why}", path(key))
}

#[cfg(test)]
mod tests;
