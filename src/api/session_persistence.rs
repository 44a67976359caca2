//! `sessionPersistence` of route rules and traffic policies (GEP-1619).

use serde::{Deserialize, Serialize};

/// How the requests of a client stay at one endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionPersistence {
    /// Name of the cookie or header, at most 128 characters.
    pub session_name: Option<String>,
    /// Lifetime of a session.
    pub absolute_timeout: Option<String>,
    /// `Cookie` (the default) or `Header`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Settings of the cookie.
    pub cookie_config: Option<CookieConfig>,
}

/// Settings of a session's cookie.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CookieConfig {
    /// `Session` (the default): the browser deletes it when it closes. `Permanent`: it lasts for `absoluteTimeout`.
    pub lifetime_type: Option<String>,
}
