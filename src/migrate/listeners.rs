//! The Gateway, and the listeners of hosts with TLS: in a ListenerSet of the namespace that has the certificate, so that
//! certificates need no grants and stay with their owners.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::hosts::{Certificate, Host};
use super::hsts;
use super::model::Name;
use super::output::File;
use super::settings::Settings;
use super::work::{HTTP_LISTENER, HTTPS_LISTENER, Work};

/// Maximum number of listeners of a ListenerSet.
const MAX_LISTENERS: usize = 64;

/// The object that has the TLS listener of a host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TlsParent {
    /// A ListenerSet.
    ListenerSet(Name),
    /// The HTTPS listener of the Gateway.
    Gateway,
}

/// The TLS listeners of all hosts.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    hosts: BTreeMap<String, TlsParent>,
}

impl Listeners {
    pub(super) fn get(&self, host: &str) -> Option<&TlsParent> {
        self.hosts.get(host)
    }

    /// Plans the listeners, and writes them.
    pub(super) fn write(work: &mut Work<'_>, extra: &BTreeMap<String, Certificate>) -> Self {
        let mut sets: BTreeMap<String, Vec<(String, Value)>> = BTreeMap::new();
        let mut listeners = Self::default();
        let mut with_default = false;
        for (name, host) in work.hosts.iter() {
            if let Some(Certificate::Default) = host.certificate {
                with_default = true;
                listeners.hosts.insert(name.clone(), TlsParent::Gateway);
            }
            if let Some((namespace, listener)) = tls_listener(name, host) {
                sets.entry(namespace)
                    .or_default()
                    .push((name.clone(), listener));
            }
        }
        for (name, certificate) in extra {
            match certificate {
                Certificate::Default => {
                    listeners.hosts.insert(name.clone(), TlsParent::Gateway);
                }
                Certificate::Secret(secret) => {
                    let own = BTreeSet::from([&*secret.namespace]);
                    let listener = terminating(name, secret, &own);
                    let set = sets.entry(secret.namespace.clone()).or_default();
                    set.push((name.clone(), listener));
                }
            }
        }
        for (namespace, all) in sets {
            for (index, chunk) in all.chunks(MAX_LISTENERS).enumerate() {
                let gateway = &work.settings.gateway;
                let suffix = match index {
                    0 => String::new(),
                    index => format!("-{}", index + 1),
                };
                let set = Name::new(&namespace, &format!("{}{suffix}", gateway.name));
                for (host, _) in chunk {
                    let parent = TlsParent::ListenerSet(set.clone());
                    listeners.hosts.insert(host.clone(), parent);
                }
                write_set(work, &set, chunk);
            }
        }
        if work.settings.gateway_class.is_some() {
            write_gateway(work, with_default);
        }
        listeners
    }
}

/// Returns the listener of a host in a ListenerSet, with the namespace.
fn tls_listener(name: &str, host: &Host) -> Option<(String, Value)> {
    let users: BTreeSet<&str> = host.ingresses.iter().map(|it| &*it.namespace).collect();
    if let Some(owner) = &host.passthrough {
        let mut listener = listener(name, "TLS");
        listener["tls"] = json!({"mode": "Passthrough"});
        return Some((owner.namespace.clone(), listener));
    }
    let Some(Certificate::Secret(secret)) = &host.certificate else {
        return None;
    };
    Some((secret.namespace.clone(), terminating(name, secret, &users)))
}

fn terminating(name: &str, secret: &Name, users: &BTreeSet<&str>) -> Value {
    let mut listener = listener(name, "HTTPS");
    listener["tls"] = json!({"certificateRefs": [{"name": secret.name}]});
    if users.iter().any(|user| *user != secret.namespace) {
        let names: BTreeSet<&str> = users.iter().copied().chain([&*secret.namespace]).collect();
        let selector = json!({
            "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": names}],
        });
        listener["allowedRoutes"] =
            json!({"namespaces": {"from": "Selector", "selector": selector}});
    }
    listener
}

