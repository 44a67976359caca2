//! The bodies of gRPC-Web calls: decodes base64 in requests and appends trailers to responses as
//! the last part. Holds at most one frame.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;

use super::compressed_body::Frames;
use super::trailers;
use crate::ir::grpc::WebFormat;
use crate::proxy::grpc::GrpcStatus;
use crate::proxy::grpc_web;
use crate::upstream::BoxError;

/// The body of a response.
pub(crate) struct WebBody<S> {
    source: S,
    format: WebFormat,
    /// Status from the head, for a response without trailers.
    status: HeaderMap,
    is_ended: bool,
}

impl<S: Frames> WebBody<S> {
    /// Translates `source`. `status` is the gRPC status in the response head.
    pub(in crate::proxy) fn new(source: S, format: WebFormat, status: HeaderMap) -> Self {
        Self {
            source,
            format,
            status,
            is_ended: false,
        }
    }

    /// Reports whether the trailers were returned.
    pub(in crate::proxy) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Gives memory back while nobody takes the body. Returns the bytes that stay allocated.
    pub(in crate::proxy) fn compact(&mut self) -> usize {
        self.source.compact()
    }

    /// Sends as much of the rest of the request as possible while nobody takes the body.
    ///
    /// # Errors
    /// The body of the request has failed.
    pub(in crate::proxy) fn send_rest(&mut self, cx: &mut Context<'_>) -> Result<(), BoxError> {
        self.source.send_rest(cx)
    }

    /// Returns the next part.
    pub(in crate::proxy) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.is_ended {
            return Poll::Ready(None);
        }
        let trailers = match ready!(self.source.poll_frame(cx)) {
            Some(frame) => match frame?.into_data() {
                Ok(data) => {
                    let data = grpc_web::encode(self.format, data);
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Err(frame) => frame.into_trailers().ok(),
            },
            None => None,
        };
        self.is_ended = true;
        let mut trailers = trailers.unwrap_or_else(|| self.status_without_trailers());
        trailers::remove_head_only(&mut trailers);
        let part = grpc_web::encode_trailers(self.format, &trailers);
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn status_without_trailers(&mut self) -> HeaderMap {
        let mut status = std::mem::take(&mut self.status);
        if status.is_empty() {
            GrpcStatus::Internal
                .insert_into(&mut status, "the backend ended the call without a status");
        }
        status
    }
}
