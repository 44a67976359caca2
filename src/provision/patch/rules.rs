//! What a patch must not set: what pods need to serve their Gateway, what they are permitted by other fields of
//! GatewayParameters, and what the controller uses to find its objects again.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::patched::{DELETE, DIRECTIVE, Patched, REPLACE};

/// Why a field is refused.
const OWNED: &str = "belongs to the controller";
const SECURITY: &str = "is a security setting of the controller";
const LISTENERS: &str = "belongs to the listeners of the Gateway";
/// The volumes with the token and the keys of pods, which only the container of the proxy mounts.
const CREDENTIALS: [&str; 2] = ["controller", "state"];

/// The fields of that container.
const CONTAINER: &str = "spec.template.spec.containers[portcullis].";
/// Its mounts.
const MOUNTS: &str = "spec.template.spec.containers[portcullis].volumeMounts[";
/// Below this directory the image has no files, as for `workload.volumeMounts`.
const MOUNTED: &str = "/mnt/";
/// The field of probes and hooks with a command.
const COMMAND: &str = "exec";

/// The volumes of pods.
const VOLUMES: &str = "spec.template.spec.volumes[";

/// Fields of workloads that patches must not set, nor anything below, and why.
const OF_WORKLOADS: &[(&str, &str)] = &[
    ("apiVersion", OWNED),
    ("kind", OWNED),
    ("metadata", OWNED),
    ("status", OWNED),
    ("spec.selector", OWNED),
    (
        "spec.replicas",
        "is set by workload.replicas or autoscaling",
    ),
    (
        "spec.template.metadata",
        "is set by workload.labels and workload.annotations",
    ),
    ("spec.template.spec.serviceAccountName", OWNED),
    ("spec.template.spec.serviceAccount", OWNED),
    ("spec.template.spec.automountServiceAccountToken", SECURITY),
    ("spec.template.spec.securityContext", SECURITY),
    (
        "spec.template.spec.hostNetwork",
        "is set by workload.hostNetwork",
    ),
    ("spec.template.spec.hostPID", SECURITY),
    ("spec.template.spec.hostIPC", SECURITY),
    ("spec.template.spec.shareProcessNamespace", SECURITY),
    ("spec.template.spec.ephemeralContainers", OWNED),
    ("spec.template.spec.nodeName", "bypasses the scheduler"),
    (
        "spec.template.spec.nodeSelector",
        "is set by workload.nodeSelector",
    ),
    (
        "spec.template.spec.tolerations",
        "is set by workload.tolerations",
    ),
    (
        "spec.template.spec.priorityClassName",
        "is set by workload.priorityClassName",
    ),
    (
        "spec.template.spec.priority",
        "is set by workload.priorityClassName",
    ),
    (
        "spec.template.spec.containers[portcullis].image",
        "is set by workload.image",
    ),
    ("spec.template.spec.containers[portcullis].command", OWNED),
    ("spec.template.spec.containers[portcullis].args", OWNED),
    (
        "spec.template.spec.containers[portcullis].securityContext",
        SECURITY,
    ),
    (
        "spec.template.spec.containers[portcullis].env",
        "is set by workload.env",
    ),
    (
        "spec.template.spec.containers[portcullis].envFrom",
        "could set what the controller sets: use workload.env",
    ),
    (
        "spec.template.spec.containers[portcullis].ports[19000]",
        OWNED,
    ),
    (
        "spec.template.spec.containers[portcullis].volumeMounts[/var/run/portcullis/controller]",
        OWNED,
    ),
    (
        "spec.template.spec.containers[portcullis].volumeMounts[/var/lib/portcullis]",
        OWNED,
    ),
    ("spec.template.spec.volumes[controller]", OWNED),
    ("spec.template.spec.volumes[state]", OWNED),
];

