//! The two halves of an HTTP/3 stream as byte streams, for tunnels (RFC 9220). Flow control of QUIC limits both directions.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::AsyncWrite;

use super::splice::MaybeSocket;
use crate::http2::Parts;
use crate::proxy::body::inbound::{Inbound, Part};
use crate::proxy::response::outbound::Outbound;

/// Maximum size of a DATA frame that is written.
const MAX_WRITE: usize = 16 * 1024;

impl Parts for Rc<Inbound> {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        Poll::Ready(match ready!(self.poll_part(cx)) {
            Ok(Some(Part::Content(data))) => Some(Ok(data)),
            // There are no trailers after a CONNECT.
            Ok(Some(Part::Trailers(_)) | None) => None,
            Err(failure) => Some(Err(io::Error::other(failure))),
        })
    }
}

/// Bytes for the client.
pub(super) struct TunnelWriter {
    stream: Rc<Outbound>,
    is_ended: bool,
}

impl TunnelWriter {
    pub(super) fn new(stream: Rc<Outbound>) -> Self {
        Self {
            stream,
            is_ended: false,
        }
    }

    /// Sends what was written before.
    fn poll_sent(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = self.stream.poll_flush(cx);
        sent.map_err(|_| io::ErrorKind::ConnectionReset.into())
    }
}

impl MaybeSocket for TunnelWriter {}

impl AsyncWrite for TunnelWriter {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_sent(cx))?;
        let count = bytes.len().min(MAX_WRITE);
        self.stream.push_content_header(count);
        self.stream.push(&bytes[..count]);
        // The next call sends what is not taken now, and learns of errors.
        let _ = self.poll_sent(cx);
        Poll::Ready(Ok(count))
    }

    /// Fails if the client has stopped the stream. Without this check, that stays unnoticed while there is nothing to write.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_ended && self.stream.poll_end(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        self.poll_sent(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_sent(cx))?;
        if !std::mem::replace(&mut self.is_ended, true) {
            self.stream.finish();
        }
        Poll::Ready(Ok(()))
    }
}
