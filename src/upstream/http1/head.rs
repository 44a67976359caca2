//! HTTP/1.1 message heads for backends: encodes request heads, and parses and validates response
//! heads (RFC 9112). Owns framing and connection headers, which are never forwarded. Does no I/O.

use std::mem::MaybeUninit;

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use super::ExchangeError;
use crate::upstream::outgoing::{HeadLimits, Outgoing};

/// Number of headers that are parsed without allocating their positions. Nearly all responses have
/// fewer; the cost of each grows with this number.
const FEW_HEADERS: usize = 32;
/// Number of decimal digits from which a number may exceed 64 bits.
const MAX_DIGITS: usize = 20;
const TOO_MANY_HEADERS: ExchangeError =
    ExchangeError::Protocol("the response has more headers than --max-headers allows");
/// Initial capacity of a head's buffer.
const HEAD_CAPACITY: usize = 1024;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Framing of a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestFraming {
    /// No body and no framing header.
    None,
    /// Content-Length from the client.
    Length(u64),
    /// Chunked.
    Chunked,
}

impl RequestFraming {
    /// Reports whether a body follows the head.
    pub(super) fn announces_body(self) -> bool {
        !matches!(self, Self::None | Self::Length(0))
    }
}

/// Framing of a response body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseFraming {
    /// Content-Length; may be 0.
    Length(u64),
    /// Chunked.
    Chunked,
    /// Delimited by connection close.
    Close,
    /// A 101: the connection switches protocols.
    Upgrade,
}

/// A response head, final or informational.
#[derive(Debug)]
pub(super) struct ResponseHead {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) framing: ResponseFraming,
    /// Whether the connection can be reused.
    pub(super) keep_alive: bool,
}

/// Encodes a request head. The request must have end-to-end headers only. Adds framing and upgrade
/// headers.
pub(super) fn encode(request: &Outgoing<'_>, framing: RequestFraming) -> Vec<u8> {
    let parts = request.parts;
    let mut head = Vec::with_capacity(HEAD_CAPACITY);
    head.extend_from_slice(parts.method.as_str().as_bytes());
    head.push(b' ');
    head.extend_from_slice(
        parts
            .uri
            .path_and_query()
            .map_or("/", |target| target.as_str())
            .as_bytes(),
    );
    head.extend_from_slice(b" HTTP/1.1\r\n");
    for (name, value) in &parts.headers {
        if *name != CONTENT_LENGTH {
            header_line(&mut head, name.as_str(), value.as_bytes());
        }
    }
    for (name, value) in request.added {
        header_line(&mut head, name.as_str(), value.as_bytes());
    }
    match framing {
        RequestFraming::None => {}
        RequestFraming::Length(length) => {
            header_line(
                &mut head,
                "content-length",
                itoa::Buffer::new().format(length).as_bytes(),
            );
        }
        RequestFraming::Chunked => header_line(&mut head, "transfer-encoding", b"chunked"),
    }
    if request.expect_continue && framing.announces_body() {
        header_line(&mut head, "expect", b"100-continue");
    }
    if let Some(protocol) = request.upgrade {
        header_line(&mut head, "connection", b"upgrade");
        header_line(&mut head, "upgrade", protocol.as_bytes());
    }
    head.extend_from_slice(b"\r\n");
    head
}

fn header_line(head: &mut Vec<u8>, name: &str, value: &[u8]) {
    head.extend_from_slice(name.as_bytes());
    head.extend_from_slice(b": ");
    head.extend_from_slice(value);
    head.extend_from_slice(b"\r\n");
}

