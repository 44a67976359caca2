//! The frames that a client sends on a request stream (RFC 9114, 4.1).

use std::mem;

use bytes::Bytes;

use super::error::{Code, Error};
use super::frame::{self, HeaderReader, Kind};

/// A frame of a request, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestFrame {
    /// The encoded header section.
    Head(Bytes),
    /// Content, never empty: a DATA frame comes in as many parts as it arrives in.
    Data(Bytes),
    /// The encoded trailer section. No other frame follows.
    Trailers(Bytes),
}

/// Reads a request stream. Holds at most one field section that is not complete.
#[derive(Debug)]
pub(crate) struct RequestReader {
    max_section: usize,
    header: HeaderReader,
    expected: Expected,
    payload: Payload,
    /// Bytes of the payload that have not arrived.
    left: u64,
}

/// What may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Head,
    ContentOrTrailers,
    /// After a CONNECT.
    Tunnel,
    End,
}

#[derive(Debug)]
enum Payload {
    /// Between frames.
    None,
    Data,
    Section(Vec<u8>),
    Skipped,
}

impl RequestReader {
    /// Creates the reader of a new stream with encoded sections of at most `max_section` bytes. The limit of decoded bytes is
    /// enough: an encoded section is not longer, unless its strings have a code that makes them longer.
    pub(crate) fn new(max_section: usize) -> Self {
        Self {
            max_section,
            header: HeaderReader::default(),
            expected: Expected::Head,
            payload: Payload::None,
            left: 0,
        }
    }

    /// Takes bytes until there is a frame or a part of one. `None` after all of them. After [`Error::TooLarge`], the reader
    /// skips the section and may go on.
    pub(crate) fn read(&mut self, input: &mut Bytes) -> Result<Option<RequestFrame>, Error> {
        loop {
            if matches!(self.payload, Payload::None) {
                let Some((kind, length)) = self.header.read(input) else {
                    return Ok(None);
                };
                self.begin(kind, length)?;
            }
            if self.left > 0 && input.is_empty() {
                return Ok(None);
            }
            if let Some(frame) = self.read_payload(input) {
                return Ok(Some(frame));
            }
        }
    }

    fn begin(&mut self, kind: Kind, length: u64) -> Result<(), Error> {
        self.left = length;
        self.payload = match (kind, self.expected) {
            (Kind::Data, Expected::ContentOrTrailers | Expected::Tunnel) => Payload::Data,
            (Kind::Data, Expected::Head) => return Err(Error::unexpected("DATA before HEADERS")),
            (Kind::Data, Expected::End) => return Err(Error::unexpected("DATA after trailers")),
            (Kind::Headers, Expected::Head | Expected::ContentOrTrailers)
                if length > self.max_section as u64 =>
            {
                self.advance();
                self.payload = Payload::Skipped;
                return Err(Error::TooLarge);
            }
            (Kind::Headers, Expected::Head | Expected::ContentOrTrailers) => {
                Payload::Section(Vec::new())
            }
            (Kind::Headers, Expected::Tunnel) => {
                return Err(Error::unexpected("HEADERS after a CONNECT"));
            }
            (Kind::Headers, Expected::End) => {
                return Err(Error::unexpected("HEADERS after trailers"));
            }
            (Kind::Unknown, _) => Payload::Skipped,
            (Kind::OfHttp2, _) => return Err(Error::unexpected("a frame type of HTTP/2")),
            (Kind::PushPromise, _) => return Err(Error::unexpected("PUSH_PROMISE of a client")),
            (Kind::CancelPush | Kind::Settings | Kind::GoAway | Kind::MaxPushId, _) => {
                return Err(Error::unexpected("a control frame on a request stream"));
            }
        };
        Ok(())
    }

