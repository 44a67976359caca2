//! The line of a request: what is copied from its head, and the format.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use http::header::USER_AGENT;
use http::{Version, request};

use super::escape::write_string;
use super::time::{TimestampText, write_digits};

/// Maximum lengths of client-controlled texts.
const METHOD_LENGTH: usize = 32;
const PATH_LENGTH: usize = 2048;
const HOST_LENGTH: usize = 255;
const REQUEST_ID_LENGTH: usize = 128;
const USER_AGENT_LENGTH: usize = 256;

/// Maximum length of a line with object names of the usual lengths. An escape takes up to six bytes
/// for one.
pub(super) const LONGEST_LINE: usize =
    6 * (METHOD_LENGTH + PATH_LENGTH + HOST_LENGTH + REQUEST_ID_LENGTH + USER_AGENT_LENGTH) + 2048;

/// Copies of the texts of a request head, which filters may change before the line is written.
#[derive(Debug, Default)]
pub struct RequestTexts {
    /// Microseconds since 1970 when the head was read.
    time: u64,
    protocol: &'static str,
    texts: Vec<u8>,
    method: Range<u16>,
    path: Range<u16>,
    /// Empty if the request was malformed.
    host: Range<u16>,
    request_id: Range<u16>,
    user_agent: Option<Range<u16>>,
}

impl RequestTexts {
    /// Replaces the texts by those of `parts`.
    pub(super) fn read(&mut self, time: u64, parts: &request::Parts) {
        self.texts.clear();
        let method = parts.method.as_str().as_bytes();
        *self = Self {
            time,
            protocol: match parts.version {
                Version::HTTP_2 => "HTTP/2",
                Version::HTTP_10 => "HTTP/1.0",
                _ => "HTTP/1.1",
            },
            texts: std::mem::take(&mut self.texts),
            ..Self::default()
        };
        // A method is ASCII.
        self.method = self.copy(&method[..method.len().min(METHOD_LENGTH)], METHOD_LENGTH);
        // Without the query, since its values can be credentials.
        self.path = self.copy(parts.uri.path().as_bytes(), PATH_LENGTH);
        let agent = parts.headers.get(USER_AGENT);
        self.user_agent = agent.map(|agent| self.copy(agent.as_bytes(), USER_AGENT_LENGTH));
    }

    /// Copies the requested host without port.
    pub fn set_host(&mut self, host: &[u8]) {
        self.host = self.copy(host, HOST_LENGTH);
    }

    /// Copies `X-Request-Id`.
    pub fn set_request_id(&mut self, id: &[u8]) {
        self.request_id = self.copy(id, REQUEST_ID_LENGTH);
    }

    /// Appends an excerpt of `text`. The limits keep offsets within 16 bits.
    fn copy(&mut self, text: &[u8], limit: usize) -> Range<u16> {
        let start = self.texts.len() as u16;
        if text.len() <= limit {
            self.texts.extend_from_slice(text);
        } else {
            self.texts.extend_from_slice(beginning(text, limit));
            self.texts.extend_from_slice("…".as_bytes());
        }
        start..self.texts.len() as u16
    }

    fn text(&self, range: &Range<u16>) -> &[u8] {
        let range = usize::from(range.start)..usize::from(range.end);
        self.texts.get(range).unwrap_or_default()
    }
}

/// Up to `limit` bytes of a longer text, up to the end of a character.
fn beginning(text: &[u8], limit: usize) -> &[u8] {
    let starts_character = |at: &usize| text[*at] & 0xc0 != 0x80;
    let end = (0..=limit).rev().take(4).find(starts_character);
    &text[..end.unwrap_or(limit)]
}

/// How a request ended.
#[derive(Debug)]
pub struct Completion<'a> {
    /// Remote address of the client connection as text.
    pub client: &'a [u8],
    /// Remote port of the client connection.
    pub client_port: u16,
    /// Status of the response; 0 if there was none.
    pub status: u16,
    /// Duration from the request head to the last byte of the response.
    pub duration: Duration,
    /// Bytes of the request body.
    pub bytes_received: u64,
    /// Bytes of the response body.
    pub bytes_sent: u64,
    /// Route and index of the matched rule.
    pub rule: Option<(&'a str, usize)>,
    /// Endpoint that responded or was tried last.
    pub upstream: Option<SocketAddr>,
    /// Release of the backend that the request was in.
    pub release: Option<&'a str>,
    /// Why Portcullis responded itself or aborted the exchange.
    pub error: Option<&'static str>,
}

