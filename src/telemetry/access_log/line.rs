//! The line of a request: its members, their order and their format.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use http::header::USER_AGENT;
use http::{Version, request};
use serde::{Deserialize, Serialize};

use crate::ir::hex;

use super::escape::{write_plain, write_string};
use super::time::{TimestampText, WallClock, write_digits};

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

/// Length up to which lines are kept for reuse. Few lines are longer.
const USUAL_LINE: usize = 768;

/// The line of a request, which grows as the request goes on: what filters may change is written before they run.
#[derive(Debug, Default)]
pub struct Line {
    text: Vec<u8>,
    /// Which of the members that every line has are not written yet.
    lacks_host: bool,
    lacks_request_id: bool,
}

impl Line {
    /// Begins the line of a request of `client`, an address, with its head, which was read at `time`, in microseconds since
    /// 1970.
    pub(super) fn begin(
        &mut self,
        time: u64,
        times: &mut TimestampText,
        client: &str,
        parts: &request::Parts,
    ) {
        let line = &mut self.text;
        line.clear();
        line.reserve(USUAL_LINE);
        (self.lacks_host, self.lacks_request_id) = (true, true);
        line.extend_from_slice(b"{\"time\":\"");
        times.write(line, time);
        line.extend_from_slice(b"\",\"client\":");
        write_plain(line, client.as_bytes());
        line.extend_from_slice(b",\"method\":");
        // A method is a token (RFC 9110, 9.1), so that any cut is between characters.
        let method = parts.method.as_str().as_bytes();
        write_plain(line, &method[..method.len().min(METHOD_LENGTH)]);
        // Without the query, since its values can be credentials.
        line.extend_from_slice(b",\"path\":");
        write_excerpt(line, parts.uri.path().as_bytes(), PATH_LENGTH);
        line.extend_from_slice(match parts.version {
            Version::HTTP_2 => b",\"protocol\":\"HTTP/2\"",
            Version::HTTP_10 => b",\"protocol\":\"HTTP/1.0\"",
            _ => b",\"protocol\":\"HTTP/1.1\"",
        });
        if let Some(agent) = parts.headers.get(USER_AGENT) {
            line.extend_from_slice(b",\"user_agent\":");
            write_excerpt(line, agent.as_bytes(), USER_AGENT_LENGTH);
        }
    }

    /// Writes the requested host without port, which has the characters and the length of a host. Call at most once.
    pub fn host(&mut self, host: &str) {
        self.lacks_host = false;
        self.text.extend_from_slice(b",\"host\":");
        write_plain(&mut self.text, host.as_bytes());
    }

    /// Writes the address of the client that a proxy tells. Call at most once.
    pub fn client_ip(&mut self, address: IpAddr) {
        self.text.extend_from_slice(b",\"client_ip\":\"");
        // Writing to memory does not fail.
        let _ = write!(self.text, "{address}\"");
    }

    /// Writes `X-Request-Id`. Call at most once.
    pub fn request_id(&mut self, id: &[u8]) {
        self.lacks_request_id = false;
        self.text.extend_from_slice(b",\"request_id\":");
        write_excerpt(&mut self.text, id, REQUEST_ID_LENGTH);
    }

    /// Begins the line of a request of a worker without an access log, of a head that was read at `start`.
    #[cold]
    pub fn without_log(client: &str, parts: &request::Parts, start: Instant) -> Box<Self> {
        let mut line = Box::<Self>::default();
        let time = WallClock::new().at(start, 0);
        line.begin(time, &mut TimestampText::default(), client, parts);
        line
    }

    /// Reads what a line that is not complete begins with.
    pub(in crate::telemetry) fn begun(&self) -> Option<Begun> {
        let text = [&*self.text, b"}"].concat();
        serde_json::from_slice(&text).ok()
    }

    /// Reports whether it has the memory of a usual line, and no more.
    pub(super) fn is_usual(&self) -> bool {
        self.text.capacity() <= USUAL_LINE
    }

    /// Completes the line and returns its text.
    pub fn into_text(mut self, end: &Completion<'_>) -> Box<[u8]> {
        self.end(end).into()
    }

    /// Completes the line and returns it.
    pub(super) fn end(&mut self, end: &Completion<'_>) -> &[u8] {
        if self.lacks_host {
            self.host("");
        }
        if self.lacks_request_id {
            self.request_id(b"");
        }
        write_completion(&mut self.text, end);
        &self.text
    }
}

/// What is known of a request at its begin, without what may be a credential.
#[derive(Debug, Deserialize, Serialize)]
pub(in crate::telemetry) struct Begun {
    time: String,
    pub(in crate::telemetry) method: String,
    /// Requested host; empty if the head was refused.
    #[serde(default)]
    pub(in crate::telemetry) host: String,
    /// Without the query.
    pub(in crate::telemetry) path: String,
}

