//! What the response of an authorization server means for the request and its client. Does no I/O.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, TRAILER};
use http::{HeaderMap, HeaderName, Response, StatusCode};

use crate::filter::LocalResponse;
use crate::ir::auth_call::is_independent;
use crate::ir::hop_by_hop::HOP_BY_HOP;
use crate::ir::protected_headers::ProtectedHeaders;
use crate::proxy::client::forwarding::SET_BY_PROXY;
use crate::proxy::error::Error;

/// The verdict of an authorization server.
pub(super) enum Verdict {
    /// The request goes on, without what the client says in these headers.
    Allow(Option<Arc<ProtectedHeaders>>),
    /// The client gets this response.
    Deny(LocalResponse),
}

/// Replaces the listed headers of a request by those of the server's response. A listed header that
/// the response lacks is removed, because the client's is not the server's word. Without a list,
/// replaces all headers that the response has. Returns what the client must not say.
pub(super) fn copy_headers(
    from: &HeaderMap,
    listed: &[HeaderName],
    request: &mut HeaderMap,
) -> Result<Option<Arc<ProtectedHeaders>>, Error> {
    let may_change = |name: &&HeaderName| **name != HOST && is_independent(name);
    let is_listed = |name: &&HeaderName| listed.is_empty() || listed.contains(name);
    let copied = || from.keys().filter(may_change).filter(is_listed);
    for name in listed.iter().filter(may_change) {
        if !SET_BY_PROXY.contains(name) {
            request.remove(name);
        }
    }
    let said = listed.iter().filter(may_change).chain(copied());
    let protected = protect(ProtectedHeaders::set(said.cloned()), request);
    for name in copied() {
        request.remove(name);
        for value in from.get_all(name) {
            let appended = request.try_append(name, value.clone());
            appended.map_err(|_| Error::Filter)?;
        }
    }
    Ok(protected)
}

/// Removes other spellings of headers that the server decides about from the head of a request.
pub(super) fn protect(
    protected: Option<ProtectedHeaders>,
    request: &mut HeaderMap,
) -> Option<Arc<ProtectedHeaders>> {
    let protected = protected?;
    protected.sanitize(request);
    Some(Arc::new(protected))
}

/// The response to a client whose request is denied: that of the server, unless its status would
/// tell the client that the request has succeeded.
pub(super) fn denial(status: StatusCode, headers: HeaderMap, body: Bytes) -> LocalResponse {
    let is_kept = status.is_client_error()
        || status.is_server_error()
        || status.is_redirection() && status != StatusCode::NOT_MODIFIED;
    if !is_kept {
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = StatusCode::FORBIDDEN;
        return Box::new(response);
    }
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    for name in HOP_BY_HOP.iter().chain(&[CONTENT_LENGTH, TRAILER]) {
        response.headers_mut().remove(name);
    }
    Box::new(response)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(of: &[(&'static str, &'static str)]) -> HeaderMap {
        let of = of.iter().map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        of.collect()
    }

    #[test]
    fn permission_replaces_headers_of_the_request() {
        let from = headers(&[
            ("x-user", "42"),
            ("x-other", "1"),
            ("host", "auth"),
            ("content-type", "text/plain"),
            ("content-length", "5"),
            ("connection", "close"),
            ("expect", "100-continue"),
        ]);
        let request = headers(&[
            ("x-user", "forged"),
            ("host", "a.com"),
            ("content-type", "json"),
        ]);
        let mut all = request.clone();
        copy_headers(&from, &[], &mut all).unwrap();
        let expected = [
            ("x-user", "42"),
            ("x-other", "1"),
            ("host", "a.com"),
            ("content-type", "json"),
        ];
        assert_eq!(all, headers(&expected));
        let mut listed = request;
        let names = ["x-user", "host"].map(HeaderName::from_static);
        copy_headers(&from, &names, &mut listed).unwrap();
        let expected = [
            ("x-user", "42"),
            ("host", "a.com"),
            ("content-type", "json"),
        ];
        assert_eq!(listed, headers(&expected));
    }

    #[test]
    fn listed_headers_of_the_client_are_removed() {
        let names = ["x-user", "x-role", "x-request-id", "content-type", "host"];
        let names = names.map(HeaderName::from_static);
        let mut request = headers(&[
            ("x-user", "admin"),
            ("x_user", "admin"),
            ("x.role", "admin"),
            ("x-user-id", "7"),
            ("x-request-id", "of the proxy"),
            ("content-type", "json"),
            ("host", "a.com"),
        ]);
        copy_headers(&headers(&[("x-role", "guest")]), &names, &mut request).unwrap();
        let expected = [
            ("x-user-id", "7"),
            ("x-request-id", "of the proxy"),
            ("content-type", "json"),
            ("host", "a.com"),
            ("x-role", "guest"),
        ];
        assert_eq!(request, headers(&expected));
    }

    #[test]
    fn without_a_list_other_spellings_of_copied_headers_are_removed() {
        let mut request = headers(&[("x_user", "admin"), ("x_other", "1")]);
        copy_headers(&headers(&[("x-user", "42")]), &[], &mut request).unwrap();
        assert_eq!(request, headers(&[("x_other", "1"), ("x-user", "42")]));
    }

    #[test]
    fn denial_never_looks_like_success() {
        for (status, expected) in [
            (201, 403),
            (204, 403),
            (302, 302),
            (304, 403),
            (401, 401),
            (500, 500),
            (600, 403),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let denial = denial(status, HeaderMap::new(), Bytes::new());
            assert_eq!(denial.status().as_u16(), expected);
        }
    }
}
