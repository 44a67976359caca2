//! CORS: responds to preflight requests, and sets the CORS headers of all other responses. What the
//! backend says about CORS is removed, because the route decides (GEP-1767).

use std::net::Ipv6Addr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, CACHE_CONTROL, CONTENT_LANGUAGE,
    CONTENT_LENGTH, CONTENT_TYPE, EXPIRES, LAST_MODIFIED, MaxSizeReached, ORIGIN, PRAGMA,
    SET_COOKIE, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use super::Scheme;
use super::facts::{FilterError, LocalResponse};
use crate::ir::cors::{AllowedHost, AllowedOrigin, AllowedOrigins, Cors, CorsValue};

/// The headers that only a CORS filter sets.
const CORS_HEADERS: [HeaderName; 6] = [
    ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_ALLOW_CREDENTIALS,
    ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_HEADERS,
    ACCESS_CONTROL_EXPOSE_HEADERS,
    ACCESS_CONTROL_MAX_AGE,
];

/// Response headers that CORS need not expose: browsers always show them, or never do (Fetch, 2.2.2).
const NEVER_LISTED: [HeaderName; 8] = [
    CACHE_CONTROL,
    CONTENT_LANGUAGE,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    EXPIRES,
    LAST_MODIFIED,
    PRAGMA,
    SET_COOKIE,
];

const ANY: HeaderValue = HeaderValue::from_static("*");
const TRUE: HeaderValue = HeaderValue::from_static("true");

/// What a CORS filter does to the response of one request.
#[derive(Clone, Debug)]
pub(super) struct Sharing {
    cors: Arc<Cors>,
    /// `Access-Control-Allow-Origin`; absent if the origin is not allowed.
    origin: Option<HeaderValue>,
}

/// Decides what the origin of a request may do.
pub(super) fn sharing(cors: &Arc<Cors>, request: &HeaderMap) -> Sharing {
    Sharing {
        cors: cors.clone(),
        origin: allowed_origin(cors, request),
    }
}

impl Sharing {
    /// Returns the response to a preflight request. A response without CORS headers denies the permission.
    pub(super) fn preflight(self, request: &HeaderMap) -> Result<LocalResponse, FilterError> {
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = StatusCode::NO_CONTENT;
        self.permit(request, response.headers_mut())
            .map_err(|_| FilterError::TooManyHeaders)?;
        Ok(Box::new(response))
    }

    fn permit(self, request: &HeaderMap, headers: &mut HeaderMap) -> Result<(), MaxSizeReached> {
        let cors = &*self.cors;
        if let Some(vary) = &cors.preflight_vary {
            headers.try_insert(VARY, vary.clone())?;
        }
        let Some(origin) = self.origin else {
            return Ok(());
        };
        headers.try_insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin)?;
        if cors.credentials {
            headers.try_insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, TRUE)?;
        }
        if let Some(CorsValue::Fixed(names)) = &cors.expose {
            headers.try_insert(ACCESS_CONTROL_EXPOSE_HEADERS, names.clone())?;
        }
        headers.try_insert(ACCESS_CONTROL_MAX_AGE, cors.max_age.clone())?;
        let method = request.get(ACCESS_CONTROL_REQUEST_METHOD).into_iter();
        insert(headers, ACCESS_CONTROL_ALLOW_METHODS, &cors.methods, method)?;
        let names = request.get_all(ACCESS_CONTROL_REQUEST_HEADERS).iter();
        insert(headers, ACCESS_CONTROL_ALLOW_HEADERS, &cors.headers, names)
    }

    /// Replaces the CORS headers of a response other than one to a preflight request.
    pub(super) fn apply(&self, headers: &mut HeaderMap) {
        for name in &CORS_HEADERS {
            headers.remove(name);
        }
        // `http::HeaderMap` refuses more than 24,576 names. No parser of ours lets so many through, and a
        // response without the headers only permits less.
        let _ = self.share(headers);
    }

    fn share(&self, headers: &mut HeaderMap) -> Result<(), MaxSizeReached> {
        if !self.cors.is_public() && !varies_by_origin(headers) {
            headers.try_append(VARY, HeaderValue::from_static("Origin"))?;
        }
        let Some(origin) = &self.origin else {
            return Ok(());
        };
        let exposed = match &self.cors.expose {
            None => None,
            Some(CorsValue::Fixed(names)) => Some(names.clone()),
            Some(CorsValue::Named) => names_of(headers),
        };
        headers.try_insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone())?;
        if self.cors.credentials {
            headers.try_insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, TRUE)?;
        }
        if let Some(names) = exposed {
            headers.try_insert(ACCESS_CONTROL_EXPOSE_HEADERS, names)?;
        }
        Ok(())
    }
}

