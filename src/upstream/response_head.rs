//! The heads of responses, final and informational.

use http::{HeaderMap, StatusCode};

use crate::upstream::exchange_error::ExchangeError;
use crate::upstream::outgoing::Informational;

/// Maximum number of informational responses to a request.
const MAX_INFORMATIONAL: u8 = 32;

/// A final response head without hop-by-hop headers except `Upgrade`.
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
}

/// Number of informational responses so far.
#[derive(Default)]
pub(super) struct InformationalHeads(u8);

impl InformationalHeads {
    /// Forwards an informational response. A 100 is not forwarded: it only releases the request
    /// body.
    pub(super) fn forward(
        &mut self,
        status: StatusCode,
        headers: &HeaderMap,
        forward: Option<Informational<'_>>,
    ) -> Result<(), ExchangeError> {
        if self.0 == MAX_INFORMATIONAL {
            return Err(ExchangeError::Protocol(
                "the backend sent too many informational responses",
            ));
        }
        self.0 += 1;
        if let Some(forward) = forward
            && status != StatusCode::CONTINUE
        {
            forward(status, headers);
        }
        Ok(())
    }

    /// Reports whether there was any.
    pub(super) fn any(&self) -> bool {
        self.0 > 0
    }
}