/// The same for Services.
const OF_SERVICES: &[(&str, &str)] = &[
    ("apiVersion", OWNED),
    ("kind", OWNED),
    ("metadata", OWNED),
    ("status", OWNED),
    ("spec.selector", OWNED),
    ("spec.type", "is set by service.type"),
    ("spec.clusterIP", OWNED),
    ("spec.clusterIPs", OWNED),
    ("spec.externalName", OWNED),
    (
        "spec.loadBalancerIP",
        "is set by spec.addresses of the Gateway",
    ),
    (
        "spec.loadBalancerClass",
        "is set by service.loadBalancerClass",
    ),
    (
        "spec.loadBalancerSourceRanges",
        "is set by service.loadBalancerSourceRanges",
    ),
    (
        "spec.externalTrafficPolicy",
        "is set by service.externalTrafficPolicy",
    ),
    ("spec.ipFamilies", "is set by service.ipFamilies"),
    ("spec.ipFamilyPolicy", "is set by service.ipFamilyPolicy"),
    // Stands for the elements: the list cannot be removed or replaced.
    ("spec.ports[]", LISTENERS),
];

/// Values by their path.
pub(super) type Fields = BTreeMap<String, Value>;

/// Checks a patch. Returns what is wrong with it: each field and the rule.
pub fn check(patched: Patched, patch: &Map<String, Value>) -> Vec<String> {
    let mut walk = Walk::new(patched);
    walk.map("", patch);
    walk.wrong
}

/// Returns the values of a patch by their path, such as `spec.template.spec.containers[portcullis].resources.limits.cpu`.
pub(super) fn fields(patched: Patched, patch: &Map<String, Value>) -> Fields {
    let mut walk = Walk::new(patched);
    walk.map("", patch);
    walk.values
}

/// A walk through a patch.
struct Walk {
    patched: Patched,
    wrong: Vec<String>,
    values: Fields,
}

impl Walk {
    fn new(patched: Patched) -> Self {
        Self {
            patched,
            wrong: Vec::new(),
            values: BTreeMap::new(),
        }
    }

    fn map(&mut self, path: &str, map: &Map<String, Value>) {
        if map.is_empty() && !path.is_empty() {
            self.values
                .insert(path.to_owned(), Value::Object(Map::new()));
        }
        for (field, value) in map {
            let inner = match path {
                "" => field.clone(),
                path => format!("{path}.{field}"),
            };
            if field.starts_with('$') {
                self.directive(path, field, value);
            } else if let Some(why) = self.rule(path, field, &inner) {
                self.wrong.push(format!("{inner} {why}"));
            } else {
                self.value(&inner, field, value);
            }
        }
    }

    fn value(&mut self, path: &str, field: &str, value: &Value) {
        match (value, self.patched.keys(field)) {
            (Value::Array(elements), Some(keys)) => self.list(path, keys, elements),
            (Value::Object(map), None) => self.map(path, map),
            (value, _) if path.starts_with(VOLUMES) && has_token(value) => {
                let wrong = format!("{path} has a token of the ServiceAccount that {OWNED}");
                self.wrong.push(wrong);
            }
            (value, keys) => {
                if keys.is_some() && !value.is_null() {
                    self.wrong.push(format!("{path} must be a list"));
                } else if let Some(why) = self.rule_below(path) {
                    self.wrong.push(format!(
                        "{path} must not be replaced: it has a field that {why}"
                    ));
                }
                self.values.insert(path.to_owned(), value.clone());
            }
        }
    }

    fn list(&mut self, path: &str, keys: &[&str], elements: &[Value]) {
        for element in elements {
            let Value::Object(element) = element else {
                self.wrong.push(format!("{path} must be a list of objects"));
                continue;
            };
            let text = |key: &str| match element.get(key)? {
                Value::String(text) => Some(text.clone()),
                Value::Number(number) => Some(number.to_string()),
                _ => None,
            };
            let required = keys.first().copied().unwrap_or_default();
            match text(required) {
                Some(name) => self.element(&format!("{path}[{name}]"), keys, element),
                None if element.len() == 1 && element.contains_key(DIRECTIVE) => {
                    self.directive(path, DIRECTIVE, &element[DIRECTIVE]);
                }
                None => {
                    let wrong = format!("{path} has an element without {required}");
                    self.wrong.push(wrong);
                }
            }
        }
    }

