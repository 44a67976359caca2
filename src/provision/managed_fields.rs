//! Field ownership (`metadata.managedFields`): converts this controller's Update entries into Apply
//! entries, and leaves fields to other managers with their values.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::{Api, DynamicObject, ObjectMeta, Patch, PatchParams};
use serde_json::{Value, json};

use super::desired::Failure;
use super::inventory::ChildKey;
use super::response::{refusal, unreachable};
use crate::cluster::api_server::{field_manager, request};

/// Maximum number of attempts while other clients write the same object.
const ATTEMPTS: u32 = 5;

/// Converts fields that a create or merge patch recorded with operation Update to Apply. The next
/// apply then removes fields that it does not contain, which the API server does only for Apply
/// entries.
pub(super) async fn take_over_fields(
    api: &Api<DynamicObject>,
    key: &ChildKey,
    mut object: DynamicObject,
) -> Result<DynamicObject, Failure> {
    if let Some(metadata) = take_over(api, key, object.metadata.clone()).await? {
        object.metadata = metadata;
    }
    Ok(object)
}

/// Does the same as [`take_over_fields`] for an object of which only the metadata is known. Returns
/// the metadata after a change.
pub(super) async fn take_over(
    api: &Api<DynamicObject>,
    key: &ChildKey,
    metadata: ObjectMeta,
) -> Result<Option<ObjectMeta>, Failure> {
    change(api, key, metadata, apply_patch).await
}

/// Gives up `spec.replicas` of a Deployment and keeps its value: an apply without a field that only this controller owns
/// resets it to the default, here to one pod, before an autoscaler sets it again.
pub(super) async fn release_replicas(
    api: &Api<DynamicObject>,
    key: &ChildKey,
    metadata: ObjectMeta,
) -> Result<(), Failure> {
    change(api, key, metadata, replicas_patch).await?;
    Ok(())
}

/// Applies the JSON patch that `patch` builds, and builds it again after a conflict. Returns the metadata after a change.
async fn change(
    api: &Api<DynamicObject>,
    key: &ChildKey,
    mut metadata: ObjectMeta,
    patch: fn(&ObjectMeta) -> Option<Value>,
) -> Result<Option<ObjectMeta>, Failure> {
    for _ in 0..ATTEMPTS {
        let Some(patch) = patch(&metadata) else {
            return Ok(None);
        };
        let patch = serde_json::from_value(patch);
        let patch = patch.map_err(|error| unreachable(format!("cannot write {key}: {error}")))?;
        let patch = Patch::<Value>::Json(patch);
        let params = PatchParams {
            field_manager: Some(field_manager().to_owned()),
            ..PatchParams::default()
        };
        match request(api.patch_metadata(&key.name, &params, &patch)).await {
            Ok(Ok(patched)) => return Ok(Some(patched.metadata)),
            // Conflict with another writer: reads again and retries.
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 409 | 422) => {}
            patched => return Err(refusal(key, "written", patched)),
        }
        metadata = match request(api.get_metadata(&key.name)).await {
            Ok(Ok(found)) => found.metadata,
            found => return Err(refusal(key, "read", found)),
        };
    }
    let message = format!("cannot write {key}: other clients keep changing it");
    Err(unreachable(message))
}

/// Builds the JSON patch that turns this controller's Update entries into Apply entries; `None` if
/// there are no such entries.
fn apply_patch(metadata: &ObjectMeta) -> Option<Value> {
    let (updated, _) = entry(metadata, "Update")?;
    let path = format!("/metadata/managedFields/{updated}");
    // The API server keeps only one of two entries with the same manager and operation. The next
    // apply records its fields in full.
    let change = match entry(metadata, "Apply") {
        Some(_) => json!({"op": "remove", "path": path}),
        None => json!({"op": "replace", "path": format!("{path}/operation"), "value": "Apply"}),
    };
    Some(guarded(metadata, &path, "Update", &change))
}

/// Builds the JSON patch that removes `spec.replicas` from this controller's Apply entry; `None` if it is not there.
fn replicas_patch(metadata: &ObjectMeta) -> Option<Value> {
    let (applied, entry) = entry(metadata, "Apply")?;
    let fields = &entry.fields_v1.as_ref()?.0;
    fields.pointer("/f:spec/f:replicas")?;
    let path = format!("/metadata/managedFields/{applied}");
    let change = json!({"op": "remove", "path": format!("{path}/fieldsV1/f:spec/f:replicas")});
    Some(guarded(metadata, &path, "Apply", &change))
}

/// Returns this controller's entry with this operation, and its index.
fn entry<'a>(metadata: &'a ObjectMeta, operation: &str) -> Option<(usize, &'a ManagedFieldsEntry)> {
    let mut entries = metadata.managed_fields.iter().flatten().enumerate();
    entries.find(|(_, entry)| {
        entry.manager.as_deref() == Some(field_manager())
            && entry.operation.as_deref() == Some(operation)
            && entry.subresource.as_deref().unwrap_or_default().is_empty()
    })
}

/// Builds the JSON patch with `change`, which fails unless this object has this controller's entry with this operation
/// at `path`.
fn guarded(metadata: &ObjectMeta, path: &str, operation: &str, change: &Value) -> Value {
    json!([
        {"op": "test", "path": "/metadata/uid", "value": metadata.uid},
        {"op": "test", "path": format!("{path}/manager"), "value": field_manager()},
        {"op": "test", "path": format!("{path}/operation"), "value": operation},
        change,
    ])
}
