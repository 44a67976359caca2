//! The two halves of an HTTP/2 stream as byte streams, for tunnels. Flow control limits both
//! directions: the peer gets window only for bytes that were read here, and bytes are read from the
//! other side only if the peer's window has room. The reader is that of HTTP/3 too.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::{Reason, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::bodies::{Bodies, Body};

/// Maximum size of a DATA frame that is written; the default of `SETTINGS_MAX_FRAME_SIZE`.
const MAX_WRITE: usize = 16 * 1024;

/// The data of a stream, part by part.
pub(crate) trait Parts {
    /// Returns the next part. `None` after all of them.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>>;
}

impl Parts for Body {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        self.poll_data(cx).map_err(io::Error::other)
    }
}

/// Bytes that the peer sends.
pub(crate) struct StreamReader<P = Body> {
    stream: P,
    data: Bytes,
}

impl<P> StreamReader<P> {
    /// Reads the data of a stream.
    pub(crate) fn new(stream: P) -> Self {
        Self {
            stream,
            data: Bytes::new(),
        }
    }
}

impl<P: Parts + Unpin> AsyncRead for StreamReader<P> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.data.is_empty() {
            this.data = match ready!(this.stream.poll_next(cx)) {
                None => return Poll::Ready(Ok(())),
                Some(data) => data?,
            };
            // An empty frame is not EOF.
        }
        let count = this.data.len().min(buffer.remaining());
        buffer.put_slice(&this.data[..count]);
        this.data.advance(count);
        Poll::Ready(Ok(()))
    }
}

/// Bytes for the peer.
pub(crate) struct StreamWriter {
    stream: SendStream<Bytes>,
    /// Those of the connection.
    bodies: Rc<Bodies>,
    is_ended: bool,
}

impl StreamWriter {
    /// Writes the data of a stream.
    pub(crate) fn new(stream: SendStream<Bytes>, bodies: Rc<Bodies>) -> Self {
        Self {
            stream,
            bodies,
            is_ended: false,
        }
    }

    /// Resets the stream: the other side of the tunnel has failed (RFC 8441, 5).
    pub(crate) fn reset(&mut self) {
        self.stream.send_reset(Reason::CANCEL);
    }
}

impl AsyncWrite for StreamWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Self { stream, bodies, .. } = &mut *self;
        ready!(bodies.send_queue().poll_room(cx));
        let wanted = bytes.len().min(MAX_WRITE);
        while stream.capacity() == 0 {
            stream.reserve_capacity(wanted);
            match ready!(stream.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
        let count = stream.capacity().min(wanted);
        let data = Bytes::copy_from_slice(&bytes[..count]);
        let data = bodies.send_queue().count(data);
        let sent = stream.send_data(data, false).map_err(io::Error::other);
        Poll::Ready(sent.map(|()| count))
    }

    /// Fails if the peer has reset the stream. Without this check, the reset stays unnoticed
    /// while there is nothing to write.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match self.stream.poll_reset(cx) {
            Poll::Ready(_) => Err(io::ErrorKind::ConnectionReset.into()),
            Poll::Pending => Ok(()),
        })
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if std::mem::replace(&mut self.is_ended, true) {
            return Poll::Ready(Ok(()));
        }
        let ended = self.stream.send_data(Bytes::new(), true);
        Poll::Ready(ended.map_err(io::Error::other))
    }
}
