//! Watches the bytes that an HTTP/2 backend sends for pseudo-header fields in wrong places: those of requests in a
//! response, and `:status` in trailers. Such messages are malformed (RFC 9113, 8.3), but h2 drops the fields before they
//! are visible. Follows the state of HPACK (RFC 7541) as far as this needs, without names and values. Does no I/O.

use std::collections::VecDeque;

use super::hpack::{Block, FieldTable};

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;
/// Bytes of the head of a frame (RFC 9113, 4.1).
const FRAME_HEAD: usize = 9;
/// Bytes of the priority in a HEADERS frame.
const PRIORITY_LENGTH: usize = 5;
/// Maximum size of a header block. h2 ends connections with larger ones.
const MAX_BLOCK: usize = 1024 * 1024;
/// Number of streams that are remembered until their exchanges have read the result.
const MAX_REMEMBERED: usize = 256;

/// The header blocks of a connection.
#[derive(Default)]
pub(super) struct HeaderBlocks {
    head: [u8; FRAME_HEAD],
    /// Bytes of `head` that were read.
    filled: usize,
    /// Bytes of the frame's payload that were not read yet.
    left: usize,
    block: Vec<u8>,
    /// Flags and stream of the HEADERS frame that began the block.
    flags: u8,
    stream: u32,
    table: FieldTable,
    /// Whether a block could not be read. h2 ends such a connection.
    is_lost: bool,
    /// Streams with a pseudo-header field of requests.
    malformed: Remembered,
    /// Streams whose last block has `:status`: right for a head without a body, wrong for trailers.
    ended_with_status: Remembered,
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

    fn has(&self, stream: u32) -> bool {
        self.0.contains(&stream)
    }
}

impl HeaderBlocks {
    /// Reports whether the head of a response is malformed.
    pub(super) fn is_head_malformed(&self, stream: u32) -> bool {
        self.malformed.has(stream)
    }

    /// Reports whether the trailers of a response are malformed.
    pub(super) fn are_trailers_malformed(&self, stream: u32) -> bool {
        self.malformed.has(stream) || self.ended_with_status.has(stream)
    }

