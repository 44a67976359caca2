//! Translates the output as `check` does. What that finds is a fault of the migration.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::output::Output;
use super::report::Report;
use super::settings::Settings;
use super::work::{HTTP_LISTENER, HTTPS_LISTENER};
use crate::api;
use crate::finding::Severity;
use crate::settings::permissions::{InsecureBackend, Permissions};
use crate::snapshot::Snapshot;
use crate::translate::{Mode, Options, translate};

/// Maximum number of faults that are reported.
const MAX_FAULTS: usize = 20;

/// Checks the output. Objects that it refers to are taken to exist.
pub(super) fn check(output: &Output, settings: &Settings, report: &mut Report) {
    let mut snapshot = Snapshot::default();
    let mut faults = Vec::new();
    for object in output.objects() {
        if let Some(fault) = insert(&mut snapshot, object) {
            faults.push(fault);
        }
    }
    let mut referents = Referents::default();
    for object in output.objects() {
        let namespace = object["metadata"]["namespace"].as_str();
        referents.collect(object, namespace.unwrap_or_default());
    }
    for object in referents.objects(settings) {
        if let Some(fault) = insert(&mut snapshot, &object) {
            faults.push(fault);
        }
    }
    let options = Options {
        mode: Mode::Standalone,
        permissions: Permissions {
            insecure_backend: InsecureBackend::SkipVerify,
            ..Permissions::default()
        },
        ..Options::default()
    };
    let translation = translate(&snapshot, None, &options);
    for (object, problem) in translation.report.problems() {
        faults.push(format!("{object}: {problem}"));
    }
    let count = faults.len();
    report.faults.extend(faults.into_iter().take(MAX_FAULTS));
    if count > MAX_FAULTS {
        report
            .faults
            .push(format!("and {} more", count - MAX_FAULTS));
    }
}

fn insert(snapshot: &mut Snapshot, object: &Value) -> Option<String> {
    let mut object = object.clone();
    if object["kind"] == "Gateway" {
        // Any class may be the class of the controller.
        object["spec"]["gatewayClassName"] = json!("portcullis");
    }
    let id = format!(
        "{} {}/{}",
        object["kind"].as_str().unwrap_or_default(),
        object["metadata"]["namespace"].as_str().unwrap_or_default(),
        object["metadata"]["name"].as_str().unwrap_or_default()
    );
    let admission = api::admit(object);
    let errors = admission.findings.iter();
    let mut errors = errors.filter(|it| it.severity == Severity::Error);
    if let Some(error) = errors.next() {
        return Some(format!("{id}: {}: {}", error.field, error.message));
    }
    if let Some(name) = &admission.id
        && snapshot.object(name).is_some()
    {
        return Some(format!("{id} is written twice"));
    }
    snapshot.insert(admission.object?);
    None
}

/// Objects that the output refers to and does not have.
#[derive(Default)]
struct Referents {
    /// Ports of Services, by namespace and name.
    ports: BTreeSet<(String, String, u16)>,
    /// Names of ports.
    names: BTreeSet<(String, String, String)>,
    services: BTreeSet<(String, String)>,
    secrets: BTreeSet<(String, String)>,
    certificates: BTreeSet<(String, String)>,
    authorities: BTreeSet<(String, String)>,
}

