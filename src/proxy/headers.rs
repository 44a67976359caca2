//! Header fields on their way through: which requests are refused for them, which fields end here, and which the proxy
//! sets. Decides the request's host once, for matching and forwarding alike. Knows nothing of routes or sockets.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, HOST, HeaderName, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE,
};
use http::{HeaderMap, HeaderValue, Method, Uri, Version, request};

use super::error::Error;
use super::target;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
/// The field that carries a request's id.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Fields that a client cannot have dropped by naming them in `Connection`.
const KEPT: [HeaderName; 10] = [
    HOST,
    AUTHORIZATION,
    COOKIE,
    CONTENT_LENGTH,
    FORWARDED,
    X_FORWARDED_FOR,
    X_FORWARDED_PROTO,
    X_FORWARDED_HOST,
    X_REAL_IP,
    X_REQUEST_ID,
];

/// The host that a request is for: lower case, without port, brackets of IPv6 literals kept.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    bytes: Bytes,
}

impl Host {
    /// The host as text.
    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes).unwrap_or_default()
    }
}

/// What [`normalize`] found out about a request.
#[derive(Debug)]
pub(crate) struct Normal {
    /// The host to match.
    pub(crate) host: Host,
    /// The protocol that the client asks to upgrade to.
    pub(crate) upgrade: Option<HeaderValue>,
}

/// Makes a request fit to be matched and forwarded: one host, one path, end-to-end fields only; or says why it cannot
/// be. `max_fields` bounds the fields of HTTP/2 requests; the HTTP/1 parser has bounded its own.
pub(crate) fn normalize(parts: &mut request::Parts, max_fields: usize) -> Result<Normal, Error> {
    if parts.method == Method::CONNECT || parts.method == Method::TRACE {
        return Err(Error::MethodNotAllowed);
    }
    if parts.version == Version::HTTP_2 {
        check_http2(parts, max_fields)?;
    } else {
        check_framing(parts)?;
    }
    let host = decide_host(parts)?;
    normalize_path(parts)?;
    let upgrade = end_to_end(parts)?;
    Ok(Normal { host, upgrade })
}

/// RFC 9113, 8.2 and 8.3 leave these to us: h2 checks neither the number of fields nor blanks around values.
fn check_http2(parts: &mut request::Parts, max_fields: usize) -> Result<(), Error> {
    if parts.headers.len() > max_fields {
        return Err(Error::TooManyFields);
    }
    let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    if parts.headers.values().any(|value| blank(value.as_bytes().first()) || blank(value.as_bytes().last())) {
        return Err(Error::BadRequest("a field value begins or ends with a blank"));
    }
    if parts.headers.get_all(CONTENT_LENGTH).iter().nth(1).is_some() {
        return Err(Error::BadRequest("several Content-Length fields"));
    }
    join_cookies(&mut parts.headers);
    Ok(())
}

/// RFC 9113, 8.2.3: cookie crumbs are one field again towards HTTP/1.
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let crumbs: Vec<_> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// RFC 9112, 6: what the parser lets through although two readers could take it for different messages.
fn check_framing(parts: &request::Parts) -> Result<(), Error> {
    let mut codings = parts.headers.get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next()
        && (!coding.as_bytes().eq_ignore_ascii_case(b"chunked") || codings.next().is_some())
    {
        return Err(Error::BadRequest("Transfer-Encoding other than chunked"));
    }
    let has_content = matches!(parts.method, Method::POST | Method::PUT | Method::PATCH);
    if parts.version < Version::HTTP_11 && has_content && !parts.headers.contains_key(CONTENT_LENGTH) {
        return Err(Error::BadRequest("an HTTP/1.0 request with content needs a Content-Length"));
    }
    Ok(())
}

