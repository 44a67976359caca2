//! `timeouts` of a rule and of a RoutePolicy.

use std::time::Duration;

use crate::api::http_route::HttpTimeouts;
use crate::ir::route::Timeouts;
use crate::ir::sharing::Text;

use super::duration;
use super::reason::Fault;

/// Translates the `timeouts` of the object at `field`.
pub(super) fn translate(spec: &HttpTimeouts, field: &str) -> Result<Timeouts, Fault> {
    // Destructured, so that a new field fails to compile until it is handled here.
    let HttpTimeouts {
        request,
        backend_request,
    } = spec;
    let read = |text: &Option<Text>, name: &str| -> Result<Option<Duration>, Fault> {
        let text = text.as_ref();
        text.map(|text| duration::parse(text, &format!("{field}.{name}")))
            .transpose()
    };
    Ok(Timeouts {
        request: read(request, "request")?,
        backend_request: read(backend_request, "backendRequest")?,
    })
}
