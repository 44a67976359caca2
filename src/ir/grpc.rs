//! How a request is recognized as gRPC (gRPC over HTTP/2, "Requests") or gRPC-Web.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method};

/// Encoding of the body of a gRPC-Web call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebFormat {
    /// `application/grpc-web`: messages as in gRPC.
    Binary,
    /// `application/grpc-web-text`: in base64.
    Text,
}

/// Reports whether a request is gRPC or gRPC-Web: a POST with such a media type.
pub fn is_request(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::POST && is_call(headers)
}

/// Reports whether headers are those of a call of gRPC or gRPC-Web, whose client expects a gRPC status.
pub fn is_call(headers: &HeaderMap) -> bool {
    is_grpc(headers) || web_format(headers).is_some()
}

/// Reports whether headers mark a gRPC message: the media type is `application/grpc`, with or without a suffix.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    value.is_some_and(|value| is_type(value, b"application/grpc"))
}

/// Returns the format of a gRPC-Web message; `None` if the media type is another one.
pub fn web_format(headers: &HeaderMap) -> Option<WebFormat> {
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| web_format_of(value.as_bytes()))
}

/// Returns the gRPC-Web format of a media type.
pub fn web_format_of(value: &[u8]) -> Option<WebFormat> {
    if is_type(value, b"application/grpc-web-text") {
        Some(WebFormat::Text)
    } else {
        is_type(value, b"application/grpc-web").then_some(WebFormat::Binary)
    }
}

/// Reports whether a media type is `name`, with or without a suffix and parameters.
fn is_type(value: &[u8], name: &[u8]) -> bool {
    value
        .split_at_checked(name.len())
        .is_some_and(|(media_type, rest)| {
            media_type.eq_ignore_ascii_case(name)
                && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
        })
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
            let is_web = value.starts_with("application/grpc-web");
            let is_request = is_request(&Method::POST, &headers);
            assert_eq!(is_request, expected || is_web, "{value}");
            assert!(!super::is_request(&Method::GET, &headers), "{value}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }

    #[test]
    fn recognizes_formats_of_grpc_web() {
        for (value, expected) in [
            ("application/grpc-web", Some(WebFormat::Binary)),
            ("Application/gRPC-Web+proto", Some(WebFormat::Binary)),
            ("application/grpc-web-text", Some(WebFormat::Text)),
            ("application/grpc-web-text+proto;a=b", Some(WebFormat::Text)),
            ("application/grpc-website", None),
            ("application/grpc", None),
        ] {
            assert_eq!(web_format_of(value.as_bytes()), expected, "{value}");
        }
    }
}
