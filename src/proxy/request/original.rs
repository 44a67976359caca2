//! What the request of a client was, for servers that see another path. Does no I/O.

use std::borrow::Cow;

use http::header::HOST;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderName, HeaderValue, request};

use crate::filter::Scheme;
use crate::ir::request_path::RequestPath;
use crate::proxy::client::forwarding::{X_FORWARDED_HOST, X_FORWARDED_PROTO};
use crate::proxy::error::Error;
use crate::table::RequestView;

const X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const X_ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");
const X_ORIGINAL_URL: HeaderName = HeaderName::from_static("x-original-url");

/// Sets the headers that describe a request. What the client says in them is replaced.
pub(super) fn describe(
    (parts, path, scheme): (&request::Parts, &RequestPath, Scheme),
    headers: &mut HeaderMap,
) -> Result<(), Error> {
    let origin = origin(&parts.headers, self::scheme(parts, scheme)).ok_or(Error::Filter)?;
    let target = decided_target(parts, path);
    let value = |text: &str| HeaderValue::from_str(text).map_err(|_| Error::Filter);
    let method = value(parts.method.as_str())?;
    let described = [
        (X_FORWARDED_METHOD, method.clone()),
        (X_FORWARDED_URI, value(&target)?),
        (X_ORIGINAL_METHOD, method),
        (X_ORIGINAL_URL, value(&(origin + &target))?),
    ];
    // Policies may keep the proxy from sending these to backends.
    let host = parts.headers.get(HOST).cloned().ok_or(Error::Filter)?;
    let proto = HeaderValue::from_static(self::scheme(parts, scheme));
    let others = [(X_FORWARDED_HOST, host), (X_FORWARDED_PROTO, proto)];
    let others = others
        .into_iter()
        .filter(|(name, _)| !parts.headers.contains_key(name));
    for (name, value) in described.into_iter().chain(others) {
        let inserted = headers.try_insert(name, value);
        inserted.map_err(|_| Error::Filter)?;
    }
    Ok(())
}

/// Returns the URL of a request; `None` if its host is not one.
pub(super) fn url(parts: &request::Parts, scheme: Scheme) -> Option<String> {
    let mut url = origin(&parts.headers, self::scheme(parts, scheme))?;
    url.push_str(target(parts));
    Some(url)
}

/// Returns the origin of the URL of a request with these headers (RFC 6454); `None` if its host is not one.
pub(super) fn origin(headers: &HeaderMap, scheme: &str) -> Option<String> {
    let host = headers.get(HOST)?.to_str().ok()?;
    let authority: Authority = host.parse().ok()?;
    let port = host.get(authority.host().len()..)?;
    let is_valid = !authority.host().is_empty()
        && !host.contains('@')
        && (port.is_empty() || authority.port_u16().is_some());
    is_valid.then(|| format!("{scheme}://{host}"))
}

/// Returns path and query. The target of `OPTIONS *` is not a path.
pub(super) fn target(parts: &request::Parts) -> &str {
    let target = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    if target.starts_with('/') { target } else { "/" }
}

/// Returns path and query for a server that decides: the path in the form by which everything decides.
pub(super) fn decided_target<'a>(parts: &'a request::Parts, path: &RequestPath) -> Cow<'a, str> {
    let forwarded = parts.uri.path();
    let canonical = path.canonical(forwarded);
    match parts.uri.query() {
        _ if *canonical == *forwarded || !canonical.starts_with('/') => target(parts).into(),
        Some(query) => format!("{}?{query}", &*canonical).into(),
        None => canonical.to_string().into(),
    }
}

/// Returns the scheme of the URL of a request, whose added headers may still be apart.
pub(super) fn scheme_of(view: &RequestView<'_>, of_connection: Scheme) -> &'static str {
    let mut added = view.added.iter();
    let added = added.find(|(name, _)| *name == X_FORWARDED_PROTO);
    let named = added.map(|(_, value)| value);
    scheme_by(
        named.or_else(|| view.headers.get(X_FORWARDED_PROTO)),
        of_connection,
    )
}

fn scheme(parts: &request::Parts, of_connection: Scheme) -> &'static str {
    scheme_by(parts.headers.get(X_FORWARDED_PROTO), of_connection)
}

/// Returns the scheme that a trusted proxy before this one names, or else that of the connection. What other clients say
/// was removed.
fn scheme_by(named: Option<&HeaderValue>, of_connection: Scheme) -> &'static str {
    match (named.map(HeaderValue::as_bytes), of_connection) {
        (Some(b"https"), _) => "https",
        (Some(b"http"), _) | (_, Scheme::Http) => "http",
        (_, Scheme::Https) => "https",
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parts(host: &str, target: &str) -> request::Parts {
        let request = Request::get(target).header(HOST, host);
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn url_is_that_of_the_request() {
        for (host, target, expected) in [
            ("a.example", "/b?c=d", Some("https://a.example/b?c=d")),
            ("a.example:8443", "/", Some("https://a.example:8443/")),
            (
                "[2001:db8::1]:80",
                "//b",
                Some("https://[2001:db8::1]:80//b"),
            ),
            ("a.example@b.example", "/", None),
            ("a.example/b", "/", None),
            ("a.example:b", "/", None),
            ("", "/", None),
        ] {
            let url = url(&parts(host, target), Scheme::Https);
            assert_eq!(url.as_deref(), expected, "{host}");
        }
    }

    #[test]
    fn headers_of_the_client_are_replaced() {
        let mut headers = HeaderMap::new();
        headers.append(X_FORWARDED_URI, HeaderValue::from_static("/forged"));
        headers.append(X_FORWARDED_URI, HeaderValue::from_static("/again"));
        let mut parts = parts("a.example", "/b?c");
        parts
            .headers
            .insert(X_FORWARDED_PROTO, HeaderValue::from_static("https"));
        let path = RequestPath::new(Some("/c".to_owned()), None);
        describe((&parts, &path, Scheme::Http), &mut headers).unwrap();
        let uris: Vec<_> = headers.get_all(X_FORWARDED_URI).iter().collect();
        assert_eq!(uris, ["/c?c"]);
        assert_eq!(headers[X_ORIGINAL_URL], "https://a.example/c?c");
        assert_eq!(headers[X_FORWARDED_HOST], "a.example");
        assert_eq!(headers[X_FORWARDED_METHOD], "GET");
    }
}
