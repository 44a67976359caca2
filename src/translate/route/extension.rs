//! Filters of HTTPRoutes that are objects of their own: RouteFilters in the namespace of the route.

use std::collections::BTreeMap;

use crate::api::Resource;
use crate::api::filter::HttpFilter;
use crate::api::parameters::GROUP;
use crate::api::route_filter::RouteFilter;
use crate::ir::{Filter, ObjectRef};

use super::route::RouteBuilder;
use crate::translate::filter::route_filter;
use crate::translate::reason::{Fault, Reason};

/// Returns the filters that refer to RouteFilters, each with its place in the list. References to other kinds are left out.
pub(super) fn resolve(
    builder: &mut RouteBuilder<'_>,
    filters: &[HttpFilter],
    field: &str,
) -> Result<BTreeMap<usize, Filter>, Fault> {
    let mut resolved = BTreeMap::new();
    for (index, filter) in filters.iter().enumerate() {
        let reference = filter.extension_ref.as_ref();
        let is_ours = |group: &str, kind: &str| group == GROUP && kind == RouteFilter::KIND;
        let reference = reference.filter(|it| is_ours(&it.group, &it.kind));
        let Some(reference) = reference.filter(|_| filter.kind == "ExtensionRef") else {
            continue;
        };
        let field = format!("{field}.filters[{index}].extensionRef");
        let namespace = &builder.route.namespace;
        let name = ObjectRef::new(GROUP, RouteFilter::KIND, namespace, &reference.name);
        let Some(object) = builder.input.find::<RouteFilter>(&name) else {
            let message = format!("{field}: {name} {}", builder.input.absence(&name));
            return Err(Fault::new(Reason::UnsupportedValue, message));
        };
        let input = builder.input;
        let filter = route_filter::translate(input, object, &field, &mut builder.patterns)?;
        resolved.insert(index, filter);
    }
    Ok(resolved)
}
