//! The parts of a normalized request that conditions look at. Must not know conditions.

use http::{HeaderValue, request};

use crate::ir::request_path::RequestPath;
use crate::proxy::client::forwarding::AddedHeaders;
use crate::proxy::client::host::Host;
use crate::table::RequestView;

/// Returns the parts of a request with this head, for this host and with this upgrade, and added headers.
#[inline]
pub(super) fn view<'a>(
    (parts, path): (&'a request::Parts, &'a RequestPath),
    (host, upgrade): (&'a Host, Option<&'a HeaderValue>),
    added: &'a AddedHeaders,
) -> RequestView<'a> {
    RequestView {
        host: host.as_str(),
        method: &parts.method,
        path: path.canonical(parts.uri.path()),
        query: parts.uri.query(),
        headers: &parts.headers,
        added: added.as_slice(),
        upgrade,
    }
}
