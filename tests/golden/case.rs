//! A parsed golden file: its objects, its settings and the expected result.

use std::sync::Arc;

use portcullis::api::key_set::KeySet;
use portcullis::api::{self, Object, ObjectMeta};
use portcullis::ir::{Bind, BindReport};
use portcullis::settings::location::Location;
use portcullis::settings::permissions::{
    AllowList, BackendKinds, InfrastructurePermissions, Permissions,
};
use portcullis::translate::{Mode, Options, backend_kinds};
use serde_json::{Map, Value};

use crate::certificates::with_certificates;

/// Fields with which the last document can begin.
const RESULT: [&str; 2] = ["dataPlanes:", "ir:"];

/// A parsed golden.
pub(crate) struct Golden<'a> {
    /// The text of all documents but the last.
    pub(crate) input: &'a str,
    /// The objects, as written.
    pub(crate) values: Vec<Value>,
    /// The text of the last document.
    pub(crate) expected: &'a str,
    pub(crate) options: Options,
    /// What was fetched.
    key_sets: Vec<Object>,
    /// The results of binding, if the golden sets them.
    pub(crate) binds: Option<BindReport>,
}

impl<'a> Golden<'a> {
    pub(crate) fn parse(text: &'a str) -> Result<Self, String> {
        if !text.starts_with("# ") {
            return Err("the first line must state the rule: # …".to_owned());
        }
        let (input, expected) = match text.rsplit_once("\n---\n") {
            Some((input, last)) if RESULT.iter().any(|field| last.starts_with(field)) => {
                (&text[..=input.len()], last)
            }
            _ => (text, ""),
        };
        let mut values = Vec::new();
        let (mut options, mut binds) = (Options::default(), None);
        let mut key_sets = Vec::new();
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(input).map_err(|error| error.to_string())?;
        for value in documents {
            if let Some(test) = value.get("test") {
                for key in test.as_object().into_iter().flat_map(Map::keys) {
                    match key.as_str() {
                        "mode" => options.mode = read_mode(&test["mode"])?,
                        "permissions" => {
                            options.permissions = read_permissions(&test["permissions"])?;
                        }
                        "infrastructure" => {
                            let permitted = read_infrastructure(&test["infrastructure"])?;
                            options.infrastructure = Some(Arc::new(permitted));
                        }
                        "location" => options.location = read_location(&test["location"])?,
                        "binds" => binds = Some(read_binds(&test["binds"])?),
                        "keySets" => key_sets = read_key_sets(&test["keySets"]),
                        other => return Err(format!("unknown test setting {other}")),
                    }
                }
            } else {
                values.push(with_certificates(value));
            }
        }
        Ok(Self {
            input,
            values,
            expected,
            options,
            key_sets,
            binds,
        })
    }

    /// Returns the objects, admitted as a provider does it, and what was fetched. Of invalid ones, only those with a stand-in
    /// are part of a golden.
    pub(crate) fn objects(&self) -> Result<Vec<Object>, String> {
        let admit = |value: &Value| {
            let admission = api::admit(value.clone());
            if let Some(stand_in) = admission.stand_in {
                return Ok(*stand_in);
            }
            match admission.findings.first() {
                Some(finding) => Err(format!("an object of the golden is not clean: {finding:?}")),
                None => admission
                    .object
                    .ok_or_else(|| "an object is of no watched kind".to_owned()),
            }
        };
        let admitted = self.values.iter().map(admit);
        admitted
            .chain(self.key_sets.iter().cloned().map(Ok))
            .collect()
    }
}

/// `[{uri: https://a.com/keys, keys: …, problem: cannot be fetched}]`, in the namespace `default`
fn read_key_sets(value: &Value) -> Vec<Object> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let sets = value.as_array().into_iter().flatten().map(|set| {
        Object::KeySet(Arc::new(KeySet {
            metadata: ObjectMeta {
                namespace: "default".into(),
                name: set["uri"].as_str().unwrap_or_default().into(),
                ..ObjectMeta::default()
            },
            keys: text(&set["keys"]),
            discovery: serde_json::from_value(set["discovery"].clone()).unwrap_or_default(),
            problem: text(&set["problem"]),
        }))
    });
    sets.collect()
}

