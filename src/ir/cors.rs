//! The CORS filter with every header value prebuilt: which origins may read a response, and what a
//! preflight request may ask for.

use std::fmt;
use std::sync::Arc;

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::{HeaderMap, HeaderValue, Method};
use serde::{Serialize, Serializer};

use super::scheme::Scheme;
use super::serialized;

/// A CORS filter (Gateway API, HTTPCORSFilter).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Cors {
    /// Allowed origins.
    pub origins: AllowedOrigins,
    /// Whether requests may have credentials.
    pub credentials: bool,
    /// `Access-Control-Allow-Methods`. Absent means that no method is configured.
    pub methods: Option<CorsValue>,
    /// `Access-Control-Allow-Headers`. Absent means that no header is configured.
    pub headers: Option<CorsValue>,
    /// `Access-Control-Expose-Headers`. Absent means that no header is configured.
    pub expose: Option<CorsValue>,
    /// `Access-Control-Max-Age`, in seconds.
    #[serde(serialize_with = "serialized::value")]
    pub max_age: HeaderValue,
    /// `Vary` of responses to preflight requests, if they depend on the request.
    #[serde(serialize_with = "serialized::optional_value")]
    pub preflight_vary: Option<HeaderValue>,
}

/// Reports whether a request is a preflight request (Fetch, 4.8).
pub fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::OPTIONS
        && headers.contains_key(ORIGIN)
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

impl Cors {
    /// Reports whether every response allows every origin, so that it does not depend on the request.
    pub fn is_public(&self) -> bool {
        self.origins == AllowedOrigins::Any && !self.credentials
    }
}

/// Origins that a CORS filter allows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum AllowedOrigins {
    /// All, `null` included.
    Any,
    /// Those that match one of these.
    Listed(Vec<AllowedOrigin>),
}

/// One allowed origin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AllowedOrigin {
    /// Scheme.
    pub scheme: Scheme,
    /// Host.
    pub host: AllowedHost,
    /// Port.
    pub port: u16,
}

/// The host of an allowed origin, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AllowedHost {
    /// `*`: every host.
    Any,
    /// `*.example.com`, stored as `.example.com`: one or more labels before it.
    Suffix(Arc<str>),
    /// One host.
    Exact(Arc<str>),
}

/// The value of a CORS response header.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum CorsValue {
    /// The same value in every response.
    Fixed(#[serde(serialize_with = "serialized::value")] HeaderValue),
    /// Names from the message instead of `*`: the method or headers that the request asks for, or the
    /// headers of the response.
    Named,
}

impl fmt::Display for AllowedOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
        };
        write!(f, "{scheme}://")?;
        match &self.host {
            AllowedHost::Any => f.write_str("*")?,
            AllowedHost::Suffix(suffix) => write!(f, "*{suffix}")?,
            AllowedHost::Exact(host) => f.write_str(host)?,
        }
        write!(f, ":{}", self.port)
    }
}

impl Serialize for AllowedOrigin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
