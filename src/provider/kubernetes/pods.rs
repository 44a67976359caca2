//! The namespaces in which Pods are watched: those with a ReleaseBackend or an InferencePool, whose endpoints are derived from
//! Pods. A cluster has more Pods than objects of any other kind, and most of them are irrelevant here. Does no I/O.

use std::collections::{BTreeMap, BTreeSet};

use super::scope::{Scope, is_watched_where_needed};
use crate::api::inference_pool::InferencePool;
use crate::api::release_backend::ReleaseBackend;
use crate::api::{Kind, Resource};
use crate::snapshot::Snapshot;

/// Selects Pods that can get requests: those that have not ended.
const RUNNING: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// Reports whether objects of a kind need the Pods of their namespace.
pub(super) fn needs_pods(kind: &Kind) -> bool {
    let kinds = [
        (ReleaseBackend::GROUP, ReleaseBackend::KIND),
        (InferencePool::GROUP, InferencePool::KIND),
    ];
    kinds.contains(&(kind.group, kind.kind))
}

/// Returns the namespaces whose Pods are needed.
pub(super) fn namespaces(snapshot: &Snapshot) -> BTreeSet<String> {
    let keys = snapshot.release_backends.keys();
    let keys = keys.chain(snapshot.inference_pools.keys());
    keys.map(|key| key.namespace.to_string()).collect()
}

/// Returns the scope of the Pods of a namespace.
pub(super) fn scope(kind: &'static Kind, namespace: &str) -> Scope {
    Scope {
        kind,
        namespace: Some(namespace.to_owned()),
        fields: Some(RUNNING.to_owned()),
    }
}

/// Returns the scopes of all Pods that are needed, if these kinds have them.
pub(super) fn scopes(kinds: &[&'static Kind], snapshot: &Snapshot) -> Vec<Scope> {
    let mut kinds = kinds.iter().copied();
    let Some(kind) = kinds.find(|kind| is_watched_where_needed(kind)) else {
        return Vec::new();
    };
    let needed = namespaces(snapshot);
    let needed = needed.iter().map(|namespace| scope(kind, namespace));
    needed.collect()
}

/// The scopes of Pods, by namespace.
pub(super) struct PodScopes {
    /// `None` if Pods are not watched at all.
    pub(super) kind: Option<&'static Kind>,
    pub(super) numbers: BTreeMap<String, usize>,
    /// Whether the namespaces have to be determined again.
    pub(super) is_outdated: bool,
}

/// A change of the scopes to watch.
pub(super) enum ScopeChange {
    /// The watch of a scope has to start.
    Added(usize, Scope),
    /// The watch of a scope has to end.
    Removed(usize),
}