fn read_mode(value: &Value) -> Result<Mode, String> {
    match value.as_str() {
        Some("kubernetes") => Ok(Mode::Kubernetes),
        Some("dedicated") => Ok(Mode::Dedicated),
        _ => Err(format!("unknown mode {value}")),
    }
}

/// `{backendKinds: v1.Service, insecureBackend: pins-only, backendTlsFloor: gateway}`
fn read_permissions(value: &Value) -> Result<Permissions, String> {
    let mut permissions = Permissions::default();
    for (key, value) in value.as_object().into_iter().flatten() {
        let text = value.as_str().unwrap_or_default();
        match key.as_str() {
            "backendKinds" => permissions.backend_kinds = read_kinds(text)?,
            "insecureBackend" => permissions.insecure_backend = text.parse()?,
            "backendTlsFloor" => permissions.backend_tls_floor = text.parse()?,
            other => return Err(format!("unknown permission {other}")),
        }
    }
    Ok(permissions)
}

/// `{operatorNamespace: infra, images: a,b, hostNetwork: all-ports, annotations: example.com}`
fn read_infrastructure(value: &Value) -> Result<InfrastructurePermissions, String> {
    let mut permissions = InfrastructurePermissions {
        own_image: "registry.example/portcullis:1".to_owned(),
        ..InfrastructurePermissions::default()
    };
    for (key, value) in value.as_object().into_iter().flatten() {
        let text = value.as_str().unwrap_or_default();
        let list = || AllowList::new(text.split(',').map(str::to_owned));
        match key.as_str() {
            "operatorNamespace" => permissions.operator_namespace = text.to_owned(),
            "images" => permissions.images = list(),
            "hostNetwork" => permissions.host_network = text.parse()?,
            "tolerations" => permissions.tolerations = list(),
            "priorityClasses" => permissions.priority_classes = list(),
            "annotations" => permissions.annotations = list(),
            "labels" => permissions.labels = list(),
            "env" => permissions.env = list(),
            "volumes" => permissions.volumes = list(),
            "patches" => permissions.patches = list(),
            "networkPolicy" => permissions.network_policy = value == true,
            other => return Err(format!("unknown permission {other}")),
        }
    }
    Ok(permissions)
}

/// `{zone: a, node: one}`
fn read_location(value: &Value) -> Result<Location, String> {
    let mut location = Location::default();
    for (key, value) in value.as_object().into_iter().flatten() {
        let text = value.as_str().map(str::to_owned);
        match key.as_str() {
            "zone" => location.zone = text,
            "node" => location.node = text,
            other => return Err(format!("unknown part of a location {other}")),
        }
    }
    Ok(location)
}

/// `v1.Service,…`
fn read_kinds(text: &str) -> Result<BackendKinds, String> {
    let find = |name: &str| {
        let found = backend_kinds().find(|kind| *kind == name);
        found.ok_or_else(|| format!("unknown kind of backend {name}"))
    };
    let kinds: Result<_, _> = text.split(',').map(find).collect();
    kinds.map(BackendKinds::Only)
}

/// `{"*:80": "error", "127.0.0.1:80": ok, "*:443/quic": "error"}`
fn read_binds(value: &Value) -> Result<BindReport, String> {
    let mut binds = BindReport::new();
    for (bind, outcome) in value.as_object().into_iter().flatten() {
        let (address, port) = bind.rsplit_once(':').ok_or("a bind is ADDRESS:PORT")?;
        let (port, is_quic) = match port.strip_suffix("/quic") {
            Some(port) => (port, true),
            None => (port, false),
        };
        let port = port.parse().map_err(|_| "a bind has a port")?;
        let tcp = Bind::tcp(address.parse().ok(), port);
        let bind = if is_quic { tcp.quic() } else { tcp };
        let outcome = match outcome.as_str() {
            Some("ok") => Ok(([127, 0, 0, 1], bind.port).into()),
            other => Err(other.unwrap_or_default().into()),
        };
        binds.insert(bind, outcome);
    }
    Ok(binds)
}