impl Completion<'_> {
    /// Whether the request failed: a status of 400 or above, no response, or an aborted one.
    pub(super) fn is_error(&self) -> bool {
        self.status >= 400 || self.status == 0 || self.error.is_some()
    }
}

/// Appends the line of a request.
pub(super) fn write_line(
    line: &mut Vec<u8>,
    texts: &RequestTexts,
    end: &Completion<'_>,
    times: &mut TimestampText,
) {
    line.extend_from_slice(b"{\"time\":\"");
    times.write(line, texts.time);
    line.extend_from_slice(b"\",\"client\":\"");
    write_client(line, end);
    line.extend_from_slice(b"\",\"method\":");
    write_string(line, texts.text(&texts.method));
    line.extend_from_slice(b",\"host\":");
    write_string(line, texts.text(&texts.host));
    line.extend_from_slice(b",\"path\":");
    write_string(line, texts.text(&texts.path));
    line.extend_from_slice(b",\"protocol\":\"");
    line.extend_from_slice(texts.protocol.as_bytes());
    line.extend_from_slice(b"\",\"status\":");
    write_number(line, end.status);
    line.extend_from_slice(b",\"duration_ms\":");
    write_milliseconds(line, end.duration);
    line.extend_from_slice(b",\"bytes_received\":");
    write_number(line, end.bytes_received);
    line.extend_from_slice(b",\"bytes_sent\":");
    write_number(line, end.bytes_sent);
    if let Some((route, index)) = end.rule {
        line.extend_from_slice(b",\"route\":");
        write_string(line, route.as_bytes());
        line.extend_from_slice(b",\"rule\":");
        write_number(line, index);
    }
    if let Some(upstream) = end.upstream {
        line.extend_from_slice(b",\"upstream\":\"");
        write_address(line, upstream);
        line.push(b'"');
    }
    if let Some(release) = end.release {
        line.extend_from_slice(b",\"release\":");
        write_string(line, release.as_bytes());
    }
    if let Some(error) = end.error {
        line.extend_from_slice(b",\"error\":");
        write_string(line, error.as_bytes());
    }
    line.extend_from_slice(b",\"request_id\":");
    write_string(line, texts.text(&texts.request_id));
    if let Some(agent) = &texts.user_agent {
        line.extend_from_slice(b",\"user_agent\":");
        write_string(line, texts.text(agent));
    }
    line.extend_from_slice(b"}\n");
}

