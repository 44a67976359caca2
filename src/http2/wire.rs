//! Counts frames on the wire, and yields to the task that drives the connection before
//! too many wait in h2, and to other tasks before too many were read without a pause. If h2
//! bounded what its streams hold by allocated bytes, counted empty frames by stream, and returned
//! after a number of frames, the wire would be that of the connection.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::yield_now;

use super::frame::{self, DATA, FLAGS, HEADER, PREFACE, TYPE};
use super::header_blocks::{END_STREAM, HeaderBlocks, PADDED};
use super::send_queue::SendQueue;
use super::send_window::{SendWindow, SentFrames, WINDOW_UPDATE};

/// A frame type that no specification defines. Receivers ignore such frames (RFC 9113, 5.5).
pub(super) const UNDEFINED: u8 = 0xef;

/// Frames below this size cost more in h2 than their content.
const SMALL: usize = 1024;
/// Small frames, or bytes, that may wait in h2 before they are collected.
const MAX_SMALL_FRAMES: usize = 128;
const MAX_BYTES: usize = 256 * 1024;
/// What a byte of a header block counts as: what a peer sends of trailers has no window.
const BLOCK_WEIGHT: usize = 8;
/// Work of h2 after which other tasks and sockets get their turn. One for each frame, which costs
/// h2 a few hundred nanoseconds, and one for each 4 KiB.
const TURN: usize = 128;
const BYTES_PER_WORK: usize = 4 * 1024;
/// Small DATA frames, or work, in a read after which reads are of [`SMALL_READ`], so that h2 gets
/// few frames at once.
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
    pub(super) small: Cell<usize>,
    pub(super) bytes: Cell<usize>,
    /// Bytes of frames of all types since they were taken last.
    received: Cell<usize>,
    empty: RefCell<Vec<(u32, u32)>>,
    /// Empty frames that h2 may have counted, in the lifetime of the connection.
    counted: Cell<u32>,
    /// The window for what is sent, if that is watched.
    pub(super) window: SendWindow,
    queue: SendQueue,
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

    /// Returns the number of bytes that were received since the last call.
    pub(super) fn take_received(&self) -> usize {
        self.received.take()
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

    /// Reports whether the peer permits little more data, of all streams together.
    pub(super) fn is_window_low(&self) -> bool {
        self.window.is_low()
    }

    /// Returns what h2 has got to send.
    pub(super) fn queue(&self) -> &SendQueue {
        &self.queue
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
    blocks: Rc<RefCell<HeaderBlocks>>,
    /// What is sent, on connections that requests of several clients share.
    sent: Option<SentFrames>,
    /// Work since the last pause.
    work: usize,
    /// Whether the last read had many small frames.
    is_careful: bool,
}

impl<T> Wire<T> {
    pub(super) fn new(
        io: T,
        is_server: bool,
        empty: EmptyFrames,
        counts: Rc<Counts>,
        blocks: Rc<RefCell<HeaderBlocks>>,
    ) -> Self {
        Self {
            io,
            frames: Frames::after(if is_server { PREFACE } else { 0 }, empty),
            counts,
            blocks,
            sent: (!is_server).then(|| SentFrames::after(PREFACE)),
            work: 0,
            is_careful: false,
        }
    }
}

impl<T> Wire<T> {
    /// Records whether a write or flush has to wait.
    fn observe<V>(&self, polled: Poll<V>) -> Poll<V> {
        self.counts.queue.set_blocked(polled.is_pending());
        polled
    }

    /// Counts what was written, the first `count` bytes of `slices`.
    fn on_written(&mut self, slices: &[IoSlice<'_>], mut count: usize) {
        let Some(sent) = &mut self.sent else {
            return;
        };
        for slice in slices {
            let part = count.min(slice.len());
            sent.scan(&slice[..part], &self.counts.window);
            count -= part;
        }
    }
}

impl<T: AsyncRead + Unpin> Wire<T> {
    fn read(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.is_careful {
            return Pin::new(&mut self.io).poll_read(cx, buffer);
        }
        let length = SMALL_READ.min(buffer.remaining());
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(length));
        let outcome = Pin::new(&mut self.io).poll_read(cx, &mut part);
        let count = part.filled().len();
        buffer.advance(count);
        outcome
    }
}

/// The position in the stream of frames.
pub(super) struct Frames {
    /// The beginning of a header that is not complete yet.
    head: [u8; HEADER],
    head_length: usize,
    /// Bytes up to the next header.
    skip: usize,
    /// Whether these bytes are a part of a header block.
    is_in_block: bool,
    /// Whether these bytes are the window that a frame grants to all streams together.
    is_in_grant: bool,
    grant: u32,
    empty: EmptyFrames,
}

impl Frames {
    /// Starts before `skip` bytes that are no frames.
    pub(super) fn after(skip: usize, empty: EmptyFrames) -> Self {
        Self {
            head: [0; HEADER],
            head_length: 0,
            skip,
            is_in_block: false,
            is_in_grant: false,
            grant: 0,
            empty,
        }
    }

    /// Counts the frames whose headers end in `bytes`, and reads header blocks. Returns the number
    /// of frames.
    pub(super) fn scan(
        &mut self,
        bytes: &mut [u8],
        counts: &Counts,
        blocks: &mut HeaderBlocks,
    ) -> usize {
        let (mut at, mut frames) = (0, 0);
        loop {
            let skipped = self.skip.min(bytes.len() - at);
            self.skip -= skipped;
            if self.is_in_block {
                blocks.add(&bytes[at..at + skipped]);
                if self.skip == 0 {
                    self.is_in_block = false;
                    blocks.end_frame(self.head[TYPE]);
                }
            }
            if self.is_in_grant {
                self.read_grant(&bytes[at..at + skipped], counts);
            }
            at += skipped;
            if at == bytes.len() {
                return frames;
            }
            let known = self.head_length;
            let count = (HEADER - known).min(bytes.len() - at);
            self.head[known..known + count].copy_from_slice(&bytes[at..at + count]);
            if known + count < HEADER {
                self.head_length += count;
                return frames;
            }
            self.head_length = 0;
            // h2 has already got the type if the header is cut behind it.
            let kind = (known <= TYPE).then(|| &mut bytes[at + TYPE - known]);
            self.on_head(kind, counts);
            if HeaderBlocks::are_in(self.head[TYPE]) {
                self.is_in_block = true;
                blocks.begin_frame(self.head[TYPE], self.head[FLAGS], self.stream());
            } else if self.head[TYPE] == WINDOW_UPDATE && self.stream() == 0 {
                (self.is_in_grant, self.grant) = (true, 0);
            }
            at += count;
            frames += 1;
        }
    }

    fn read_grant(&mut self, payload: &[u8], counts: &Counts) {
        for byte in payload {
            self.grant = self.grant << 8 | u32::from(*byte);
        }
        if self.skip == 0 {
            self.is_in_grant = false;
            // The first bit is reserved.
            counts.window.grant(self.grant & 0x7fff_ffff);
        }
    }

    /// Returns the stream of the frame.
    fn stream(&self) -> u32 {
        frame::stream(self.head)
    }

    /// Counts a frame, and hides it if it is an empty DATA frame.
    fn on_head(&mut self, kind: Option<&mut u8>, counts: &Counts) {
        let head = &self.head;
        let length = frame::length(*head);
        self.skip = length;
        let weight = match HeaderBlocks::are_in(head[TYPE]) {
            true => BLOCK_WEIGHT,
            false => 1,
        };
        counts.bytes.set(counts.bytes.get() + weight * length);
        if head[TYPE] != DATA {
            return;
        }
        let flags = head[FLAGS];
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
        // h2 ends a connection with one that must not be (RFC 9113, 6.1).
        let is_allowed = flags & PADDED == 0 && self.stream() != 0;
        match kind {
            Some(kind) if length == 0 && is_allowed => {
                *kind = UNDEFINED;
                counts.on_empty(self.stream());
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
        // Unless h2 has ended the connection because of the same block.
        if this.blocks.borrow().is_lost() {
            let message = "a header block that violates HTTP/2";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, message)));
        }
        if this.work >= TURN || this.counts.is_due() {
            this.work = 0;
            // The driver collects once h2 returns. It reads on after the tasks that are ready and
            // the sockets that have become readable: a waker alone would not let the runtime look
            // at sockets.
            return pin!(yield_now()).poll(cx).map(Ok);
        }
        let start = buffer.filled().len();
        let outcome = this.read(cx, buffer);
        if !matches!(outcome, Poll::Ready(Ok(()))) {
            this.work = 0;
            return outcome;
        }
        let small = this.counts.small.get();
        let bytes = &mut buffer.filled_mut()[start..];
        let received = &this.counts.received;
        received.set(received.get() + bytes.len());
        let blocks = &mut this.blocks.borrow_mut();
        let work = bytes.len() / BYTES_PER_WORK + this.frames.scan(bytes, &this.counts, blocks);
        this.work += work;
        this.is_careful = work > TURN || this.counts.small.get() - small > MANY_SMALL_FRAMES;
        outcome
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Wire<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        let count = ready!(self.observe(written))?;
        self.on_written(&[IoSlice::new(bytes)], count);
        Poll::Ready(Ok(count))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        let count = ready!(self.observe(written))?;
        self.on_written(slices, count);
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.observe(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::task::Waker;

    use tokio::io::AsyncReadExt;
    use tokio::runtime::{Builder, LocalOptions};
    use tokio::task::{coop, spawn_local};

    use super::super::{Bodies, Windows};
    use super::*;

    /// Size of h2's read buffer while frames are small.
    const BUFFER: usize = 8 * 1024;
    const NO_WINDOWS: Windows = Windows {
        initial: 0,
        full: 0,
        max_unread: 0,
    };

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let length = (payload as u32).to_be_bytes();
        let head = [length[1], length[2], length[3], kind, flags, 0, 0, 0, 5];
        [&head[..], &vec![b'x'; payload]].concat()
    }

    fn scan(bytes: &mut [u8], step: usize, empty: EmptyFrames) -> Counts {
        let (counts, mut blocks) = (Counts::default(), HeaderBlocks::default());
        let mut frames = Frames::after(0, empty);
        for part in bytes.chunks_mut(step) {
            frames.scan(part, &counts, &mut blocks);
        }
        counts
    }

    #[test]
    fn reads_header_blocks_however_they_are_cut() {
        let block = |kind, flags, payload: &[u8]| {
            let mut frame = frame(kind, flags, payload.len());
            frame.truncate(HEADER);
            [&frame, payload].concat()
        };
        let frames = [
            block(1, 4, &[0x88]),
            frame(DATA, 0, 20),
            block(1, END_STREAM, &[]),
            block(9, 0, &[0x84]),
            block(9, 4, &[]),
        ];
        for step in 1..60 {
            let (counts, mut blocks) = (Counts::default(), HeaderBlocks::default());
            let mut frames_of_server = Frames::after(0, EmptyFrames::Pass);
            for part in frames.concat().chunks_mut(step) {
                assert!(!blocks.are_trailers_malformed(5));
                frames_of_server.scan(part, &counts, &mut blocks);
            }
            assert!(blocks.are_trailers_malformed(5), "cut by {step}");
        }
    }

    /// An endless source of frames. Its first read makes the socket of a neighbour readable.
    struct Burst {
        frame: Vec<u8>,
        neighbour: Option<UnixStream>,
        frames: Rc<Cell<usize>>,
    }

    impl AsyncRead for Burst {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            // As a read of a socket does.
            ready!(coop::poll_proceed(cx)).made_progress();
            if let Some(mut neighbour) = self.neighbour.take() {
                neighbour.write_all(b"x")?;
            }
            let count = buffer.remaining() / self.frame.len();
            buffer.put_slice(&self.frame.repeat(count));
            self.frames.set(self.frames.get() + count);
            Poll::Ready(Ok(()))
        }
    }

    /// Reads a burst as h2 does. Returns the number of frames that were read when a neighbour, whose
    /// data came during the first read, has got it.
    fn frames_before_neighbour(frame: Vec<u8>) -> io::Result<usize> {
        let (near, far) = UnixStream::pair()?;
        near.set_nonblocking(true)?;
        let frames = Rc::<Cell<usize>>::default();
        let burst = Burst {
            frame,
            neighbour: Some(far.try_clone()?),
            frames: frames.clone(),
        };
        let bodies = Bodies::new(NO_WINDOWS, None);
        let mut wire = bodies.wire(burst, EmptyFrames::Pass);
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default())?;
        runtime.block_on(async move {
            let mut near = tokio::net::UnixStream::from_std(near)?;
            let driver = spawn_local(poll_fn(move |cx| {
                let mut bytes = [0; BUFFER];
                let mut read = || Pin::new(&mut wire).poll_read(cx, &mut ReadBuf::new(&mut bytes));
                while read().is_ready() {}
                bodies.on_driven(|_| Ok(()));
                Poll::<()>::Pending
            }));
            near.read_exact(&mut [0]).await?;
            driver.abort();
            Ok(frames.get())
        })
    }

    #[test]
    fn burst_of_small_frames_leaves_turns_to_others() {
        const PING: u8 = 6;
        for frame in [frame(DATA, 0, 1), frame(DATA, 0, 20), frame(PING, 0, 8)] {
            let in_buffer = BUFFER / frame.len();
            let frames = frames_before_neighbour(frame).unwrap();
            assert!(
                frames <= 2 * in_buffer,
                "{frames} frames, {in_buffer} per read"
            );
        }
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
            let bytes_of_all = 2041 + 30 * BLOCK_WEIGHT + 4;
            assert_eq!((counts.small.get(), counts.bytes.get()), (2, bytes_of_all));
            assert_eq!(bytes, frames.concat(), "cut by {step}");
        }
    }

    #[test]
    fn reads_what_is_granted_to_all_streams_however_it_is_cut() {
        let grant = |stream: u8, bytes: u32| {
            let head = [0, 0, 4, WINDOW_UPDATE, 0, 0, 0, 0, stream];
            [&head[..], &bytes.to_be_bytes()].concat()
        };
        // The window is low after all of it is spent, and before 16 KiB are granted.
        let sent = frame(DATA, 0, 65_535);
        let frames = [grant(3, 65_536), frame(1, 4, 3), grant(0, 1_000)];
        for step in 1..40 {
            let mut bytes = frames.concat();
            let counts = scan(&mut bytes, step, EmptyFrames::Hide);
            SentFrames::after(0).scan(&sent, &counts.window);
            assert!(counts.is_window_low());
            let mut bytes = grant(0, 0x8000_0000 + 15_384);
            let mut frames = Frames::after(0, EmptyFrames::Hide);
            frames.scan(&mut bytes, &counts, &mut HeaderBlocks::default());
            assert!(!counts.is_window_low(), "cut by {step}");
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
    fn does_not_hide_empty_frames_that_must_not_be() {
        let padded = frame(DATA, PADDED, 0);
        let mut of_no_stream = frame(DATA, 0, 0);
        of_no_stream[HEADER - 1] = 0;
        for frame in [padded, of_no_stream] {
            let mut bytes = frame.clone();
            let counts = scan(&mut bytes, usize::MAX, EmptyFrames::Hide);
            assert_eq!((bytes, counts.counted()), (frame, 1));
        }
    }

    #[test]
    fn reads_nothing_after_a_block_that_h2_may_read_otherwise() {
        let promise = frame(5, 4, 4);
        let bodies = Bodies::new(NO_WINDOWS, None);
        let mut wire = bodies.wire(&promise[..], EmptyFrames::Hide);
        let mut cx = Context::from_waker(Waker::noop());
        let mut bytes = vec![0; BUFFER];
        let mut buffer = ReadBuf::new(&mut bytes);
        let mut read = || Pin::new(&mut wire).poll_read(&mut cx, &mut buffer);
        assert!(matches!(read(), Poll::Ready(Ok(()))));
        assert!(matches!(read(), Poll::Ready(Err(_))));
        assert_eq!(buffer.filled(), promise);
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
