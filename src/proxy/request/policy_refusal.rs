//! Why policies do not let a request pass.

use http::HeaderMap;

use crate::ir::policy::Phase;
use crate::proxy::error::Error;
use crate::table::CountedRequest;
use crate::telemetry::trace::{Decision, Event};

/// Why a request does not pass.
pub(super) struct PolicyRefusal {
    pub(super) error: Error,
    /// Headers of its response.
    pub(super) headers: HeaderMap,
    /// What the request counts as for limits that have admitted it before, until the end of the response.
    pub(super) counted: Option<Box<CountedRequest>>,
}

impl PolicyRefusal {
    /// Returns the decision for the span of the request; `None` if the span has it.
    pub(super) fn event(&self) -> Option<Event> {
        let phase = match self.error {
            Error::AddressRefused => Phase::IpRules,
            Error::BodyTooLarge => Phase::BodyLimit,
            Error::Unauthenticated | Error::SignIn(_) => Phase::Authentication,
            Error::PasswordsWait => {
                return Some(Event::of_phase(Phase::Authentication, Decision::Failed));
            }
            Error::Unauthorized => Phase::Authorization,
            Error::BrokenPolicy => return Some(Event::broken_policy()),
            _ => return None,
        };
        Some(Event::of_phase(phase, Decision::Refused))
    }
}

impl From<Error> for Box<PolicyRefusal> {
    fn from(error: Error) -> Self {
        Self::new(error.into())
    }
}

impl From<Error> for PolicyRefusal {
    fn from(error: Error) -> Self {
        Self {
            error,
            headers: HeaderMap::new(),
            counted: None,
        }
    }
}
