//! `sessionPersistence` of route rules and traffic policies (GEP-1619).

use serde::{Deserialize, Serialize};

/// How the requests of a client stay at one endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionPersistence {
    /// Name of the cookie or header, at most 128 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_name: Option<String>,
    /// Lifetime of a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absolute_timeout: Option<String>,
    /// `Cookie` (the default) or `Header`.
    #[serde(rename = "type")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Settings of the cookie.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie_config: Option<CookieConfig>,
}

/// Settings of a session's cookie.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CookieConfig {
    /// `Session` (the default): the browser deletes it when it closes. `Permanent`: it lasts for `absoluteTimeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifetime_type: Option<String>,
}