/// Parses the next response head in `buffer`; `None` until it is complete. A 101 is valid only if
/// an upgrade was requested.
pub(super) fn parse(
    buffer: &mut BytesMut,
    method: &Method,
    upgrade: Option<&HeaderValue>,
    limits: HeadLimits,
) -> Result<Option<ResponseHead>, ExchangeError> {
    let mut headers = [const { MaybeUninit::uninit() }; FEW_HEADERS];
    let mut spans = [Span::default(); FEW_HEADERS];
    let few = limits.headers.min(FEW_HEADERS);
    let mut parsed = parse_into(buffer, &mut headers[..few], &mut spans, limits);
    let mut more_spans = Vec::new();
    let mut spans = &spans[..];
    if parsed == Err(TOO_MANY_HEADERS) && few < limits.headers {
        let mut headers = vec![const { MaybeUninit::uninit() }; limits.headers];
        more_spans.resize(limits.headers, Span::default());
        parsed = parse_into(buffer, &mut headers, &mut more_spans, limits);
        spans = &more_spans;
    }
    let Some(parsed) = parsed? else {
        return Ok(None);
    };
    let head = into_head(&parsed, buffer, spans, method)?;
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        let switched = head.headers.get(UPGRADE);
        let agreed = upgrade
            .zip(switched)
            .is_some_and(|(asked, got)| got.as_bytes().eq_ignore_ascii_case(asked.as_bytes()));
        if !agreed {
            return Err(ExchangeError::Protocol("101 without a requested upgrade"));
        }
    }
    Ok(Some(head))
}

/// The error of a head above its maximum size.
fn too_long(limits: HeadLimits) -> ExchangeError {
    ExchangeError::Protocol(match limits.is_of_policy {
        true => "the response head exceeds maxHeaderBytes of the backend's BackendPolicy",
        false => "the response head exceeds the limit of --max-header-bytes",
    })
}

/// Result of the parser; headers are stored in the spans.
#[derive(PartialEq, Eq)]
struct Parsed {
    length: usize,
    count: usize,
    status: StatusCode,
    http10: bool,
}

fn parse_into<'a>(
    buffer: &'a [u8],
    headers: &mut [MaybeUninit<httparse::Header<'a>>],
    spans: &mut [Span],
    limits: HeadLimits,
) -> Result<Option<Parsed>, ExchangeError> {
    let mut response = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(
        &mut response,
        buffer,
        headers,
    );
    let length = match parsed {
        Ok(httparse::Status::Complete(length)) if length <= limits.bytes => length,
        Ok(httparse::Status::Partial) if buffer.len() <= limits.bytes => return Ok(None),
        Ok(_) => return Err(too_long(limits)),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(TOO_MANY_HEADERS);
        }
        Err(_) => return Err(ExchangeError::Protocol("malformed response head")),
    };
    let status = response
        .code
        .and_then(|code| StatusCode::from_u16(code).ok())
        .ok_or(ExchangeError::Protocol("response status out of range"))?;
    // Headers are stored as offsets, so that their values can share the allocation of the head.
    let base = buffer.as_ptr() as usize;
    let span = |text: &[u8]| ((text.as_ptr() as usize - base) as u32, text.len() as u32);
    for (kept, header) in spans.iter_mut().zip(response.headers.iter()) {
        *kept = Span {
            name: span(header.name.as_bytes()),
            value: span(header.value),
        };
    }
    Ok(Some(Parsed {
        length,
        count: response.headers.len(),
        status,
        http10: response.version == Some(0),
    }))
}

fn into_head(
    parsed: &Parsed,
    buffer: &mut BytesMut,
    spans: &[Span],
    method: &Method,
) -> Result<ResponseHead, ExchangeError> {
    // A slice would keep the read buffer allocated while a client does not read the response.
    let bytes = Bytes::copy_from_slice(&buffer[..parsed.length]);
    buffer.advance(parsed.length);
    let fields = Fields {
        bytes: &bytes,
        spans: &spans[..parsed.count],
    };
    fields.into_head(parsed.status, parsed.http10, method)
}

/// Position of a header in the head: start and length of its name and of its value.
#[derive(Clone, Copy, Default)]
struct Span {
    name: (u32, u32),
    value: (u32, u32),
}

fn range((begin, length): (u32, u32)) -> std::ops::Range<usize> {
    begin as usize..begin as usize + length as usize
}

struct Fields<'a> {
    bytes: &'a Bytes,
    spans: &'a [Span],
}

