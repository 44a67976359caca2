//! Places of credentials in requests. Must not know credentials.

use http::HeaderName;
use serde::Serialize;

use super::serialized;

/// A place of an API key or token in requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum KeyPlace {
    /// A header.
    #[serde(serialize_with = "serialized::name")]
    Header(HeaderName),
    /// A query parameter.
    Query(Box<str>),
    /// A cookie.
    Cookie(Box<str>),
}
