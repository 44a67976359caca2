//! The release of a request to a backend with releases: taken from the client's cookie, or drawn by
//! weight. A request stays in its release for all attempts.

use std::sync::Arc;

use http::HeaderMap;

use crate::ir::cookie;
use crate::table::{Endpoint, Endpoints, Release, Releases, Ring};

/// The release that a request is in.
pub(super) struct SelectedRelease {
    pub(super) release: Arc<Release>,
    /// Whether it was drawn, so that the response has to set the client's cookie.
    pub(super) is_drawn: bool,
}

impl SelectedRelease {
    /// Returns a release that the client or a previous attempt has selected.
    pub(super) fn kept(release: Arc<Release>) -> Self {
        Self {
            release,
            is_drawn: false,
        }
    }
}

/// Selects the release of an attempt. `previous` is the release of the previous attempt. It is kept
/// unless it was removed or has lost its weight.
pub(super) fn select(
    releases: &Releases,
    previous: Option<SelectedRelease>,
    headers: &HeaderMap,
) -> Option<SelectedRelease> {
    if let Some(previous) = previous
        && let Some(release) = releases.current(&previous.release)
    {
        return Some(SelectedRelease {
            release: release.clone(),
            is_drawn: previous.is_drawn,
        });
    }
    let kept = releases
        .cookie
        .as_deref()
        .and_then(|name| cookie::values(headers, name).find_map(|value| releases.of_cookie(value)));
    Some(SelectedRelease {
        is_drawn: kept.is_none(),
        release: kept.or_else(|| releases.draw())?.clone(),
    })
}

/// Returns the endpoints that a request may use.
pub(super) fn candidates<'a>(
    endpoints: &'a Endpoints,
    release: Option<&'a Release>,
) -> &'a [Arc<Endpoint>] {
    release.map_or(endpoints, |release| &release.endpoints)
}

/// Returns the ring of these endpoints, if they are selected by hash.
pub(super) fn ring<'a>(endpoints: &'a Endpoints, release: Option<&'a Release>) -> Option<&'a Ring> {
    match release {
        None => endpoints.ring(),
        Some(release) => release.ring.as_ref(),
    }
}