impl Fields<'_> {
    fn into_head(
        self,
        status: StatusCode,
        http10: bool,
        method: &Method,
    ) -> Result<ResponseHead, ExchangeError> {
        let mut headers = HeaderMap::with_capacity(self.spans.len());
        let mut length = None;
        let mut chunked = false;
        let mut close = http10;
        let mut named = Vec::new();
        // RFC 9110, 15.5.22: a 426 names the required protocol in Upgrade.
        let keeps_upgrade =
            status == StatusCode::SWITCHING_PROTOCOLS || status == StatusCode::UPGRADE_REQUIRED;
        for span in self.spans {
            let name = HeaderName::from_bytes(&self.bytes[range(span.name)])
                .map_err(|_| ExchangeError::Protocol("malformed header name in a response"))?;
            let value = self.bytes.slice(range(span.value));
            if !may_be_of_connection(&name) {
                headers.append(name, header_value(value)?);
                continue;
            }
            if name == CONTENT_LENGTH {
                let parsed = content_length(&value)?;
                if length.is_some_and(|known| known != parsed) {
                    return Err(ExchangeError::Protocol(
                        "conflicting Content-Length headers in a response",
                    ));
                }
                if length.replace(parsed).is_some() {
                    continue;
                }
                if value.contains(&b',') {
                    // RFC 9110, 8.6: identical values are forwarded as one.
                    headers.append(name, HeaderValue::from(parsed));
                    continue;
                }
            } else if name == TRANSFER_ENCODING {
                if chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(ExchangeError::Protocol(
                        "Transfer-Encoding other than chunked in a response",
                    ));
                }
                chunked = true;
                continue;
            } else if name == CONNECTION {
                close |= connection_options(&value, &mut named);
                continue;
            } else if (name == UPGRADE && !keeps_upgrade)
                || name == KEEP_ALIVE
                || name == PROXY_CONNECTION
            {
                continue;
            }
            headers.append(name, header_value(value)?);
        }
        if status.is_informational() || status == StatusCode::NO_CONTENT {
            // RFC 9110, 8.6: there is no body that the length could describe.
            headers.remove(CONTENT_LENGTH);
        }
        for name in named {
            headers.remove(name);
        }
        if chunked {
            // RFC 9112, 6.3: Transfer-Encoding overrides Content-Length.
            headers.remove(CONTENT_LENGTH);
        }
        close |= is_framing_doubtful(status, chunked, length);
        let framing = framing(status, method, chunked, length);
        let keep_alive =
            !close && !matches!(framing, ResponseFraming::Close | ResponseFraming::Upgrade);
        Ok(ResponseHead {
            status,
            headers,
            framing,
            keep_alive,
        })
    }
}

/// Reports whether a name has the length of one that belongs to the framing or the connection. Most names do not.
#[inline]
fn may_be_of_connection(name: &HeaderName) -> bool {
    matches!(name.as_str().len(), 7 | 10 | 14 | 16 | 17)
}

fn header_value(value: Bytes) -> Result<HeaderValue, ExchangeError> {
    HeaderValue::from_maybe_shared(value)
        .map_err(|_| ExchangeError::Protocol("malformed header value in a response"))
}

/// Reports whether the backend may end a response elsewhere than the proxy, so that the connection must close: two headers
/// say its length (RFC 9112, 6.3), or a 204 announces content, which would be read as the next response.
fn is_framing_doubtful(status: StatusCode, chunked: bool, length: Option<u64>) -> bool {
    let has_content = chunked || length.is_some_and(|length| length > 0);
    (chunked && length.is_some()) || (has_content && status == StatusCode::NO_CONTENT)
}

/// Determines the framing of a response body (RFC 9112, 6.3).
fn framing(
    status: StatusCode,
    method: &Method,
    chunked: bool,
    length: Option<u64>,
) -> ResponseFraming {
    let bodiless = *method == Method::HEAD
        || status.is_informational()
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED;
    match length {
        _ if status == StatusCode::SWITCHING_PROTOCOLS => ResponseFraming::Upgrade,
        _ if bodiless => ResponseFraming::Length(0),
        _ if chunked => ResponseFraming::Chunked,
        Some(length) => ResponseFraming::Length(length),
        None => ResponseFraming::Close,
    }
}

