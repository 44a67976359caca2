//! What reads the messages of an authorization server, and the properties that it has. Its types are visible here only.

#[path = "../../../../src/proxy/request/external_auth/check_response.rs"]
mod check_response;
#[path = "../../../../src/proxy/request/external_auth/message.rs"]
mod message;
#[path = "../../../../src/proxy/request/external_auth/verdict.rs"]
mod verdict;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use prost::Message;

use self::message::{CheckResponse, HttpResponse};
use self::verdict::Verdict;
use crate::ir::filter::HeaderChanges;
use crate::ir::hop_by_hop::HOP_BY_HOP;
use crate::proxy::grpc_frame;

/// A request, with two headers that no server may change.
const REQUEST: [(HeaderName, HeaderValue); 3] = [
    (http::header::HOST, HeaderValue::from_static("shop.test")),
    (http::header::CONTENT_LENGTH, HeaderValue::from_static("17")),
    (
        HeaderName::from_static("x-user"),
        HeaderValue::from_static("forged"),
    ),
];

/// Checks the message, with the prefix that gRPC gives it and without.
pub(crate) fn check(message: &[u8]) {
    if let Ok(response) = grpc_frame::decode_only(Bytes::copy_from_slice(message)) {
        check_response(response);
    }
    let length = u32::try_from(message.len()).expect("inputs are short");
    let framed = [&[0], &length.to_be_bytes()[..], message].concat();
    if let Ok(response) = grpc_frame::decode_only(Bytes::from(framed)) {
        check_response(response);
    }
}

fn check_response(response: CheckResponse) {
    let again = CheckResponse::decode(&response.encode_to_vec()[..]);
    assert_eq!(again.as_ref(), Ok(&response));

    let mut request = HeaderMap::from_iter(REQUEST);
    let mut changes = HeaderChanges::default();
    let shown = format!("{response:?}");
    let is_permission = response.status.as_ref().is_none_or(|it| it.code == 0)
        && !matches!(response.http_response, Some(HttpResponse::Denied(_)));
    match check_response::verdict(response, &mut request, &mut changes) {
        Ok(Verdict::Allow(_)) => assert!(is_permission, "{shown}"),
        Ok(Verdict::Deny(denial)) => {
            assert!(!is_permission, "{shown}");
            let status = denial.status();
            assert!(
                status.as_u16() >= 300 && status != StatusCode::NOT_MODIFIED,
                "{status}: {shown}"
            );
            assert_end_to_end(denial.headers().keys(), &shown);
            assert_eq!(request, HeaderMap::from_iter(REQUEST), "{shown}");
        }
        Err(_) => {}
    }
    for (name, value) in &REQUEST[..2] {
        assert_eq!(request.get(name), Some(value), "{shown}");
    }
    assert_end_to_end(request.keys(), &shown);
    let added = changes.set.iter().chain(&changes.add);
    assert_end_to_end(added.map(|(name, _)| name), &shown);
}

fn assert_end_to_end<'a>(mut names: impl Iterator<Item = &'a HeaderName>, shown: &str) {
    assert!(names.all(|name| !HOP_BY_HOP.contains(name)), "{shown}");
}