    /// Takes bytes of the payload, some if it has any.
    fn read_payload(&mut self, input: &mut Bytes) -> Option<RequestFrame> {
        let part = frame::take(input, &mut self.left);
        let is_end = self.left == 0;
        let read = match &mut self.payload {
            Payload::Data if !part.is_empty() => Some(RequestFrame::Data(part)),
            Payload::None | Payload::Data | Payload::Skipped => None,
            Payload::Section(collected) if !is_end => {
                collect(collected, &part, self.left);
                return None;
            }
            Payload::Section(collected) => {
                let section = match collected.is_empty() {
                    true => part,
                    false => {
                        collect(collected, &part, 0);
                        Bytes::from(mem::take(collected))
                    }
                };
                Some(match self.expected {
                    Expected::Head => RequestFrame::Head(section),
                    _ => RequestFrame::Trailers(section),
                })
            }
        };
        if is_end {
            if matches!(self.payload, Payload::Section(_)) {
                self.advance();
            }
            self.payload = Payload::None;
        }
        read
    }

    /// Goes on behind a HEADERS frame.
    fn advance(&mut self) {
        self.expected = match self.expected {
            Expected::Head => Expected::ContentOrTrailers,
            _ => Expected::End,
        };
    }

    /// Permits nothing but content from now on, after the head of a CONNECT (RFC 9114, 4.4).
    pub(crate) fn become_tunnel(&mut self) {
        self.expected = Expected::Tunnel;
    }

    /// Checks that the stream may end here.
    pub(crate) fn finish(&self) -> Result<(), Error> {
        if self.header.is_begun() || !matches!(self.payload, Payload::None) {
            return Err(Error::layout("a stream ends within a frame"));
        }
        match self.expected {
            Expected::Head => Err(Error::Stream(
                Code::RequestIncomplete,
                "a stream without a request",
            )),
            _ => Ok(()),
        }
    }

    /// Returns the memory of a field section that is not complete.
    pub(crate) fn held(&self) -> usize {
        match &self.payload {
            Payload::Section(collected) => collected.capacity(),
            Payload::None | Payload::Data | Payload::Skipped => 0,
        }
    }
}

