//! Pods as endpoints: their address, whether they may get requests, and what has changed of them. Must not know who selects
//! them.

use std::net::IpAddr;

use crate::api::pod::Pod;
use crate::translate::changes::Changes;
use crate::translate::endpoints::EndpointState;
use crate::translate::input::Input;
use crate::translate::source::Source;

/// Announces the labels by which pods are selected, and pods whose labels are others.
pub(super) fn announce(input: &Input<'_>, changes: &mut Changes) {
    for name in changes.of::<Pod>() {
        let previous = changes.previous::<Pod>(&name);
        let versions = [previous.as_ref(), input.find::<Pod>(&name)];
        let labels = versions.map(|pod| pod.map(|pod| &pod.metadata.labels));
        if labels[0] != labels[1] {
            changes.announce(Source::LabelsOf(name.clone()));
        }
        for (key, value) in labels.into_iter().flatten().flat_map(|all| all.iter()) {
            changes.announce(Source::pods_labelled(&name.namespace, key, value));
        }
    }
}

/// Returns the state of a pod; `None` if it is not ready. Follows the EndpointSlice controller of Kubernetes.
pub(super) fn state(pod: &Pod) -> Option<EndpointState> {
    let is_terminating = pod.metadata.deletion_timestamp.is_some();
    match (pod.status.is_ready, is_terminating) {
        (true, false) => Some(EndpointState::Ready),
        (true, true) => Some(EndpointState::Draining),
        (false, _) => None,
    }
}

/// Returns the first address of a pod; `None` if it has none, or if it has ended.
pub(super) fn address(pod: &Pod) -> Option<IpAddr> {
    if pod.status.has_ended {
        return None;
    }
    let first = pod.status.pod_ips.first().map(|it| it.ip.as_str());
    first.or(pod.status.pod_ip.as_deref())?.parse().ok()
}
