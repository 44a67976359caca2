//! ReferenceGrants for the policies of an Ingress.

use serde_json::json;

use super::model::{Ingress, Name};
use super::output::File;
use super::work::Work;

/// Permits an AccessPolicy to refer to an object of a kind in another namespace. The name of the grant has this ending.
pub(super) fn grant(
    work: &mut Work<'_>,
    ingress: &Ingress,
    (kind, ending): (&str, &str),
    object: &Name,
) {
    let namespace = &ingress.name.namespace;
    let from = json!({"group": "portcullis.dev", "kind": "AccessPolicy", "namespace": namespace});
    let to = json!({"group": "", "kind": kind, "name": object.name});
    let name = format!("{namespace}-{}{ending}", object.name);
    let name = Name::new(&object.namespace, &name);
    let file = File::Namespace(object.namespace.clone());
    let spec = json!({"from": [from], "to": [to]});
    work.output
        .gateway_api(&file, "ReferenceGrant", &name, spec);
}