/// RFC 9112, 3.2: one host, from the target if it has one, else from the only `Host`. The field is set to it.
fn decide_host(parts: &mut request::Parts) -> Result<Host, Error> {
    let mut hosts = parts.headers.get_all(HOST).iter();
    let (first, more) = (hosts.next(), hosts.next().is_some());
    if more {
        return Err(Error::BadRequest("several Host fields"));
    }
    let Some(authority) = parts.uri.authority() else {
        return match first {
            Some(host) => parse_host(host),
            None if parts.version < Version::HTTP_11 => Ok(Host { bytes: Bytes::new() }),
            None => Err(Error::BadRequest("no Host")),
        };
    };
    let value = HeaderValue::from_str(authority.as_str()).map_err(|_| Error::BadRequest("malformed authority"))?;
    let host = parse_host(&value)?;
    if parts.version == Version::HTTP_2
        && let Some(field) = first
        && !field.as_bytes().eq_ignore_ascii_case(value.as_bytes())
    {
        return Err(Error::BadRequest("Host differs from :authority"));
    }
    parts.headers.insert(HOST, value);
    Ok(host)
}

/// Reads `uri-host [ ":" port ]` (RFC 9110, 7.2).
fn parse_host(value: &HeaderValue) -> Result<Host, Error> {
    const BAD: Error = Error::BadRequest("malformed Host");
    let text = value.as_bytes();
    let end = if text.first() == Some(&b'[') {
        let end = text.iter().position(|byte| *byte == b']').ok_or(BAD)? + 1;
        let inside = text.get(1..end - 1).and_then(|inside| std::str::from_utf8(inside).ok()).ok_or(BAD)?;
        inside.parse::<std::net::Ipv6Addr>().map_err(|_| BAD)?;
        end
    } else {
        text.iter().position(|byte| *byte == b':').unwrap_or(text.len())
    };
    let (host, port) = text.split_at(end);
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    if host.is_empty() || host.len() > 255 || (host[0] != b'[' && !host.iter().all(is_name)) {
        return Err(BAD);
    }
    if let Some(digits) = port.strip_prefix(b":") {
        let port = std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        if !digits.is_empty() && !port.and_then(|port| port.parse::<u16>().ok()).is_some_and(|port| port > 0) {
            return Err(BAD);
        }
    } else if !port.is_empty() {
        return Err(BAD);
    }
    let bytes = if host.iter().any(u8::is_ascii_uppercase) {
        host.to_ascii_lowercase().into()
    } else {
        Bytes::copy_from_slice(host)
    };
    Ok(Host { bytes })
}

fn normalize_path(parts: &mut request::Parts) -> Result<(), Error> {
    let path = parts.uri.path();
    if path == "*" && parts.method == Method::OPTIONS {
        return Ok(());
    }
    if !path.starts_with('/') || parts.uri.path_and_query().is_none() {
        return Err(Error::BadRequest("the request target is not a path"));
    }
    let path = target::normalize(path).map_err(Error::BadRequest)?;
    let changed = match (path, parts.uri.query()) {
        (Cow::Borrowed(_), _) if parts.uri.authority().is_none() => return Ok(()),
        (path, Some(query)) => Uri::builder().path_and_query(format!("{path}?{query}")),
        (path, None) => Uri::builder().path_and_query(&*path),
    };
    parts.uri = changed.build().map_err(|_| Error::BadRequest("malformed request target"))?;
    Ok(())
}

