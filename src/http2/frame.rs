//! The layout of a frame header (RFC 9113, 4.1).

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
    // The first bit is reserved.
    u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]])
}
