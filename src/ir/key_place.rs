//! Places of credentials in requests. Must not know credentials.

use http::HeaderName;
use serde::{Serialize, Serializer};

/// A place of an API key or token in requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum KeyPlace {
    /// A header.
    #[serde(serialize_with = "name")]
    Header(HeaderName),
    /// A query parameter.
    Query(Box<str>),
    /// A cookie.
    Cookie(Box<str>),
}

fn name<S: Serializer>(name: &HeaderName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(name.as_str())
}