/// Writes a text of the client, or its beginning.
fn write_excerpt(line: &mut Vec<u8>, text: &[u8], limit: usize) {
    if text.len() <= limit {
        write_string(line, text);
    } else {
        let excerpt = [beginning(text, limit), "…".as_bytes()].concat();
        write_string(line, &excerpt);
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
    /// Status of the response; 0 if there was none.
    pub status: u16,
    /// Duration from the request head to the last byte of the response.
    pub duration: Duration,
    /// Bytes of the request body.
    pub bytes_received: u64,
    /// Bytes of the response body.
    pub bytes_sent: u64,
    /// Route, by kind and names that the API server would accept, and index of the matched rule.
    pub rule: Option<(&'a str, usize)>,
    /// Endpoint that responded or was tried last.
    pub upstream: Option<SocketAddr>,
    /// How often an endpoint was selected.
    pub attempts: u8,
    /// Duration from the begin of the last attempt to the head of its response.
    pub response_time: Option<Duration>,
    /// Release of the backend that the request was in.
    pub release: Option<&'a str>,
    /// Why Portcullis responded itself or aborted the exchange.
    pub error: Option<&'static str>,
    /// The trace, if the request is sampled.
    pub trace_id: Option<[u8; 16]>,
}

impl Completion<'_> {
    /// Whether the request failed: a status of 400 or above, no response, or an aborted one.
    pub(super) fn is_error(&self) -> bool {
        self.status >= 400 || self.status == 0 || self.error.is_some()
    }
}

/// Appends the members that are known at the end of a request, and the end of the line.
fn write_completion(line: &mut Vec<u8>, end: &Completion<'_>) {
    line.extend_from_slice(b",\"status\":");
    write_number(line, end.status);
    line.extend_from_slice(b",\"duration_ms\":");
    write_milliseconds(line, end.duration);
    line.extend_from_slice(b",\"bytes_received\":");
    write_number(line, end.bytes_received);
    line.extend_from_slice(b",\"bytes_sent\":");
    write_number(line, end.bytes_sent);
    if let Some((route, index)) = end.rule {
        line.extend_from_slice(b",\"route\":");
        write_plain(line, route.as_bytes());
        line.extend_from_slice(b",\"rule\":");
        write_number(line, index);
    }
    if let Some(upstream) = end.upstream {
        line.extend_from_slice(b",\"upstream\":\"");
        write_address(line, upstream);
        line.push(b'"');
    }
    if let Some(time) = end.response_time {
        line.extend_from_slice(b",\"upstream_ms\":");
        write_milliseconds(line, time);
    }
    if end.attempts > 1 {
        line.extend_from_slice(b",\"attempts\":");
        write_number(line, end.attempts);
    }
    if let Some(release) = end.release {
        line.extend_from_slice(b",\"release\":");
        write_string(line, release.as_bytes());
    }
    if let Some(error) = end.error {
        line.extend_from_slice(b",\"error\":");
        write_string(line, error.as_bytes());
    }
    if let Some(id) = end.trace_id {
        line.extend_from_slice(b",\"trace_id\":\"");
        id.iter()
            .for_each(|byte| line.extend_from_slice(&hex::DIGITS[usize::from(*byte)]));
        line.push(b'"');
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

fn write_address(line: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => {
            let (mut text, mut end) = ([b'.'; 21], 0);
            for octet in ip.octets() {
                let (digits, length) = OCTETS[usize::from(octet)];
                text[end..end + 3].copy_from_slice(&digits);
                end += length;
                text[end] = b'.';
                end += 1;
            }
            text[end - 1] = b':';
            let mut port = itoa::Buffer::new();
            let port = port.format(address.port()).as_bytes();
            text[end..end + port.len()].copy_from_slice(port);
            line.extend_from_slice(&text[..end + port.len()]);
        }
        // Writing to a Vec does not fail.
        IpAddr::V6(_) => drop(write!(line, "{address}")),
    }
}

/// The decimal digits of each octet, and their number.
const OCTETS: [([u8; 3], usize); 256] = {
    let mut octets = [([b'0'; 3], 1); 256];
    let mut octet = 0;
    while octet < octets.len() {
        let digits = [octet / 100, octet / 10 % 10, octet % 10];
        let length = 1 + (octet > 9) as usize + (octet > 99) as usize;
        let mut at = 0;
        while at < length {
            octets[octet].0[at] += digits[3 - length + at] as u8;
            at += 1;
        }
        octets[octet].1 = length;
        octet += 1;
    }
    octets
};

#[cfg(test)]
mod tests {
    use http::Request;
    use proptest::prelude::*;

    use super::*;

    const CLIENT: &str = "127.0.0.1:4000";

    fn begun(path: &str) -> Line {
        let (parts, ()) = Request::get(path).body(()).unwrap().into_parts();
        let mut line = Line::default();
        line.begin(1_500_000, &mut TimestampText::default(), CLIENT, &parts);
        line
    }

    fn completion() -> Completion<'static> {
        Completion {
            status: 200,
            duration: Duration::from_micros(1234),
            bytes_received: 0,
            bytes_sent: 13,
            rule: Some(("HTTPRoute default/demo", 1)),
            upstream: None,
            attempts: 0,
            response_time: None,
            release: None,
            error: None,
            trace_id: None,
        }
    }

    fn line(path: &str, end: &Completion<'_>) -> String {
        let mut line = begun(path);
        line.host("demo.example.com");
        line.request_id(b"id");
        text(line, end)
    }

    fn text(mut line: Line, end: &Completion<'_>) -> String {
        String::from_utf8(line.end(end).to_vec()).unwrap()
    }

    #[test]
    fn line_is_json_in_documented_order() {
        assert_eq!(
            line("/a", &completion()),
            concat!(
                r#"{"time":"1970-01-01T00:00:01.500000Z","client":"127.0.0.1:4000","method":"GET","path":"/a","#,
                r#""protocol":"HTTP/1.1","host":"demo.example.com","request_id":"id","status":200,"duration_ms":1.234,"#,
                r#""bytes_received":0,"bytes_sent":13,"route":"HTTPRoute default/demo","rule":1}"#,
                "\n"
            )
        );
    }

    #[test]
    fn line_names_endpoint_release_and_error() {
        let end = Completion {
            upstream: Some("10.0.0.1:8080".parse().unwrap()),
            attempts: 2,
            response_time: Some(Duration::from_micros(4321)),
            release: Some("shop-v42"),
            error: Some("the backend failed"),
            rule: None,
            duration: Duration::from_millis(5),
            ..completion()
        };
        let expected = concat!(
            r#""duration_ms":5.000,"bytes_received":0,"bytes_sent":13,"upstream":"10.0.0.1:8080","#,
            r#""upstream_ms":4.321,"attempts":2,"#,
            r#""release":"shop-v42","error":"the backend failed"}"#
        );
        assert!(line("/a", &end).contains(expected));
    }

    #[test]
    fn a_refused_head_has_no_host_and_no_request_id() {
        let line = text(begun("/a"), &completion());
        assert!(
            line.contains(r#""host":"","request_id":"","status":200"#),
            "{line}"
        );
    }

    #[test]
    fn addresses_are_those_of_uris() {
        for text in [
            "1.20.255.0:65535",
            "255.255.255.255:1",
            "0.9.10.99:443",
            "100.199.200.254:80",
            "[2001:db8::1]:4000",
            "[::1]:80",
        ] {
            let mut line = Vec::new();
            write_address(&mut line, text.parse().unwrap());
            assert_eq!(String::from_utf8(line).unwrap(), text);
        }
    }

    #[test]
    fn line_omits_the_query() {
        assert!(!line("/a?token=secret", &completion()).contains("secret"));
    }

    #[test]
    fn excerpts_end_at_a_character_within_the_limit() {
        let excerpt = |text: &[u8], limit| {
            let mut line = Vec::new();
            write_excerpt(&mut line, text, limit);
            String::from_utf8(line).unwrap()
        };
        assert_eq!(excerpt(b"/path", 5), r#""/path""#);
        assert_eq!(excerpt(b"/path", 4), r#""/pat…""#);
        assert_eq!(excerpt("éé".as_bytes(), 3), r#""é…""#);
        assert_eq!(excerpt("\u{1f980}x".as_bytes(), 3), r#""…""#);
        assert_eq!(excerpt(&[0xff; 9], 2), "\"\u{fffd}\u{fffd}…\"");
        assert_eq!(excerpt(&[0x80; 9], 2), "\"\u{fffd}\u{fffd}…\"");
    }

    #[test]
    fn lines_are_reused_without_a_trace() {
        let mut line = begun("/a/long/path/of/an/earlier/request");
        line.host("demo.example.com");
        let request = Request::post("/b").header("user-agent", "");
        let (parts, ()) = request.body(()).unwrap().into_parts();
        line.begin(0, &mut TimestampText::default(), CLIENT, &parts);
        let line = text(line, &completion());
        let expected =
            r#""method":"POST","path":"/b","protocol":"HTTP/1.1","user_agent":"","host":"","#;
        assert!(line.contains(expected), "{line}");
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
            host in "[a-z0-9._~-]{0,255}",
            id in bytes(200),
            agent in bytes(300),
        ) {
            let mut line = Line::default();
            line.text.extend_from_slice(b"{\"path\":");
            write_excerpt(&mut line.text, &path, PATH_LENGTH);
            line.text.extend_from_slice(b",\"user_agent\":");
            write_excerpt(&mut line.text, &agent, USER_AGENT_LENGTH);
            line.host(&host);
            line.request_id(&id);
            let line = text(line, &completion());
            prop_assert!(line.len() <= LONGEST_LINE, "{}", line.len());
            let json = line.strip_suffix('\n').unwrap();
            prop_assert!(!json.contains(char::is_control));
            let value: serde_json::Value = serde_json::from_str(json).unwrap();
            prop_assert_eq!(value["host"].as_str(), Some(&*host));
            for (field, text, limit) in [
                ("path", path, PATH_LENGTH),
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
