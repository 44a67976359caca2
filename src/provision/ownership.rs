//! Ownership of objects. Labels and names do not prove it, since any client that may create objects
//! can set them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::cluster::api_server::field_manager;
use crate::ir::object_ref::{GATEWAY_GROUP, group_and_version};

/// Returns the Gateway in the controller owner reference.
pub(super) fn owner(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    let mut owners = metadata.owner_references.iter().flatten();
    owners.find(|owner| {
        let (group, _) = group_and_version(&owner.api_version);
        owner.controller == Some(true) && owner.kind == "Gateway" && group == GATEWAY_GROUP
    })
}

/// Reports whether managedFields has an entry of this controller.
pub(super) fn is_applied_by_us(metadata: &ObjectMeta) -> bool {
    let mut entries = metadata.managed_fields.iter().flatten();
    entries.any(|entry| entry.manager.as_deref() == Some(field_manager()))
}

/// Reports whether this controller created the object for the Gateway with this UID.
pub fn is_owned_by(metadata: &ObjectMeta, gateway_uid: &str) -> bool {
    let owner = owner(metadata);
    owner.is_some_and(|owner| owner.uid == gateway_uid && !gateway_uid.is_empty())
        && is_applied_by_us(metadata)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::api_server::FIELD_MANAGER;

    fn metadata(change: impl FnOnce(&mut Value)) -> ObjectMeta {
        let mut metadata = json!({
            "ownerReferences": [{
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": "web",
                "uid": "1", "controller": true,
            }],
            "managedFields": [{"manager": FIELD_MANAGER, "operation": "Apply"}],
        });
        change(&mut metadata);
        serde_json::from_value(metadata).unwrap()
    }

    #[test]
    fn owner_is_controlling_gateway_of_same_uid() {
        assert!(is_owned_by(&metadata(|_| {}), "1"));
        assert!(!is_owned_by(&metadata(|_| {}), "2"));
        assert!(!is_owned_by(&metadata(|_| {}), ""));
        for (field, value) in [
            ("controller", json!(false)),
            ("kind", json!("HTTPRoute")),
            ("apiVersion", json!("gateway.networking.k8s.io.example/v1")),
            ("uid", json!("")),
        ] {
            let other = metadata(|metadata| metadata["ownerReferences"][0][field] = value.clone());
            assert!(!is_owned_by(&other, "1"), "{field} {value}");
            assert!(!is_owned_by(&other, ""), "{field} {value}");
        }
    }

    #[test]
    fn object_of_another_field_manager_is_foreign() {
        let made = metadata(|metadata| metadata["managedFields"][0]["manager"] = json!("kubectl"));
        assert!(!is_owned_by(&made, "1"));
        let stripped = metadata(|metadata| metadata["managedFields"] = json!([]));
        assert!(!is_owned_by(&stripped, "1"));
    }
}
