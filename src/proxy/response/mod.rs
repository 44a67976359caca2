//! What the client gets apart from bodies: informational responses, errors, and the record of the request.

pub(super) mod error_response;
pub(super) mod interim;
pub(super) mod record;
