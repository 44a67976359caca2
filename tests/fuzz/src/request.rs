//! A request head out of the text of an input, as the HTTP library hands one to the proxy. Refuses what that library
//! refuses.

use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Uri, Version};

const MAX_FIELDS: usize = 128;

/// Reads a head in the form of HTTP/1; the line end behind the last field may be missing.
pub fn read(text: &[u8]) -> Option<Parts> {
    let mut whole = text.to_vec();
    whole.extend_from_slice(b"\r\n\r\n");
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut head = httparse::Request::new(&mut fields);
    head.parse(&whole).ok()?.is_complete().then_some(())?;
    let mut parts = Request::new(()).into_parts().0;
    parts.method = head.method?.parse().ok()?;
    parts.uri = head.path?.parse().ok()?;
    parts.version = match head.version {
        Some(0) => Version::HTTP_10,
        _ => Version::HTTP_11,
    };
    for field in head.headers {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        parts
            .headers
            .append(name, HeaderValue::from_bytes(field.value).ok()?);
    }
    Some(parts)
}

/// The same request in the terms of HTTP/2: `:authority` out of `Host`, and no field of a connection.
pub fn as_http2(mut parts: Parts) -> Option<Parts> {
    for name in [
        "connection",
        "keep-alive",
        "proxy-connection",
        "transfer-encoding",
        "upgrade",
    ] {
        parts.headers.remove(name);
    }
    if parts.uri.authority().is_none()
        && let Some(host) = parts.headers.remove("host")
    {
        let target = parts.uri.path_and_query()?.clone();
        let uri = Uri::builder().scheme("http").authority(host.as_bytes());
        parts.uri = uri.path_and_query(target).build().ok()?;
    }
    parts.version = Version::HTTP_2;
    Some(parts)
}
