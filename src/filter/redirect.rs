//! RequestRedirect: responds with a new location.

use std::borrow::Cow;
use std::fmt::Write;

use bytes::Bytes;
use http::header::LOCATION;
use http::request::Parts;
use http::{HeaderValue, Response};

use super::facts::{FilterError, LocalResponse, RequestFacts};
use super::{Scheme, path};
use crate::ir::filter::Redirect;
use crate::ir::request_path::RequestPath;

/// Returns the response to a request.
pub(super) fn response(
    redirect: &Redirect,
    (parts, path): (&Parts, &RequestPath),
    facts: &RequestFacts<'_>,
) -> Result<LocalResponse, FilterError> {
    let location = location(redirect, (parts, path), facts)?;
    let location = HeaderValue::try_from(location).map_err(|_| FilterError::Location)?;
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = redirect.status;
    response.headers_mut().insert(LOCATION, location);
    Ok(Box::new(response))
}

fn location(
    redirect: &Redirect,
    (parts, path): (&Parts, &RequestPath),
    facts: &RequestFacts<'_>,
) -> Result<String, FilterError> {
    let scheme = redirect.scheme.unwrap_or(facts.scheme);
    let host = redirect.hostname.as_deref().unwrap_or(facts.host);
    if host.is_empty() {
        return Err(FilterError::NoHost);
    }
    let changed = match &redirect.path {
        None => None,
        // The path of the request stays.
        Some(change) => path::change(change, &parts.uri, &mut path.clone())?,
    };
    let path = match changed {
        Some(changed) => Cow::Owned(changed),
        None => path::changed(None, parts.uri.path()),
    };

    let mut location = String::with_capacity(host.len() + path.len() + 16);
    location.push_str(name(scheme));
    location.push_str("://");
    if host.contains(':') && !host.starts_with('[') {
        location.extend(["[", host, "]"]);
    } else {
        location.push_str(host);
    }
    let port = port(redirect, facts);
    if port != well_known(scheme) {
        // Writing to a string cannot fail.
        let _ = write!(location, ":{port}");
    }
    location.push_str(&path);
    if let Some(query) = parts.uri.query() {
        location.extend(["?", query]);
    }
    Ok(location)
}

/// Returns the port of the new location (HTTPRequestRedirectFilter.port).
fn port(redirect: &Redirect, facts: &RequestFacts<'_>) -> u16 {
    match (redirect.port, redirect.scheme) {
        (Some(port), _) => port,
        (None, Some(scheme)) => well_known(scheme),
        (None, None) => facts.listener_port,
    }
}

fn well_known(scheme: Scheme) -> u16 {
    match scheme {
        Scheme::Http => 80,
        Scheme::Https => 443,
    }
}

fn name(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::Http => "http",
        Scheme::Https => "https",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::filter::PathChange;
    use http::StatusCode;

    const FACTS: RequestFacts<'_> = RequestFacts {
        scheme: Scheme::Http,
        host: "a.com",
        listener_port: 8080,
        is_preflight: false,
    };

    fn redirect(scheme: Option<Scheme>, port: Option<u16>) -> Redirect {
        Redirect {
            scheme,
            hostname: None,
            port,
            path: None,
            status: StatusCode::FOUND,
        }
    }

    fn to(redirect: &Redirect, uri: &str, facts: &RequestFacts<'_>) -> Result<String, FilterError> {
        let parts = http::Request::get(uri).body(()).unwrap().into_parts().0;
        location(redirect, (&parts, &RequestPath::default()), facts)
    }

    #[test]
    fn derives_the_port_as_the_api_requires() {
        use Scheme::{Http, Https};
        // Scheme of the connection, listener's port, scheme and port of the filter.
        let rows = [
            (Http, 8080, None, None, "http://a.com:8080/"),
            (Http, 80, None, None, "http://a.com/"),
            (Https, 443, None, None, "https://a.com/"),
            (Https, 8443, None, None, "https://a.com:8443/"),
            (Http, 443, None, None, "http://a.com:443/"),
            (Http, 8080, None, Some(80), "http://a.com/"),
            (Http, 8080, None, Some(8083), "http://a.com:8083/"),
            (Http, 8080, None, Some(443), "http://a.com:443/"),
            (Https, 8443, None, Some(443), "https://a.com/"),
            (Https, 8443, None, Some(80), "https://a.com:80/"),
            (Http, 8080, Some(Https), None, "https://a.com/"),
            (Http, 8080, Some(Http), None, "http://a.com/"),
            (Https, 8443, Some(Http), None, "http://a.com/"),
            (Https, 443, Some(Https), None, "https://a.com/"),
            (Http, 80, Some(Https), Some(443), "https://a.com/"),
            (Http, 80, Some(Https), Some(8443), "https://a.com:8443/"),
            (Http, 80, Some(Http), Some(80), "http://a.com/"),
            (Https, 443, Some(Http), Some(443), "http://a.com:443/"),
        ];
        for (from, listener_port, scheme, port, expected) in rows {
            let facts = RequestFacts {
                scheme: from,
                listener_port,
                ..FACTS
            };
            let found = to(&redirect(scheme, port), "/", &facts);
            assert_eq!(
                found.as_deref(),
                Ok(expected),
                "{from:?} {listener_port} {scheme:?} {port:?}"
            );
        }
    }

    #[test]
    fn keeps_path_and_query_by_default() {
        let mut redirect = redirect(Some(Scheme::Https), None);
        assert_eq!(
            to(&redirect, "/a%2Fb?x=1&y", &FACTS).as_deref(),
            Ok("https://a.com/a%2Fb?x=1&y")
        );
        redirect.hostname = Some("b.org".into());
        redirect.path = Some(PathChange::Prefix {
            prefix: "/a".into(),
            replacement: "/c/".into(),
        });
        assert_eq!(
            to(&redirect, "/a/b?x=1", &FACTS).as_deref(),
            Ok("https://b.org/c/b?x=1")
        );
        redirect.path = Some(PathChange::Full("/full".into()));
        assert_eq!(
            to(&redirect, "/a/b?x=1", &FACTS).as_deref(),
            Ok("https://b.org/full?x=1")
        );
    }

    #[test]
    fn puts_ipv6_hosts_in_brackets() {
        for host in ["[::1]", "::1"] {
            let facts = RequestFacts { host, ..FACTS };
            let found = to(&redirect(None, None), "/", &facts);
            assert_eq!(found.as_deref(), Ok("http://[::1]:8080/"));
        }
    }

    #[test]
    fn refuses_to_redirect_without_a_host() {
        let facts = RequestFacts { host: "", ..FACTS };
        assert_eq!(
            to(&redirect(None, None), "/", &facts),
            Err(FilterError::NoHost)
        );
    }

    #[test]
    fn responds_with_status_and_location_only() {
        let mut redirect = redirect(None, None);
        redirect.status = StatusCode::PERMANENT_REDIRECT;
        let parts = http::Request::get("/x").body(()).unwrap().into_parts().0;
        let response = response(&redirect, (&parts, &RequestPath::default()), &FACTS).unwrap();
        assert_eq!(response.status(), 308);
        assert_eq!(response.headers()[LOCATION], "http://a.com:8080/x");
        assert_eq!(response.headers().len(), 1);
    }
}
