//! Requests for the objects of a kind.

use kube::api::{ApiResource, DynamicObject};
use kube::core::{GroupVersionKind, Request, Resource};

/// Returns the requests for the objects of a kind, in all namespaces or one.
pub(super) fn requests(kind: &GroupVersionKind, plural: &str, namespace: Option<&str>) -> Request {
    let resource = ApiResource::from_gvk_with_plural(kind, plural);
    Request::new(DynamicObject::url_path(&resource, namespace))
}
