//! What all objects of an API server have, whether or not the rest can be parsed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde::Deserialize;
use serde_json::Value;

use crate::api::{Key, ObjectMeta};

/// The head of an object: its metadata and status.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Head {
    pub(super) metadata: Metadata,
    pub(super) status: Value,
}

/// Metadata, with what is not kept of it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metadata {
    #[serde(flatten)]
    pub(super) kept: ObjectMeta,
    pub(super) resource_version: Option<String>,
    pub(super) managed_fields: Vec<ManagedFieldsEntry>,
}

impl Head {
    /// Namespace and name.
    pub(super) fn key(&self) -> Key {
        let ObjectMeta {
            namespace, name, ..
        } = &self.metadata.kept;
        Key::new(namespace, name)
    }
}
