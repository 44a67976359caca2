//! Watches the header blocks that a peer sends for pseudo-header fields in wrong places: those of requests in a
//! response, and any in trailers. Such messages are malformed (RFC 9113, 8.1 and 8.3), but h2 drops the fields before they
//! are visible. Follows the state of HPACK (RFC 7541) as far as this needs, without names and values; where it cannot, all
//! is malformed. If h2 reset such streams, or reported the fields, no header block would have to be read twice. Does no I/O.

use std::collections::VecDeque;
use std::mem;

use super::frame;
use super::hpack::{Block, FieldTable};

pub(super) const HEADERS: u8 = 1;
pub(super) const PUSH_PROMISE: u8 = 5;
pub(super) const CONTINUATION: u8 = 9;
pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;
pub(super) const PADDED: u8 = 8;
pub(super) const PRIORITY: u8 = 0x20;
/// Bytes of the priority in a HEADERS frame.
const PRIORITY_LENGTH: usize = 5;
/// Maximum size of a header block. h2 ends connections earlier: after 5 frames that do not end their block, or as many as
/// the maximum size of a head and a quarter of it take.
const MAX_BLOCK: usize = 16 * 1024 * 1024;
/// Capacity of a block that is kept for the next one.
const KEPT: usize = 4096;
/// Number of streams that are remembered until their exchanges have read the result.
const MAX_REMEMBERED: usize = 256;

/// The header blocks of a connection.
#[derive(Default)]
pub(super) struct HeaderBlocks {
    /// Whether the peer is a client, which sends requests.
    of_requests: bool,
    block: Vec<u8>,
    /// Whether the block lacks its last frame.
    is_open: bool,
    /// Flags and stream of the HEADERS frame that began the block.
    flags: u8,
    stream: u32,
    /// The last stream that a client has opened.
    opened: u32,
    pub(super) table: FieldTable,
    /// Whether a block could not be read, or h2 may have read it otherwise: the table may be another one from then on.
    is_lost: bool,
    /// Streams with a pseudo-header field of requests in a response, or with any in the trailers of a request.
    malformed: Remembered,
    /// Streams whose last block has `:status`: right for a head without a body, wrong for trailers.
    ended_with_status: Remembered,
    /// Whether [`Self::take_malformed`] was not called since the last malformed trailers of a request.
    is_news: bool,
}

/// The most recent streams with recorded header blocks.
#[derive(Default)]
struct Remembered(VecDeque<u32>);

impl Remembered {
    fn add(&mut self, stream: u32) {
        if self.0.len() == MAX_REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(stream);
    }

    #[inline]
    fn has(&self, stream: u32) -> bool {
        !self.0.is_empty() && self.0.contains(&stream)
    }
}

impl HeaderBlocks {
    /// Creates the state of a connection whose peer is a client, or else a server.
    pub(super) fn new(of_requests: bool) -> Self {
        Self {
            of_requests,
            ..Self::default()
        }
    }

    /// Reports whether blocks cannot be read any more, so that the connection has to end.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Returns the bytes of a block or of its frame that is not complete, if they are more than a little.
    pub(super) fn unfinished(&self) -> usize {
        match self.block.len() {
            length if self.is_open || length > KEPT => length,
            _ => 0,
        }
    }

    /// Reports whether the head of a response is malformed.
    pub(super) fn is_head_malformed(&self, stream: u32) -> bool {
        self.is_lost || self.malformed.has(stream)
    }

    /// Reports whether the trailers of a message are malformed.
    pub(super) fn are_trailers_malformed(&self, stream: u32) -> bool {
        self.is_head_malformed(stream) || self.ended_with_status.has(stream)
    }

    /// Reports whether trailers of requests were malformed since the last call.
    pub(super) fn take_news(&mut self) -> bool {
        mem::take(&mut self.is_news)
    }

    /// Reports whether frames of this type have a part of a block.
    pub(super) fn are_in(kind: u8) -> bool {
        matches!(kind, HEADERS | PUSH_PROMISE | CONTINUATION)
    }

    /// Begins a frame with a part of a block.
    pub(super) fn begin_frame(&mut self, kind: u8, flags: u8, stream: u32) {
        self.is_lost |= match kind {
            // RFC 9113, 6.10. After a malformed field, h2 drops the rest of a block and goes on.
            HEADERS => self.is_open,
            CONTINUATION => !self.is_open || stream != self.stream,
            // RFC 9113, 8.4: push is disabled. For a stream that was reset, h2 reads the block and goes on.
            _ => true,
        };
        self.is_open = flags & END_HEADERS == 0;
        if kind == HEADERS {
            self.block.clear();
            self.flags = flags;
            self.stream = stream;
        }
    }

