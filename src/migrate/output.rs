//! The objects of a migration, in the files that they belong to.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::model::Name;

/// API version of the policies of Portcullis.
const POLICIES: &str = "portcullis.dev/v1alpha1";
/// API version of the Gateway API.
const GATEWAY_API: &str = "gateway.networking.k8s.io/v1";

/// The file of an object: one for each Ingress, and one for what the Ingresses of a namespace share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum File {
    /// The Gateway and its policies.
    Gateway,
    /// What the Ingresses of a namespace share.
    Namespace(String),
    /// What becomes of an Ingress.
    Ingress(Name),
}

impl File {
    /// Returns the path below the output folder.
    pub fn path(&self) -> String {
        match self {
            Self::Gateway => "gateway.yaml".to_owned(),
            Self::Namespace(namespace) => format!("{namespace}/shared.yaml"),
            // An Ingress may have the name `shared`.
            Self::Ingress(Name { namespace, name }) => format!("{namespace}/ingress-{name}.yaml"),
        }
    }
}

/// The objects.
#[derive(Debug, Default)]
pub struct Output {
    files: BTreeMap<File, Vec<Value>>,
}

impl Output {
    /// Adds a policy or filter of Portcullis.
    pub(super) fn policy(&mut self, file: &File, kind: &str, name: &Name, spec: Value) {
        self.add(file, POLICIES, kind, name, spec);
    }

    /// Adds an object of the Gateway API.
    pub(super) fn gateway_api(&mut self, file: &File, kind: &str, name: &Name, spec: Value) {
        let version = match kind {
            "ReferenceGrant" => "gateway.networking.k8s.io/v1beta1",
            _ => GATEWAY_API,
        };
        self.add(file, version, kind, name, spec);
    }

    fn add(&mut self, file: &File, version: &str, kind: &str, name: &Name, spec: Value) {
        let Name { namespace, name } = name;
        let metadata = json!({"name": name, "namespace": namespace});
        let object = [
            ("apiVersion", json!(version)),
            ("kind", json!(kind)),
            ("metadata", metadata),
            ("spec", spec),
        ];
        let object: Map<_, _> = object
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect();
        let objects = self.files.entry(file.clone()).or_default();
        if !objects.contains(&Value::from(object.clone())) {
            objects.push(object.into());
        }
    }

    /// Returns all objects.
    pub fn objects(&self) -> impl Iterator<Item = &Value> {
        self.files.values().flatten()
    }

    /// Returns the objects of each file, as YAML.
    ///
    /// # Errors
    /// When an object cannot be written as YAML.
    pub fn files(&self) -> Result<Vec<(&File, String)>, String> {
        let text = |(file, objects): (_, &Vec<Value>)| {
            let documents = objects.iter().map(|object| {
                let text = serde_saphyr::to_string(object).map_err(|error| error.to_string())?;
                Ok::<_, String>(format!("---\n{}\n", text.trim_end()))
            });
            Ok((file, documents.collect::<Result<String, _>>()?))
        };
        self.files.iter().map(text).collect()
    }
}
