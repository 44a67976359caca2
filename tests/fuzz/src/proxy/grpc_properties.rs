//! Properties of what reads and translates calls of gRPC and gRPC-Web. Its types are visible below `proxy` only.

use std::time::Duration;

use http::HeaderMap;

use super::grpc_web::Decoder;
use super::{grpc, grpc_web};
use crate::ir::grpc::{WebFormat, is_grpc, web_format};

/// The largest value with the largest unit.
const LONGEST: Duration = Duration::from_secs(99_999_999 * 3600);

pub(crate) fn check_head(headers: &HeaderMap) {
    if let Some(timeout) = grpc::timeout(headers) {
        assert!(!timeout.is_zero() && timeout <= LONGEST, "{headers:?}");
    }
    let format = grpc_web::response_format(headers);
    assert_eq!(
        format.is_some(),
        web_format(headers).is_some(),
        "{headers:?}"
    );
    if format.is_some() {
        let mut call = headers.clone();
        let is_text = grpc_web::is_text(&call);
        grpc_web::translate_request(&mut call);
        assert_eq!(is_text, web_format(headers) == Some(WebFormat::Text));
        assert!(is_grpc(&call) && web_format(&call).is_none(), "{call:?}");
        assert!(!is_text || !call.contains_key("content-length"), "{call:?}");
        assert_eq!(call["te"], "trailers");
    }
    for format in [WebFormat::Binary, WebFormat::Text] {
        let mut response = headers.clone();
        let status = grpc_web::translate_response(format, &mut response);
        assert_eq!(web_format(&response), Some(format), "{response:?}");
        for name in ["content-length", "grpc-status", "grpc-message"] {
            assert!(!response.contains_key(name), "{response:?}");
        }
        assert!(status.keys().all(|name| headers.contains_key(name)));
        check_trailers(format, headers);
    }
}

/// Reads the part with the trailers as a client does.
fn check_trailers(format: WebFormat, trailers: &HeaderMap) {
    let part = grpc_web::encode_trailers(format, trailers);
    let part = match format {
        WebFormat::Binary => part.to_vec(),
        WebFormat::Text => decode(part.chunks(part.len())).expect("it is encoded"),
    };
    let (prefix, block) = part.split_first_chunk::<5>().expect("a prefix");
    let [0x80, length @ ..] = prefix else {
        panic!("a flag of {}", prefix[0]);
    };
    assert_eq!(u32::from_be_bytes(*length) as usize, block.len());
    let mut lines = block
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    for (name, value) in trailers {
        let line = [name.as_str().as_bytes(), b": ", value.as_bytes()].concat();
        assert_eq!(lines.next(), Some(&line[..]), "{trailers:?}");
    }
    assert_eq!(lines.collect::<Vec<_>>(), [b""]);
}

pub(crate) fn check_body(body: &[u8]) {
    let whole = decode([body].into_iter());
    for size in [1, 3, body.len() / 2 + 1] {
        assert_eq!(decode(body.chunks(size)), whole, "in pieces of {size}");
    }
    let parts = body.chunks(body.len() / 3 + 1);
    let encoded: Vec<u8> = parts
        .flat_map(|part| grpc_web::encode(WebFormat::Text, part.to_vec().into()))
        .collect();
    assert_eq!(decode(encoded.chunks(5)), Some(body.to_vec()));
}

/// The decoded body; `None` if it is refused.
fn decode<'a>(mut pieces: impl Iterator<Item = &'a [u8]>) -> Option<Vec<u8>> {
    let mut decoder = Decoder::default();
    let decoded = pieces.try_fold(Vec::new(), |mut decoded, piece| {
        decoded.extend_from_slice(&decoder.decode(piece).ok()?);
        Some(decoded)
    })?;
    decoder.finish().ok()?;
    Some(decoded)
}
