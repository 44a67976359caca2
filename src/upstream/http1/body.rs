//! Decodes HTTP/1.1 response bodies from a read buffer (RFC 9112, 6 and 7). Forwards no byte beyond
//! the framing. Does no I/O.

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::ExchangeError;
use super::head::ResponseFraming;
use crate::byte_chain::MIN_SLICE;

/// Maximum size of a chunk-size line in bytes, extensions included.
const MAX_CHUNK_LINE: usize = 4096;
/// Maximum size of a trailer section in bytes.
const MAX_TRAILERS: usize = 16 * 1024;

/// State of a body decoder: what the next byte belongs to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decoder {
    /// Remaining bytes of a Content-Length body.
    Length(u64),
    /// A chunk-size line.
    ChunkSize,
    /// Remaining bytes of a chunk, without its CRLF.
    Chunk(u64),
    /// The CRLF after a chunk.
    ChunkEnd,
    /// The trailer section.
    Trailers,
    /// Data until the connection closes.
    Close,
    /// Nothing: the body is complete.
    Done,
}

/// The next piece of a body.
#[derive(Debug)]
pub(super) enum Piece {
    /// Body data; never empty.
    Data(Bytes),
    /// The trailer section; never empty.
    Trailers(HeaderMap),
    /// More bytes are needed.
    NeedMore,
    /// The body is complete.
    End,
}

impl Decoder {
    pub(super) fn new(framing: ResponseFraming) -> Self {
        match framing {
            ResponseFraming::Length(0) | ResponseFraming::Upgrade => Self::Done,
            ResponseFraming::Length(length) => Self::Length(length),
            ResponseFraming::Chunked => Self::ChunkSize,
            ResponseFraming::Close => Self::Close,
        }
    }

    /// Reports whether the body is complete.
    pub(super) fn is_done(&self) -> bool {
        *self == Self::Done
    }

    /// Returns the remaining bytes, if known.
    pub(super) fn remaining(&self) -> Option<u64> {
        match self {
            Self::Length(length) => Some(*length),
            Self::Done => Some(0),
            _ => None,
        }
    }

    /// Takes the next piece from `buffer`.
    pub(super) fn decode(&mut self, buffer: &mut BytesMut) -> Result<Piece, ExchangeError> {
        loop {
            match self {
                Self::Done => return Ok(Piece::End),
                Self::Close if buffer.is_empty() => return Ok(Piece::NeedMore),
                Self::Close => return Ok(Piece::Data(split(buffer, buffer.len()))),
                Self::Length(left) => {
                    let Some(data) = take(buffer, left) else {
                        return Ok(Piece::NeedMore);
                    };
                    if *left == 0 {
                        *self = Self::Done;
                    }
                    return Ok(Piece::Data(data));
                }
                Self::Chunk(left) => {
                    let Some(data) = take(buffer, left) else {
                        return Ok(Piece::NeedMore);
                    };
                    if *left == 0 {
                        *self = Self::ChunkEnd;
                    }
                    return Ok(Piece::Data(data));
                }
                Self::ChunkEnd => {
                    if buffer.len() < 2 {
                        return Ok(Piece::NeedMore);
                    }
                    if &buffer[..2] != b"\r\n" {
                        return Err(ExchangeError::Protocol(
                            "chunk without its line end in a response",
                        ));
                    }
                    buffer.advance(2);
                    *self = Self::ChunkSize;
                }
                Self::ChunkSize => match chunk_size(buffer)? {
                    None => return Ok(Piece::NeedMore),
                    Some(0) => *self = Self::Trailers,
                    Some(size) => *self = Self::Chunk(size),
                },
                Self::Trailers => {
                    let Some(trailers) = trailers(buffer)? else {
                        return Ok(Piece::NeedMore);
                    };
                    *self = Self::Done;
                    if !trailers.is_empty() {
                        return Ok(Piece::Trailers(trailers));
                    }
                }
            }
        }
    }
}

fn take(buffer: &mut BytesMut, left: &mut u64) -> Option<Bytes> {
    if buffer.is_empty() {
        return None;
    }
    let count = usize::try_from(*left)
        .unwrap_or(usize::MAX)
        .min(buffer.len());
    *left -= count as u64;
    Some(split(buffer, count))
}

/// Takes `count` bytes from `buffer`.
fn split(buffer: &mut BytesMut, count: usize) -> Bytes {
    if count < MIN_SLICE {
        let data = Bytes::copy_from_slice(&buffer[..count]);
        buffer.advance(count);
        data
    } else if count == buffer.len() {
        buffer.split().freeze()
    } else {
        buffer.split_to(count).freeze()
    }
}

fn chunk_size(buffer: &mut BytesMut) -> Result<Option<u64>, ExchangeError> {
    // The parser accepts a line without digits as a last chunk. A truncated body would look
    // complete.
    if buffer.first().is_some_and(|byte| !byte.is_ascii_hexdigit()) {
        return Err(ExchangeError::Protocol(
            "malformed chunk size in a response",
        ));
    }
    match httparse::parse_chunk_size(buffer) {
        Ok(httparse::Status::Complete((consumed, size))) if consumed <= MAX_CHUNK_LINE => {
            buffer.advance(consumed);
            Ok(Some(size))
        }
        Ok(httparse::Status::Partial) if buffer.len() < MAX_CHUNK_LINE => Ok(None),
        _ => Err(ExchangeError::Protocol(
            "malformed chunk size in a response",
        )),
    }
}

