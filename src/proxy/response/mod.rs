//! What the client gets apart from bodies: informational responses, and the record of the request.

pub(super) mod interim;
pub(super) mod outbound;
pub(super) mod record;
