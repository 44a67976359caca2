//! The response to a request that failed, in the format of the request: text, gRPC or gRPC-Web.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode, response};

use super::wanted_page::WantedPage;
use crate::filter::{ResponsePhase, change_response, error_page};
use crate::ir::error_page::Responder;
use crate::ir::grpc::{WebFormat, is_grpc};
use crate::ir::route_defaults::RouteDefaults;
use crate::proxy::body::response_body::BodySource;
use crate::proxy::client::forwarding::X_REQUEST_ID;
use crate::proxy::error::Error;
use crate::proxy::grpc::{CallStatus, GrpcStatus};
use crate::proxy::grpc_web;
use crate::proxy::response::record::Record;

/// Content type of responses to gRPC calls.
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
/// Maximum bytes of a body that become the message of a status, which is a header.
const MAX_MESSAGE: usize = 1024;

/// The methods of HTTP that are served. RFC 9110, 15.5.6 demands them beside 405.
const ALLOWED: HeaderValue =
    HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");

/// How an error is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum ErrorFormat {
    /// Status and text.
    Text,
    /// Status 200 and a gRPC status.
    Grpc,
    /// Status 200, with the gRPC status in the body.
    GrpcWeb(WebFormat),
}

impl ErrorFormat {
    /// Selects the format for a request with these headers.
    pub(in crate::proxy) fn of(headers: &HeaderMap) -> Self {
        match grpc_web::response_format(headers) {
            Some(format) => Self::GrpcWeb(format),
            None if is_grpc(headers) => Self::Grpc,
            None => Self::Text,
        }
    }
}

/// Converts the response of a filter or a picker to a request of this format, and returns the body. For a gRPC or gRPC-Web
/// call, an error becomes a response without a message, and one that has a status of its own becomes that status.
pub(in crate::proxy) fn for_format(
    format: ErrorFormat,
    head: &mut response::Parts,
    body: Bytes,
) -> Bytes {
    let own = head.extensions.remove::<CallStatus>();
    let is_error = head.status.is_client_error() || head.status.is_server_error();
    let reason = head.status.canonical_reason().unwrap_or_default();
    let mut status = HeaderMap::new();
    match (format, own) {
        (ErrorFormat::Grpc | ErrorFormat::GrpcWeb(_), Some(own)) => {
            let text = String::from_utf8_lossy(&body[..body.len().min(MAX_MESSAGE)]);
            let message: &str = if text.is_empty() { reason } else { &text };
            own.insert_into(&mut status, message);
        }
        (ErrorFormat::Grpc | ErrorFormat::GrpcWeb(_), None) if is_error => {
            GrpcStatus::from(head.status).insert_into(&mut status, reason);
        }
        (ErrorFormat::Text | ErrorFormat::Grpc | ErrorFormat::GrpcWeb(_), _) => return body,
    }
    error_page::remove_content(&mut head.headers);
    head.status = StatusCode::OK;
    if let ErrorFormat::GrpcWeb(format) = format {
        let content_type = grpc_web::own_content_type(format);
        head.headers.insert(CONTENT_TYPE, content_type);
        return grpc_web::encode_trailers(format, &status);
    }
    head.headers.insert(CONTENT_TYPE, GRPC);
    head.headers.extend(status);
    Bytes::new()
}

/// A request with an error response, which names the request by its id.
pub(in crate::proxy) struct ErrorResponse {
    error: Error,
    format: ErrorFormat,
    id: HeaderValue,
    record: Box<Record>,
    headers: Option<Box<HeaderMap>>,
    defaults: Option<Arc<RouteDefaults>>,
    page: Option<WantedPage>,
    phase: ResponsePhase,
}

impl ErrorResponse {
    pub(in crate::proxy) fn new(
        error: Error,
        format: ErrorFormat,
        id: HeaderValue,
        record: Box<Record>,
    ) -> Self {
        Self {
            error,
            format,
            id,
            record,
            headers: None,
            defaults: None,
            page: None,
            phase: ResponsePhase::default(),
        }
    }

    /// Adds headers.
    pub(in crate::proxy) fn with_headers(self, headers: Option<Box<HeaderMap>>) -> Self {
        Self { headers, ..self }
    }

    /// Applies what policies say about the response. It has no page without what decides about it.
    pub(in crate::proxy) fn with_defaults(
        self,
        defaults: Option<Arc<RouteDefaults>>,
        page: Option<WantedPage>,
    ) -> Self {
        Self {
            defaults,
            page,
            ..self
        }
    }

    /// Applies what filters do to error responses.
    pub(in crate::proxy) fn with_phase(self, phase: ResponsePhase) -> Self {
        Self { phase, ..self }
    }

    /// Returns what an error page is fetched with, if the response may have one.
    pub(in crate::proxy) fn page_parts(
        &mut self,
    ) -> Option<(
        &mut Record,
        &RouteDefaults,
        &mut WantedPage,
        Error,
        &HeaderValue,
    )> {
        let page = self
            .page
            .as_mut()
            .filter(|_| self.format == ErrorFormat::Text)?;
        let defaults = self.defaults.as_deref()?;
        Some((&mut self.record, defaults, page, self.error, &self.id))
    }

    /// Builds the response, and returns the record that its body completes.
    pub(in crate::proxy) fn respond(self) -> (Response<BodySource>, Box<Record>) {
        let Self {
            error,
            format,
            id,
            mut record,
            headers: others,
            defaults,
            page,
            phase,
        } = self;
        record.refused(error);
        let message = error.message();
        let mut status = HeaderMap::new();
        if format != ErrorFormat::Text {
            error.grpc_status().insert_into(&mut status, message);
        }
        let (content_type, body) = match format {
            ErrorFormat::Text => (
                HeaderValue::from_static("text/plain; charset=utf-8"),
                Bytes::from_static(message.as_bytes()),
            ),
            // Headers only ("Trailers-Only" in gRPC over HTTP/2), since there is no message.
            ErrorFormat::Grpc => (GRPC, Bytes::new()),
            ErrorFormat::GrpcWeb(format) => (
                grpc_web::own_content_type(format),
                grpc_web::encode_trailers(format, &status),
            ),
        };
        let mut response = Response::new(BodySource::Memory(body));
        if format == ErrorFormat::Text {
            *response.status_mut() = error.status();
        }
        let headers = response.headers_mut();
        if format == ErrorFormat::Grpc {
            headers.extend(status);
        }
        headers.extend(others.into_iter().flat_map(|others| *others));
        headers.insert(X_REQUEST_ID, id);
        if let Some(changes) = defaults
            .as_ref()
            .and_then(|it| it.response_headers.as_ref())
        {
            change_response(changes, headers);
        }
        headers.insert(CONTENT_TYPE, content_type);
        if error == Error::MethodNotAllowed && format == ErrorFormat::Text {
            headers.insert(ALLOW, ALLOWED);
        }
        if error.closes() {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let (ErrorFormat::Text, Some(defaults), Some(mut page)) = (format, defaults, page) {
            let failed = (error.status(), Responder::Gateway);
            if let Some((status, body)) = page.replace(&defaults.error_pages, failed, headers) {
                *response.status_mut() = status;
                *response.body_mut() = body;
            }
        }
        phase.apply_to_error(response.headers_mut());
        record.log_response(response.headers());
        (response, record)
    }
}