    fn element(&mut self, path: &str, keys: &[&str], element: &Map<String, Value>) {
        if let Some(why) = rule_of(self.patched, path) {
            self.wrong.push(format!("{path} {why}"));
            return;
        }
        let mounts = path.contains(".volumeMounts[") || path.contains(".volumeDevices[");
        let volume = element.get("name").and_then(Value::as_str);
        if mounts && volume.is_some_and(|volume| CREDENTIALS.contains(&volume)) {
            let wrong = format!("{path} mounts a volume that {OWNED}");
            self.wrong.push(wrong);
        }
        let mount = element.get("mountPath").and_then(Value::as_str);
        if path.starts_with(MOUNTS) && !mount.is_some_and(hides_nothing) {
            let wrong = format!(
                "{path} could hide a file of the image or a volume that {OWNED}: use a path below {MOUNTED}"
            );
            self.wrong.push(wrong);
        }
        let others = element
            .iter()
            .filter(|(field, _)| !keys.contains(&field.as_str()));
        let others: Map<_, _> = others
            .map(|(field, value)| (field.clone(), value.clone()))
            .collect();
        self.map(path, &others);
    }

    fn directive(&mut self, path: &str, field: &str, value: &Value) {
        let is_known = value == DELETE || value == REPLACE;
        let below = match path {
            "" => Some(OWNED),
            path => self.rule_below(path),
        };
        if field != DIRECTIVE || !is_known {
            let wrong = format!(
                "{path}.{field} is not supported: use {DIRECTIVE} with {DELETE} or {REPLACE}"
            );
            self.wrong.push(wrong);
        } else if let Some(why) = below {
            let wrong =
                format!("{path} must not be removed or replaced: it has a field that {why}");
            self.wrong.push(wrong);
        } else if self.patched == Patched::Service && path.starts_with("spec.ports[") {
            self.wrong.push(format!("{path} {LISTENERS}"));
        }
        self.values.insert(format!("{path}.{field}"), value.clone());
    }

    /// Returns why a patch must not set a field of the map at `path`.
    fn rule(&self, path: &str, field: &str, inner: &str) -> Option<&'static str> {
        let is_of_port = self.patched == Patched::Service && path.starts_with("spec.ports[");
        if is_of_port && !matches!(field, "nodePort" | "appProtocol") {
            return Some(LISTENERS);
        }
        if field == COMMAND && path.starts_with(CONTAINER) {
            return Some("would run a program that can read the token and the keys of the pod");
        }
        rule_of(self.patched, inner)
    }

    /// Returns why a patch must not set a field below `path`, if there is one.
    fn rule_below(&self, path: &str) -> Option<&'static str> {
        let mut rules = rules(self.patched).iter();
        let is_below = |field: &str| {
            let rest = field.strip_prefix(path);
            rest.is_some_and(|rest| rest.starts_with(['.', '[']))
        };
        rules
            .find(|(field, _)| is_below(field))
            .map(|(_, why)| *why)
    }
}

/// Reports whether sources of a volume have a token, with which any container could be a pod of the Gateway.
fn has_token(sources: &Value) -> bool {
    match sources {
        Value::Object(source) => {
            source.contains_key("serviceAccountToken") || source.values().any(has_token)
        }
        Value::Array(sources) => sources.iter().any(has_token),
        _ => false,
    }
}

/// Reports whether a volume at this path hides neither credentials nor a file of the image, which could be the program itself.
fn hides_nothing(mount: &str) -> bool {
    mount.starts_with(MOUNTED) && mount.split('/').all(|part| part != "..")
}

fn rules(patched: Patched) -> &'static [(&'static str, &'static str)] {
    match patched {
        Patched::Workload => OF_WORKLOADS,
        Patched::Service => OF_SERVICES,
    }
}

fn rule_of(patched: Patched, path: &str) -> Option<&'static str> {
    let mut rules = rules(patched).iter();
    rules.find(|(field, _)| *field == path).map(|(_, why)| *why)
}
