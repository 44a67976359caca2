//! The response that a picker gives itself. Does no I/O.

use http::{HeaderMap, Response, StatusCode};

use super::headers;
use super::message::{GrpcStatus, HeaderMutation, ImmediateResponse};
use crate::filter::LocalResponse;
use crate::proxy::grpc::CallStatus;

/// Returns the response for the client. A status that no response can have is an error of the picker. `None` if the headers are
/// malformed or too large.
pub(super) fn response(immediate: ImmediateResponse) -> Option<LocalResponse> {
    let changes = HeaderMutation::read(immediate.headers)?;
    let mut headers = HeaderMap::new();
    // More headers than a response can have: it has those before.
    let _ = headers::apply(&changes, &mut headers);
    let code = immediate.status.map_or(0, |status| status.code);
    let code = u16::try_from(code).unwrap_or_default();
    let status = StatusCode::from_u16(code).ok();
    let status = status.filter(|status| !status.is_informational());
    let mut response = Response::new(immediate.body);
    *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *response.headers_mut() = headers;
    if let Some(GrpcStatus { status }) = immediate.grpc_status {
        response.extensions_mut().insert(CallStatus(status));
    }
    Some(Box::new(response))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use prost::Message;

    use super::super::message::{Header, HeaderOption, HttpStatus};
    use super::*;

    #[test]
    fn response_is_that_of_the_picker_without_framing() {
        let option = |key: &str, value: &'static str| HeaderOption {
            header: Some(Header {
                key: key.to_owned(),
                value: String::new(),
                raw_value: Bytes::from_static(value.as_bytes()),
            }),
            ..HeaderOption::default()
        };
        let changes = HeaderMutation {
            set_headers: vec![
                option("Retry-After", "1"),
                option("content-length", "999"),
                option("transfer-encoding", "chunked"),
            ],
            remove_headers: Vec::new(),
        };
        let immediate = ImmediateResponse {
            status: Some(HttpStatus { code: 429 }),
            headers: changes.encode_to_vec().into(),
            body: Bytes::from_static(b"later"),
            grpc_status: None,
        };
        let response = response(immediate).unwrap();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers().len(), 1);
        assert_eq!(response.headers()["retry-after"], "1");
        assert_eq!(response.body(), "later");
    }

    #[test]
    fn status_is_that_of_a_final_response() {
        for (code, expected) in [
            (0, 500),
            (100, 500),
            (101, 500),
            (200, 200),
            (503, 503),
            (99_999, 500),
            (-1, 500),
        ] {
            let immediate = ImmediateResponse {
                status: Some(HttpStatus { code }),
                ..ImmediateResponse::default()
            };
            let response = response(immediate).unwrap();
            assert_eq!(response.status(), expected, "{code}");
        }
        let empty = response(ImmediateResponse::default());
        assert_eq!(empty.unwrap().status(), 500);
    }

    #[test]
    fn headers_without_end_are_no_response() {
        let immediate = |count: usize| ImmediateResponse {
            // set_headers {}
            headers: b"\x0a\x00".repeat(count).into(),
            ..ImmediateResponse::default()
        };
        assert!(response(immediate(100)).is_some());
        assert!(response(immediate(100_000)).is_none());
    }
}
