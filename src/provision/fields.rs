//! Whose fields are: turns what creating and merging record as updated by us into what we apply.

use kube::api::{Api, DynamicObject, ObjectMeta, Patch, PatchParams};
use serde_json::{Value, json};

use super::desired::Failure;
use super::inventory::ChildKey;
use super::response::{refusal, unreachable};
use crate::api_server::{FIELD_MANAGER, request};

/// How often fields are taken over while others write the same object.
const TAKE_OVER_ATTEMPTS: u32 = 5;

/// Sees to it that the next application removes what it does not name: that goes only for fields that are recorded as
/// applied, and creating or merging records them as updated.
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

/// Like [`take_over_fields`], of an object of which only metadata is known. Returns that after a change.
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
        let patch =
            patch.map_err(|error| unreachable(format!("{key} cannot be written: {error}")))?;
        let patch = Patch::<Value>::Json(patch);
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        match request(api.patch_metadata(&key.name, &params, &patch)).await {
            Ok(Ok(patched)) => return Ok(Some(patched.metadata)),
            // Somebody else has written in the meantime.
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 409 | 422) => {}
            patched => return Err(refusal(key, "written", patched)),
        }
        metadata = match request(api.get_metadata(&key.name)).await {
            Ok(Ok(found)) => found.metadata,
            found => return Err(refusal(key, "read", found)),
        };
    }
    let message = format!("{key} cannot be written: it changes all the time");
    Err(unreachable(message))
}

/// A JSON patch by which our updated fields become applied ones, if there are any.
fn field_patch(metadata: &ObjectMeta) -> Option<Value> {
    let entries = metadata.managed_fields.as_deref().unwrap_or_default();
    let of = |operation: &'static str| {
        let is_ours =
            move |entry: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry| {
                entry.manager.as_deref() == Some(FIELD_MANAGER)
                    && entry.operation.as_deref() == Some(operation)
                    && entry.subresource.as_deref().unwrap_or_default().is_empty()
            };
        entries.iter().position(is_ours)
    };
    let updated = of("Update")?;
    let path = format!("/metadata/managedFields/{updated}");
    // Of two entries of one name and operation the API server keeps one; what is applied next is recorded in full.
    let change = match of("Apply") {
        Some(_) => json!({"op": "remove", "path": path}),
        None => json!({"op": "replace", "path": format!("{path}/operation"), "value": "Apply"}),
    };
    Some(json!([
        {"op": "test", "path": "/metadata/uid", "value": metadata.uid},
        {"op": "test", "path": format!("{path}/manager"), "value": FIELD_MANAGER},
        {"op": "test", "path": format!("{path}/operation"), "value": "Update"},
        change,
    ]))
}
