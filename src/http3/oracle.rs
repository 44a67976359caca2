//! Properties of what reads the streams of a client, for tests and for the fuzz target: the result does not depend on how the
//! input is split, limits hold, and what is decoded is the same after it is encoded.

use bytes::Bytes;
use h2::ext::Protocol;
use http::header::HeaderMap;
use http::{Method, Request, StatusCode, Version};

use super::content_length::ContentLength;
use super::error::Error;
use super::message::{self, Limits};
use super::qpack;
use super::request_stream::{RequestFrame, RequestReader};
use super::streams::{StreamEvent, StreamReader, StreamTypes};

pub(super) const LIMITS: Limits = Limits {
    bytes: 2000,
    lines: 20,
};
/// Streams up to this length are split at every place.
const SHORT: usize = 300;

/// A name, a value, and whether it is sensitive.
pub(super) type Line = (Vec<u8>, Vec<u8>, bool);

/// What is read from a request stream.
#[derive(Debug, Default, PartialEq)]
struct Exchange {
    head: Option<Bytes>,
    content: Vec<u8>,
    trailers: Option<Bytes>,
    /// Sections above the limit.
    skipped: usize,
    error: Option<Error>,
    /// What the end is at this place.
    end: Option<Error>,
}

/// Checks a request stream.
pub(super) fn check_request_stream(stream: &[u8]) {
    let whole = exchange([stream]);
    for_each_split(stream, |parts| assert_eq!(exchange(parts), whole));
    for section in whole.head.iter().chain(&whole.trailers) {
        check_section(section);
    }
}

fn exchange<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Exchange {
    let mut reader = RequestReader::new(LIMITS.bytes);
    let mut exchange = Exchange::default();
    let mut length = None;
    for part in parts {
        let mut input = Bytes::copy_from_slice(part);
        loop {
            let read = reader.read(&mut input);
            assert!(reader.held() <= LIMITS.bytes);
            let checked = match read {
                Ok(None) => break,
                Ok(Some(frame)) => exchange.add(frame, &mut reader, &mut length),
                Err(Error::TooLarge) => {
                    exchange.skipped += 1;
                    Ok(())
                }
                Err(error) => Err(error),
            };
            if let Err(error) = checked {
                exchange.error = Some(error);
                return exchange;
            }
        }
        assert!(input.is_empty());
    }
    let content_end = length.map_or(Ok(()), |length| length.finish());
    exchange.end = reader.finish().and(content_end).err();
    exchange
}

impl Exchange {
    fn add(
        &mut self,
        frame: RequestFrame,
        reader: &mut RequestReader,
        length: &mut Option<ContentLength>,
    ) -> Result<(), Error> {
        match frame {
            RequestFrame::Head(section) => {
                assert!(self.head.is_none() && section.len() <= LIMITS.bytes);
                if let Ok(request) = message::request(&section, LIMITS) {
                    if request.method() == Method::CONNECT {
                        reader.become_tunnel();
                    }
                    *length = ContentLength::of(request.headers()).ok();
                }
                self.head = Some(section);
            }
            RequestFrame::Data(data) => {
                assert!(!data.is_empty() && self.trailers.is_none());
                self.content.extend_from_slice(&data);
                // How much of a frame has arrived decides where an error comes, but not whether it comes.
                if let Some(length) = length {
                    length
                        .receive(data.len())
                        .inspect_err(|_| self.content.clear())?;
                }
            }
            RequestFrame::Trailers(section) => {
                assert!(self.trailers.is_none() && section.len() <= LIMITS.bytes);
                self.trailers = Some(section);
            }
        }
        Ok(())
    }
}

/// Checks a unidirectional stream.
pub(super) fn check_stream(stream: &[u8]) {
    let whole = events([stream]);
    for_each_split(stream, |parts| assert_eq!(events(parts), whole));
}

/// Returns what a stream brings, and its first error, or otherwise that of its end.
fn events<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> (Vec<StreamEvent>, Option<Error>) {
    let (mut reader, mut types) = (StreamReader::default(), StreamTypes::default());
    let mut events = Vec::new();
    for part in parts {
        let mut input = Bytes::copy_from_slice(part);
        loop {
            match reader.read(&mut types, &mut input) {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(error) => return (events, Some(error)),
            }
        }
        assert!(input.is_empty());
    }
    (events, reader.finish().err())
}

