//! The body of one stream: what h2 has of it, and what was collected.

use std::net::IpAddr;
use std::task::{Context, Poll, Waker};

use h2::RecvStream;
use http::HeaderMap;

use super::held;
use crate::byte_chain::ByteChain;
use crate::header_memory;

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// The stream or its connection failed.
    #[error(transparent)]
    Http2(#[from] h2::Error),
    /// The worker holds too much, and this reader was idle for the longest time.
    #[error("it was read too slowly while too much memory was in use")]
    TooSlow,
    /// The peer sends nothing but empty frames.
    #[error("too many empty DATA frames")]
    EmptyFrames,
}

/// The body of one stream.
pub(super) struct Stream {
    /// `None` after it has failed.
    pub(super) incoming: Option<RecvStream>,
    /// The client whose memory it is, if there is one.
    pub(super) client: Option<IpAddr>,
    pub(super) collected: ByteChain,
    /// The end of the data, and the trailers, were collected.
    pub(super) has_ended: bool,
    pub(super) trailers: Option<HeaderMap>,
    pub(super) error: Option<BodyError>,
    /// Time of the last read ([`held::now`]).
    pub(super) read: u64,
    /// The task that waits for data, or waited last.
    pub(super) reader: Option<Waker>,
    pub(super) is_awaited: bool,
    /// Empty frames since the last data.
    pub(super) empty: u32,
}

impl Stream {
    pub(super) fn new(incoming: Option<RecvStream>, client: Option<IpAddr>) -> Self {
        Self {
            incoming,
            client,
            collected: ByteChain::default(),
            has_ended: false,
            trailers: None,
            error: None,
            read: held::now(),
            reader: None,
            is_awaited: false,
            empty: 0,
        }
    }

    /// Returns the allocated bytes of what was collected.
    pub(super) fn allocated(&self) -> usize {
        self.collected.allocated() + self.trailers.as_ref().map_or(0, header_memory::size)
    }

    /// Moves the frames of h2 to buffers.
    pub(super) fn collect(&mut self) {
        if self.has_ended || self.error.is_some() {
            return;
        }
        let Some(incoming) = &mut self.incoming else {
            return;
        };
        let reader = self.reader.as_ref().filter(|_| self.is_awaited);
        let mut cx = Context::from_waker(reader.unwrap_or(Waker::noop()));
        loop {
            match incoming.poll_data(&mut cx) {
                Poll::Ready(Some(Ok(data))) => {
                    if !data.is_empty() {
                        self.collected.push(&data);
                        self.empty = 0;
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    self.error = Some(error.into());
                    return;
                }
                Poll::Ready(None) => break,
                Poll::Pending => return,
            }
        }
        self.has_ended = true;
        // An error stays in h2 for the reader.
        if let Poll::Ready(Ok(Some(mut trailers))) = incoming.poll_trailers(&mut cx) {
            header_memory::detach(&mut trailers);
            self.trailers = Some(trailers);
        }
    }
}