    /// Reads bytes of the connection, which may begin and end within frames.
    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.is_lost {
            if self.filled < FRAME_HEAD {
                let length = bytes.len().min(FRAME_HEAD - self.filled);
                let (part, rest) = bytes.split_at(length);
                self.head[self.filled..self.filled + length].copy_from_slice(part);
                self.filled += length;
                bytes = rest;
                if self.filled < FRAME_HEAD {
                    return;
                }
                self.begin_frame();
            } else {
                let (part, rest) = bytes.split_at(bytes.len().min(self.left));
                if self.has_block() {
                    self.is_lost = self.block.len() + part.len() > MAX_BLOCK;
                    self.block.extend_from_slice(part);
                }
                self.left -= part.len();
                bytes = rest;
            }
            if self.left == 0 {
                self.end_frame();
            }
        }
    }

    fn has_block(&self) -> bool {
        matches!(self.head[3], HEADERS | CONTINUATION)
    }

    fn begin_frame(&mut self) {
        let [a, b, c, kind, flags, id @ ..] = self.head;
        self.left = u32::from_be_bytes([0, a, b, c]) as usize;
        if kind == HEADERS {
            self.block.clear();
            self.flags = flags;
            // The first bit is reserved.
            self.stream = u32::from_be_bytes(id) & (u32::MAX >> 1);
        }
    }

    fn end_frame(&mut self) {
        self.filled = 0;
        if self.head[3] == HEADERS {
            self.is_lost |= self.strip().is_none();
        }
        if !self.has_block() || self.head[4] & END_HEADERS == 0 || self.is_lost {
            return;
        }
        match self.table.read(&self.block) {
            None => self.is_lost = true,
            Some(Block {
                has_status,
                has_request_field,
            }) => {
                if has_request_field {
                    self.malformed.add(self.stream);
                }
                if has_status && self.flags & END_STREAM != 0 {
                    self.ended_with_status.add(self.stream);
                }
            }
        }
        // Large blocks are rare.
        if self.block.capacity() > 4096 {
            self.block = Vec::new();
        }
    }

    /// Removes padding and priority of a HEADERS frame (RFC 9113, 6.2).
    fn strip(&mut self) -> Option<()> {
        let mut begin = 0;
        if self.flags & PADDED != 0 {
            let padding = usize::from(*self.block.first()?);
            let end = self.block.len().checked_sub(padding)?;
            self.block.truncate(end);
            begin = 1;
        }
        if self.flags & PRIORITY != 0 {
            begin += PRIORITY_LENGTH;
        }
        (begin <= self.block.len()).then(|| drop(self.block.drain(..begin)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream];
        frame.extend_from_slice(payload);
        frame
    }

    /// Reads frames in parts of every size. Returns whether head and trailers of stream 1 are malformed.
    fn verdicts(frames: &[Vec<u8>]) -> (bool, bool) {
        let bytes = frames.concat();
        let verdict = |size: usize| {
            let mut blocks = HeaderBlocks::default();
            bytes.chunks(size).for_each(|part| blocks.read(part));
            assert!(!blocks.is_lost);
            (
                blocks.is_head_malformed(1),
                blocks.are_trailers_malformed(1),
            )
        };
        let whole = verdict(bytes.len());
        (1..bytes.len()).for_each(|size| assert_eq!(verdict(size), whole));
        whole
    }

    const DATA: u8 = 0;
    const OK: &[u8] = &[0x88];
    /// `:path: /` by index, and `grpc-status: 0` as a literal.
    const PATH: &[u8] = &[0x84];
    const STATUS: &[u8] = b"\x00\x0bgrpc-status\x010";

    #[test]
    fn well_formed_responses_are_not_malformed() {
        assert_eq!(verdicts(&[frame(HEADERS, 4, 1, OK)]), (false, false));
        let head = frame(HEADERS, 4, 1, &[OK, STATUS].concat());
        let data = frame(DATA, 0, 1, &[0x84; 50]);
        let trailers = frame(HEADERS, 5, 1, STATUS);
        assert_eq!(verdicts(&[head, data, trailers]), (false, false));
    }

    #[test]
    fn fields_of_requests_are_malformed_in_heads_and_trailers() {
        let both = [OK, PATH].concat();
        assert_eq!(verdicts(&[frame(HEADERS, 5, 1, &both)]), (true, true));
        assert_eq!(verdicts(&[frame(HEADERS, 5, 3, &both)]), (false, false));
        let head = frame(HEADERS, 4, 1, OK);
        let trailers = frame(HEADERS, 5, 1, PATH);
        assert_eq!(verdicts(&[head, trailers]), (true, true));
    }

    #[test]
    fn status_is_malformed_in_trailers_only() {
        let head = frame(HEADERS, 4, 1, OK);
        let trailers = frame(HEADERS, 5, 1, OK);
        assert_eq!(verdicts(&[head, trailers]), (false, true));
    }

    #[test]
    fn padding_priority_and_continuation_are_not_fields() {
        let padded = [&[2][..], OK, PATH, &[0x84, 0x84]].concat();
        assert_eq!(verdicts(&[frame(HEADERS, 12, 1, &padded)]), (true, true));
        let padded = [&[2][..], OK, &[0x84, 0x84]].concat();
        assert_eq!(verdicts(&[frame(HEADERS, 12, 1, &padded)]), (false, false));
        let priority = [&[0x84; 5][..], OK].concat();
        let priority = frame(HEADERS, 0x24, 1, &priority);
        assert_eq!(verdicts(&[priority]), (false, false));
        let [first, second] = [frame(HEADERS, 0, 1, OK), frame(CONTINUATION, 4, 1, PATH)];
        assert_eq!(verdicts(&[first, second]), (true, true));
    }

    #[test]
    fn only_the_last_streams_are_remembered() {
        let mut blocks = HeaderBlocks::default();
        for stream in 1..=200 {
            blocks.read(&frame(HEADERS, 5, stream, &[0x88, 0x84]));
        }
        for _ in 0..10_000 {
            blocks.read(&frame(HEADERS, 5, 3, &[0x88, 0x84]));
        }
        assert!(!blocks.is_head_malformed(1) && blocks.is_head_malformed(3));
        assert_eq!(blocks.malformed.0.len(), MAX_REMEMBERED);
    }
}
