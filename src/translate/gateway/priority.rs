//! The annotation that moves the matches of a route before or after those of other routes, and the one by which a Gateway
//! permits it. Without that permission, the routes of one team could take the requests of another one.

use std::ops::RangeInclusive;

use crate::api::ObjectMeta;
use crate::api::annotation::{ALLOW_ROUTE_PRIORITY as PERMISSION, PRIORITY};
use crate::ir::ObjectRef;

/// The value of [`PERMISSION`] that permits priorities.
const PERMITTED: &str = "true";
/// Valid priorities.
const VALID: RangeInclusive<i16> = -1000..=1000;

/// Reports whether a Gateway permits the priorities of routes.
pub(in crate::translate) fn is_permitted(gateway: &ObjectMeta) -> bool {
    gateway.annotations.get(PERMISSION).map(String::as_str) == Some(PERMITTED)
}

/// Reports whether a route asks for a priority, so that its translation depends on the Gateway.
pub(in crate::translate) fn is_set(route: &ObjectMeta) -> bool {
    route.annotations.contains_key(PRIORITY)
}

/// Returns the priority of a route on a Gateway, 0 without the annotation. The error says why the annotation is ignored.
pub(in crate::translate) fn on_gateway(
    route: &ObjectMeta,
    gateway: &ObjectRef,
    is_permitted: bool,
) -> Result<i16, String> {
    let Some(value) = route.annotations.get(PRIORITY) else {
        return Ok(0);
    };
    let priority = value.parse().ok();
    match priority.filter(|priority| VALID.contains(priority)) {
        Some(0) => Ok(0),
        Some(priority) if is_permitted => Ok(priority),
        Some(_) => Err(format!(
            "annotation {PRIORITY} is ignored (priority 0): {gateway} has no annotation {PERMISSION}: {PERMITTED:?}, \
             by which it would permit priorities of routes"
        )),
        None => Err(format!(
            "annotation {PRIORITY} is {value:?}, which is ignored (priority 0); set an integer from -1000 to 1000"
        )),
    }
}