/// Passes a stream in pieces: in two, split at every place or at some, and in many that have the same length.
fn for_each_split(stream: &[u8], check: impl Fn(Vec<&[u8]>)) {
    let step = if stream.len() <= SHORT { 1 } else { 97 };
    for place in (0..stream.len()).step_by(step) {
        let (first, second) = stream.split_at(place);
        check(vec![first, second]);
    }
    for size in [1, 2, 7] {
        check(stream.chunks(size).collect());
    }
}

/// Checks a field section.
pub(super) fn check_section(section: &[u8]) {
    if let Ok(lines) = lines(section, LIMITS.bytes) {
        let size = |(name, value, _): &Line| name.len() + value.len() + 32;
        assert!(lines.iter().map(size).sum::<usize>() <= LIMITS.bytes);
        if let Some(encoded) = encode(&lines) {
            let again = self::lines(&encoded, LIMITS.bytes);
            assert_eq!(again.as_ref(), Ok(&lines));
        }
    }
    if let Ok(request) = message::request(section, LIMITS) {
        check_request(&request);
    }
    if let Ok(trailers) = message::trailers(section, LIMITS) {
        check_headers(&trailers);
    }
}

fn lines(section: &[u8], max_size: usize) -> Result<Vec<Line>, Error> {
    let mut lines = Vec::new();
    qpack::decode(section, max_size, |line| {
        lines.push((line.name.into(), line.value.into(), line.is_sensitive));
        Ok(())
    })?;
    Ok(lines)
}

/// Encodes lines whose names are text.
pub(super) fn encode(lines: &[Line]) -> Option<Vec<u8>> {
    let mut section = Vec::new();
    qpack::begin(&mut section);
    for (name, value, is_sensitive) in lines {
        let name = str::from_utf8(name).ok()?;
        qpack::write(name, value, *is_sensitive, &mut section);
    }
    Some(section)
}

fn check_request(request: &Request<()>) {
    assert_eq!(request.version(), Version::HTTP_3);
    let is_connect = request.method() == Method::CONNECT;
    let protocol = request.extensions().get::<Protocol>();
    assert!(protocol.is_none() || is_connect);
    check_headers(request.headers());
    let mut pseudo = vec![(":method", request.method().as_str())];
    let path = request.uri().path_and_query();
    if !is_connect || protocol.is_some() {
        pseudo.push((":scheme", request.uri().scheme_str().unwrap_or("other")));
        pseudo.push((":path", path.map_or("/", |path| path.as_str())));
    }
    let authority = request.uri().authority();
    pseudo.extend(authority.map(|authority| (":authority", authority.as_str())));
    pseudo.extend(protocol.map(|protocol| (":protocol", protocol.as_str())));
    let pseudo = pseudo.iter();
    let mut lines: Vec<_> = pseudo
        .map(|(name, value)| (Vec::from(*name), Vec::from(*value), false))
        .collect();
    lines.extend(lines_of(request.headers()));
    let encoded = encode(&lines).expect("names are text");
    // Without its authority, the scheme of a request is not known, so that a longer one may stand for it.
    let limits = Limits {
        bytes: 2 * LIMITS.bytes,
        ..LIMITS
    };
    let again = message::request(&encoded, limits).expect("it is the same request");
    assert_eq!(again.method(), request.method());
    assert_eq!(again.uri(), request.uri());
    assert_eq!(again.headers(), request.headers());
    assert_eq!(again.extensions().get::<Protocol>(), protocol);
}

fn lines_of(headers: &HeaderMap) -> impl Iterator<Item = Line> {
    let line = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        let is_sensitive = value.is_sensitive();
        (name.as_str().into(), value.as_bytes().into(), is_sensitive)
    };
    headers.iter().map(line)
}

/// Checks headers of a request, and those of a response with the same ones.
fn check_headers(headers: &HeaderMap) {
    assert!(headers.len() <= LIMITS.lines);
    for name in ["connection", "transfer-encoding", "upgrade"] {
        assert!(!headers.contains_key(name));
    }
    let cookies = headers.get_all("cookie").iter().count();
    assert!(cookies <= 1, "{headers:?}");
    let mut frame = Vec::new();
    message::write_response(StatusCode::NOT_FOUND, headers, &mut frame);
    let mut reader = RequestReader::new(usize::MAX);
    let read = reader.read(&mut frame.into());
    let Ok(Some(RequestFrame::Head(section))) = read else {
        panic!("{read:?}");
    };
    let mut expected = vec![(b":status".into(), b"404".into(), false)];
    expected.extend(lines_of(headers).filter(|(name, ..)| name != b"te"));
    assert_eq!(lines(&section, usize::MAX), Ok(expected));
}