fn write_number(line: &mut Vec<u8>, number: impl itoa::Integer) {
    line.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn write_milliseconds(line: &mut Vec<u8>, duration: Duration) {
    let micros = duration.as_micros() as u64;
    write_number(line, micros / 1000);
    let mut digits = *b".000";
    write_digits(&mut digits[1..], micros % 1000);
    line.extend_from_slice(&digits);
}

fn write_client(line: &mut Vec<u8>, end: &Completion<'_>) {
    let is_ipv6 = end.client.contains(&b':');
    if is_ipv6 {
        line.push(b'[');
    }
    line.extend_from_slice(end.client);
    if is_ipv6 {
        line.push(b']');
    }
    line.push(b':');
    write_number(line, end.client_port);
}

fn write_address(line: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => {
            for (index, octet) in ip.octets().into_iter().enumerate() {
                if index > 0 {
                    line.push(b'.');
                }
                write_number(line, octet);
            }
            line.push(b':');
            write_number(line, address.port());
        }
        // Writing to a Vec does not fail.
        IpAddr::V6(_) => drop(write!(line, "{address}")),
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use proptest::prelude::*;

    use super::*;

    fn texts(path: &str) -> RequestTexts {
        let (parts, ()) = Request::get(path).body(()).unwrap().into_parts();
        let mut texts = RequestTexts::default();
        texts.read(1_500_000, &parts);
        texts.set_host(b"demo.example.com");
        texts.set_request_id(b"id");
        texts
    }

    fn completion() -> Completion<'static> {
        Completion {
            client: b"127.0.0.1",
            client_port: 4000,
            status: 200,
            duration: Duration::from_micros(1234),
            bytes_received: 0,
            bytes_sent: 13,
            rule: Some(("HTTPRoute default/demo", 1)),
            upstream: None,
            release: None,
            error: None,
        }
    }

    fn line(texts: &RequestTexts, end: &Completion<'_>) -> String {
        let mut line = Vec::new();
        write_line(&mut line, texts, end, &mut TimestampText::default());
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn line_is_json_in_documented_order() {
        assert_eq!(
            line(&texts("/a"), &completion()),
            concat!(
                r#"{"time":"1970-01-01T00:00:01.500000Z","client":"127.0.0.1:4000","method":"GET","#,
                r#""host":"demo.example.com","path":"/a","protocol":"HTTP/1.1","status":200,"duration_ms":1.234,"#,
                r#""bytes_received":0,"bytes_sent":13,"route":"HTTPRoute default/demo","rule":1,"request_id":"id"}"#,
                "\n"
            )
        );
    }

    #[test]
    fn line_names_endpoint_release_and_error() {
        let end = Completion {
            upstream: Some("10.0.0.1:8080".parse().unwrap()),
            release: Some("shop-v42"),
            error: Some("the backend failed"),
            rule: None,
            duration: Duration::from_millis(5),
            ..completion()
        };
        let expected = concat!(
            r#""duration_ms":5.000,"bytes_received":0,"bytes_sent":13,"upstream":"10.0.0.1:8080","#,
            r#""release":"shop-v42","error":"the backend failed","request_id":"id"}"#
        );
        assert!(line(&texts("/a"), &end).contains(expected));
    }

    #[test]
    fn ipv6_addresses_have_brackets() {
        let end = Completion {
            client: b"2001:db8::1",
            upstream: Some("[::1]:80".parse().unwrap()),
            ..completion()
        };
        let line = line(&texts("/a"), &end);
        assert!(line.contains(r#""client":"[2001:db8::1]:4000""#), "{line}");
        assert!(line.contains(r#""upstream":"[::1]:80""#), "{line}");
    }

    #[test]
    fn line_omits_the_query() {
        assert!(!line(&texts("/a?token=secret"), &completion()).contains("secret"));
    }

    #[test]
    fn excerpts_end_at_a_character_within_the_limit() {
        let excerpt = |text: &[u8], limit| {
            let mut texts = RequestTexts::default();
            let range = texts.copy(text, limit);
            String::from_utf8_lossy(texts.text(&range)).into_owned()
        };
        assert_eq!(excerpt(b"/path", 5), "/path");
        assert_eq!(excerpt(b"/path", 4), "/pat…");
        assert_eq!(excerpt("éé".as_bytes(), 3), "é…");
        assert_eq!(excerpt("\u{1f980}x".as_bytes(), 3), "…");
        assert_eq!(excerpt(&[0xff; 9], 2), "\u{fffd}\u{fffd}…");
        assert_eq!(excerpt(&[0x80; 9], 2), "\u{fffd}\u{fffd}…");
    }

    #[test]
    fn texts_are_reused_without_a_trace() {
        let mut texts = texts("/a/long/path/of/the/request/before");
        let request = Request::post("/b").header("user-agent", "");
        let (parts, ()) = request.body(()).unwrap().into_parts();
        texts.read(0, &parts);
        let line = line(&texts, &completion());
        let expected = r#""method":"POST","host":"","path":"/b""#;
        assert!(line.contains(expected), "{line}");
        assert!(
            line.ends_with("\"request_id\":\"\",\"user_agent\":\"\"}\n"),
            "{line}"
        );
    }

    fn bytes(length: usize) -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..length),
            any::<String>().prop_map(String::into_bytes),
            (0..length).prop_map(|length| vec![0x1b; length]),
        ]
    }

    proptest! {
        #[test]
        fn any_texts_become_one_line_of_json(
            path in bytes(3000),
            host in bytes(300),
            id in bytes(200),
            agent in bytes(300),
        ) {
            let mut texts = RequestTexts::default();
            texts.path = texts.copy(&path, PATH_LENGTH);
            texts.user_agent = Some(texts.copy(&agent, USER_AGENT_LENGTH));
            texts.set_host(&host);
            texts.set_request_id(&id);
            let line = line(&texts, &completion());
            prop_assert!(line.len() <= LONGEST_LINE, "{}", line.len());
            let text = line.strip_suffix('\n').unwrap();
            prop_assert!(!text.contains(char::is_control));
            let value: serde_json::Value = serde_json::from_str(text).unwrap();
            for (field, text, limit) in [
                ("path", path, PATH_LENGTH),
                ("host", host, HOST_LENGTH),
                ("request_id", id, REQUEST_ID_LENGTH),
                ("user_agent", agent, USER_AGENT_LENGTH),
            ] {
                let logged = value[field].as_str().unwrap();
                if text.len() <= limit {
                    prop_assert_eq!(logged, String::from_utf8_lossy(&text));
                } else {
                    prop_assert!(logged.ends_with('…'));
                }
            }
        }
    }
}