    /// Adds bytes of the frame's payload.
    pub(super) fn add(&mut self, part: &[u8]) {
        self.is_lost |= self.block.len() + part.len() > MAX_BLOCK;
        if !self.is_lost {
            self.block.extend_from_slice(part);
        }
    }

    /// Ends a frame, and reads the block if it is complete.
    pub(super) fn end_frame(&mut self, kind: u8) {
        if kind == HEADERS {
            self.is_lost |= self.strip().is_none();
        }
        if self.is_open || self.is_lost {
            return;
        }
        match self.table.read(&self.block) {
            None => self.is_lost = true,
            Some(block) if self.of_requests => self.on_request_block(block),
            Some(block) => self.on_response_block(block),
        }
        // Large blocks are rare.
        if self.block.capacity() > KEPT {
            self.block = Vec::new();
        }
    }

    fn on_request_block(&mut self, block: Block) {
        // A client opens streams in the order of their ids (RFC 9113, 5.1.1).
        if self.stream > self.opened {
            self.opened = self.stream;
        } else if block.has_status || block.has_request_field {
            self.malformed.add(self.stream);
            self.is_news = true;
        }
    }

    fn on_response_block(&mut self, block: Block) {
        if block.has_request_field {
            self.malformed.add(self.stream);
        }
        if block.has_status && self.flags & END_STREAM != 0 {
            self.ended_with_status.add(self.stream);
        }
    }

