//! Raw HTTP/2 frames for inputs that no client library sends. Supports only HPACK literals and
//! status codes.

use crate::fixture::{Fixture, HOST};
use crate::harness::client::Client;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// First outcome of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Status(u16),
    Reset(u32),
    GoAway(u32),
    Closed,
}

/// A raw HTTP/2 client.
pub(crate) struct Raw {
    pub(crate) client: Client,
}

impl Raw {
    /// Opens a plain-text connection with these settings.
    pub(crate) fn open(fixture: &Fixture, settings: &[(u16, u32)]) -> Self {
        let mut raw = Self {
            client: fixture.client(),
        };
        let payload: Vec<u8> = settings
            .iter()
            .flat_map(|(id, value)| id.to_be_bytes().into_iter().chain(value.to_be_bytes()))
            .collect();
        raw.client
            .send([PREFACE, &frame(SETTINGS, 0, 0, &payload)].concat());
        raw
    }

    /// Sends one frame; false if the connection is closed.
    pub(crate) fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        self.client.send(frame(kind, flags, stream, payload))
    }

    /// Sends a request head.
    pub(crate) fn request(&mut self, stream: u32, fields: &[(&str, &str)], end: bool) -> bool {
        let flags = END_HEADERS | if end { END_STREAM } else { 0 };
        self.send(HEADERS, flags, stream, &block(fields))
    }

    /// Returns the next relevant frame; `None` at EOF. Responds to SETTINGS and PING.
    pub(crate) fn next(&mut self) -> Option<Frame> {
        loop {
            let frame = self.any()?;
            if ![SETTINGS, PING, WINDOW_UPDATE].contains(&frame.kind) {
                return Some(frame);
            }
        }
    }

    /// Returns the next frame of any kind; `None` at EOF. Responds to SETTINGS and PING.
    fn any(&mut self) -> Option<Frame> {
        let head = self.client.wire.take(9).ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let payload = self.client.wire.take(length).ok()?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let (kind, flags) = (head[3], head[4]);
        if [SETTINGS, PING].contains(&kind) && flags & ACK == 0 {
            let answer = if kind == PING { &payload[..] } else { &[] };
            self.send(kind, ACK, 0, answer);
        }
        Some(Frame {
            kind,
            flags,
            stream,
            payload,
        })
    }

    /// Waits until the proxy has read everything that was sent. Returns its GOAWAY if there is one.
    pub(crate) fn until_read(&mut self) -> Option<Frame> {
        self.send(PING, 0, 0, &[0; 8]);
        loop {
            let frame = self.any().expect("the connection stays open");
            match frame.kind {
                GOAWAY => return Some(frame),
                PING if frame.flags & ACK != 0 => return None,
                _ => {}
            }
        }
    }

    /// Waits for the first outcome of a stream.
    pub(crate) fn outcome(&mut self, stream: u32) -> Outcome {
        loop {
            let Some(frame) = self.next() else {
                return Outcome::Closed;
            };
            match frame.kind {
                HEADERS if frame.stream == stream => {
                    return Outcome::Status(status(&frame.payload));
                }
                RST_STREAM if frame.stream == stream => {
                    return Outcome::Reset(number(&frame.payload));
                }
                GOAWAY => match number(&frame.payload[4..]) {
                    0 => {}
                    code => return Outcome::GoAway(code),
                },
                _ => {}
            }
        }
    }
}

/// Returns a `GET` with additional fields.
pub(crate) fn get<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut fields = vec![
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/x"),
        (":authority", HOST),
    ];
    fields.extend_from_slice(more);
    fields
}

/// Encodes a frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len())
        .expect("a short payload")
        .to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Encodes fields as never-indexed HPACK literals.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0x10);
        for text in [name, value] {
            length(&mut bytes, text.len());
            bytes.extend_from_slice(text.as_bytes());
        }
    }
    bytes
}

/// An HPACK integer (RFC 7541, 5.1) with a prefix of seven bits.
fn length(bytes: &mut Vec<u8>, length: usize) {
    if length < 127 {
        bytes.push(length as u8);
        return;
    }
    bytes.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        bytes.push(128 | (rest % 128) as u8);
        rest /= 128;
    }
    bytes.push(rest as u8);
}

/// Returns the status at the start of a block, which must be the first of its connection.
fn status(block: &[u8]) -> u16 {
    // A dynamic table size update may come first.
    let block = if block[0] & 0xe0 == 0x20 {
        &block[1..]
    } else {
        block
    };
    match block[0] {
        0x88 => 200,
        0x89 => 204,
        0x8a => 206,
        0x8b => 304,
        0x8c => 400,
        0x8d => 404,
        0x8e => 500,
        _ => digits(&block[1..]),
    }
}

/// Returns a number of three digits, Huffman coded or plain.
fn digits(text: &[u8]) -> u16 {
    let length = usize::from(text[0] & 127);
    let bytes = &text[1..=length];
    if text[0] & 128 == 0 {
        return String::from_utf8_lossy(bytes).parse().expect("a status");
    }
    let mut bits = bytes
        .iter()
        .flat_map(|byte| (0..8).rev().map(move |bit| u16::from(byte >> bit & 1)));
    let mut number = 0;
    for _ in 0..3 {
        let mut take =
            |count| (0..count).fold(0, |value, _| value << 1 | bits.next().expect("a digit"));
        let short = take(5);
        let digit = if short < 3 {
            short
        } else {
            (short << 1 | take(1)) - 0b01_1001 + 3
        };
        number = number * 10 + digit;
    }
    number
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}
