//! What is known of a connection after bytes of its peer, without h2.

use super::frame::{DATA, FLAGS, HEADER, TYPE, length, stream};
use super::header_blocks::{END_STREAM, HeaderBlocks, PADDED};
use super::hpack::{ENTRY_OVERHEAD, Kind, TABLE_SIZE};
use super::send_window::{SendWindow, SentFrames};
use super::wire::{Counts, EmptyFrames, Frames, UNDEFINED};

/// Streams that are compared.
const STREAMS: u32 = 16;

/// What is known.
#[derive(Debug, PartialEq)]
pub(super) struct Reading {
    small_frames: usize,
    bytes: usize,
    /// The window that was granted.
    granted: i64,
    /// The window after the same bytes were sent.
    left: i64,
    /// Empty frames that h2 gets and that are hidden from it.
    empty: u32,
    is_lost: bool,
    entries: Vec<((Kind, usize), usize)>,
    /// Whether heads and trailers are malformed.
    verdicts: Vec<(bool, bool)>,
}

impl Reading {
    /// Reads bytes in pieces of `step`.
    pub(super) fn new(data: &[u8], is_client: bool, step: usize) -> Self {
        let (counts, mut blocks) = (Counts::default(), HeaderBlocks::new(is_client));
        let (window, mut sent) = (SendWindow::default(), SentFrames::after(0));
        let mut frames = Frames::after(0, EmptyFrames::Hide);
        let mut output = data.to_vec();
        for part in output.chunks_mut(step) {
            sent.scan(part, &window);
            frames.scan(part, &counts, &mut blocks);
        }
        let entries: Vec<_> = blocks.table.entries.iter().copied().collect();
        let size = entries.iter().map(|(_, size)| size).sum::<usize>();
        assert!(size <= TABLE_SIZE && entries.iter().all(|(_, size)| *size > ENTRY_OVERHEAD));
        let streams = 0..STREAMS;
        let verdicts = streams.map(|stream| {
            let is_head_malformed = blocks.is_head_malformed(stream);
            (is_head_malformed, blocks.are_trailers_malformed(stream))
        });
        Self {
            small_frames: counts.small.get(),
            bytes: counts.bytes.get(),
            granted: counts.window.0.get(),
            left: window.0.get(),
            empty: counts.counted() + hidden(data, &output),
            is_lost: blocks.is_lost(),
            entries,
            verdicts: verdicts.collect(),
        }
    }
}

/// Checks that nothing has changed but the types of empty frames. Returns how many.
fn hidden(data: &[u8], output: &[u8]) -> u32 {
    let (mut expected, mut at, mut hidden) = (data.to_vec(), 0, 0);
    while let Some(head) = data.get(at..).and_then(<[u8]>::first_chunk::<HEADER>) {
        let is_whole = head[FLAGS] & (END_STREAM | PADDED) == 0 && stream(*head) != 0;
        let is_empty = head[TYPE] == DATA && length(*head) == 0 && is_whole;
        if is_empty && output[at + TYPE] == UNDEFINED {
            expected[at + TYPE] = UNDEFINED;
            hidden += 1;
        }
        at += HEADER + length(*head);
    }
    assert_eq!(output, expected);
    hidden
}