fn trailers(buffer: &mut BytesMut) -> Result<Option<HeaderMap>, ExchangeError> {
    const BAD: ExchangeError = ExchangeError::Protocol("malformed trailers in a response");
    if buffer.starts_with(b"\r\n") {
        buffer.advance(2);
        return Ok(Some(HeaderMap::new()));
    }
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let (length, fields) = match httparse::parse_headers(buffer, &mut fields) {
        Ok(httparse::Status::Complete(complete)) if complete.0 <= MAX_TRAILERS => complete,
        Ok(httparse::Status::Partial) if buffer.len() < MAX_TRAILERS => return Ok(None),
        _ => return Err(BAD),
    };
    let mut trailers = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| BAD)?;
        let value = HeaderValue::from_bytes(field.value).map_err(|_| BAD)?;
        trailers.append(name, value);
    }
    buffer.advance(length);
    Ok(Some(trailers))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `text` in pieces of `step` bytes. Returns data, trailers and the rest.
    fn decode(
        framing: ResponseFraming,
        text: &str,
        step: usize,
    ) -> Result<(String, usize, String), ExchangeError> {
        let mut decoder = Decoder::new(framing);
        let mut pieces = text.as_bytes().chunks(step);
        let (mut buffer, mut data, mut fields) = (BytesMut::new(), Vec::new(), 0);
        loop {
            match decoder.decode(&mut buffer)? {
                Piece::Data(bytes) => data.extend_from_slice(&bytes),
                Piece::Trailers(map) => fields = map.len(),
                Piece::End => break,
                Piece::NeedMore => match pieces.next() {
                    Some(piece) => buffer.extend_from_slice(piece),
                    None => return Err(ExchangeError::Truncated),
                },
            }
        }
        pieces.for_each(|piece| buffer.extend_from_slice(piece));
        Ok((
            String::from_utf8(data).unwrap(),
            fields,
            String::from_utf8(buffer.to_vec()).unwrap(),
        ))
    }

    #[test]
    fn decodes_bodies_by_their_framing() {
        let chunked =
            "5;ext=1\r\nhello\r\nA\r\n, world!!!\r\n0\r\nX-Sum: 1\r\nY: 2\r\n\r\nHTTP/1.1";
        for step in [1, 2, 3, 7, 1000] {
            let (data, fields, rest) = decode(ResponseFraming::Chunked, chunked, step).unwrap();
            assert_eq!(
                (data.as_str(), fields, rest.as_str()),
                ("hello, world!!!", 2, "HTTP/1.1"),
                "step {step}"
            );
            let (data, _, rest) = decode(ResponseFraming::Length(5), "helloHTTP", step).unwrap();
            assert_eq!(
                (data.as_str(), rest.as_str()),
                ("hello", "HTTP"),
                "step {step}"
            );
        }
    }

    #[test]
    fn small_parts_release_the_read_buffer() {
        for (length, is_copied) in [(1, true), (MIN_SLICE - 1, true), (MIN_SLICE, false)] {
            let text = format!("{length:x}\r\n{}\r\n", "x".repeat(length));
            let mut buffer = BytesMut::with_capacity(64 * 1024);
            buffer.extend_from_slice(text.as_bytes());
            let mut decoder = Decoder::new(ResponseFraming::Chunked);
            let Ok(Piece::Data(data)) = decoder.decode(&mut buffer) else {
                panic!("no data");
            };
            assert!(matches!(decoder.decode(&mut buffer), Ok(Piece::NeedMore)));
            assert_eq!(data.len(), length);
            assert_eq!(buffer.try_reclaim(64 * 1024), is_copied, "{length}");
        }
    }

    #[test]
    fn rejects_malformed_chunks() {
        for text in [
            "g\r\n",
            "5\r\nhelloX\r\n",
            "-1\r\n",
            "ffffffffffffffffff\r\n",
            "0\r\nbad name: x\r\n\r\n",
            "\r\n",
        ] {
            for step in [1, 1000] {
                assert!(
                    matches!(
                        decode(ResponseFraming::Chunked, text, step),
                        Err(ExchangeError::Protocol(_))
                    ),
                    "{text:?}"
                );
            }
        }
    }

    #[test]
    fn rejects_long_lines_in_any_number_of_pieces() {
        let line = |length: usize| format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(length - 4));
        let trailers = |length: usize| format!("0\r\nX: {}\r\n\r\n", "x".repeat(length - 7));
        for step in [100, 100_000] {
            for (text, is_fit) in [
                (line(MAX_CHUNK_LINE), true),
                (line(MAX_CHUNK_LINE + 1), false),
                (trailers(MAX_TRAILERS), true),
                (trailers(MAX_TRAILERS + 1), false),
            ] {
                let decoded = decode(ResponseFraming::Chunked, &text, step);
                assert_eq!(decoded.is_ok(), is_fit, "{} in {step}", text.len());
            }
        }
    }
}
