//! Compresses responses, as the last phase of a request.

use http::{HeaderMap, StatusCode};

use super::exchange::Exchange;
use super::negotiation::Negotiated;
use crate::filter::compression::{self, ResponseFacts};
use crate::ir::RouteKind;
use crate::proxy::body::compressed_body::{CompressedBody, EncoderPermit};
use crate::proxy::body::response_body::BodySource;

/// Compresses a response, if a policy says so and the client accepts it.
pub(super) fn compress(
    exchange: &Exchange,
    status: StatusCode,
    headers: &mut HeaderMap,
    source: BodySource,
) -> BodySource {
    match exchange.negotiated {
        None => source,
        Some(negotiated) => negotiated_body(exchange, negotiated, status, headers, source),
    }
}

#[cold]
fn negotiated_body(
    exchange: &Exchange,
    Negotiated { accepted, is_head }: Negotiated,
    status: StatusCode,
    headers: &mut HeaderMap,
    source: BodySource,
) -> BodySource {
    let defaults = exchange.defaults.as_deref();
    let Some(compression) = defaults.and_then(|it| it.compression.as_ref()) else {
        return source;
    };
    let is_message = matches!(
        source,
        BodySource::Memory(_)
            | BodySource::Page(_)
            | BodySource::Processed(_)
            | BodySource::Backend(_)
    );
    let is_call = exchange.rule.kind() == RouteKind::Grpc || exchange.is_grpc();
    if !is_message || is_call || exchange.websocket.is_some() {
        return source;
    }
    if status == StatusCode::NOT_MODIFIED {
        compression::apply_to_not_modified(&exchange.parts.headers, headers);
        return source;
    }
    if !is_head && source.is_end_stream() {
        return source;
    }
    let facts = ResponseFacts {
        status,
        size: compression::declared_size(headers).or_else(|| match is_head {
            true => None,
            false => source.size_hint().exact(),
        }),
    };
    let Some(encoding) = compression::prepare(compression, accepted, facts, headers) else {
        return source;
    };
    let client = exchange.record.client().ip();
    let budget = &exchange.client.worker.encoders;
    // A client that may not take more memory gets the response as it is.
    let Some(permit) = EncoderPermit::new(budget, client, encoding) else {
        return source;
    };
    compression::apply(encoding, headers);
    if is_head {
        return BodySource::Empty;
    }
    let body = CompressedBody::new(source, permit, compression.level, facts.size);
    BodySource::Compressed(Box::new(body))
}
