//! Field ownership (`metadata.managedFields`): converts this controller's Update entries into Apply
//! entries.

use kube::api::{Api, DynamicObject, ObjectMeta, Patch, PatchParams};
use serde_json::{Value, json};

use super::desired::Failure;
use super::inventory::ChildKey;
use super::response::{refusal, unreachable};
use crate::cluster::api_server::{field_manager, request};

/// Maximum number of attempts while other clients write the same object.
const TAKE_OVER_ATTEMPTS: u32 = 5;

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
    mut metadata: ObjectMeta,
) -> Result<Option<ObjectMeta>, Failure> {
    for _ in 0..TAKE_OVER_ATTEMPTS {
        let Some(patch) = field_patch(&metadata) else {
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
fn field_patch(metadata: &ObjectMeta) -> Option<Value> {
    let entries = metadata.managed_fields.as_deref().unwrap_or_default();
    let of = |operation: &'static str| {
        let is_ours =
            move |entry: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry| {
                entry.manager.as_deref() == Some(field_manager())
                    && entry.operation.as_deref() == Some(operation)
                    && entry.subresource.as_deref().unwrap_or_default().is_empty()
            };
        entries.iter().position(is_ours)
    };
    let updated = of("Update")?;
    let path = format!("/metadata/managedFields/{updated}");
    // The API server keeps only one of two entries with the same manager and operation. The next
    // apply records its fields in full.
    let change = match of("Apply") {
        Some(_) => json!({"op": "remove", "path": path}),
        None => json!({"op": "replace", "path": format!("{path}/operation"), "value": "Apply"}),
    };
    Some(json!([
        {"op": "test", "path": "/metadata/uid", "value": metadata.uid},
        {"op": "test", "path": format!("{path}/manager"), "value": field_manager()},
        {"op": "test", "path": format!("{path}/operation"), "value": "Update"},
        change,
    ]))
}