    /// Removes padding and priority of a HEADERS frame (RFC 9113, 6.2). `None` if h2 does not read the block.
    fn strip(&mut self) -> Option<()> {
        let mut begin = 0;
        if self.flags & PADDED != 0 {
            let padding = usize::from(*self.block.first()?);
            let end = self.block.len().checked_sub(padding)?;
            self.block.truncate(end);
            begin = 1;
        }
        if self.flags & PRIORITY != 0 {
            let dependency = *self.block.get(begin..)?.first_chunk()?;
            // h2 resets the stream, without the fields that its block adds to the table.
            if frame::stream_id(dependency) == self.stream {
                return None;
            }
            begin += PRIORITY_LENGTH;
        }
        (begin <= self.block.len()).then(|| drop(self.block.drain(..begin)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of a block: type, flags, stream and payload.
    type Frame<'a> = (u8, u8, u32, &'a [u8]);

    fn read(blocks: &mut HeaderBlocks, frames: &[Frame<'_>], cut: usize) {
        for (kind, flags, stream, payload) in frames {
            blocks.begin_frame(*kind, *flags, *stream);
            payload.chunks(cut).for_each(|part| blocks.add(part));
            blocks.end_frame(*kind);
        }
    }

    /// Reads frames of a server in parts of every size. Returns whether head and trailers of stream 1 are malformed.
    fn verdicts(frames: &[Frame<'_>]) -> (bool, bool) {
        let verdict = |size: usize| {
            let mut blocks = HeaderBlocks::new(false);
            read(&mut blocks, frames, size);
            assert!(!blocks.is_lost);
            (
                blocks.is_head_malformed(1),
                blocks.are_trailers_malformed(1),
            )
        };
        let whole = verdict(100);
        (1..20).for_each(|size| assert_eq!(verdict(size), whole));
        whole
    }

    const OK: &[u8] = &[0x88];
    /// `:path: /` by index, and `grpc-status: 0` as a literal.
    const PATH: &[u8] = &[0x84];
    const STATUS: &[u8] = b"\x00\x0bgrpc-status\x010";

    #[test]
    fn well_formed_responses_are_not_malformed() {
        assert_eq!(verdicts(&[(HEADERS, 4, 1, OK)]), (false, false));
        let head = [OK, STATUS].concat();
        let frames = [(HEADERS, 4, 1, &head[..]), (HEADERS, 5, 1, STATUS)];
        assert_eq!(verdicts(&frames), (false, false));
    }

    #[test]
    fn fields_of_requests_are_malformed_in_heads_and_trailers() {
        let both = [OK, PATH].concat();
        assert_eq!(verdicts(&[(HEADERS, 5, 1, &both)]), (true, true));
        assert_eq!(verdicts(&[(HEADERS, 5, 3, &both)]), (false, false));
        let head = (HEADERS, 4, 1, OK);
        let trailers = (HEADERS, 5, 1, PATH);
        assert_eq!(verdicts(&[head, trailers]), (true, true));
    }

    #[test]
    fn status_is_malformed_in_trailers_only() {
        let head = (HEADERS, 4, 1, OK);
        let trailers = (HEADERS, 5, 1, OK);
        assert_eq!(verdicts(&[head, trailers]), (false, true));
    }

    #[test]
    fn padding_priority_and_continuation_are_not_fields() {
        let padded = [&[2][..], OK, PATH, &[0x84, 0x84]].concat();
        assert_eq!(verdicts(&[(HEADERS, 12, 1, &padded)]), (true, true));
        let padded = [&[2][..], OK, &[0x84, 0x84]].concat();
        assert_eq!(verdicts(&[(HEADERS, 12, 1, &padded)]), (false, false));
        let priority = [&[0x84; 5][..], OK].concat();
        assert_eq!(verdicts(&[(HEADERS, 0x24, 1, &priority)]), (false, false));
        let [first, second] = [(HEADERS, 0, 1, OK), (CONTINUATION, 4, 1, PATH)];
        assert_eq!(verdicts(&[first, second]), (true, true));
    }

    #[test]
    fn pseudo_fields_are_malformed_in_trailers_of_requests() {
        // `:path: /a`, which enters the dynamic table.
        const NEW: &[u8] = b"\x44\x02/a";
        for (trailers, is_malformed) in [
            (STATUS, false),
            (OK, true),
            (PATH, true),
            (&[0xbe], true),
            (b"\x00\x02:x\x01y", true),
        ] {
            let mut blocks = HeaderBlocks::new(true);
            let heads = [(HEADERS, 4, 1, NEW), (HEADERS, 4, 3, PATH)];
            read(&mut blocks, &heads, 9);
            assert!(!blocks.take_news());
            read(&mut blocks, &[(HEADERS, 5, 1, trailers)], 9);
            let verdict = [1, 3].map(|stream| blocks.are_trailers_malformed(stream));
            assert_eq!(verdict, [is_malformed, false], "{trailers:?}");
            assert_eq!(blocks.take_news(), is_malformed);
            assert!(!blocks.is_lost && !blocks.take_news());
        }
    }

    /// h2 reads no block, another one, or a part of it, and goes on.
    #[test]
    fn nothing_is_well_formed_after_a_block_that_h2_may_read_otherwise() {
        let head = (HEADERS, 4, 1, OK);
        let on_itself = [&[0x80, 0, 0, 3, 16][..], OK].concat();
        let on_another = [&[0x80, 0, 0, 1, 16][..], OK].concat();
        let promise = [&[0, 0, 0, 2][..], PATH].concat();
        for (frames, is_lost) in [
            (vec![head, (HEADERS, 0x24, 3, &on_itself[..])], true),
            (vec![head, (HEADERS, 0x24, 3, &on_another)], false),
            (vec![head, (HEADERS, 0x2c, 3, &[9])], true),
            (vec![head, (HEADERS, 0, 3, OK), (HEADERS, 4, 3, OK)], true),
            (vec![head, (CONTINUATION, 4, 1, STATUS)], true),
            (
                vec![(HEADERS, 0, 1, OK), (CONTINUATION, 4, 3, STATUS)],
                true,
            ),
            (vec![head, (PUSH_PROMISE, 4, 1, &promise)], true),
            (vec![head, (HEADERS, 4, 3, b"\x00\x00\x01x")], true),
            (
                vec![
                    (HEADERS, 0, 1, b"\x88\x40\x00\x01x"),
                    (CONTINUATION, 4, 1, STATUS),
                ],
                true,
            ),
        ] {
            let mut blocks = HeaderBlocks::new(false);
            read(&mut blocks, &frames, 9);
            read(&mut blocks, &[(HEADERS, 4, 5, OK)], 9);
            let verdict = (blocks.is_head_malformed(5), blocks.is_lost());
            assert_eq!(verdict, (is_lost, is_lost), "{frames:?}");
            assert_eq!(blocks.are_trailers_malformed(1), is_lost, "{frames:?}");
        }
    }

    #[test]
    fn only_the_last_streams_are_remembered() {
        let mut blocks = HeaderBlocks::default();
        for stream in 1..=200 {
            read(&mut blocks, &[(HEADERS, 5, stream, &[0x88, 0x84])], 9);
        }
        for _ in 0..10_000 {
            read(&mut blocks, &[(HEADERS, 5, 3, &[0x88, 0x84])], 9);
        }
        assert!(!blocks.is_head_malformed(1) && blocks.is_head_malformed(3));
        assert_eq!(blocks.malformed.0.len(), MAX_REMEMBERED);
    }
}
