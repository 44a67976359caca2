//! Counts received frames on the wire, and yields to the task that drives the connection before
//! too many wait in h2.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Size of a frame header (RFC 9113, 4.1).
const HEADER: usize = 9;
/// Offset of the type in a frame header.
const TYPE: usize = 3;
const DATA: u8 = 0;
const END_STREAM: u8 = 1;
const PADDED: u8 = 8;
/// A frame type that no specification defines. Receivers ignore such frames (RFC 9113, 5.5).
const UNDEFINED: u8 = 0xef;
/// Size of the client's preface (RFC 9113, 3.4).
const PREFACE: usize = 24;

/// Frames below this size cost more in h2 than their content.
const SMALL: usize = 1024;
/// Small frames, or bytes, that may wait in h2 before they are collected.
const MAX_SMALL_FRAMES: usize = 128;
const MAX_BYTES: usize = 256 * 1024;
/// Small frames in a read after which reads are of [`SMALL_READ`], so that h2 gets few at once.
const MANY_SMALL_FRAMES: usize = 32;
const SMALL_READ: usize = 4 * 1024;
/// Maximum number of streams with empty frames that are remembered between two collections.
const MAX_EMPTY: usize = 128;

/// What to do with empty DATA frames that do not end their stream. h2 ends a connection after 100
/// of them, on whichever streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EmptyFrames {
    /// h2 counts them.
    Pass,
    /// They are hidden from h2 and counted by stream.
    Hide,
}

/// Frames received since they were collected last.
#[derive(Default)]
pub(super) struct Counts {
    small: Cell<usize>,
    bytes: Cell<usize>,
    empty: RefCell<Vec<(u32, u32)>>,
    /// Empty frames that h2 may have counted, in the lifetime of the connection.
    counted: Cell<u32>,
}

/// What [`Counts::take`] found.
pub(super) enum Arrived {
    /// Few frames.
    Little,
    /// Many bytes, in large frames.
    Bytes,
    /// Many small frames.
    SmallFrames,
}

impl Counts {
    fn is_due(&self) -> bool {
        self.small.get() >= MAX_SMALL_FRAMES || self.bytes.get() >= MAX_BYTES
    }

    /// Returns what has arrived, and starts again unless that is little.
    pub(super) fn take(&self) -> Arrived {
        if !self.is_due() {
            return Arrived::Little;
        }
        self.bytes.set(0);
        if self.small.take() >= MAX_SMALL_FRAMES {
            Arrived::SmallFrames
        } else {
            Arrived::Bytes
        }
    }

    /// Takes the streams that received empty frames, with their numbers.
    pub(super) fn take_empty(&self) -> Vec<(u32, u32)> {
        self.empty.take()
    }

    /// Reports whether [`Self::take_empty`] returns any.
    pub(super) fn has_empty(&self) -> bool {
        !self.empty.borrow().is_empty()
    }

    /// Returns the number of empty frames that h2 may have counted.
    pub(super) fn counted(&self) -> u32 {
        self.counted.get()
    }

    fn on_empty(&self, stream: u32) {
        let mut empty = self.empty.borrow_mut();
        if let Some((_, count)) = empty.iter_mut().find(|(id, _)| *id == stream) {
            *count += 1;
        } else if empty.len() < MAX_EMPTY {
            empty.push((stream, 1));
        }
    }
}

/// A byte stream whose received frames are counted.
pub(crate) struct Wire<T> {
    io: T,
    frames: Frames,
    counts: Rc<Counts>,
    /// Whether the last read had many small frames.
    is_careful: bool,
}

impl<T> Wire<T> {
    pub(super) fn new(io: T, is_server: bool, empty: EmptyFrames, counts: Rc<Counts>) -> Self {
        Self {
            io,
            frames: Frames {
                skip: if is_server { PREFACE } else { 0 },
                empty,
                ..Frames::default()
            },
            counts,
            is_careful: false,
        }
    }
}

/// The position in the stream of frames.
struct Frames {
    /// The beginning of a header that is not complete yet.
    head: [u8; HEADER],
    head_length: usize,
    /// Bytes up to the next header.
    skip: usize,
    empty: EmptyFrames,
}

impl Default for Frames {
    fn default() -> Self {
        Self {
            head: [0; HEADER],
            head_length: 0,
            skip: 0,
            empty: EmptyFrames::Pass,
        }
    }
}

