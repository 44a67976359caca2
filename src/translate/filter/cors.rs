//! CORS filters: parses origins and prebuilds header values.

use std::sync::Arc;

use http::header::{ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD};
use http::{HeaderName, HeaderValue, Method};

use crate::api::filter::CorsFilter;
use crate::ir::cors::{AllowedHost, AllowedOrigin, AllowedOrigins, Cors, CorsValue};
use crate::ir::filter::Scheme;

use crate::translate::reason::{Fault, all, both, unsupported};

/// Default of `maxAge`: how long browsers may cache the response to a preflight request, in seconds.
const DEFAULT_MAX_AGE: i32 = 5;

/// Translates a CORS filter.
pub(in crate::translate) fn translate(block: &CorsFilter, field: &str) -> Result<Cors, Fault> {
    let CorsFilter {
        allow_origins,
        allow_credentials,
        allow_methods,
        allow_headers,
        expose_headers,
        max_age,
    } = block;
    let any = || CorsValue::Fixed(HeaderValue::from_static("*"));
    // With credentials, `*` is not allowed: browsers take it literally.
    let credentials = allow_credentials.unwrap_or(false);
    let any_unless_credentials = || {
        if credentials { CorsValue::Named } else { any() }
    };
    let is_method = |name: &str| Method::from_bytes(name.as_bytes()).is_ok();
    let is_header = |name: &str| HeaderName::from_bytes(name.as_bytes()).is_ok();
    let list = |names: &[String], member: &str, is_valid: fn(&str) -> bool, any: CorsValue| {
        value(names, &format!("{field}.{member}"), is_valid, any)
    };
    let methods = list(
        allow_methods,
        "allowMethods",
        is_method,
        any_unless_credentials(),
    );
    // `*` excludes `Authorization` (Fetch, 4.9), but the API's wildcard includes it.
    let headers = list(allow_headers, "allowHeaders", is_header, CorsValue::Named);
    let expose = list(
        expose_headers,
        "exposeHeaders",
        is_header,
        any_unless_credentials(),
    );
    let origins = both(origins(allow_origins, field), methods);
    let ((origins, methods), (headers, expose)) = both(origins, both(headers, expose))?;
    let mut cors = Cors {
        origins,
        credentials,
        methods,
        headers,
        expose,
        max_age: HeaderValue::from(max_age.unwrap_or(DEFAULT_MAX_AGE)),
        preflight_vary: None,
    };
    cors.preflight_vary = preflight_vary(&cors);
    Ok(cors)
}

/// Returns the value of a header that lists `names`: `any` if one of them is `*`, `None` if there are none.
fn value(
    names: &[String],
    field: &str,
    is_valid: fn(&str) -> bool,
    any: CorsValue,
) -> Result<Option<CorsValue>, Fault> {
    if names.is_empty() {
        return Ok(None);
    }
    if names.iter().any(|name| name == "*") {
        return Ok(Some(any));
    }
    let checked = names.iter().enumerate().map(|(index, name)| {
        let message = || format!("{name:?} is not a valid name");
        let wrong = || unsupported(&format!("{field}[{index}]"), &message());
        is_valid(name).then_some(()).ok_or_else(wrong)
    });
    let () = all(checked)?;
    let joined = HeaderValue::try_from(names.join(", "))
        .map_err(|_| unsupported(field, "the names do not fit into a header"))?;
    Ok(Some(CorsValue::Fixed(joined)))
}

fn origins(origins: &[String], field: &str) -> Result<AllowedOrigins, Fault> {
    if origins.iter().any(|origin| origin == "*") {
        return Ok(AllowedOrigins::Any);
    }
    let numbered = origins.iter().enumerate();
    let parsed = numbered.map(|(index, text)| {
        let parsed = origin(text);
        parsed.ok_or_else(|| {
            let message = format!(
                "{text:?} is not an origin; use *, or http:// or https:// with a host and an optional port"
            );
            unsupported(&format!("{field}.allowOrigins[{index}]"), &message)
        })
    });
    let listed: Vec<Option<AllowedOrigin>> = all(parsed)?;
    Ok(AllowedOrigins::Listed(
        listed.into_iter().flatten().collect(),
    ))
}

