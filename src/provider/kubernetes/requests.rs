//! Requests for the objects of a kind.

use kube::api::{ApiResource, DynamicObject};
use kube::core::{GroupVersionKind, Request, Resource};

use crate::api::{Kind, ObjectRef};

/// Returns the requests for the objects of a kind, in all namespaces or one.
pub(super) fn requests(kind: &GroupVersionKind, plural: &str, namespace: Option<&str>) -> Request {
    let resource = ApiResource::from_gvk_with_plural(kind, plural);
    Request::new(DynamicObject::url_path(&resource, namespace))
}

/// Returns the kind of a Secret or ConfigMap, and the requests for its namespace.
pub(super) fn requests_by_name(name: &ObjectRef) -> Option<(&'static Kind, Request)> {
    let kind = Kind::of(name)?;
    let plural = format!("{}s", kind.kind.to_lowercase());
    let wanted = GroupVersionKind::gvk(kind.group, kind.versions.first()?, kind.kind);
    Some((kind, requests(&wanted, &plural, Some(&name.namespace))))
}
