//! gRPC-Web (gRPC, "PROTOCOL-WEB"): translates heads of calls to gRPC and heads of responses back,
//! and encodes trailers as the last part of a body. Does no I/O.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, TE};
use http::{HeaderMap, HeaderValue};

use crate::ir::grpc::{WebFormat, is_grpc, web_format, web_format_of};

/// Flag of the body part that contains the trailers.
const TRAILERS: u8 = 0x80;

/// Selects the format of the response: from `Accept`, else from the request. `None` if the request
/// is not gRPC-Web.
pub(super) fn response_format(headers: &HeaderMap) -> Option<WebFormat> {
    let own = web_format(headers)?;
    let mut accepted = headers
        .get_all(ACCEPT)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    accepted
        .find_map(|value| web_format_of(value.trim_ascii()))
        .or(Some(own))
}

/// Reports whether the body of a call is base64.
pub(super) fn is_text(headers: &HeaderMap) -> bool {
    web_format(headers) == Some(WebFormat::Text)
}

/// Translates the head of a call to gRPC.
pub(super) fn translate_request(headers: &mut HeaderMap) {
    let is_text = is_text(headers);
    let own = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let translated = content_type(b"application/grpc", own.unwrap_or_default());
    headers.insert(CONTENT_TYPE, translated);
    headers.insert(TE, HeaderValue::from_static("trailers"));
    if is_text {
        headers.remove(CONTENT_LENGTH);
    }
}

/// Translates the head of a gRPC response. Returns the status to use if there are no trailers.
pub(super) fn translate_response(format: WebFormat, headers: &mut HeaderMap) -> HeaderMap {
    let own = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let translated = content_type(media_type(format), own.unwrap_or_default());
    headers.insert(CONTENT_TYPE, translated);
    headers.remove(CONTENT_LENGTH);
    let mut status = HeaderMap::new();
    for name in ["grpc-status", "grpc-message", "grpc-status-details-bin"] {
        if let Some(value) = headers.remove(name) {
            status.insert(HeaderName::from_static(name), value);
        }
    }
    status
}

/// Returns the `Content-Type` of a local response.
pub(super) fn own_content_type(format: WebFormat) -> HeaderValue {
    content_type(media_type(format), b"+proto")
}

/// Reports whether a response is gRPC and can be translated.
pub(super) fn is_translatable(headers: &HeaderMap) -> bool {
    is_grpc(headers)
}

fn media_type(format: WebFormat) -> &'static [u8] {
    match format {
        WebFormat::Binary => b"application/grpc-web",
        WebFormat::Text => b"application/grpc-web-text",
    }
}

/// Combines the media type `name` with the suffix and parameters of `other`.
fn content_type(name: &[u8], other: &[u8]) -> HeaderValue {
    let end = other
        .iter()
        .position(|byte| matches!(byte, b'+' | b';' | b' '));
    let suffix = end.map_or(&[][..], |end| &other[end..]);
    HeaderValue::from_bytes(&[name, suffix].concat())
        .unwrap_or_else(|_| HeaderValue::from_static("application/grpc"))
}

/// Encodes a body part. Base64 is padded, so that each part can be decoded separately.
pub(super) fn encode(format: WebFormat, data: Bytes) -> Bytes {
    match format {
        WebFormat::Binary => data,
        WebFormat::Text => STANDARD.encode(data).into(),
    }
}

/// Encodes trailers as the last part of a body.
pub(super) fn encode_trailers(format: WebFormat, trailers: &HeaderMap) -> Bytes {
    let mut block = Vec::new();
    for (name, value) in trailers {
        block.extend_from_slice(name.as_str().as_bytes());
        block.extend_from_slice(b": ");
        block.extend_from_slice(value.as_bytes());
        block.extend_from_slice(b"\r\n");
    }
    let length = u32::try_from(block.len()).unwrap_or(u32::MAX);
    let part = [&[TRAILERS], &length.to_be_bytes()[..], &block].concat();
    encode(format, part.into())
}

/// Decodes base64 in which any part may be padded.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// Incomplete group of fewer than four characters.
    rest: Vec<u8>,
}

/// Text that is not base64.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body of a gRPC-Web call is not base64")]
pub(super) struct MalformedBase64;

