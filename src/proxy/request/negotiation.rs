//! What a client accepts, read before filters change its request. Must not know responses.

use http::{Method, request};

use crate::filter::compression::{self, Accepted};
use crate::ir::route_defaults::RouteDefaults;

/// What decides about the compression of the response to a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Negotiated {
    pub(super) accepted: Accepted,
    pub(super) is_head: bool,
}

impl Negotiated {
    /// Reads what the client accepts. `None` if no policy compresses responses.
    pub(super) fn of(defaults: Option<&RouteDefaults>, parts: &request::Parts) -> Option<Self> {
        let compression = defaults?.compression.as_ref()?;
        Some(Self {
            accepted: compression::accepted(compression, &parts.headers),
            is_head: parts.method == Method::HEAD,
        })
    }
}
