//! The layout of a frame header (RFC 9113, 4.1). With an observer of received frames in h2, which would get each header before h2
//! acts on it, no code here would read frames.

/// Size of a frame header.
pub(super) const HEADER: usize = 9;
/// Offsets of type and flags in a frame header.
pub(super) const TYPE: usize = 3;
pub(super) const FLAGS: usize = 4;
pub(super) const DATA: u8 = 0;
/// Size of the client's preface (RFC 9113, 3.4).
pub(super) const PREFACE: usize = 24;

/// Returns the length of the payload.
pub(super) fn length(head: [u8; HEADER]) -> usize {
    u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize
}

/// Returns the stream of the frame.
pub(super) fn stream(head: [u8; HEADER]) -> u32 {
    stream_id([head[5], head[6], head[7], head[8]])
}

/// Decodes the id of a stream. The first bit is reserved.
pub(super) fn stream_id(bytes: [u8; 4]) -> u32 {
    u32::from_be_bytes(bytes) & 0x7fff_ffff
}
