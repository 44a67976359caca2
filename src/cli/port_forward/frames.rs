//! Frames of a WebSocket (RFC 6455), and the two channels of `v4.channel.k8s.io` in them: the bytes of a port, and why
//! there are no more of them.

use bytes::{Bytes, BytesMut};

/// Channel of the bytes of the port.
pub(super) const DATA: u8 = 0;
/// What every message of a channel begins with.
const CHANNEL_BYTES: usize = 1;
/// Bytes of the port number, with which each channel begins.
const PORT_BYTES: usize = 2;

/// Maximum size of a frame. Servers send what they have read at once, some 32 KiB.
const FRAME_LIMIT: u64 = 1 << 20;

const CONTINUATION: u8 = 0;
pub(super) const BINARY: u8 = 2;
pub(super) const CLOSE: u8 = 8;
const PING: u8 = 9;
pub(super) const PONG: u8 = 10;

/// First byte: the last frame of a message.
const FINAL: u8 = 0x80;
/// First byte: bits of extensions, of which none is asked for.
const RESERVED: u8 = 0x70;
const OPCODE: u8 = 0x0f;
/// Second byte: the payload is masked, as that of clients is.
const MASKED: u8 = 0x80;
/// Second byte: the next two or eight bytes are the length.
const LENGTH_16: u8 = 126;
const LENGTH_64: u8 = 127;

/// What a server has sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Bytes of the port.
    Data(Bytes),
    /// Why the port cannot be reached.
    Fault(String),
    /// To be returned in a pong.
    Ping(Bytes),
    /// Nothing follows.
    Close,
}

/// Frames of a server.
#[derive(Debug)]
pub(super) struct Frames {
    /// What has arrived, and is no whole frame yet.
    pub(super) bytes: BytesMut,
    /// Channel of the message that continuations belong to.
    channel: Option<u8>,
    /// How many bytes of the port number each channel still begins with.
    port_bytes: [usize; 2],
}

impl Default for Frames {
    fn default() -> Self {
        Self {
            bytes: BytesMut::new(),
            channel: None,
            port_bytes: [PORT_BYTES; 2],
        }
    }
}

impl Frames {
    /// Takes the next message, if a whole one has arrived.
    ///
    /// # Errors
    /// When the bytes are no frames of a server, or of another channel.
    pub(super) fn message(&mut self) -> Result<Option<Message>, &'static str> {
        while let Some((opcode, payload)) = self.frame()? {
            let message = match opcode {
                CLOSE => Some(Message::Close),
                PING => Some(Message::Ping(payload)),
                PONG => None,
                _ => self.of_channel(opcode, payload)?,
            };
            if message.is_some() {
                return Ok(message);
            }
        }
        Ok(None)
    }

    /// Takes the next frame: its opcode and its payload.
    fn frame(&mut self) -> Result<Option<(u8, Bytes)>, &'static str> {
        let [first, second, rest @ ..] = &*self.bytes else {
            return Ok(None);
        };
        if first & RESERVED != 0 || second & MASKED != 0 {
            return Err("the API server sends no WebSocket");
        }
        let opcode = first & OPCODE;
        let (head, length) = match *second {
            LENGTH_16 => match rest.first_chunk() {
                Some(length) => (4, u64::from(u16::from_be_bytes(*length))),
                None => return Ok(None),
            },
            LENGTH_64 => match rest.first_chunk() {
                Some(length) => (10, u64::from_be_bytes(*length)),
                None => return Ok(None),
            },
            length => (2, u64::from(length)),
        };
        if length > FRAME_LIMIT {
            return Err("the API server sends a frame that is too large");
        }
        let end = head + length as usize;
        if self.bytes.len() < end {
            return Ok(None);
        }
        let frame = self.bytes.split_to(end).freeze();
        Ok(Some((opcode, frame.slice(head..))))
    }

    /// Returns what a frame says on its channel. The number of the port is skipped.
    fn of_channel(&mut self, opcode: u8, payload: Bytes) -> Result<Option<Message>, &'static str> {
        let is_first = opcode != CONTINUATION;
        if is_first {
            self.channel = payload.first().copied();
        }
        let Some(channel) = self.channel else {
            return Ok(None);
        };
        let bytes = match is_first {
            true => payload.slice(CHANNEL_BYTES..),
            false => payload,
        };
        let port_bytes = self.port_bytes.get_mut(usize::from(channel));
        let port_bytes =
            port_bytes.ok_or("the API server uses a channel that was not asked for")?;
        let skipped = bytes.len().min(*port_bytes);
        *port_bytes -= skipped;
        let bytes = bytes.slice(skipped..);
        if bytes.is_empty() {
            return Ok(None);
        }
        Ok(Some(match channel {
            DATA => Message::Data(bytes),
            _ => Message::Fault(String::from_utf8_lossy(&bytes).trim().to_owned()),
        }))
    }
}

