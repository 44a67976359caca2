//! What is counted over all attempts of a request, its retries included.

use std::mem;
use std::sync::Arc;

use crate::table::{Backend, Endpoint};

/// Maximum number of times that one request is sent again because an HTTP/2 backend refused its stream, or because a
/// reused connection closed, over all retries.
const MAX_RESENDS: u8 = 3;

/// Counts over all attempts of a request.
#[derive(Default)]
pub(super) struct Totals {
    resends: u8,
    /// Attempts that a GOAWAY has left unprocessed.
    pub(super) unprocessed: u8,
    /// Whether the request was sent again because a reused connection closed.
    was_stale: bool,
    /// Whether the request was sent again because its method is safe.
    is_repeated: bool,
    /// Retries that count for the default retry budget of the backend.
    pub(super) charged: u8,
    pub(super) suspect: Suspect,
}

/// The endpoint whose failure may be caused by the endpoint or by the request.
#[derive(Default)]
pub(super) enum Suspect {
    #[default]
    None,
    /// The request has failed at this endpoint only.
    Endpoint(Arc<Endpoint>),
    /// The request has failed at several endpoints, so that it is the likely cause.
    Request,
}

impl Totals {
    /// Counts a request that is sent again at once, if that is allowed. Returns whether it is.
    pub(super) fn try_resend(&mut self) -> bool {
        let may_resend = self.resends < MAX_RESENDS;
        self.resends += u8::from(may_resend);
        may_resend
    }

    /// Counts a request that is sent again at once because a reused connection closed. Only the first time: the next
    /// connection must be a new one, or the backend closes connections for another reason than their age.
    pub(super) fn try_stale_resend(&mut self) -> bool {
        !mem::replace(&mut self.was_stale, true) && self.try_resend()
    }

    /// Counts a retry for the default retry budget of the backend in any case.
    pub(super) fn charge(&mut self, backend: &Backend) {
        backend.count_default_retry();
        self.charged += 1;
    }

    /// Records that the request is sent again because its method is safe. Returns whether it is the first time.
    pub(super) fn try_repeat(&mut self) -> bool {
        !mem::replace(&mut self.is_repeated, true)
    }

    /// Records that the request has failed at `endpoint`.
    pub(super) fn suspect(&mut self, endpoint: &Arc<Endpoint>) {
        self.suspect = match mem::take(&mut self.suspect) {
            Suspect::None => Suspect::Endpoint(endpoint.clone()),
            Suspect::Endpoint(former) if former.id == endpoint.id => Suspect::Endpoint(former),
            Suspect::Endpoint(_) | Suspect::Request => Suspect::Request,
        };
    }
}
