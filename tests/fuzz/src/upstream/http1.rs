//! What reads the responses of backends, and the properties that they have.

#[path = "../../../../src/upstream/http1/body.rs"]
mod body;
#[path = "../../../../src/upstream/http1/head.rs"]
mod head;

use bytes::BytesMut;
use http::{HeaderMap, HeaderValue, Method};
pub(crate) use portcullis::upstream::http1::ExchangeError;

use self::body::{Decoder, Piece};
use self::head::{ResponseFraming, ResponseHead};

use super::outgoing::HeadLimits;

const LIMITS: HeadLimits = HeadLimits {
    bytes: 64 * 1024,
    headers: 100,
    is_of_policy: false,
};

/// What was read of a response.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Reading {
    /// Status, fields, framing and whether the connection stays open.
    head: Option<(u16, HeaderMap, ResponseFraming, bool)>,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
    is_whole: bool,
    is_refused: bool,
    /// What was not read, unless the response was refused.
    rest: Vec<u8>,
}

/// Reads a response that comes in `pieces` and then ends.
pub(crate) fn read<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    method: &Method,
    upgrade: Option<&HeaderValue>,
) -> Reading {
    let mut reading = Reading::default();
    let mut buffer = BytesMut::new();
    let outcome = read_into(&mut reading, &mut buffer, pieces, method, upgrade);
    match outcome {
        Ok(()) => reading.rest = buffer.to_vec(),
        Err(_) => reading.is_refused = true,
    }
    reading
}

fn read_into<'a>(
    reading: &mut Reading,
    buffer: &mut BytesMut,
    mut pieces: impl Iterator<Item = &'a [u8]>,
    method: &Method,
    upgrade: Option<&HeaderValue>,
) -> Result<(), ExchangeError> {
    let head = loop {
        let Some(piece) = pieces.next() else {
            return Ok(());
        };
        buffer.extend_from_slice(piece);
        if let Some(head) = final_head(buffer, method, upgrade)? {
            break head;
        }
    };
    let mut decoder = Decoder::new(head.framing);
    reading.head = Some((
        head.status.as_u16(),
        head.headers,
        head.framing,
        head.keep_alive,
    ));
    loop {
        match decoder.decode(buffer)? {
            Piece::Data(data) => {
                assert!(!data.is_empty(), "a piece of nothing");
                reading.body.extend_from_slice(&data);
            }
            Piece::Trailers(trailers) => reading.trailers = Some(trailers),
            Piece::End => break,
            Piece::NeedMore => match pieces.next() {
                Some(piece) => buffer.extend_from_slice(piece),
                None => break,
            },
        }
    }
    reading.is_whole = decoder.is_done();
    pieces.for_each(|piece| buffer.extend_from_slice(piece));
    Ok(())
}

/// The next head that is not informational.
fn final_head(
    buffer: &mut BytesMut,
    method: &Method,
    upgrade: Option<&HeaderValue>,
) -> Result<Option<ResponseHead>, ExchangeError> {
    while let Some(head) = head::parse(buffer, method, upgrade, LIMITS)? {
        if head.framing == ResponseFraming::Upgrade || !head.status.is_informational() {
            return Ok(Some(head));
        }
    }
    Ok(None)
}

impl Reading {
    /// Checks what holds for every response.
    pub(crate) fn assert_sound(&self) {
        let Some((status, headers, framing, keep_alive)) = &self.head else {
            return;
        };
        for name in [
            "connection",
            "keep-alive",
            "proxy-connection",
            "transfer-encoding",
        ] {
            assert!(!headers.contains_key(name), "{self:?}");
        }
        assert!(
            !headers.contains_key("upgrade")
                || *status == 426
                || *framing == ResponseFraming::Upgrade,
            "{self:?}"
        );
        assert!(
            *status >= 200 || *framing == ResponseFraming::Upgrade,
            "{self:?}"
        );
        assert!(
            !(*keep_alive && *framing == ResponseFraming::Close),
            "{self:?}"
        );
        assert!(
            headers.get_all("content-length").iter().count() <= 1,
            "{self:?}"
        );
        if let ResponseFraming::Length(length) = framing {
            assert_eq!(self.is_whole, self.body.len() as u64 == *length, "{self:?}");
        }
    }
}