/// Returns a frame of a client: a whole message.
pub(super) fn of_client(opcode: u8, payload: &[u8], mask: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![FINAL | opcode];
    match payload.len() {
        length @ 0..=125 => frame.push(MASKED | length as u8),
        length @ 126..=0xffff => {
            frame.push(MASKED | LENGTH_16);
            frame.extend((length as u16).to_be_bytes());
        }
        length => {
            frame.push(MASKED | LENGTH_64);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend(mask);
    let masked = payload.iter().zip(mask.iter().cycle());
    frame.extend(masked.map(|(byte, mask)| byte ^ mask));
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages of bytes that arrive one by one, and the error that ends them.
    fn messages(bytes: &[u8]) -> (Vec<Message>, Option<&'static str>) {
        let mut frames = Frames::default();
        let mut messages = Vec::new();
        for byte in bytes {
            frames.bytes.extend_from_slice(&[*byte]);
            loop {
                match frames.message() {
                    Ok(Some(message)) => messages.push(message),
                    Ok(None) => break,
                    Err(error) => return (messages, Some(error)),
                }
            }
        }
        (messages, None)
    }

    #[test]
    fn channels_begin_with_the_port() {
        let bytes = [
            &[0x82, 3, 0, 0x38, 0x4a][..],
            &[0x82, 3, 1, 0x38, 0x4a],
            // A message of nothing, and one of two frames with a ping between them.
            &[0x82, 1, 0],
            &[0x02, 3, 0, b'a', b'b'],
            &[0x89, 1, b'p'],
            &[0x80, 1, b'c'],
            &[0x82, 4, 1, b'n', b'o', b'\n'],
            &[0x88, 0],
        ]
        .concat();
        let expected = vec![
            Message::Data(Bytes::from_static(b"ab")),
            Message::Ping(Bytes::from_static(b"p")),
            Message::Data(Bytes::from_static(b"c")),
            Message::Fault("no".to_owned()),
            Message::Close,
        ];
        assert_eq!(messages(&bytes), (expected, None));
    }

    #[test]
    fn long_frames_have_a_longer_length() {
        for (head, length) in [
            (&[0x82, 126, 0x01, 0x00][..], 0x100),
            (&[0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0], 0x1_0000),
        ] {
            let mut payload = vec![b'x'; length];
            payload[0] = DATA;
            let (messages, error) = messages(&[head, &payload].concat());
            let expected = Bytes::from(vec![b'x'; length - CHANNEL_BYTES - PORT_BYTES]);
            assert_eq!(messages, [Message::Data(expected)]);
            assert_eq!(error, None);
        }
    }

    #[test]
    fn what_no_server_sends_is_refused() {
        for bytes in [
            // Masked, with a bit of an extension, too large, and of a channel that nobody asked for.
            &[0x82, 0x81, 0, 0, 0, 0, 0][..],
            &[0xc2, 1, 0],
            &[0x82, 127, 1, 0, 0, 0, 0, 0, 0, 0],
            &[0x82, 4, 2, 0, 0, 0],
        ] {
            let (messages, error) = messages(bytes);
            assert!(messages.is_empty() && error.is_some(), "{bytes:?}");
        }
    }

    #[test]
    fn frames_of_clients_are_masked() {
        // The example of RFC 6455, 5.7, as a binary message.
        let frame = of_client(BINARY, b"Hello", [0x37, 0xfa, 0x21, 0x3d]);
        let expected = [
            0x82, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58,
        ];
        assert_eq!(frame, expected);
        assert_eq!(
            of_client(BINARY, &[0; 126], [0; 4])[..4],
            [0x82, 0xfe, 0, 126]
        );
        let long = of_client(BINARY, &[0; 0x1_0000], [0; 4]);
        assert_eq!(long[..10], [0x82, 0xff, 0, 0, 0, 0, 0, 1, 0, 0]);
    }
}
