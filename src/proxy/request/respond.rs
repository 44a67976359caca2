//! The phases of a response: filters, changes of policies, error pages and compression. Must not know how it was got.

use bytes::Bytes;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::answer::Answer;
use super::compression::compress;
use super::error_pages;
use super::error_response::{self, ErrorFormat, ErrorResponse};
use super::exchange::Exchange;
use super::policy_refusal::PolicyRefusal;
use super::websocket::Handshake;
use crate::filter::change_response;
use crate::ir::error_page::Responder;
use crate::proxy::body::request_body::RequestBody;
use crate::proxy::body::response_body::{BodySource, ResponseBody};
use crate::proxy::body::tunnel::Tunnel;
use crate::proxy::grpc_web;
use crate::proxy::response::record::Record;
use crate::upstream;

impl Exchange {
    /// Gives the client a response.
    pub(super) fn give(mut self: Box<Self>, answer: Answer) -> Response<ResponseBody> {
        if answer.is_own_error() {
            let phase = &mut self.response_phase;
            phase.share(self.rule.filters().all, &self.parts.headers);
        }
        match answer {
            Answer::Backend(response) => self.respond(response),
            Answer::Local(response) => self.respond_locally(*response),
            Answer::Refusal(refusal) => self.refuse(refusal),
        }
    }

    /// Returns the response to a request that is not forwarded, or that failed.
    fn refuse(self, refusal: PolicyRefusal) -> Response<ResponseBody> {
        let PolicyRefusal { error, headers, .. } = refusal;
        let format = self.error_format();
        let id = self.added.id().clone();
        let refused = ErrorResponse::new(error, format, id, self.record);
        let headers = (!headers.is_empty()).then(|| Box::new(headers));
        let refused = refused.with_headers(headers);
        let refused = refused.with_defaults(self.defaults, self.page);
        with_record(refused.with_phase(self.response_phase).respond())
    }

    /// Reports whether the request is a gRPC call.
    pub(super) fn is_grpc(&self) -> bool {
        self.error_format() != ErrorFormat::Text
    }

    fn error_format(&self) -> ErrorFormat {
        match self.grpc_web {
            Some(format) => ErrorFormat::GrpcWeb(format),
            None => ErrorFormat::of(&self.parts.headers),
        }
    }

    /// Applies response filters to the response of a backend.
    pub(super) fn respond(
        mut self: Box<Self>,
        response: upstream::Response<RequestBody>,
    ) -> Response<ResponseBody> {
        let (mut status, mut headers, body) = (response.status, response.headers, response.body);
        let switches = status == StatusCode::SWITCHING_PROTOCOLS;
        if switches && self.websocket.is_some() {
            status = StatusCode::OK;
            Handshake::remove_headers(&mut headers);
        }
        self.record.responded(status.as_u16());
        self.record.grpc_status(&headers);
        self.record.costs(&headers);
        let grpc_web = self
            .grpc_web
            .filter(|_| grpc_web::is_translatable(&headers))
            .map(|format| (format, grpc_web::translate_response(format, &mut headers)));
        self.apply_response_phase(&mut headers);
        let may_upgrade = switches || status == StatusCode::UPGRADE_REQUIRED;
        if may_upgrade && headers.contains_key(UPGRADE) {
            // RFC 9110, 7.8: hop-by-hop, like all connection headers.
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        }
        let body = if switches {
            self.record.log_response(&headers);
            let tunnel = Tunnel::new(body, self.record).map(Box::new);
            tunnel.map_or_else(ResponseBody::empty, ResponseBody::tunnel)
        } else {
            let source = BodySource::of_backend(body, self.process.take());
            let source = match grpc_web {
                Some((format, status)) => source.for_grpc_web(format, status),
                None => source,
            };
            let response = (&mut status, Responder::Backend);
            let source = error_pages::replace(&mut self, response, &mut headers, source);
            let source = compress(&self, status, &mut headers, source);
            self.record.log_response(&headers);
            ResponseBody::new(source, self.record)
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }

    /// Applies the header changes of policies, then response filters.
    fn apply_response_phase(&self, headers: &mut HeaderMap) {
        let defaults = self.defaults.as_deref();
        if let Some(changes) = defaults.and_then(|it| it.response_headers.as_ref()) {
            change_response(changes, headers);
        }
        self.response_phase.apply(headers);
    }

    /// Applies response filters to the response of a filter or a picker. For gRPC and gRPC-Web calls, errors become responses
    /// without a message.
    fn respond_locally(mut self: Box<Self>, response: Response<Bytes>) -> Response<ResponseBody> {
        let (mut head, body) = response.into_parts();
        if self.websocket.is_some() && head.status.is_success() {
            // A 2xx would tell the client that the tunnel is open.
            head.status = StatusCode::FORBIDDEN;
        }
        self.record.responded(head.status.as_u16());
        let body = error_response::for_format(self.error_format(), &mut head, body);
        self.apply_response_phase(&mut head.headers);
        let has_body = !body.is_empty();
        let mut source = BodySource::Memory(body);
        if !has_body {
            let response = (&mut head.status, Responder::Gateway);
            source = error_pages::replace(&mut self, response, &mut head.headers, source);
        }
        let source = compress(&self, head.status, &mut head.headers, source);
        self.record.log_response(&head.headers);
        Response::from_parts(head, ResponseBody::new(source, self.record))
    }
}

/// Gives an error response the body that completes its record.
pub(super) fn with_record(
    (response, record): (Response<BodySource>, Box<Record>),
) -> Response<ResponseBody> {
    response.map(|body| ResponseBody::new(body, record))
}
