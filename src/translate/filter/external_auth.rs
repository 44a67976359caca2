//! ExternalAuth filters and the section `external` of AccessPolicies: the authorization server, and the parts of a request
//! that it gets.

use std::sync::Arc;

use http::HeaderName;

use crate::api::filter::{ExternalAuth as ExternalAuthSpec, HttpAuth as HttpAuthSpec};
use crate::ir::RouteKind;
use crate::ir::auth_call::{AuthCall, AuthProtocol, GrpcAuth, HttpAuth};
use crate::ir::external_auth::ExternalAuth;

use super::backend::ResolveBackend;
use crate::translate::reason::{Fault, Faults, both, unsupported};

/// Translates an ExternalAuth filter.
pub(in crate::translate) fn translate(
    block: &ExternalAuthSpec,
    field: &str,
    backend: ResolveBackend<'_>,
) -> Result<ExternalAuth, Fault> {
    let http = block.http.as_ref();
    if http.is_some_and(|http| http.path_mode.is_some()) {
        let message = "is for AccessPolicies; the filter appends the path of the request";
        return Err(unsupported(&format!("{field}.http.pathMode"), message));
    }
    let call = call(block, field)?;
    let of_reference = format!("{field}.backendRef");
    Ok(ExternalAuth {
        target: backend(&block.backend_ref, &of_reference, Some(requests(&call))),
        call,
    })
}

/// Returns the kind of routes that forward such requests.
pub(in crate::translate) fn requests(call: &AuthCall) -> RouteKind {
    match call.protocol {
        AuthProtocol::Http(_) => RouteKind::Http,
        AuthProtocol::Grpc(_) => RouteKind::Grpc,
    }
}

/// Translates how an authorization server is asked, from the block at `field`.
pub(in crate::translate) fn call(block: &ExternalAuthSpec, field: &str) -> Result<AuthCall, Fault> {
    let ExternalAuthSpec {
        protocol,
        backend_ref: _,
        http,
        grpc,
        forward_body,
    } = block;
    let protocol = match protocol.as_str() {
        // The API documents defaults for an absent block.
        "HTTP" => {
            let http = http
                .as_ref()
                .map(|http| http_auth(http, &format!("{field}.http")));
            AuthProtocol::Http(http.transpose()?.unwrap_or_default())
        }
        "GRPC" => {
            let allowed = grpc.as_ref().map_or(&[][..], |grpc| &grpc.allowed_headers);
            AuthProtocol::Grpc(GrpcAuth {
                headers: headers(allowed, &format!("{field}.grpc.allowedHeaders"))?,
            })
        }
        other => {
            let message = format!("{other} is not supported; use HTTP or GRPC");
            return Err(unsupported(&format!("{field}.protocol"), &message));
        }
    };
    let max_size = forward_body.as_ref().and_then(|body| body.max_size);
    let max_size = max_size.unwrap_or(0);
    let max_body = u16::try_from(max_size).map_err(|_| {
        let message = format!("{max_size} is not between 0 and {}", u16::MAX);
        unsupported(&format!("{field}.forwardBody.maxSize"), &message)
    })?;
    Ok(AuthCall { protocol, max_body })
}

fn http_auth(block: &HttpAuthSpec, field: &str) -> Result<HttpAuth, Fault> {
    let HttpAuthSpec {
        path,
        path_mode,
        allowed_headers,
        allowed_response_headers,
    } = block;
    let path = path.as_deref().unwrap_or_default();
    let paths = match path_mode.as_deref() {
        None | Some("Append") => path_prefix(path, field).map(|prefix| (prefix, None)),
        Some("Exact") => exact_path(path, field).map(|path| ("".into(), Some(path))),
        Some(other) => {
            let message = format!("{other:?} is neither Append nor Exact");
            Err(unsupported(&format!("{field}.pathMode"), &message))
        }
    };
    let response_headers = format!("{field}.allowedResponseHeaders");
    let headers = both(
        self::headers(allowed_headers, &format!("{field}.allowedHeaders")),
        self::headers(allowed_response_headers, &response_headers),
    );
    let ((path_prefix, exact_path), (headers, response_headers)) = both(paths, headers)?;
    Ok(HttpAuth {
        path_prefix,
        exact_path,
        headers,
        response_headers,
    })
}

/// Returns a path. Refuses dot segments, because an authorization server would resolve them.
fn checked<'p>(path: &'p str, field: &str) -> Result<&'p str, Fault> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-/._~!$&'()*+,;=:@%".contains(&byte);
    let is_dots = |segment: &str| {
        let segment = segment.to_ascii_lowercase().replace("%2e", ".");
        segment == "." || segment == ".."
    };
    if !path.bytes().all(fits) || path.split('/').any(is_dots) {
        let message = format!("{path:?} is not a path, or has segments `.` or `..`");
        return Err(unsupported(&format!("{field}.path"), &message));
    }
    Ok(path)
}

/// Parses a path prefix.
fn path_prefix(path: &str, field: &str) -> Result<Arc<str>, Fault> {
    let path = checked(path, field)?.trim_end_matches('/');
    Ok(match path {
        "" => path.into(),
        _ => rooted(path),
    })
}

/// Parses a path that may have a query.
fn exact_path(path: &str, field: &str) -> Result<Arc<str>, Fault> {
    let (before, query) = path.split_once('?').unwrap_or((path, ""));
    checked(before, field)?;
    let fits = |byte: u8| byte.is_ascii_graphic() && !b"#\"<>\\^`{|}".contains(&byte);
    if !query.bytes().all(fits) {
        let message = format!("{query:?} is not a query");
        return Err(unsupported(&format!("{field}.path"), &message));
    }
    Ok(rooted(path))
}

fn rooted(path: &str) -> Arc<str> {
    match path.starts_with('/') {
        true => path.into(),
        false => format!("/{path}").into(),
    }
}

/// Parses header names. Returns each once.
fn headers(names: &[String], field: &str) -> Result<Vec<HeaderName>, Fault> {
    let (mut parsed, mut faults) = (Vec::new(), Faults::default());
    for (index, name) in names.iter().enumerate() {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
            let message = format!("{name:?} is not a header name");
            unsupported(&format!("{field}[{index}]"), &message)
        });
        let name = faults.keep(name);
        parsed.extend(name.filter(|name| !parsed.contains(name)));
    }
    faults.finish(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalizes_path_prefix_and_refuses_dot_segments() {
        for (path, expected) in [
            ("", Some("")),
            ("/", Some("")),
            ("/auth/", Some("/auth")),
            ("auth", Some("/auth")),
            ("/a/..b/%41", Some("/a/..b/%41")),
            ("/a/../b", None),
            ("/a/%2E./b", None),
            ("/a?b", None),
            ("/a b", None),
        ] {
            let prefix = path_prefix(path, "f").ok();
            assert_eq!(prefix.as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn exact_path_keeps_its_end_and_its_query() {
        for (path, expected) in [
            ("", Some("/")),
            ("auth/", Some("/auth/")),
            ("/auth?group=a&b=%20", Some("/auth?group=a&b=%20")),
            ("/a/../b", None),
            ("/a?b#c", None),
            ("/a?b c", None),
            ("/a?b\r\nc", None),
        ] {
            let exact = exact_path(path, "f").ok();
            assert_eq!(exact.as_deref(), expected, "{path}");
        }
    }
}