/// RFC 9110, 7.6.1: drops what concerns this connection only. Returns the protocol of an upgrade that can be relayed.
fn end_to_end(parts: &mut request::Parts) -> Result<Option<HeaderValue>, Error> {
    let chunked = parts.headers.remove(TRANSFER_ENCODING).is_some();
    let has_content = chunked || parts.headers.get(CONTENT_LENGTH).is_some_and(|length| length != "0");
    let headers = &mut parts.headers;
    let mut upgrades = false;
    let mut named = Vec::new();
    for value in headers.get_all(CONNECTION) {
        for option in value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            if option.eq_ignore_ascii_case(b"upgrade") {
                upgrades = true;
            } else if !option.eq_ignore_ascii_case(b"keep-alive") && !option.eq_ignore_ascii_case(b"close") {
                named.extend(HeaderName::from_bytes(option).ok().filter(|name| !KEPT.contains(name)));
            }
        }
    }
    let trailers = headers.get(TE).is_some_and(|value| {
        value.as_bytes().split(|byte| *byte == b',').any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
    });
    let upgrade = headers.remove(UPGRADE);
    for name in [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, HTTP2_SETTINGS, TE] {
        headers.remove(name);
    }
    for name in named {
        headers.remove(name);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some(expectation) = headers.remove(EXPECT)
        && !expectation.as_bytes().eq_ignore_ascii_case(b"100-continue")
    {
        return Err(Error::ExpectationFailed);
    }
    let relayed = upgrades && !has_content && parts.version == Version::HTTP_11;
    Ok(upgrade.filter(|protocol| relayed && is_relayed(protocol)))
}

/// HTTP/2 is never spoken through an upgrade, and a list leaves open what would be spoken.
fn is_relayed(protocol: &HeaderValue) -> bool {
    let protocol = protocol.as_bytes();
    let http2 = protocol.len() >= 2 && protocol[..2].eq_ignore_ascii_case(b"h2");
    let http = protocol.len() >= 4 && protocol[..4].eq_ignore_ascii_case(b"http");
    let tls = protocol.len() >= 3 && protocol[..3].eq_ignore_ascii_case(b"tls");
    !http2 && !http && !tls && !protocol.contains(&b',')
}

/// Drops trailer fields that must not be read as if they stood in the head (RFC 9110, 6.5.1).
pub(crate) fn clean_trailers(trailers: &mut HeaderMap) {
    const NEVER: [HeaderName; 12] = [
        AUTHORIZATION,
        CONNECTION,
        CONTENT_LENGTH,
        COOKIE,
        EXPECT,
        HOST,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
        KEEP_ALIVE,
        PROXY_CONNECTION,
    ];
    for name in NEVER {
        trailers.remove(name);
    }
}

/// What the proxy tells backends about the client.
#[derive(Debug)]
pub(crate) struct Forwarding {
    /// The client's address.
    pub(crate) address: HeaderValue,
    /// `http` or `https`.
    pub(crate) proto: HeaderValue,
    /// Whether the client may speak for others.
    pub(crate) trusted: bool,
}

impl Forwarding {
    /// Sets `X-Forwarded-*` and `X-Request-Id`. What a client says is kept only if it is trusted: then its address is
    /// appended to `X-Forwarded-For`, and the other fields are filled in where they are missing.
    pub(crate) fn apply(&self, headers: &mut HeaderMap, new_id: impl FnOnce() -> HeaderValue) {
        let host = headers.get(HOST).cloned();
        if !self.trusted {
            headers.remove(FORWARDED);
            headers.remove(X_REAL_IP);
            headers.remove(X_FORWARDED_PORT);
            headers.insert(X_FORWARDED_FOR, self.address.clone());
            headers.insert(X_FORWARDED_PROTO, self.proto.clone());
            match host {
                Some(host) => headers.insert(X_FORWARDED_HOST, host),
                None => headers.remove(X_FORWARDED_HOST),
            };
            headers.insert(X_REQUEST_ID, new_id());
            return;
        }
        let mut chain = Vec::new();
        for value in headers.get_all(X_FORWARDED_FOR) {
            chain.extend_from_slice(value.as_bytes());
            chain.extend_from_slice(b", ");
        }
        chain.extend_from_slice(self.address.as_bytes());
        if let Ok(chain) = HeaderValue::from_bytes(&chain) {
            headers.insert(X_FORWARDED_FOR, chain);
        }
        headers.entry(X_FORWARDED_PROTO).or_insert_with(|| self.proto.clone());
        if let Some(host) = host {
            headers.entry(X_FORWARDED_HOST).or_insert(host);
        }
        headers.entry(X_REQUEST_ID).or_insert_with(new_id);
    }
}

#[cfg(test)]
mod tests;
