//! What HTTP/2 connections to clients and to backends share: bodies that their readers have not
//! taken yet, and what waits for a peer, in bounded memory, and frames and fields on the wire that h2 does not report.

mod bodies;
mod byte_stream;
mod frame;
mod header_blocks;
mod held;
mod hpack;
#[cfg(test)]
mod oracle;
mod send_queue;
mod send_window;
mod stream;
#[cfg(test)]
mod tests;
mod unsent_heads;
mod waiting;
mod wire;

pub(crate) use self::bodies::{Bodies, Body, Windows};
pub(crate) use self::byte_stream::{Parts, StreamReader, StreamWriter};
pub(crate) use self::held::{
    SCARCE_READ, Unread, divide as divide_memory, is_scarce as is_memory_scarce,
};
pub(crate) use self::send_queue::SendQueue;
pub(crate) use self::stream::BodyError;
pub(crate) use self::waiting::{USUAL_TRAILERS, Waiting};
pub(crate) use self::wire::{EmptyFrames, Wire};

/// Limit for h2's own count of small frames. That count spans all streams of a connection, ends
/// them together, and is not needed here: [`Bodies`] bounds the memory of small frames.
pub(crate) const FRAME_BUDGET: usize = usize::MAX;

/// Maximum unsent bytes of a stream.
pub(crate) const SEND_BUFFER: usize = 64 * 1024;

/// Window of a connection that is always enough: no worker holds as many bytes that nobody has read, so that streams that
/// are not read delay no others.
pub(crate) const AMPLE_WINDOW: u32 = 64 * 1024 * 1024;
