//! ExternalAuth filters: the authorization server, and the parts of a request that it gets.

use std::sync::Arc;

use http::HeaderName;

use crate::api::filter::{ExternalAuth as ExternalAuthSpec, HttpAuth as HttpAuthSpec};
use crate::ir::RouteKind;
use crate::ir::external_auth::{AuthProtocol, ExternalAuth, GrpcAuth, HttpAuth};

use super::backend::ResolveBackend;
use super::fault::unsupported;
use crate::translate::reason::Fault;

/// Translates an ExternalAuth filter.
pub(in crate::translate) fn translate(
    block: &ExternalAuthSpec,
    field: &str,
    backend: ResolveBackend<'_>,
) -> Result<ExternalAuth, Fault> {
    let ExternalAuthSpec {
        protocol,
        backend_ref,
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
    let requests = match protocol {
        AuthProtocol::Http(_) => RouteKind::Http,
        AuthProtocol::Grpc(_) => RouteKind::Grpc,
    };
    let of_reference = format!("{field}.backendRef");
    Ok(ExternalAuth {
        target: backend(backend_ref, &of_reference, Some(requests)),
        protocol,
        max_body,
    })
}

fn http_auth(block: &HttpAuthSpec, field: &str) -> Result<HttpAuth, Fault> {
    let HttpAuthSpec {
        path,
        allowed_headers,
        allowed_response_headers,
    } = block;
    let response_headers = format!("{field}.allowedResponseHeaders");
    Ok(HttpAuth {
        path_prefix: path_prefix(path.as_deref().unwrap_or_default(), field)?,
        headers: headers(allowed_headers, &format!("{field}.allowedHeaders"))?,
        response_headers: headers(allowed_response_headers, &response_headers)?,
    })
}

/// Parses a path prefix. Refuses dot segments, because an authorization server would resolve them.
fn path_prefix(path: &str, field: &str) -> Result<Arc<str>, Fault> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-/._~!$&'()*+,;=:@%".contains(&byte);
    let is_dots = |segment: &str| {
        let segment = segment.to_ascii_lowercase().replace("%2e", ".");
        segment == "." || segment == ".."
    };
    if !path.bytes().all(fits) || path.split('/').any(is_dots) {
        let message = format!("{path:?} is not a path, or has segments `.` or `..`");
        return Err(unsupported(&format!("{field}.path"), &message));
    }
    let path = path.trim_end_matches('/');
    Ok(if path.is_empty() || path.starts_with('/') {
        path.into()
    } else {
        format!("/{path}").into()
    })
}

/// Parses header names. Returns each once.
fn headers(names: &[String], field: &str) -> Result<Vec<HeaderName>, Fault> {
    let mut parsed = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
            let message = format!("{name:?} is not a header name");
            unsupported(&format!("{field}[{index}]"), &message)
        })?;
        if !parsed.contains(&name) {
            parsed.push(name);
        }
    }
    Ok(parsed)
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
}
