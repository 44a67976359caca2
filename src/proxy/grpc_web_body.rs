//! The bodies of gRPC-Web calls: decodes base64 in requests and appends trailers to responses as
//! the last part. Holds at most one frame.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};

use super::grpc::GrpcStatus;
use super::grpc_web::{self, Decoder};
use super::headers;
use super::incoming::Incoming;
use super::request_body::RequestBody;
use crate::ir::grpc::WebFormat;
use crate::upstream::{self, BoxError};

/// A request body in base64.
pub(crate) struct Base64Body {
    incoming: Incoming,
    decoder: Decoder,
}

impl Base64Body {
    /// Decodes `incoming`.
    pub(super) fn new(incoming: Incoming) -> Self {
        Self {
            incoming,
            decoder: Decoder::default(),
        }
    }

    /// Returns the next frame, decoded.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            let frame = match ready!(Pin::new(&mut self.incoming).poll_frame(cx)) {
                Some(frame) => frame?,
                None => {
                    let finished = std::mem::take(&mut self.decoder).finish();
                    return Poll::Ready(finished.err().map(|error| Err(error.into())));
                }
            };
            match frame.into_data() {
                Ok(text) => {
                    let data = self.decoder.decode(&text)?;
                    if !data.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                }
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
    }
}

/// The body of a response.
pub(crate) struct WebBody {
    source: upstream::ResponseBody<RequestBody>,
    format: WebFormat,
    /// Status from the head, for a response without trailers.
    status: HeaderMap,
    is_ended: bool,
}

impl WebBody {
    /// Translates `source`. `status` is the gRPC status in the response head.
    pub(super) fn new(
        source: upstream::ResponseBody<RequestBody>,
        format: WebFormat,
        status: HeaderMap,
    ) -> Self {
        Self {
            source,
            format,
            status,
            is_ended: false,
        }
    }

    /// Reports whether the trailers were returned.
    pub(super) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Returns the next part.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.is_ended {
            return Poll::Ready(None);
        }
        let trailers = match ready!(Pin::new(&mut self.source).poll_frame(cx)) {
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
        headers::remove_head_only_trailers(&mut trailers);
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
