//! What a `CheckResponse` means for the request, its response and the client. Does no I/O.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use super::message::{CheckResponse, HeaderValueOption, HttpResponse};
use super::verdict::{Verdict, denial, protect};
use crate::ir::auth_call::is_independent;
use crate::ir::filter::HeaderChanges;
use crate::ir::protected_headers::{ProtectedHeaders, Protection};
use crate::proxy::error::Error;

/// Maximum changes of headers by one response, each of which takes more memory than its bytes.
const MAX_CHANGES: usize = 1000;

/// The verdict of a response. With permission, `request` is changed as the server asks for, and
/// `changes` gets the changes of the response to the client.
pub(super) fn verdict(
    response: CheckResponse,
    request: &mut HeaderMap,
    changes: &mut HeaderChanges,
) -> Result<Verdict, Error> {
    // An absent status is the default of its type, whose code is OK.
    let is_allowed = response.status.is_none_or(|status| status.code == 0);
    if changes_of(response.http_response.as_ref()) > MAX_CHANGES {
        return Err(Error::AuthorizationUnavailable);
    }
    match (is_allowed, response.http_response) {
        (true, None) => Ok(Verdict::Allow(None)),
        (true, Some(HttpResponse::Ok(ok))) => {
            let removed: Vec<_> = names(&ok.headers_to_remove).collect();
            for name in &removed {
                request.remove(name);
            }
            let set = ok
                .headers
                .iter()
                .filter_map(|option| option.header.as_ref());
            let set = names(set.map(|header| &header.key));
            let set = set.map(|name| (name, Protection::Set));
            let removed = removed.into_iter();
            let removed = removed.map(|name| (name, Protection::Removed));
            let protected = protect(ProtectedHeaders::new(set.chain(removed)), request);
            apply(&ok.headers, request)?;
            for option in &ok.response_headers_to_add {
                if let Some((name, value, is_appended)) = header(option) {
                    let list = match is_appended {
                        true => &mut changes.add,
                        false => &mut changes.set,
                    };
                    list.push((name, value));
                }
            }
            Ok(Verdict::Allow(protected))
        }
        (false, Some(HttpResponse::Denied(denied))) => {
            let code = denied.status.map_or(0, |status| status.code);
            let code = u16::try_from(code).ok().filter(|code| *code != 0);
            let status = code.and_then(|code| StatusCode::from_u16(code).ok());
            let mut headers = HeaderMap::new();
            apply(&denied.headers, &mut headers)?;
            let status = status.unwrap_or(StatusCode::FORBIDDEN);
            Ok(Verdict::Deny(denial(status, headers, denied.body.into())))
        }
        // A contradiction does not allow the request.
        (true, Some(HttpResponse::Denied(_))) | (false, _) => {
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = StatusCode::FORBIDDEN;
            Ok(Verdict::Deny(Box::new(response)))
        }
    }
}

/// Returns the number of headers that a response changes.
fn changes_of(response: Option<&HttpResponse>) -> usize {
    match response {
        None => 0,
        Some(HttpResponse::Denied(denied)) => denied.headers.len(),
        Some(HttpResponse::Ok(ok)) => {
            ok.headers.len() + ok.headers_to_remove.len() + ok.response_headers_to_add.len()
        }
    }
}

/// The names of headers that a server may change.
fn names<'a>(names: impl IntoIterator<Item = &'a String>) -> impl Iterator<Item = HeaderName> {
    names.into_iter().filter_map(|name| header_name(name))
}

/// A name of a header that a server may change.
fn header_name(name: &str) -> Option<HeaderName> {
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    let is_framing = name == HOST || name == http::header::CONTENT_LENGTH;
    (!is_framing && (is_independent(&name) || name == CONTENT_TYPE)).then_some(name)
}

/// The header of an option, and whether it is added to the values that are there.
fn header(option: &HeaderValueOption) -> Option<(HeaderName, HeaderValue, bool)> {
    let header = option.header.as_ref()?;
    let value = match header.raw_value.is_empty() {
        true => HeaderValue::from_str(&header.value),
        false => HeaderValue::from_bytes(&header.raw_value),
    };
    // `append` is false by default in these messages.
    let is_appended = option.append.as_ref().is_some_and(|append| append.value);
    Some((header_name(&header.key)?, value.ok()?, is_appended))
}

fn apply(options: &[HeaderValueOption], headers: &mut HeaderMap) -> Result<(), Error> {
    for (name, value, is_appended) in options.iter().filter_map(header) {
        let changed = match is_appended {
            true => headers.try_append(name, value).map(drop),
            false => headers.try_insert(name, value).map(drop),
        };
        changed.map_err(|_| Error::Filter)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::message::OkHttpResponse;
    use super::*;

    #[test]
    fn number_of_changes_is_bounded() {
        for (count, is_valid) in [(MAX_CHANGES, true), (MAX_CHANGES + 1, false)] {
            let ok = OkHttpResponse {
                headers_to_remove: vec!["x-a".to_owned(); count],
                ..OkHttpResponse::default()
            };
            let response = CheckResponse {
                status: None,
                http_response: Some(HttpResponse::Ok(ok)),
            };
            let changes = &mut HeaderChanges::default();
            let verdict = verdict(response, &mut HeaderMap::new(), changes);
            assert_eq!(verdict.is_ok(), is_valid, "{count}");
        }
    }

    #[test]
    fn framing_and_pseudo_headers_cannot_be_changed() {
        for name in [
            ":path",
            "host",
            "Content-Length",
            "expect",
            "transfer-encoding",
            "",
            "a b",
        ] {
            assert_eq!(header_name(name), None, "{name}");
        }
        assert_eq!(header_name("X-User").unwrap(), "x-user");
        assert_eq!(header_name("content-type").unwrap(), "content-type");
    }
}
