//! What a client accepts, read before filters change its request. Must not know responses.

use http::header::ACCEPT;
use http::{HeaderMap, Method, request};

use crate::filter::compression::{self, Accepted};
use crate::ir::route_defaults::RouteDefaults;
use crate::proxy::request::wanted_page::WantedPage;

/// Returns what decides about an error page. `None` if no policy has error pages.
pub(super) fn wanted_page(
    defaults: Option<&RouteDefaults>,
    parts: &request::Parts,
) -> Option<WantedPage> {
    let pages = &defaults?.error_pages;
    (!pages.is_empty()).then(|| WantedPage::of(pages, parts))
}

/// Reports whether a client asks for a media type by name, as browsers do for pages.
pub(super) fn accepts(headers: &HeaderMap, media_type: &str) -> bool {
    let accepted = headers.get_all(ACCEPT).iter();
    let accepted = accepted.filter_map(|value| value.to_str().ok());
    let mut ranges = accepted.flat_map(|value| value.split(','));
    ranges.any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_named = parts
            .next()
            .is_some_and(|name| name.eq_ignore_ascii_case(media_type));
        let is_refused = |parameter: &str| {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            name.eq_ignore_ascii_case("q") && value.parse() == Ok(0.0_f32)
        };
        is_named && !parts.any(is_refused)
    })
}

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