impl Decoder {
    /// Decodes the complete groups.
    pub(super) fn decode(&mut self, text: &[u8]) -> Result<Bytes, MalformedBase64> {
        let mut buffer = std::mem::take(&mut self.rest);
        buffer.extend_from_slice(text);
        self.rest = buffer.split_off(buffer.len() / 4 * 4);
        let (mut decoded, mut left) = (Vec::with_capacity(buffer.len() / 4 * 3), &buffer[..]);
        while !left.is_empty() {
            let padding = left.iter().position(|byte| *byte == b'=');
            let end = padding.map_or(left.len(), |at| at / 4 * 4 + 4);
            let (part, behind) = left.split_at(end);
            STANDARD
                .decode_vec(part, &mut decoded)
                .map_err(|_| MalformedBase64)?;
            left = behind;
        }
        Ok(decoded.into())
    }

    /// Checks that the text has ended with a complete group.
    pub(super) fn finish(&self) -> Result<(), MalformedBase64> {
        self.rest.is_empty().then_some(()).ok_or(MalformedBase64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect()
    }

    #[test]
    fn translates_heads_of_calls() {
        for (web, grpc, is_text) in [
            ("application/grpc-web", "application/grpc", false),
            (
                "application/grpc-web+proto",
                "application/grpc+proto",
                false,
            ),
            ("application/grpc-web-text", "application/grpc", true),
            (
                "Application/GRPC-Web-Text+json;a=b",
                "application/grpc+json;a=b",
                true,
            ),
        ] {
            let mut call = headers(&[("content-type", web), ("content-length", "8")]);
            assert_eq!(super::is_text(&call), is_text, "{web}");
            translate_request(&mut call);
            assert_eq!(call["content-type"], grpc);
            assert_eq!(call["te"], "trailers");
            assert_eq!(call.contains_key("content-length"), !is_text, "{web}");
        }
    }

    #[test]
    fn accept_header_selects_the_response_format() {
        const TEXT: (&str, &str) = ("content-type", "application/grpc-web-text");
        const BINARY: (&str, &str) = ("content-type", "application/grpc-web");
        for (call, format) in [
            (headers(&[TEXT]), Some(WebFormat::Text)),
            (headers(&[BINARY]), Some(WebFormat::Binary)),
            (headers(&[TEXT, ("accept", "*/*")]), Some(WebFormat::Text)),
            (
                headers(&[BINARY, ("accept", "a/b, application/grpc-web-text+proto")]),
                Some(WebFormat::Text),
            ),
            (
                headers(&[TEXT, ("accept", "application/grpc-web")]),
                Some(WebFormat::Binary),
            ),
            (headers(&[("content-type", "application/grpc")]), None),
        ] {
            assert_eq!(response_format(&call), format, "{call:?}");
        }
    }

    #[test]
    fn moves_the_status_of_a_head_to_the_trailers() {
        let mut head = headers(&[
            ("content-type", "application/grpc+proto"),
            ("grpc-status", "7"),
            ("grpc-message", "no"),
            ("x-other", "kept"),
        ]);
        let status = translate_response(WebFormat::Text, &mut head);
        assert_eq!(
            status,
            headers(&[("grpc-status", "7"), ("grpc-message", "no")])
        );
        assert_eq!(
            head,
            headers(&[
                ("content-type", "application/grpc-web-text+proto"),
                ("x-other", "kept")
            ])
        );
    }

    #[test]
    fn encodes_trailers() {
        let trailers = headers(&[("grpc-status", "0")]);
        let part = b"\x80\0\0\0\x10grpc-status: 0\r\n";
        assert_eq!(encode_trailers(WebFormat::Binary, &trailers), &part[..]);
        let text = encode_trailers(WebFormat::Text, &trailers);
        assert_eq!(STANDARD.decode(text).unwrap(), part);
    }

    #[test]
    fn decodes_base64_in_any_pieces() {
        let text = b"YQ==YWI=YWJjYWJjYWI=";
        for size in 1..text.len() {
            let (mut decoder, mut decoded) = (Decoder::default(), Vec::new());
            for piece in text.chunks(size) {
                decoded.extend_from_slice(&decoder.decode(piece).unwrap());
            }
            assert_eq!(decoder.finish(), Ok(()));
            assert_eq!(decoded, b"aababcabcab", "pieces of {size}");
        }
    }

    #[test]
    fn rejects_invalid_base64() {
        for text in ["YQ=a", "=YQ=", "Y*==", "YQ==\r\n==", "===="] {
            let decoded = Decoder::default().decode(text.as_bytes());
            assert_eq!(decoded, Err(MalformedBase64), "{text}");
        }
        let mut decoder = Decoder::default();
        assert_eq!(decoder.decode(b"YWJjYQ").unwrap(), &b"abc"[..]);
        assert_eq!(decoder.finish(), Err(MalformedBase64));
    }
}
