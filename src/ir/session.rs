//! Session persistence of a rule or of a backend (GEP-1619).

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use serde::Serialize;

use super::serialized;

/// How the requests of a client stay at one endpoint: the client sends a token back.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct SessionPersistence {
    /// What carries the token.
    pub carrier: Carrier,
    /// Lifetime of a session; `None` is unlimited.
    pub absolute_timeout: Option<Duration>,
}

/// What carries the token of a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Carrier {
    /// A cookie.
    Cookie {
        /// Name of the cookie.
        name: Arc<str>,
        /// Whether the cookie lasts until the session ends. Otherwise it lasts until the browser closes.
        is_permanent: bool,
    },
    /// A header of requests and responses.
    Header(#[serde(serialize_with = "serialized::name")] HeaderName),
}