impl Frames {
    /// Counts the frames whose headers end in `bytes`.
    fn scan(&mut self, bytes: &mut [u8], counts: &Counts) {
        let mut at = 0;
        loop {
            let skipped = self.skip.min(bytes.len() - at);
            self.skip -= skipped;
            at += skipped;
            if at == bytes.len() {
                return;
            }
            let known = self.head_length;
            let count = (HEADER - known).min(bytes.len() - at);
            self.head[known..known + count].copy_from_slice(&bytes[at..at + count]);
            if known + count < HEADER {
                self.head_length += count;
                return;
            }
            self.head_length = 0;
            // h2 has already got the type if the header is cut behind it.
            let kind = (known <= TYPE).then(|| &mut bytes[at + TYPE - known]);
            self.on_head(kind, counts);
            at += count;
        }
    }

    /// Counts a frame, and hides it if it is an empty DATA frame.
    fn on_head(&mut self, kind: Option<&mut u8>, counts: &Counts) {
        let head = &self.head;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        self.skip = length;
        if head[TYPE] != DATA {
            return;
        }
        let flags = head[4];
        counts.bytes.set(counts.bytes.get() + length);
        // A stream has one last frame, so that their number is limited.
        if length >= SMALL || flags & END_STREAM != 0 {
            return;
        }
        counts.small.set(counts.small.get() + 1);
        // 255 bytes of padding and the byte of its length.
        let is_padding = flags & PADDED != 0 && length <= 256;
        if length > 0 && !is_padding || self.empty == EmptyFrames::Pass {
            return;
        }
        match kind {
            Some(kind) if length == 0 => {
                *kind = UNDEFINED;
                let id = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
                counts.on_empty(id);
            }
            _ => counts.counted.set(counts.counted.get() + 1),
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Wire<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.counts.is_due() {
            // The driver collects once h2 returns, and then reads on.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let start = buffer.filled().len();
        if this.is_careful {
            let length = SMALL_READ.min(buffer.remaining());
            let mut part = ReadBuf::new(buffer.initialize_unfilled_to(length));
            ready!(Pin::new(&mut this.io).poll_read(cx, &mut part))?;
            let count = part.filled().len();
            buffer.advance(count);
        } else {
            ready!(Pin::new(&mut this.io).poll_read(cx, buffer))?;
        }
        let before = this.counts.small.get();
        this.frames
            .scan(&mut buffer.filled_mut()[start..], &this.counts);
        this.is_careful = this.counts.small.get() - before > MANY_SMALL_FRAMES;
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Wire<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let length = (payload as u32).to_be_bytes();
        let head = [length[1], length[2], length[3], kind, flags, 0, 0, 0, 5];
        [&head[..], &vec![b'x'; payload]].concat()
    }

    fn scan(bytes: &mut [u8], step: usize, empty: EmptyFrames) -> Counts {
        let counts = Counts::default();
        let mut frames = Frames {
            empty,
            ..Frames::default()
        };
        for part in bytes.chunks_mut(step) {
            frames.scan(part, &counts);
        }
        counts
    }

    #[test]
    fn counts_frames_however_they_are_cut() {
        let frames = [
            frame(1, 4, 30),
            frame(DATA, 0, 20),
            frame(DATA, END_STREAM, 20),
            frame(DATA, 0, 2000),
            frame(8, 0, 4),
            frame(DATA, 0, 1),
        ];
        for step in 1..60 {
            let mut bytes = frames.concat();
            let counts = scan(&mut bytes, step, EmptyFrames::Hide);
            assert_eq!((counts.small.get(), counts.bytes.get()), (2, 2041));
            assert_eq!(bytes, frames.concat(), "cut by {step}");
        }
    }

    #[test]
    fn hides_only_empty_frames_that_do_not_end_the_stream() {
        let empty = frame(DATA, 0, 0);
        let others = [
            frame(DATA, END_STREAM, 0),
            frame(4, 0, 0),
            frame(DATA, 0, 1),
        ]
        .concat();
        let mut bytes = [empty.clone(), others.clone(), empty.clone()].concat();
        let counts = scan(&mut bytes, usize::MAX, EmptyFrames::Hide);
        let hidden = frame(UNDEFINED, 0, 0);
        assert_eq!(bytes, [hidden.clone(), others, hidden].concat());
        assert_eq!((counts.take_empty(), counts.counted()), (vec![(5, 2)], 0));
        let mut bytes = empty.clone();
        scan(&mut bytes, usize::MAX, EmptyFrames::Pass);
        assert_eq!(bytes, empty);
    }

    #[test]
    fn counts_empty_frames_that_h2_gets() {
        // Cut behind the type, and with padding.
        let counts = scan(&mut frame(DATA, 0, 0), 4, EmptyFrames::Hide);
        assert_eq!(counts.counted(), 1);
        let counts = scan(&mut frame(DATA, PADDED, 10), 100, EmptyFrames::Hide);
        assert_eq!(counts.counted(), 1);
    }
}
