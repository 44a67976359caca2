//! Requests for the objects of a kind.

use kube::api::{ApiResource, DynamicObject};
use kube::core::{Request, Resource};

use crate::api::Kind;

/// Returns the requests for the objects of a kind in a version, in all namespaces or one.
pub(super) fn requests(
    kind: &Kind,
    version: &str,
    plural: &str,
    namespace: Option<&str>,
) -> Request {
    let resource = ApiResource {
        group: kind.group.to_owned(),
        version: version.to_owned(),
        api_version: kind.group_version(version),
        kind: kind.kind.to_owned(),
        plural: plural.to_owned(),
    };
    Request::new(DynamicObject::url_path(&resource, namespace))
}