fn listener(host: &str, protocol: &str) -> Value {
    let name = match host.strip_prefix("*.") {
        Some(below) => format!("wildcard.{below}"),
        None if host.is_empty() => HTTPS_LISTENER.to_owned(),
        None => host.to_owned(),
    };
    let mut listener = json!({"name": name, "port": 443, "protocol": protocol});
    if !host.is_empty() {
        listener["hostname"] = json!(host);
    }
    listener
}

fn write_set(work: &mut Work<'_>, set: &Name, listeners: &[(String, Value)]) {
    let Settings { gateway, .. } = work.settings;
    let listeners: Vec<&Value> = listeners.iter().map(|(_, listener)| listener).collect();
    let file = File::Namespace(set.namespace.clone());
    let parent = json!({"name": gateway.name, "namespace": gateway.namespace});
    let spec = json!({"parentRef": parent, "listeners": listeners});
    work.output.gateway_api(&file, "ListenerSet", set, spec);
    if let Some(value) = &work.controller.hsts {
        let target =
            json!({"group": "gateway.networking.k8s.io", "kind": "ListenerSet", "name": set.name});
        let spec = json!({"targetRefs": [target], "responseHeaders": hsts::section(value)});
        // An Ingress of the namespace may have the name of the ListenerSet.
        let name = Name::new(&set.namespace, &format!("{}-hsts", set.name));
        work.output.policy(&file, "RoutePolicy", &name, spec);
    }
}

fn write_gateway(work: &mut Work<'_>, with_default: bool) {
    let Settings {
        gateway,
        gateway_class,
        default_certificate,
        ..
    } = work.settings;
    let all = json!({"namespaces": {"from": "All"}});
    let mut listeners =
        vec![json!({"name": HTTP_LISTENER, "port": 80, "protocol": "HTTP", "allowedRoutes": all})];
    if let (true, Some(secret)) = (with_default, default_certificate) {
        let mut certificate = json!({"name": secret.name});
        if secret.namespace != gateway.namespace {
            certificate["namespace"] = json!(secret.namespace);
            let from = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": gateway.namespace});
            let to = json!({"group": "", "kind": "Secret", "name": secret.name});
            let grant = Name::new(&secret.namespace, &format!("{}-certificate", gateway.name));
            let spec = json!({"from": [from], "to": [to]});
            work.output
                .gateway_api(&File::Gateway, "ReferenceGrant", &grant, spec);
        }
        listeners.push(json!({
            "name": HTTPS_LISTENER, "port": 443, "protocol": "HTTPS", "allowedRoutes": all,
            "tls": {"certificateRefs": [certificate]},
        }));
    }
    let spec = json!({
        "gatewayClassName": gateway_class,
        "allowedListeners": {"namespaces": {"from": "All"}},
        "listeners": listeners,
    });
    work.output
        .gateway_api(&File::Gateway, "Gateway", gateway, spec);
    write_policies(work);
}

/// Writes what ingress-nginx does for all hosts.
fn write_policies(work: &mut Work<'_>) {
    let gateway = &work.settings.gateway;
    let controller = work.controller;
    let target =
        json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": gateway.name});
    let mut client = json!({"targetRefs": [target]});
    for (section, value) in &controller.client {
        client[section] = value.clone();
    }
    let name = Name::new(&gateway.namespace, &format!("{}-defaults", gateway.name));
    work.output
        .policy(&File::Gateway, "ClientPolicy", &name, client);
    let mut route =
        json!({"targetRefs": [target], "requestBody": {"maxSize": controller.body_size}});
    if let Some(idle) = &controller.stream_idle {
        route["timeouts"] = json!({"streamIdle": idle});
    }
    if !controller.encodings.is_empty() {
        route["compression"] = json!({"encodings": controller.encodings});
    }
    work.output
        .policy(&File::Gateway, "RoutePolicy", &name, route);
}
