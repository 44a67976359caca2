//! A response body that is compressed on its way. Holds one frame of the source, and the state of its encoder. What the
//! source sent is passed on before this waits for more of it, so that events arrive when they are sent.

use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http_body::Frame;
use tokio::task::yield_now;

use super::encoder::{Encoder, EncoderFailure, Operation};
use crate::byte_chain::leave_read_buffer;
use crate::ir::compression::{Encoding, Level};
use crate::proxy::worker_state::budget::{Budget, Held};
use crate::upstream::BoxError;

/// Maximum bytes of input before other tasks of the worker have their turn.
const TURN: usize = 64 * 1024;
/// Maximum bytes of input of one step.
const PIECE: usize = 16 * 1024;
/// Maximum bytes of a frame.
const OUTPUT: usize = 16 * 1024;

/// Memory for an encoder, which counts as taken by the client until dropped.
pub(in crate::proxy) struct EncoderPermit {
    encoding: Encoding,
    _memory: Held,
}

impl EncoderPermit {
    /// Admits an encoder for a client. `None` if its address may not take that much.
    pub(in crate::proxy) fn new(
        budget: &Rc<Budget>,
        client: IpAddr,
        encoding: Encoding,
    ) -> Option<Self> {
        let mut memory = Held::none(&budget.share(client));
        let is_admitted = memory.resize(Encoder::memory(encoding));
        is_admitted.then_some(Self {
            encoding,
            _memory: memory,
        })
    }
}

/// Where the frames of a body come from.
pub(in crate::proxy) trait Frames {
    /// Returns the next frame.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>>;

    /// Gives memory back while nobody takes the body. Returns the bytes that stay allocated.
    fn compact(&mut self) -> usize {
        0
    }

    /// Sends as much of the rest of the request as possible while nobody takes the body.
    ///
    /// # Errors
    /// The body of the request has failed. No other frame may be asked for.
    fn send_rest(&mut self, _: &mut Context<'_>) -> Result<(), BoxError> {
        Ok(())
    }
}

/// A compressed body.
pub(in crate::proxy) struct CompressedBody<S> {
    source: S,
    /// Created with the first frame. `None` once the stream has ended.
    encoder: EncoderState,
    input: Bytes,
    operation: Operation,
    /// Whether the encoder may keep bytes that are not flushed.
    is_dirty: bool,
    trailers: Option<HeaderMap>,
    /// Bytes of input since the task has last waited.
    turn: usize,
}

enum EncoderState {
    New {
        permit: EncoderPermit,
        level: Level,
        size: Option<u64>,
    },
    Open(
        Encoder,
        #[expect(dead_code, reason = "memory is free when it is dropped")] EncoderPermit,
    ),
    Ended,
}

impl<S: Frames> CompressedBody<S> {
    /// Compresses `source`, whose size is `size` if it is known.
    pub(in crate::proxy) fn new(
        source: S,
        permit: EncoderPermit,
        level: Level,
        size: Option<u64>,
    ) -> Self {
        Self {
            source,
            encoder: EncoderState::New {
                permit,
                level,
                size,
            },
            input: Bytes::new(),
            operation: Operation::Process,
            is_dirty: false,
            trailers: None,
            turn: 0,
        }
    }

    /// Reports whether all was returned.
    pub(in crate::proxy) fn is_ended(&self) -> bool {
        matches!(self.encoder, EncoderState::Ended) && self.trailers.is_none()
    }

    /// Gives memory back while nobody takes the body. Returns the bytes that stay allocated, apart from those of the encoder.
    pub(in crate::proxy) fn compact(&mut self) -> usize {
        leave_read_buffer(&mut self.input) + self.source.compact()
    }

    /// Sends as much of the rest of the request as possible while nobody takes the body.
    ///
    /// # Errors
    /// The body of the request has failed.
    pub(in crate::proxy) fn send_rest(&mut self, cx: &mut Context<'_>) -> Result<(), BoxError> {
        self.source.send_rest(cx)
    }

    /// Returns the next frame.
    pub(in crate::proxy) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if matches!(self.encoder, EncoderState::Ended) {
                let trailers = self.trailers.take();
                return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
            }
            if self.turn >= TURN {
                self.turn = 0;
                // A waker alone would not let the runtime look at sockets.
                return pin!(yield_now()).poll(cx).map(|()| None);
            }
            if self.input.is_empty() && self.operation == Operation::Process {
                match self.source.poll_frame(cx) {
                    Poll::Ready(Some(Ok(frame))) => self.accept(frame),
                    Poll::Ready(Some(Err(error))) => {
                        self.encoder = EncoderState::Ended;
                        return Poll::Ready(Some(Err(error)));
                    }
                    Poll::Ready(None) => self.operation = Operation::Finish,
                    Poll::Pending if self.is_dirty => self.operation = Operation::Flush,
                    Poll::Pending => {
                        self.turn = 0;
                        return Poll::Pending;
                    }
                }
                continue;
            }
            match self.step() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Err(failure) => {
                    self.encoder = EncoderState::Ended;
                    return Poll::Ready(Some(Err(failure.into())));
                }
            }
        }
    }

    fn accept(&mut self, frame: Frame<Bytes>) {
        match frame.into_data() {
            Ok(data) => self.input = data,
            Err(frame) => {
                self.trailers = frame.into_trailers().ok();
                self.operation = Operation::Finish;
            }
        }
    }

    /// Lets the encoder work. Returns its output.
    fn step(&mut self) -> Result<Bytes, EncoderFailure> {
        let mut output = [0; OUTPUT];
        let piece = &self.input[..self.input.len().min(PIECE)];
        let encoder = self.encoder.open()?;
        let step = encoder.step(self.operation, piece, &mut output)?;
        self.input.advance(step.taken);
        if self.input.is_empty() {
            // Releases the memory of the frame.
            self.input = Bytes::new();
        }
        self.turn += step.taken;
        self.is_dirty |= step.taken > 0;
        match self.operation {
            Operation::Process => {}
            Operation::Flush if step.is_complete => {
                self.operation = Operation::Process;
                self.is_dirty = false;
            }
            Operation::Finish if step.is_complete => self.encoder = EncoderState::Ended,
            Operation::Flush | Operation::Finish => {}
        }
        Ok(Bytes::copy_from_slice(&output[..step.written]))
    }
}

impl EncoderState {
    fn open(&mut self) -> Result<&mut Encoder, EncoderFailure> {
        if let Self::New { .. } = self
            && let Self::New {
                permit,
                level,
                size,
            } = std::mem::replace(self, Self::Ended)
        {
            let encoder = Encoder::new(permit.encoding, level, size)?;
            *self = Self::Open(encoder, permit);
        }
        match self {
            Self::Open(encoder, _) => Ok(encoder),
            Self::New { .. } | Self::Ended => Err(EncoderFailure),
        }
    }
}

#[cfg(test)]
mod tests;