impl Referents {
    fn collect(&mut self, value: &Value, namespace: &str) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.collect(item, namespace)),
            Value::Object(map) => {
                for (key, item) in map {
                    match key.as_str() {
                        "backendRefs" => {
                            let refs = item.as_array().into_iter().flatten();
                            refs.for_each(|it| self.backend(it, namespace));
                        }
                        "backendRef" => self.backend(item, namespace),
                        "targetRefs" => {
                            let refs = item.as_array().into_iter().flatten();
                            refs.for_each(|it| self.target(it, namespace));
                        }
                        "secretRef" => {
                            self.secrets.insert(referent(item, namespace));
                        }
                        "certificateRefs" | "caCertificateRefs" => {
                            let names = item.as_array().into_iter().flatten();
                            let names = names.map(|it| referent(it, namespace));
                            match key.as_str() {
                                "certificateRefs" => self.certificates.extend(names),
                                _ => self.authorities.extend(names),
                            }
                        }
                        _ => self.collect(item, namespace),
                    }
                }
            }
            _ => {}
        }
    }

    fn backend(&mut self, reference: &Value, namespace: &str) {
        let port = reference["port"]
            .as_u64()
            .and_then(|it| u16::try_from(it).ok());
        let (namespace, name) = referent(reference, namespace);
        self.services.insert((namespace.clone(), name.clone()));
        if let Some(port) = port {
            self.ports.insert((namespace, name, port));
        }
    }

    fn target(&mut self, reference: &Value, namespace: &str) {
        if reference["kind"] == "Service" {
            let name = reference["name"].as_str().unwrap_or_default();
            let service = (namespace.to_owned(), name.to_owned());
            self.services.insert(service.clone());
            if let Some(port) = reference["sectionName"].as_str() {
                self.names.insert((service.0, service.1, port.to_owned()));
            }
        }
    }

    /// Returns stand-ins for these objects, and for a Gateway that exists.
    fn objects(mut self, settings: &Settings) -> Vec<Value> {
        let mut objects = self.service_objects();
        for (namespace, name) in &self.secrets {
            // SHA-1 of an empty password: only the syntax counts here.
            let lines = "user:{SHA}2jmj7l5rSw0yVb/vlWAYkK/YBwk=";
            objects.push(json!({
                "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
                "metadata": {"name": name, "namespace": namespace},
                "stringData": {"auth": lines},
            }));
        }
        if settings.gateway_class.is_none() {
            let gateway = &settings.gateway;
            let secret = (gateway.namespace.clone(), "stand-in".to_owned());
            objects.push(gateway_object(settings, &secret.1));
            self.certificates.insert(secret);
        }
        objects.extend(self.certificate_objects());
        objects
    }

    /// Returns Secrets and ConfigMaps with a certificate that is made for this.
    fn certificate_objects(&self) -> Vec<Value> {
        if self.certificates.is_empty() && self.authorities.is_empty() {
            return Vec::new();
        }
        let names = vec!["stand-in.example.com".to_owned()];
        let Ok(made) = rcgen::generate_simple_self_signed(names) else {
            return Vec::new();
        };
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let secrets = self.certificates.iter().map(|(namespace, name)| {
            json!({
                "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
                "metadata": {"name": name, "namespace": namespace},
                "stringData": {"tls.crt": certificate, "tls.key": key},
            })
        });
        let maps = self.authorities.iter().map(|(namespace, name)| {
            json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": namespace},
                "data": {"ca.crt": certificate},
            })
        });
        secrets.chain(maps).collect()
    }

    fn service_objects(&self) -> Vec<Value> {
        let mut objects = Vec::new();
        for (namespace, name) in &self.services {
            let of = |it: &&(String, String, u16)| it.0 == *namespace && it.1 == *name;
            let numbers: Vec<u16> = self.ports.iter().filter(of).map(|it| it.2).collect();
            let named = |it: &&(String, String, String)| it.0 == *namespace && it.1 == *name;
            let mut names = self.names.iter().filter(named).map(|it| it.2.clone());
            let mut ports: Vec<Value> = Vec::new();
            for number in numbers {
                let name = names.next().unwrap_or_else(|| format!("port-{number}"));
                ports.push(json!({"name": name, "port": number}));
            }
            for (index, name) in names.enumerate() {
                ports.push(json!({"name": name, "port": 60_000 + index}));
            }
            if ports.is_empty() {
                ports.push(json!({"name": "any", "port": 80}));
            }
            objects.push(json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"ports": ports},
            }));
        }
        objects
    }
}

/// Returns what a reference is to.
fn referent(reference: &Value, namespace: &str) -> (String, String) {
    let of = reference["namespace"].as_str().unwrap_or(namespace);
    let name = reference["name"].as_str().unwrap_or_default();
    (of.to_owned(), name.to_owned())
}

/// Returns the Gateway that exists, as the migration takes it to be.
fn gateway_object(settings: &Settings, certificate: &str) -> Value {
    let all = json!({"namespaces": {"from": "All"}});
    let refs = json!([{"name": certificate}]);
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": settings.gateway.name, "namespace": settings.gateway.namespace},
        "spec": {
            "gatewayClassName": "portcullis",
            "allowedListeners": all,
            "listeners": [
                {"name": HTTP_LISTENER, "port": 80, "protocol": "HTTP", "allowedRoutes": all},
                {"name": HTTPS_LISTENER, "port": 443, "protocol": "HTTPS", "allowedRoutes": all,
                    "tls": {"certificateRefs": refs}},
            ],
        },
    })
}