/// Parses an allowed origin. Returns `Some(None)` for a port that no origin can have: the schema accepts any five
/// digits.
fn origin(text: &str) -> Option<Option<AllowedOrigin>> {
    let (scheme, rest) = text.split_once("://")?;
    let (scheme, default) = match scheme {
        "http" => (Scheme::Http, 80),
        "https" => (Scheme::Https, 443),
        _ => return None,
    };
    let (host, port) = match rest.split_once(':') {
        Some((host, port)) => (host, port.parse::<u32>().ok()?),
        None => (rest, default),
    };
    let host = host.to_ascii_lowercase();
    let name = host.strip_prefix('*').unwrap_or(&host);
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    if !name.bytes().all(fits) {
        return None;
    }
    let is_wildcard = name.len() < host.len();
    let host = match name {
        "" if is_wildcard => AllowedHost::Any,
        "" => return None,
        _ if !is_wildcard => AllowedHost::Exact(Arc::from(name)),
        _ if name.starts_with('.') && name.len() > 1 => AllowedHost::Suffix(Arc::from(name)),
        _ => return None,
    };
    let port = u16::try_from(port).ok().filter(|port| *port > 0);
    Some(port.map(|port| AllowedOrigin { scheme, host, port }))
}

fn preflight_vary(cors: &Cors) -> Option<HeaderValue> {
    let is_named = |value: &Option<CorsValue>| matches!(value, Some(CorsValue::Named));
    let headers = [
        ("Origin", !cors.is_public()),
        (
            ACCESS_CONTROL_REQUEST_METHOD.as_str(),
            is_named(&cors.methods),
        ),
        (
            ACCESS_CONTROL_REQUEST_HEADERS.as_str(),
            is_named(&cors.headers),
        ),
    ];
    let needed = headers.into_iter().filter(|(_, is_needed)| *is_needed);
    let names: Vec<&str> = needed.map(|(name, _)| name).collect();
    if names.is_empty() {
        return None;
    }
    HeaderValue::try_from(names.join(", ")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(text: &str) -> Option<String> {
        origin(text).map(|allowed| allowed.map_or("none".to_owned(), |one| one.to_string()))
    }

    #[test]
    fn parses_scheme_host_and_port_of_origins() {
        let rows = [
            ("https://a.com", Some("https://a.com:443")),
            ("http://a.com", Some("http://a.com:80")),
            ("https://A.com:8443", Some("https://a.com:8443")),
            ("http://localhost:3000", Some("http://localhost:3000")),
            ("https://*.a.com", Some("https://*.a.com:443")),
            ("https://*.com:99", Some("https://*.com:99")),
            ("http://*", Some("http://*:80")),
            ("http://*:8080", Some("http://*:8080")),
            ("https://a.com:0", Some("none")),
            ("https://a.com:99999", Some("none")),
            ("ftp://a.com", None),
            ("a.com", None),
            ("https://", None),
            ("https://a*.com", None),
            ("https://*a.com", None),
            ("https://a.*.com", None),
            ("https://*.", None),
            ("https://a.com/path", None),
            ("https://a.com:", None),
            ("https://a.com:80:80", None),
            ("https://user@a.com", None),
        ];
        for (text, expected) in rows {
            assert_eq!(allowed(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn wildcards_depend_on_credentials() {
        let any = vec!["*".to_owned()];
        let filter = |allow_credentials| CorsFilter {
            allow_origins: any.clone(),
            allow_credentials,
            allow_methods: any.clone(),
            allow_headers: any.clone(),
            expose_headers: vec!["x-a".to_owned(), "*".to_owned()],
            max_age: None,
        };
        let star = Some(CorsValue::Fixed(HeaderValue::from_static("*")));
        let vary = |cors: &Cors| {
            let vary = cors.preflight_vary.as_ref();
            vary.and_then(|vary| vary.to_str().ok()).map(str::to_owned)
        };
        for without in [None, Some(false)] {
            let cors = translate(&filter(without), "cors").unwrap();
            assert_eq!((&cors.methods, &cors.expose), (&star, &star));
            assert_eq!(cors.headers, Some(CorsValue::Named));
            assert_eq!(
                vary(&cors).as_deref(),
                Some("access-control-request-headers")
            );
            assert_eq!(cors.max_age, "5");
        }
        let cors = translate(&filter(Some(true)), "cors").unwrap();
        let named = Some(CorsValue::Named);
        assert_eq!((&cors.methods, &cors.expose), (&named, &named));
        assert_eq!(cors.headers, named);
        let all = "Origin, access-control-request-method, access-control-request-headers";
        assert_eq!(vary(&cors).as_deref(), Some(all));
    }
}
