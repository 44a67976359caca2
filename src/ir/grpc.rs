//! What marks a request as gRPC (gRPC over HTTP/2, "Requests").

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method};

/// Whether a request is gRPC: a POST whose headers say so.
pub fn is_request(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::POST && is_grpc(headers)
}

/// Whether headers mark a gRPC message: the media type is `application/grpc`, with or without the encoding of messages.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let value = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let Some((media_type, rest)) = value.and_then(|value| value.split_at_checked(GRPC.len()))
    else {
        return false;
    };
    media_type.eq_ignore_ascii_case(GRPC) && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_grpc_by_its_content_type() {
        let cases = [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;charset=utf-8", true),
            ("Application/gRPC+proto", true),
            ("application/grpc-web", false),
            ("application/json", false),
        ];
        for (value, expected) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(value));
            assert_eq!(is_grpc(&headers), expected, "{value}");
            assert_eq!(is_request(&Method::POST, &headers), expected, "{value}");
            assert!(!is_request(&Method::GET, &headers), "{value}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }
}
