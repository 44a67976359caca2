//! Whether a response is compressed, by what its client accepts, and what that changes in its head. Must not know
//! encoders.

use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE,
    ETAG, IF_NONE_MATCH,
};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::list::{add_vary, elements, has_digest, parameters};
use crate::ir::compression::{Compression, Encoding};

/// What a compressed response depends on. Caches have to know it, for responses that are sent as they are, too.
const VARIES_BY: HeaderValue = HeaderValue::from_static("Accept-Encoding");

/// What a client accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// This encoding: of the configured ones that with the highest weight, and of several the first.
    Encoding(Encoding),
    /// None of the configured encodings.
    Identity,
    /// Nothing that was changed on the way (RFC 9111, 5.2.1.6).
    NoTransform,
}

/// A response as far as it is known before its body.
#[derive(Clone, Copy, Debug)]
pub struct ResponseFacts {
    /// Status.
    pub status: StatusCode,
    /// Size of the body, if it is known.
    pub size: Option<u64>,
}

/// Returns what the client of a request with these headers accepts (RFC 9110, 12.5.3).
pub fn accepted(compression: &Compression, headers: &HeaderMap) -> Accepted {
    if forbids_transformation(headers) {
        return Accepted::NoTransform;
    }
    let mut best: Option<(Encoding, u16)> = None;
    for encoding in &compression.encodings {
        let weight = weight(headers, *encoding);
        if weight > best.map_or(0, |(_, weight)| weight) {
            best = Some((*encoding, weight));
        }
    }
    // A client that lists `identity` with a higher weight prefers what the backend sent.
    let identity = explicit_weight(headers, &["identity"]).unwrap_or(0);
    match best {
        Some((encoding, weight)) if weight >= identity => Accepted::Encoding(encoding),
        _ => Accepted::Identity,
    }
}

/// The weight of an encoding in thousandths. Without `Accept-Encoding`, nothing is known about the client.
fn weight(headers: &HeaderMap, encoding: Encoding) -> u16 {
    // RFC 9110, 8.4.1.3: the same as gzip.
    let names: &[&str] = match encoding {
        Encoding::Gzip => &["gzip", "x-gzip"],
        Encoding::Zstd | Encoding::Brotli => &[encoding.name()],
    };
    let explicit = explicit_weight(headers, names);
    explicit.unwrap_or_else(|| explicit_weight(headers, &["*"]).unwrap_or(0))
}

/// The highest weight of elements with one of these names. Malformed elements are ignored.
fn explicit_weight(headers: &HeaderMap, names: &[&str]) -> Option<u16> {
    let elements = elements(headers, &ACCEPT_ENCODING);
    let weights = elements.filter_map(|element| {
        let (name, weight) = parameters(element)?;
        let is_named = names.iter().any(|it| name.eq_ignore_ascii_case(it));
        is_named.then_some(weight)
    });
    weights.max()
}

/// Returns the size that a response declares.
pub fn declared_size(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Prepares the head of a response. Returns the encoding that its body gets. A part of a response stays as it is, with the `Vary`
/// of the whole (RFC 9110, 15.3.7).
pub fn prepare(
    compression: &Compression,
    accepted: Accepted,
    facts: ResponseFacts,
    headers: &mut HeaderMap,
) -> Option<Encoding> {
    if !is_eligible(compression, facts, headers) {
        return None;
    }
    add_vary(headers, &ACCEPT_ENCODING, VARIES_BY);
    match accepted {
        Accepted::Encoding(encoding) => Some(encoding).filter(|_| !is_part(facts.status)),
        Accepted::Identity | Accepted::NoTransform => None,
    }
}

fn is_part(status: StatusCode) -> bool {
    status == StatusCode::PARTIAL_CONTENT
}

/// Changes the head of a response whose body is compressed.
pub fn apply(encoding: Encoding, headers: &mut HeaderMap) {
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding.name()));
    headers.remove(CONTENT_LENGTH);
    headers.remove(ACCEPT_RANGES);
    weaken_etag(headers);
}

/// Adds the `Vary` of its 200 to a 304 (RFC 9110, 15.4.5). Makes its ETag weak, if that is what the client asked for: it has the
/// compressed response, whose ETag is weak, and a strong one would not refer to it (RFC 9111, 4.3.4).
pub fn apply_to_not_modified(request: &HeaderMap, headers: &mut HeaderMap) {
    add_vary(headers, &ACCEPT_ENCODING, VARIES_BY);
    let asked = request.get_all(IF_NONE_MATCH).into_iter();
    let is_weak = headers.get(ETAG).is_some_and(|etag| {
        let mut asked = asked.filter_map(|it| it.to_str().ok());
        let etag = etag.to_str().ok().filter(|etag| etag.starts_with('"'));
        etag.is_some_and(|etag| {
            asked.any(|list| {
                let found = list.match_indices(etag);
                found
                    .map(|(at, _)| &list[..at])
                    .any(|it| it.ends_with("W/"))
            })
        })
    });
    if is_weak {
        weaken_etag(headers);
    }
}

/// RFC 9110, 8.8.3.3: representations that differ in their encoding have different strong ETags.
fn weaken_etag(headers: &mut HeaderMap) {
    let Some(etag) = headers
        .get(ETAG)
        .filter(|it| it.as_bytes().starts_with(b"\""))
    else {
        return;
    };
    match HeaderValue::from_bytes(&[b"W/", etag.as_bytes()].concat()) {
        Ok(weak) => drop(headers.insert(ETAG, weak)),
        Err(_) => drop(headers.remove(ETAG)),
    }
}

fn is_eligible(compression: &Compression, facts: ResponseFacts, headers: &HeaderMap) -> bool {
    let ResponseFacts { status, size } = facts;
    let has_body = !status.is_informational()
        && !matches!(
            status,
            StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED
        );
    has_body
        && !compression.encodings.is_empty()
        && (is_part(status) || size.is_none_or(|size| size >= compression.min_size))
        && !headers.contains_key(CONTENT_ENCODING)
        && is_of_type(compression, headers)
        && !forbids_transformation(headers)
        && !has_digest(headers)
}

/// Reports whether the media type of a response is one of the configured ones. Those of gRPC are messages, which its
/// own encoding compresses.
fn is_of_type(compression: &Compression, headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE).and_then(|it| it.to_str().ok()) else {
        return false;
    };
    let media_type = value.split(';').next().unwrap_or_default().trim();
    let is_grpc = media_type
        .get(..16)
        .is_some_and(|it| it.eq_ignore_ascii_case("application/grpc"));
    !is_grpc
        && compression
            .content_types
            .iter()
            .any(|range| is_in_range(media_type, range))
}

fn is_in_range(media_type: &str, range: &str) -> bool {
    match range.strip_suffix('*') {
        None => media_type.eq_ignore_ascii_case(range),
        Some(whole) => media_type
            .get(..whole.len())
            .is_some_and(|it| it.eq_ignore_ascii_case(whole)),
    }
}

fn forbids_transformation(headers: &HeaderMap) -> bool {
    elements(headers, &CACHE_CONTROL).any(|it| it.eq_ignore_ascii_case("no-transform"))
}

#[cfg(test)]
mod tests;