/// Parses `Content-Length`; a list of equal numbers counts as one number (RFC 9110, 8.6).
fn content_length(value: &[u8]) -> Result<u64, ExchangeError> {
    let bad = ExchangeError::Protocol("malformed Content-Length in a response");
    if (1..MAX_DIGITS).contains(&value.len()) && value.iter().all(u8::is_ascii_digit) {
        let add = |number: u64, digit: &u8| number * 10 + u64::from(digit - b'0');
        return Ok(value.iter().fold(0, add));
    }
    let text = std::str::from_utf8(value).map_err(|_| bad)?;
    let mut numbers = text.split(',').map(|number| {
        let number = number.trim_matches([' ', '\t']);
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(bad);
        }
        number.parse::<u64>().map_err(|_| bad)
    });
    let first = numbers.next().ok_or(bad)??;
    for number in numbers {
        if number? != first {
            return Err(bad);
        }
    }
    Ok(first)
}

/// Reports whether the options contain `close`. Collects the header names in them.
fn connection_options(value: &[u8], named: &mut Vec<HeaderName>) -> bool {
    let mut close = false;
    for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
        if option.eq_ignore_ascii_case(b"close") {
            close = true;
        } else if !option.eq_ignore_ascii_case(b"keep-alive")
            && !option.eq_ignore_ascii_case(b"upgrade")
        {
            named.extend(HeaderName::from_bytes(option));
        }
    }
    // The framing is determined before the options are read, so that options cannot remove framing
    // headers.
    named.retain(|name| *name != CONTENT_LENGTH && *name != TRANSFER_ENCODING);
    close
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits = HeadLimits {
        is_of_policy: false,
        bytes: 64 * 1024,
        headers: 100,
    };

    fn read(text: &str, method: &Method) -> Result<Option<ResponseHead>, ExchangeError> {
        parse(&mut BytesMut::from(text), method, None, LIMITS)
    }

    fn head(text: &str) -> ResponseHead {
        read(text, &Method::GET).unwrap().unwrap()
    }

    #[test]
    fn determines_framing_by_rfc_9112() {
        assert_eq!(
            head("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n").framing,
            ResponseFraming::Length(5)
        );
        assert_eq!(
            head("HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\nContent-Length: 5\r\n\r\n").framing,
            ResponseFraming::Length(5)
        );
        assert_eq!(
            head("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n").framing,
            ResponseFraming::Chunked
        );
        assert_eq!(
            head("HTTP/1.1 200 OK\r\n\r\n").framing,
            ResponseFraming::Close
        );
        assert_eq!(
            head("HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n").framing,
            ResponseFraming::Length(0)
        );
        let answer = read(
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
            &Method::HEAD,
        )
        .unwrap()
        .unwrap();
        assert_eq!(answer.framing, ResponseFraming::Length(0));
        assert_eq!(answer.headers[CONTENT_LENGTH], "5");
    }

    #[test]
    fn rejects_ambiguous_responses() {
        for fields in [
            "Content-Length: 5\r\nContent-Length: 6",
            "Content-Length: 5, 6",
            "Content-Length: +5",
            "Content-Length: ",
            "Transfer-Encoding: gzip, chunked",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: identity",
            "Bad Name: x",
            "X: a\0b",
        ] {
            let text = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n");
            assert!(read(&text, &Method::GET).is_err(), "{fields}");
        }
        assert!(
            read(
                "HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\n",
                &Method::GET
            )
            .is_err()
        );
    }

    #[test]
    fn drops_hop_by_hop_headers() {
        let answer = head(
            "HTTP/1.1 200 OK\r\nConnection: close, X-Secret, content-length\r\nX-Secret: 1\r\nKeep-Alive: 5\r\nUpgrade: h2c\r\nX-Kept: 2\r\nContent-Length: 0\r\n\r\n",
        );
        assert!(!answer.keep_alive);
        assert_eq!(answer.headers.len(), 2);
        assert_eq!(answer.headers["x-kept"], "2");
    }

    #[test]
    fn drops_content_length_of_chunked_response_and_closes() {
        let answer =
            head("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert_eq!(answer.framing, ResponseFraming::Chunked);
        assert!(!answer.headers.contains_key(CONTENT_LENGTH));
        assert!(!answer.keep_alive);
    }

    #[test]
    fn connection_of_a_204_that_announces_content_closes() {
        for (fields, keep_alive) in [
            ("", true),
            ("Content-Length: 0\r\n", true),
            ("Content-Length: 5\r\n", false),
            ("Transfer-Encoding: chunked\r\n", false),
        ] {
            let answer = head(&format!("HTTP/1.1 204 No\r\n{fields}\r\n"));
            assert_eq!(answer.framing, ResponseFraming::Length(0), "{fields}");
            assert_eq!(answer.keep_alive, keep_alive, "{fields}");
            assert!(answer.headers.is_empty(), "{fields}");
        }
    }

    #[test]
    fn parses_informational_heads_one_by_one() {
        let mut buffer = BytesMut::from(
            "HTTP/1.1 103 Early\r\nLink: x\r\nContent-Length: 5\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        );
        let mut next = || parse(&mut buffer, &Method::GET, None, LIMITS).unwrap();
        let early = next().unwrap();
        assert_eq!(early.status, StatusCode::EARLY_HINTS);
        assert_eq!(early.headers.len(), 1);
        assert_eq!(early.headers["link"], "x");
        assert_eq!(next().unwrap().status, StatusCode::OK);
        assert!(next().is_none());
    }

    #[test]
    fn drops_content_length_of_204_and_keeps_that_of_304() {
        for (status, expected) in [("204 No Content", None), ("304 Not Modified", Some("5"))] {
            let answer = head(&format!("HTTP/1.1 {status}\r\nContent-Length: 5\r\n\r\n"));
            let length = answer.headers.get(CONTENT_LENGTH);
            let length = length.and_then(|it| it.to_str().ok());
            assert_eq!(length, expected, "{status}");
        }
    }

    #[test]
    fn waits_for_the_rest_of_a_partial_head() {
        assert!(
            read("HTTP/1.1 200 OK\r\nContent-Le", &Method::GET)
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn keeps_upgrade_header_of_426_only() {
        let answer = head("HTTP/1.1 426 No\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n");
        assert_eq!(answer.headers["upgrade"], "h2c");
        assert!(!answer.headers.contains_key("connection"));
        assert!(
            head("HTTP/1.1 400 No\r\nUpgrade: h2c\r\n\r\n")
                .headers
                .is_empty()
        );
    }

    #[test]
    fn rejects_heads_beyond_the_limits() {
        for limit in [3, 300] {
            let limits = HeadLimits {
                bytes: 64 * 1024,
                headers: limit,
                ..LIMITS
            };
            for (count, is_fit) in [(limit, true), (limit + 1, false)] {
                let text = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(count));
                let parsed = parse(&mut BytesMut::from(&*text), &Method::GET, None, limits);
                assert_eq!(parsed.is_ok(), is_fit, "{count} of {limit}");
            }
        }
        for bytes in [100, 200_000] {
            let limits = HeadLimits {
                bytes,
                headers: 100,
                ..LIMITS
            };
            let frame = "HTTP/1.1 200 OK\r\nX: \r\n\r\n".len();
            for (length, is_fit) in [(bytes, true), (bytes + 1, false)] {
                let text = format!(
                    "HTTP/1.1 200 OK\r\nX: {}\r\n\r\n",
                    "y".repeat(length - frame)
                );
                let parsed = parse(&mut BytesMut::from(&*text), &Method::GET, None, limits);
                assert_eq!(parsed.is_ok(), is_fit, "{length} of {bytes}");
            }
        }
    }

    #[test]
    fn accepts_101_only_for_the_requested_protocol() {
        let asked = HeaderValue::from_static("websocket");
        let mut buffer = BytesMut::from(
            "HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: WebSocket\r\n\r\nrest",
        );
        let answer = parse(&mut buffer, &Method::GET, Some(&asked), LIMITS)
            .unwrap()
            .unwrap();
        assert_eq!(answer.framing, ResponseFraming::Upgrade);
        assert_eq!(&buffer[..], b"rest");
        let mut buffer =
            BytesMut::from("HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: foo\r\n\r\n");
        assert!(parse(&mut buffer, &Method::GET, Some(&asked), LIMITS).is_err());
    }
}
