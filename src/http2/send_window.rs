//! The window of a whole connection for the data that this process sends (RFC 9113, 6.9), followed on the wire. If h2
//! reported it, as it reports the window for what is received, nothing would be followed. Does no I/O.

use std::cell::Cell;

use super::frame::{self, DATA, HEADER, TYPE};

/// The window at first. SETTINGS do not change it.
const INITIAL: i64 = 65_535;
/// Below this, the next part of a body may have to wait.
const LOW: i64 = 16 * 1024;
/// Type of frames that grant window.
pub(super) const WINDOW_UPDATE: u8 = 8;

/// Bytes of all streams together that the peer permits at present.
pub(super) struct SendWindow(pub(super) Cell<i64>);

impl Default for SendWindow {
    fn default() -> Self {
        Self(Cell::new(INITIAL))
    }
}

impl SendWindow {
    /// Reports whether streams that the peer does not read have used most of the window.
    pub(super) fn is_low(&self) -> bool {
        self.0.get() < LOW
    }

    /// Adds what the peer has granted.
    pub(super) fn grant(&self, bytes: u32) {
        self.0.set(self.0.get() + i64::from(bytes));
    }

    fn spend(&self, bytes: usize) {
        self.0.set(self.0.get() - bytes as i64);
    }
}

/// The position in the frames that are sent.
pub(super) struct SentFrames {
    /// The beginning of a header that is not complete yet.
    head: [u8; HEADER],
    head_length: usize,
    /// Bytes up to the next header.
    skip: usize,
}

impl SentFrames {
    /// Starts before `skip` bytes that are no frames.
    pub(super) fn after(skip: usize) -> Self {
        Self {
            head: [0; HEADER],
            head_length: 0,
            skip,
        }
    }

    /// Counts the DATA frames whose headers end in `bytes`.
    pub(super) fn scan(&mut self, mut bytes: &[u8], window: &SendWindow) {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return;
            }
            let known = self.head_length;
            let count = (HEADER - known).min(bytes.len());
            self.head[known..known + count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            if known + count < HEADER {
                self.head_length += count;
                return;
            }
            self.head_length = 0;
            self.skip = frame::length(self.head);
            if self.head[TYPE] == DATA {
                window.spend(self.skip);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: usize) -> Vec<u8> {
        let length = (payload as u32).to_be_bytes();
        let head = [length[1], length[2], length[3], kind, 0, 0, 0, 0, 5];
        [&head[..], &vec![0; payload]].concat()
    }

    #[test]
    fn data_uses_the_window_however_it_is_cut() {
        let frames = [
            vec![b'P'; 24],
            frame(1, 30),
            frame(DATA, 300),
            frame(DATA, 0),
        ];
        let frames = [frames.concat(), frame(4, 6), frame(DATA, 20)].concat();
        for step in 1..frames.len() {
            let (window, mut sent) = (SendWindow::default(), SentFrames::after(24));
            frames
                .chunks(step)
                .for_each(|part| sent.scan(part, &window));
            assert_eq!(window.0.get(), INITIAL - 320, "cut by {step}");
        }
    }

    #[test]
    fn window_is_low_until_the_peer_grants_more() {
        let (window, mut sent) = (SendWindow::default(), SentFrames::after(0));
        (0..3).for_each(|_| sent.scan(&frame(DATA, 16_384), &window));
        assert!(window.is_low());
        window.grant(1);
        assert!(!window.is_low());
    }
}
