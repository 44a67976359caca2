//! What the policy of a backend permits for each endpoint at the same time, over all workers.

use std::sync::atomic::{Ordering::SeqCst, fence};

use super::in_flight::InFlight;
use crate::ir::backend_policy::BackendLimits;
use crate::table::{BackendSettings, Endpoint};

/// Reports whether a connection of this worker to an endpoint can carry another request.
pub(super) type HasOpen<'a> = &'a dyn Fn(&Endpoint) -> bool;

/// The limits of each endpoint.
#[derive(Clone, Copy)]
pub(super) struct Room<'a> {
    limits: &'a BackendLimits,
    has_open: Option<HasOpen<'a>>,
}

impl<'a> Room<'a> {
    /// Returns the limits, if there are some. Without `has_open`, each request needs a new connection.
    pub(super) fn of(settings: &'a BackendSettings, has_open: Option<HasOpen<'a>>) -> Option<Self> {
        let limits = &settings.ir.limits;
        settings
            .limits_endpoints()
            .then_some(Self { limits, has_open })
    }

    /// Reports whether an endpoint may get another request.
    pub(super) fn is_left(&self, endpoint: &Endpoint) -> bool {
        let BackendLimits {
            requests_per_endpoint: requests,
            connections_per_endpoint: connections,
            ..
        } = self.limits;
        requests.is_none_or(|max| endpoint.load.in_flight() < max.into())
            && connections.is_none_or(|max| {
                endpoint.connections() < max || self.has_open.is_some_and(|it| it(endpoint))
            })
    }

    /// Returns the request unless other workers have begun others meanwhile that leave no room for it. Two workers that
    /// begin one at the same time see each other.
    pub(super) fn confirm(&self, begun: InFlight) -> Option<InFlight> {
        fence(SeqCst);
        let in_flight = begun.endpoint().load.in_flight();
        let max = self.limits.requests_per_endpoint;
        max.is_none_or(|max| in_flight <= max.into())
            .then_some(begun)
    }
}