/// Returns the value of `Access-Control-Allow-Origin`, if the origin is allowed. A filter that allows
/// every origin without credentials sets it on requests without an `Origin` too, because a cache may
/// reuse that response for a request that has one.
fn allowed_origin(cors: &Cors, request: &HeaderMap) -> Option<HeaderValue> {
    if cors.is_public() {
        return Some(ANY);
    }
    let mut values = request.get_all(ORIGIN).iter();
    let (Some(origin), None) = (values.next(), values.next()) else {
        return None;
    };
    let is_allowed = match &cors.origins {
        AllowedOrigins::Any => true,
        AllowedOrigins::Listed(origins) => {
            let origin = Origin::parse(origin.to_str().ok()?)?;
            origins.iter().any(|allowed| origin.matches(allowed))
        }
    };
    is_allowed.then(|| origin.clone())
}

/// The origin of a page, as browsers serialize it (RFC 6454, 6.2).
struct Origin<'a> {
    scheme: Scheme,
    host: &'a str,
    port: u16,
}

impl<'a> Origin<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let (scheme, default) = match scheme {
            _ if scheme.eq_ignore_ascii_case("https") => (Scheme::Https, 443),
            _ if scheme.eq_ignore_ascii_case("http") => (Scheme::Http, 80),
            _ => return None,
        };
        // The colons of an IPv6 address are in brackets.
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
            _ => (rest, default),
        };
        is_host(host).then_some(Self { scheme, host, port })
    }

    fn matches(&self, allowed: &AllowedOrigin) -> bool {
        let Self { scheme, host, port } = *self;
        scheme == allowed.scheme
            && port == allowed.port
            && match &allowed.host {
                AllowedHost::Any => true,
                AllowedHost::Exact(exact) => host.eq_ignore_ascii_case(exact),
                AllowedHost::Suffix(suffix) => {
                    let labels = host.len().checked_sub(suffix.len());
                    labels
                        .filter(|length| *length > 0)
                        .and_then(|length| host.get(length..))
                        .is_some_and(|end| end.eq_ignore_ascii_case(suffix))
                }
            }
    }
}

/// Reports whether the host of an origin is only a host. Anything else, such as a path, could end like
/// an allowed host.
fn is_host(text: &str) -> bool {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    match text.strip_prefix('[') {
        Some(address) => address
            .strip_suffix(']')
            .is_some_and(|address| address.parse::<Ipv6Addr>().is_ok()),
        None => !text.is_empty() && text.bytes().all(is_name),
    }
}

fn insert<'v>(
    headers: &mut HeaderMap,
    name: HeaderName,
    value: &Option<CorsValue>,
    requested: impl Iterator<Item = &'v HeaderValue>,
) -> Result<(), MaxSizeReached> {
    match value {
        None => {}
        Some(CorsValue::Fixed(value)) => {
            headers.try_insert(name, value.clone())?;
        }
        Some(CorsValue::Named) => {
            for value in requested {
                headers.try_append(&name, value.clone())?;
            }
        }
    }
    Ok(())
}

fn varies_by_origin(headers: &HeaderMap) -> bool {
    let is_origin = |name: &str| name == "*" || name.eq_ignore_ascii_case("origin");
    let values = headers.get_all(VARY).iter();
    values
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.split(',').map(str::trim).any(is_origin))
}

/// Returns the names of the headers of a response, to send instead of `*`: browsers take `*` literally
/// when the request has credentials.
fn names_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let names = headers.keys().filter(|name| !NEVER_LISTED.contains(name));
    let names: Vec<&str> = names.map(HeaderName::as_str).collect();
    if names.is_empty() {
        return None;
    }
    HeaderValue::try_from(names.join(", ")).ok()
}

#[cfg(test)]
#[path = "cors/tests.rs"]
mod tests;
