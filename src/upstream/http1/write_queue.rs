//! The unwritten part of a request: its head and one chunk of its body with framing. Does not copy
//! body data, and holds only one chunk, so that a slow backend slows down the client.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http_body::Frame;
use tokio::io::AsyncWrite;

/// Memory that stays for heads of chunks, in bytes.
const KEPT: usize = 1024;

/// Data to write, in the order of the fields.
pub(super) struct WriteQueue {
    prefix: Vec<u8>,
    /// Written bytes of the prefix.
    left: usize,
    data: Bytes,
    suffix: &'static [u8],
    ended: bool,
    wrote: bool,
    /// Whether the stream may buffer written data, as TLS does.
    unflushed: bool,
}

impl WriteQueue {
    pub(super) fn new(head: Vec<u8>) -> Self {
        Self {
            prefix: head,
            left: 0,
            data: Bytes::new(),
            suffix: b"",
            ended: false,
            wrote: false,
            unflushed: false,
        }
    }

    /// Reports whether any byte was written.
    pub(super) fn wrote(&self) -> bool {
        self.wrote
    }

    /// Reports whether everything was written and flushed.
    pub(super) fn is_empty(&self) -> bool {
        !self.unflushed && self.is_written()
    }

    fn is_written(&self) -> bool {
        self.left == self.prefix.len() && self.data.is_empty() && self.suffix.is_empty()
    }

    /// Reports whether another chunk can be queued. The head waits for the first chunk, so that
    /// both are written together.
    pub(super) fn has_room(&self) -> bool {
        self.data.is_empty() && self.suffix.is_empty() && !self.ended
    }

    /// Queues a frame of the body.
    pub(super) fn push(&mut self, frame: Frame<Bytes>, chunked: bool) {
        match frame.into_data() {
            Ok(data) if data.is_empty() => {}
            Ok(data) => {
                if chunked {
                    self.prefix
                        .extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
                    self.suffix = b"\r\n";
                }
                self.data = data;
            }
            Err(frame) => {
                if let (Ok(trailers), true) = (frame.into_trailers(), chunked) {
                    self.push_trailers(&trailers);
                }
            }
        }
    }

    /// Queues the end of a chunked body without trailers.
    pub(super) fn push_end(&mut self) {
        if !self.ended {
            self.ended = true;
            self.prefix.extend_from_slice(b"0\r\n\r\n");
        }
    }

    fn push_trailers(&mut self, trailers: &HeaderMap) {
        self.ended = true;
        self.prefix.extend_from_slice(b"0\r\n");
        for (name, value) in trailers {
            self.prefix.extend_from_slice(name.as_str().as_bytes());
            self.prefix.extend_from_slice(b": ");
            self.prefix.extend_from_slice(value.as_bytes());
            self.prefix.extend_from_slice(b"\r\n");
        }
        self.prefix.extend_from_slice(b"\r\n");
    }

    /// Writes and flushes until the queue is empty.
    pub(super) fn poll_write<W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        io: &mut W,
    ) -> Poll<io::Result<()>> {
        while !self.is_written() {
            let count = if self.data.is_empty() && self.suffix.is_empty() {
                ready!(Pin::new(&mut *io).poll_write(cx, &self.prefix[self.left..]))?
            } else {
                let slices = [
                    IoSlice::new(&self.prefix[self.left..]),
                    IoSlice::new(&self.data),
                    IoSlice::new(self.suffix),
                ];
                ready!(Pin::new(&mut *io).poll_write_vectored(cx, &slices))?
            };
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.wrote = true;
            self.unflushed = true;
            self.advance(count);
        }
        ready!(Pin::new(io).poll_flush(cx))?;
        self.unflushed = false;
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, mut count: usize) {
        let part = count.min(self.prefix.len() - self.left);
        self.left += part;
        count -= part;
        if self.left == self.prefix.len() {
            self.prefix.clear();
            // A large head is not needed until the end of the exchange.
            self.prefix.shrink_to(KEPT);
            self.left = 0;
        }
        let part = count.min(self.data.len());
        self.data.advance(part);
        count -= part;
        self.suffix = &self.suffix[count.min(self.suffix.len())..];
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn large_head_takes_no_memory_once_it_is_written() {
        let mut queue = WriteQueue::new(vec![b'x'; 60 * 1024]);
        let (mut cx, mut io) = (Context::from_waker(Waker::noop()), Vec::new());
        assert!(queue.poll_write(&mut cx, &mut io).is_ready());
        assert_eq!(io.len(), 60 * 1024);
        assert!(queue.prefix.capacity() <= KEPT);
    }
}
