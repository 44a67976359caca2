//! Addresses of the cluster's nodes, for Gateways with a NodePort Service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::pin::pin;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;

use super::inventory::WATCH_SECONDS;
use crate::cluster::api_server::describe;

/// Addresses by node name.
type Nodes = BTreeMap<String, Addresses>;

/// Addresses of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Addresses {
    external: Vec<IpAddr>,
    internal: Vec<IpAddr>,
}

/// Publishes the addresses of all ready nodes while polled and `wanted`: the external ones, or the
/// internal ones if no node has an external one.
pub async fn watch_nodes(
    client: &Client,
    mut wanted: watch::Receiver<bool>,
    addresses: &watch::Sender<BTreeSet<IpAddr>>,
) {
    loop {
        if wanted.wait_for(|wanted| *wanted).await.is_err() {
            return;
        }
        tokio::select! {
            _ = wanted.wait_for(|wanted| !wanted) => {}
            () = publish_addresses(client, addresses) => {}
        }
    }
}

async fn publish_addresses(client: &Client, addresses: &watch::Sender<BTreeSet<IpAddr>>) {
    let config = watcher::Config::default().timeout(WATCH_SECONDS);
    let events = watcher::watcher(Api::<Node>::all(client.clone()), config).default_backoff();
    let mut events = pin!(events);
    let (mut nodes, mut listed) = (Nodes::new(), Nodes::new());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(node)) => {
                listed.insert(node.name_any(), of_node(&node));
                continue;
            }
            Ok(Event::InitDone) => nodes = std::mem::take(&mut listed),
            Ok(Event::Apply(node)) => {
                nodes.insert(node.name_any(), of_node(&node));
            }
            Ok(Event::Delete(node)) => {
                nodes.remove(&node.name_any());
            }
            Err(error) => tracing::warn!("cannot watch Nodes: {}", describe(&error)),
        }
        let new = of_all(&nodes);
        addresses.send_if_modified(|addresses| {
            let is_changed = *addresses != new;
            *addresses = new;
            is_changed
        });
    }
}

fn of_all(nodes: &Nodes) -> BTreeSet<IpAddr> {
    let external: BTreeSet<_> = nodes
        .values()
        .flat_map(|node| &node.external)
        .copied()
        .collect();
    if external.is_empty() {
        nodes
            .values()
            .flat_map(|node| &node.internal)
            .copied()
            .collect()
    } else {
        external
    }
}

/// Returns the addresses of a node; none unless it is ready.
fn of_node(node: &Node) -> Addresses {
    let mut addresses = Addresses::default();
    let Some(status) = &node.status else {
        return addresses;
    };
    let mut conditions = status.conditions.iter().flatten();
    if !conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True") {
        return addresses;
    }
    for address in status.addresses.iter().flatten() {
        match (address.type_.as_str(), address.address.parse()) {
            ("ExternalIP", Ok(ip)) => addresses.external.push(ip),
            ("InternalIP", Ok(ip)) => addresses.internal.push(ip),
            _ => {}
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(ready: &str, addresses: &[(&str, &str)]) -> Addresses {
        let addresses = addresses.iter();
        let addresses: Vec<_> = addresses
            .map(|(kind, value)| json!({"type": kind, "address": value}))
            .collect();
        let status =
            json!({"conditions": [{"type": "Ready", "status": ready}], "addresses": addresses});
        of_node(&serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap())
    }

    #[test]
    fn prefers_external_addresses_of_ready_nodes() {
        let inside = ("InternalIP", "10.0.0.1");
        let named = ("Hostname", "node");
        let mut nodes = Nodes::from([
            ("a".to_owned(), node("True", &[inside, named])),
            (
                "b".to_owned(),
                node("False", &[("ExternalIP", "203.0.113.9")]),
            ),
        ]);
        assert_eq!(of_all(&nodes), [IpAddr::from([10, 0, 0, 1])].into());
        nodes.insert(
            "c".to_owned(),
            node("True", &[inside, ("ExternalIP", "203.0.113.1")]),
        );
        assert_eq!(of_all(&nodes), [IpAddr::from([203, 0, 113, 1])].into());
    }
}