/// Adds a part of a section of which `left` bytes are missing. Takes memory for what has arrived, and at most as much again,
/// but none beyond the section.
fn collect(collected: &mut Vec<u8>, part: &[u8], left: u64) {
    let needed = collected.len() + part.len();
    if needed > collected.capacity() {
        let all = needed.saturating_add(usize::try_from(left).unwrap_or(usize::MAX));
        let capacity = needed.saturating_mul(2).min(all);
        collected.reserve_exact(capacity - collected.len());
    }
    collected.extend_from_slice(part);
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] = b"\x01\x04head";

    /// Reads a stream and its end.
    fn read(stream: &[u8]) -> Result<Vec<RequestFrame>, Error> {
        let (mut reader, mut frames) = (RequestReader::new(1000), Vec::new());
        let mut input = Bytes::copy_from_slice(stream);
        while let Some(frame) = reader.read(&mut input)? {
            frames.push(frame);
        }
        assert!(input.is_empty());
        reader.finish().map(|()| frames)
    }

    fn code(parts: &[&[u8]]) -> Option<(bool, Code)> {
        match read(&parts.concat()) {
            Err(Error::Connection(code, _)) => Some((true, code)),
            Err(Error::Stream(code, _)) => Some((false, code)),
            _ => None,
        }
    }

    #[test]
    fn reads_head_content_and_trailers() {
        let stream = [
            &[0x21, 0x00, 0x40, 0x40, 0x03, 1, 2, 3][..],
            HEAD,
            b"\x00\x00\x00\x03abc",
            b"\x21\x02xx",
            b"\x00\x40\x01d\x01\x02tr",
            b"\x21\x01y",
        ]
        .concat();
        let expected = [
            RequestFrame::Head(Bytes::from_static(b"head")),
            RequestFrame::Data(Bytes::from_static(b"abc")),
            RequestFrame::Data(Bytes::from_static(b"d")),
            RequestFrame::Trailers(Bytes::from_static(b"tr")),
        ];
        assert_eq!(read(&stream).unwrap(), expected);
        assert_eq!(read(HEAD).unwrap().len(), 1);
    }

    #[test]
    fn content_is_not_copied() {
        let mut input = Bytes::from([HEAD, b"\x00\x05hello"].concat());
        let content = input.slice(8..);
        let mut reader = RequestReader::new(100);
        assert!(reader.read(&mut input).unwrap().is_some());
        let Some(RequestFrame::Data(data)) = reader.read(&mut input).unwrap() else {
            panic!("no content");
        };
        assert_eq!(
            (data.as_ptr(), &data[..]),
            (content.as_ptr(), &b"hello"[..])
        );
        assert_eq!(reader.held(), 0);
    }

    #[test]
    fn frames_that_are_not_permitted_end_the_connection() {
        let unexpected = Some((true, Code::FrameUnexpected));
        let trailers = b"\x01\x02tr";
        for kind in [2, 3, 4, 5, 6, 7, 8, 9, 0xd] {
            assert_eq!(code(&[&[kind, 0]]), unexpected, "{kind}");
            assert_eq!(code(&[HEAD, &[kind, 1, 0]]), unexpected, "{kind}");
        }
        for parts in [
            &[&b"\x00\x01a"[..], HEAD][..],
            &[b"\x00\x00", HEAD],
            &[HEAD, trailers, b"\x00\x00"],
            &[HEAD, trailers, trailers],
            &[HEAD, b"\x00\x01a", trailers, b"\x21\x00", HEAD],
        ] {
            assert_eq!(code(parts), unexpected, "{parts:?}");
        }
    }

    #[test]
    fn streams_end_after_a_request_and_between_frames() {
        let incomplete = Some((false, Code::RequestIncomplete));
        assert_eq!(code(&[]), incomplete);
        assert_eq!(code(&[b"\x21\x00"]), incomplete);
        let cut = Some((true, Code::FrameError));
        let stream = [HEAD, b"\x00\x03abc", b"\x40\x21\x40\x02xx"].concat();
        for end in 1..stream.len() {
            let expected = match end {
                6 | 11 => None,
                _ => cut,
            };
            assert_eq!(code(&[&stream[..end]]), expected, "{end}");
        }
    }

    #[test]
    fn only_content_follows_a_connect() {
        let mut reader = RequestReader::new(100);
        let mut input = Bytes::from([HEAD, b"\x00\x01a\x21\x01x", HEAD].concat());
        assert!(reader.read(&mut input).unwrap().is_some());
        reader.become_tunnel();
        let data = RequestFrame::Data(Bytes::from_static(b"a"));
        assert_eq!(reader.read(&mut input), Ok(Some(data)));
        let error = Error::unexpected("HEADERS after a CONNECT");
        assert_eq!(reader.read(&mut input), Err(error));
    }

    #[test]
    fn sections_above_the_limit_are_not_collected() {
        let mut reader = RequestReader::new(100);
        let mut input = Bytes::from_static(b"\x01\x40\x65");
        assert_eq!(reader.read(&mut input), Err(Error::TooLarge));
        let rest = [&[b'x'; 101][..], b"\x00\x01a"].concat();
        let data = RequestFrame::Data(Bytes::from_static(b"a"));
        assert_eq!(reader.read(&mut rest.into()), Ok(Some(data)));
        let mut largest = Bytes::from_static(b"\x01\xff\xff\xff\xff\xff\xff\xff\xff");
        assert_eq!(reader.read(&mut largest), Err(Error::TooLarge));
        assert_eq!(reader.held(), 0);
    }

    #[test]
    fn sections_take_memory_as_they_arrive() {
        let mut reader = RequestReader::new(64 * 1024);
        reader
            .read(&mut Bytes::from_static(b"\x01\x80\x01\x00\x00"))
            .unwrap();
        assert_eq!(reader.held(), 0);
        let mut arrived = 0;
        for _ in 0..64 * 1024 / 100 {
            let mut part = Bytes::from_static(&[b'x'; 100]);
            assert_eq!(reader.read(&mut part), Ok(None));
            arrived += 100;
            assert!(reader.held() <= (2 * arrived).min(64 * 1024));
        }
        let mut last = Bytes::from_static(&[b'x'; 36]);
        let head = reader.read(&mut last).unwrap();
        let expected = RequestFrame::Head(vec![b'x'; 64 * 1024].into());
        assert_eq!((head, reader.held()), (Some(expected), 0));
    }
}
