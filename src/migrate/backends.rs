//! The policies of Services, which all Ingresses of a Service share: sessions, load balancing, connections, TLS.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::canary::Canaries;
use super::hosts::{is_grpc, main_ingresses};
use super::model::{Backend, Ingress, Name};
use super::output::File;
use super::report::Outcome::{ChangedMeaning, Converted, DefaultAlready, NotPossible};
use super::sessions;
use super::values::Values;
use super::work::Work;

/// Policies of Services, before they are written.
#[derive(Debug, Default)]
pub(super) struct ServicePolicies {
    /// Sections of the BackendPolicy of each Service, each with the Ingress that it is from.
    sections: BTreeMap<Name, BTreeMap<&'static str, (Value, Name)>>,
    /// Policies on TLS: kind and spec without targets, by Service and name of the port.
    tls: BTreeMap<(Name, Option<String>), (&'static str, Value, Name)>,
    /// Ports that get requests without TLS: the Ingress, the Service and the name of the port.
    plain: Vec<(Name, Name, Option<String>)>,
}

/// Permission of the operator that backends without verification need.
const UNVERIFIED: &str = "BackendTLSOverrides with insecureSkipVerify: the certificates of these backends are NOT verified, as in ingress-nginx. \
     Requests get 500 until the operator permits it with --allow-insecure-backend skip-verify (permissions.insecureBackend of the chart); \
     a BackendTLSPolicy that verifies is better.";

impl ServicePolicies {
    /// Adds what an Ingress says about its Services, and those of its canaries.
    pub(super) fn add(&mut self, work: &mut Work<'_>, ingress: &Ingress, canaries: &Canaries<'_>) {
        let of_canaries = canaries.backends(work.hosts, ingress);
        let backends: Vec<&Backend> = own_backends(ingress).chain(of_canaries).collect();
        let services = services(&backends);
        let mut sections: Vec<(&'static str, Value)> = Vec::new();
        if let Some(value) = sessions::persistence(work, ingress) {
            sections.push(("sessionPersistence", value));
        }
        if let Some(value) = load_balancing(work, ingress) {
            sections.push(("loadBalancing", value));
        }
        if let Some(value) = connection(work, ingress) {
            sections.push(("connection", value));
        }
        for service in &services {
            for (section, value) in &sections {
                self.set(work, ingress, service, section, value);
            }
        }
        if Values(ingress).has("service-upstream") {
            let (outcome, text) = match Values(ingress).flag("service-upstream") {
                Some(true) => (
                    ChangedMeaning,
                    "requests go to the endpoints of the Service, and not to its address",
                ),
                _ => (
                    DefaultAlready,
                    "requests go to the endpoints of the Service",
                ),
            };
            work.say(ingress, "service-upstream", outcome, text);
        }
        self.add_tls(work, ingress, &backends);
    }

    fn set(
        &mut self,
        work: &mut Work<'_>,
        ingress: &Ingress,
        service: &str,
        section: &'static str,
        value: &Value,
    ) {
        let name = Name::new(&ingress.name.namespace, service);
        let of_service = self.sections.entry(name.clone()).or_default();
        match of_service.get(section) {
            Some((known, owner)) if known != value => {
                let text = format!(
                    "BackendPolicy {name} has {section} of Ingress {owner}, which has other values for the same Service"
                );
                work.say(ingress, section, ChangedMeaning, text);
            }
            Some(_) => {}
            None => {
                of_service.insert(section, (value.clone(), ingress.name.clone()));
            }
        }
    }

    fn add_tls(&mut self, work: &mut Work<'_>, ingress: &Ingress, backends: &[&Backend]) {
        let values = Values(ingress);
        let protocol = values.text("backend-protocol").unwrap_or_default();
        let protocol = protocol.to_ascii_uppercase();
        let namespace = &ingress.name.namespace;
        let ports = service_ports(work, namespace, backends);
        if !matches!(protocol.as_str(), "HTTPS" | "GRPCS") {
            let plain = ports.into_iter().map(|(service, port)| {
                (ingress.name.clone(), Name::new(namespace, &service), port)
            });
            // TLS that is passed through is that of the client.
            if values.flag("ssl-passthrough") != Some(true) {
                self.plain.extend(plain);
            }
            report_unused_tls(work, ingress);
            return;
        }
        let is_verified = values.text("proxy-ssl-verify") == Some("on");
        let host = values.text("proxy-ssl-name").map(str::to_ascii_lowercase);
        let is_name = |host: &String| {
            super::read::is_dns_name(host) && host.contains(|it: char| it.is_ascii_alphabetic())
        };
        let host = host.filter(is_name);
        let secret = values.text("proxy-ssl-secret");
        let secret = secret.map(|text| Name::parse(text, &ingress.name.namespace));
        // A name that no Secret has stands for one that does not exist.
        let secret = secret.map(|name| match super::read::is_object(&name) {
            true => name,
            false => Name::new(&ingress.name.namespace, "missing"),
        });
        for (service, port) in ports {
            let name = Name::new(&ingress.name.namespace, &service);
            let host = host
                .clone()
                .unwrap_or_else(|| format!("{service}.{}.svc", name.namespace));
            let mut spec = json!({"validation": {"hostname": host}});
            let kind = match (&secret, is_verified) {
                (Some(secret), true) => {
                    let map = json!({"group": "", "kind": "ConfigMap", "name": format!("{}-ca", secret.name)});
                    spec["validation"]["caCertificateRefs"] = json!([map]);
                    "BackendTLSPolicy"
                }
                (None, true) => {
                    spec["validation"]["wellKnownCACertificates"] = json!("System");
                    "BackendTLSPolicy"
                }
                (_, false) => {
                    spec["validation"]["insecureSkipVerify"] = json!(true);
                    "BackendTLSOverride"
                }
            };
            if is_grpc(ingress) {
                spec["options"] = json!({"portcullis.dev/alpn": "h2"});
            }
            let key = (name, port);
            let entry = (kind, spec, ingress.name.clone());
            let known = self.tls.entry(key).or_insert_with(|| entry.clone());
            if known.1 != entry.1 {
                let text = format!(
                    "the policy on TLS to Service {service} is that of Ingress {}",
                    known.2
                );
                work.say(ingress, "proxy-ssl-secret", ChangedMeaning, text);
            }
        }
        report_tls(work, ingress, secret.as_ref(), is_verified);
    }

    /// Reports requests that get TLS or sessions because another Ingress asks for them: policies are for a Service, where
    /// annotations are for paths. Also reports those that get no TLS where the Service declares it.
    fn report_shared(&self, work: &mut Work<'_>, used: &BTreeSet<Name>) {
        let plain = self.plain.iter();
        for (ingress, service, port) in plain.filter(|(_, service, _)| used.contains(service)) {
            let known = work.source.services.get(service);
            let of_port = self.tls.get(&(service.clone(), port.clone()));
            let Some((kind, _, owner)) = of_port else {
                let mut ports = known.into_iter().flat_map(|it| &it.ports);
                let declared = ports.find(|it| it.name == *port);
                let protocol = declared.and_then(|it| it.app_protocol.as_deref());
                if let Some(protocol) = protocol.filter(|it| needs_tls(it)) {
                    let text = format!(
                        "Service {service} has appProtocol {protocol}, which ingress-nginx ignores: requests get 500 until a BackendTLSPolicy is for it, or the appProtocol is removed"
                    );
                    let setting = "backend-protocol";
                    work.report.ingress(ingress, setting, NotPossible, text);
                }
                continue;
            };
            let (outcome, text) = match known.is_some() {
                true => (
                    ChangedMeaning,
                    format!(
                        "the {kind} of Ingress {owner} is for this port of Service {service}, so that requests have TLS"
                    ),
                ),
                false => (
                    NotPossible,
                    format!(
                        "the {kind} of Ingress {owner} is for all ports of Service {service}, which is not in the input, so that requests have TLS: add the Service, and migrate again"
                    ),
                ),
            };
            let setting = "backend-protocol";
            work.report.ingress(ingress, setting, outcome, text);
        }
        let source = work.source;
        let without = |it: &&Ingress| Values(it).text("affinity") != Some("cookie");
        for ingress in main_ingresses(source).filter(without) {
            let backends: Vec<&Backend> = own_backends(ingress).collect();
            for service in services(&backends) {
                let name = Name::new(&ingress.name.namespace, &service);
                let sections = self.sections.get(&name);
                let session = sections.and_then(|it| it.get("sessionPersistence"));
                if let Some((_, owner)) = session {
                    let text =
                        format!("Service {name} has the sessions of Ingress {owner} here too");
                    work.say(ingress, "affinity", ChangedMeaning, text);
                }
            }
        }
    }

    /// Writes the policies.
    pub(super) fn write(self, work: &mut Work<'_>) {
        let used = used(work);
        self.report_shared(work, &used);
        let mut sections = self.sections;
        if let Some(timeout) = work.controller.connect_timeout {
            let names = work.source.ingresses.iter().flat_map(|ingress| {
                let namespace = &ingress.name.namespace;
                let backends: Vec<&Backend> = own_backends(ingress).collect();
                let names = services(&backends).into_iter();
                names.map(move |service| Name::new(namespace, &service))
            });
            for name in names {
                let value = json!({"connectTimeout": connect_timeout(timeout)});
                let of_service = sections.entry(name).or_default();
                of_service
                    .entry("connection")
                    .or_insert((value, Name::default()));
            }
        }
        for (name, of_service) in sections.into_iter().filter(|(name, _)| used.contains(name)) {
            let target = json!({"group": "", "kind": "Service", "name": name.name});
            let mut spec = Map::from_iter([("targetRefs".to_owned(), json!([target]))]);
            for (section, (value, _)) in of_service {
                spec.insert(section.to_owned(), value);
            }
            let file = File::Namespace(name.namespace.clone());
            work.output
                .policy(&file, "BackendPolicy", &name, spec.into());
        }
        for ((service, port), (kind, mut spec, _)) in self.tls {
            if !used.contains(&service) {
                continue;
            }
            let mut target = json!({"group": "", "kind": "Service", "name": service.name});
            let mut name = service.clone();
            if let Some(port) = port {
                name.name = format!("{}-{port}", service.name);
                target["sectionName"] = json!(port);
            }
            spec["targetRefs"] = json!([target]);
            let file = File::Namespace(service.namespace.clone());
            match kind {
                "BackendTLSPolicy" => work.output.gateway_api(&file, kind, &name, spec),
                _ => work.output.policy(&file, kind, &name, spec),
            }
        }
    }
}

/// Returns the Services that routes send requests to. Redirects need no others.
fn used(work: &Work<'_>) -> BTreeSet<Name> {
    let mut used = BTreeSet::new();
    for object in work.output.objects() {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let rules = object["spec"]["rules"].as_array().into_iter().flatten();
        for reference in rules
            .flat_map(|rule| rule["backendRefs"].as_array())
            .flatten()
        {
            let name = reference["name"].as_str().unwrap_or_default();
            used.insert(Name::new(namespace, name));
        }
    }
    used
}

/// Reports whether a port with this `appProtocol` gets no plain text.
fn needs_tls(protocol: &str) -> bool {
    let names = ["https", "tls", "wss", "kubernetes.io/wss"];
    names.iter().any(|it| protocol.eq_ignore_ascii_case(it))
}

/// Returns the backends of the paths of an Ingress, and that of other requests.
fn own_backends(ingress: &Ingress) -> impl Iterator<Item = &Backend> {
    let paths = ingress.rules.iter().flat_map(|rule| &rule.paths);
    let backends = paths.map(|path| &path.backend);
    backends.chain(&ingress.default_backend)
}

/// Returns the Services among backends, each once.
fn services(backends: &[&Backend]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for backend in backends {
        if let Backend::Service { name, .. } = backend
            && !found.contains(name)
        {
            found.push(name.clone());
        }
    }
    found
}

/// Returns the Services among backends with the names of their ports, where the input has them. A port that is not known gets
/// no requests.
fn service_ports(
    work: &Work<'_>,
    namespace: &str,
    backends: &[&Backend],
) -> Vec<(String, Option<String>)> {
    let mut found = Vec::new();
    for backend in backends {
        let Backend::Service { name, port } = backend else {
            continue;
        };
        let Some(number) = work.source.port(namespace, name, port) else {
            continue;
        };
        let declared = work.source.declared(namespace, name, number);
        let entry = (name.clone(), declared.and_then(|port| port.name.clone()));
        if !found.contains(&entry) {
            found.push(entry);
        }
    }
    found
}

fn load_balancing(work: &mut Work<'_>, ingress: &Ingress) -> Option<Value> {
    let values = Values(ingress);
    let hash = values.text("upstream-hash-by");
    let balance = values.text("load-balance");
    if let Some(hash) = hash {
        if balance.is_some() {
            let text = "upstream-hash-by takes precedence";
            work.say(ingress, "load-balance", DefaultAlready, text);
        }
        let Some(key) = hash_key(hash) else {
            let text = format!("`{hash}` is no key of consistentHash: requests are spread by load");
            work.say(ingress, "upstream-hash-by", NotPossible, text);
            return None;
        };
        let text = "BackendPolicy loadBalancing.consistentHash";
        work.say(ingress, "upstream-hash-by", Converted, text);
        return Some(json!({"type": "ConsistentHash", "consistentHash": {"key": [key]}}));
    }
    match balance? {
        "round_robin" => {
            work.say(
                ingress,
                "load-balance",
                Converted,
                "BackendPolicy loadBalancing.type",
            );
            Some(json!({"type": "RoundRobin"}))
        }
        "ewma" | "least_conn" => {
            work.say(
                ingress,
                "load-balance",
                DefaultAlready,
                "by requests in progress",
            );
            None
        }
        other => {
            let text = format!("`{other}` does not exist: requests are spread by load");
            work.say(ingress, "load-balance", ChangedMeaning, text);
            None
        }
    }
}

fn hash_key(text: &str) -> Option<Value> {
    let text = text.trim_matches('"');
    let variable = text.strip_prefix('$')?;
    let variable = variable.trim_start_matches('{').trim_end_matches('}');
    let is_name = |name: &str| {
        !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    match variable {
        "remote_addr" | "binary_remote_addr" | "the_real_ip" => Some(json!({"type": "ClientIP"})),
        "host" | "http_host" | "best_http_host" => Some(json!({"type": "Hostname"})),
        other => {
            if let Some(name) = other.strip_prefix("http_").filter(|it| is_name(it)) {
                return Some(json!({"type": "Header", "name": name.replace('_', "-")}));
            }
            let name = other.strip_prefix("cookie_").filter(|it| is_name(it))?;
            Some(json!({"type": "Cookie", "name": name}))
        }
    }
}

fn connection(work: &mut Work<'_>, ingress: &Ingress) -> Option<Value> {
    let number = Values(ingress).number("proxy-connect-timeout", &mut work.report)?;
    let (outcome, text) = match (1..=60).contains(&number) {
        true => (Converted, "BackendPolicy connection.connectTimeout"),
        false => (
            ChangedMeaning,
            "BackendPolicy connection.connectTimeout, at most 1m",
        ),
    };
    work.say(ingress, "proxy-connect-timeout", outcome, text);
    Some(json!({"connectTimeout": connect_timeout(number)}))
}

fn connect_timeout(number: u64) -> String {
    format!("{}s", number.clamp(1, 60))
}

fn report_unused_tls(work: &mut Work<'_>, ingress: &Ingress) {
    for name in [
        "proxy-ssl-secret",
        "proxy-ssl-name",
        "proxy-ssl-verify",
        "proxy-ssl-server-name",
    ] {
        if Values(ingress).has(name) {
            let text = "without backend-protocol HTTPS, requests are sent in plain text";
            work.say(ingress, name, DefaultAlready, text);
        }
    }
}

fn report_tls(work: &mut Work<'_>, ingress: &Ingress, secret: Option<&Name>, is_verified: bool) {
    let values = Values(ingress);
    if is_verified {
        let (outcome, text) = match secret {
            Some(_) => (
                Converted,
                "BackendTLSPolicy: certificates of backends are verified",
            ),
            None => (
                ChangedMeaning,
                "BackendTLSPolicy: certificates of backends are verified by the authorities of the system; ingress-nginx verifies none without proxy-ssl-secret",
            ),
        };
        work.say(ingress, "backend-protocol", outcome, text);
        work.say(ingress, "proxy-ssl-verify", outcome, text);
    } else {
        work.report.notice(UNVERIFIED);
        let text = "BackendTLSOverride with insecureSkipVerify: certificates of backends are NOT verified, and the operator must permit it with --allow-insecure-backend skip-verify";
        work.say(ingress, "backend-protocol", ChangedMeaning, text);
        if values.has("proxy-ssl-verify") {
            work.say(ingress, "proxy-ssl-verify", Converted, text);
        }
    }
    if let Some(secret) = secret {
        let (outcome, text) = match is_verified {
            true => (
                NotPossible,
                format!(
                    "create ConfigMap {0}/{1}-ca with ca.crt of Secret {secret}: requests get 500 until then. A client certificate is spec.tls.backend of the Gateway",
                    ingress.name.namespace, secret.name
                ),
            ),
            false => (
                NotPossible,
                format!(
                    "a client certificate for backends is spec.tls.backend of the Gateway, with Secret {secret}"
                ),
            ),
        };
        work.say(ingress, "proxy-ssl-secret", outcome, text);
    }
    if values.has("proxy-ssl-name") {
        let text = "hostname of the policy on TLS to the backend";
        work.say(ingress, "proxy-ssl-name", Converted, text);
    }
    if values.has("proxy-ssl-server-name") {
        let text = "backends get the hostname of the policy as SNI";
        work.say(ingress, "proxy-ssl-server-name", ChangedMeaning, text);
    }
}
