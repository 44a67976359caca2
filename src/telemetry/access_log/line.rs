//! The line of a request: its members, their order and their format.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use http::header::USER_AGENT;
use http::{Version, request};
use serde::{Deserialize, Serialize};

use crate::ir::object_ref::ObjectName;
use crate::ir::{GatewayLog, ObjectRef, hex};

use super::escape::{write_plain, write_string};
use super::omitted;
use super::time::{TimestampText, WallClock, write_digits};
use crate::telemetry::address::write_address;

/// Maximum lengths of client-controlled texts.
const METHOD_LENGTH: usize = 32;
const PATH_LENGTH: usize = 2048;
pub(super) const HOST_LENGTH: usize = 255;
const REQUEST_ID_LENGTH: usize = 128;
const USER_AGENT_LENGTH: usize = 256;
const ADDED_LENGTH: usize = 256;

/// Maximum length of a line with object names of the usual lengths and without further fields. An escape takes up to six
/// bytes for one.
pub(super) const LONGEST_LINE: usize =
    6 * (METHOD_LENGTH + PATH_LENGTH + HOST_LENGTH + REQUEST_ID_LENGTH + USER_AGENT_LENGTH) + 2048;

/// Length up to which lines are kept for reuse. Few lines are longer.
const USUAL_LINE: usize = 768;

/// The line of a request, which grows as the request goes on: what filters may change is written before they run.
#[derive(Debug, Default)]
pub struct Line {
    pub(super) text: Vec<u8>,
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
        self.clear();
        let line = &mut self.text;
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
            Version::HTTP_3 => b",\"protocol\":\"HTTP/3\"",
            Version::HTTP_2 => b",\"protocol\":\"HTTP/2\"",
            Version::HTTP_10 => b",\"protocol\":\"HTTP/1.0\"",
            _ => b",\"protocol\":\"HTTP/1.1\"",
        });
        if let Some(agent) = parts.headers.get(USER_AGENT) {
            line.extend_from_slice(b",\"user_agent\":");
            write_excerpt(line, agent.as_bytes(), USER_AGENT_LENGTH);
        }
    }

    /// Empties it, with room for a usual line.
    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.text.reserve(USUAL_LINE);
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

    /// Writes a further field, of a name that JSON takes as it is.
    pub(super) fn field(&mut self, name: &str, value: &[u8]) {
        self.text.extend_from_slice(b",\"");
        self.text.extend_from_slice(name.as_bytes());
        self.text.extend_from_slice(b"\":");
        write_excerpt(&mut self.text, value, ADDED_LENGTH);
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

    /// Completes the line, without the fields that `log` leaves out, and returns it.
    pub(super) fn end(&mut self, end: &Completion<'_>, log: Option<&GatewayLog>) -> &[u8] {
        if self.lacks_host {
            self.host("");
        }
        if self.lacks_request_id {
            self.request_id(b"");
        }
        write_completion(&mut self.text, end);
        if let Some(log) = log.filter(|log| !log.omit.is_empty()) {
            omitted::remove(&mut self.text, &log.omit);
        }
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
pub(super) fn write_excerpt(line: &mut Vec<u8>, text: &[u8], limit: usize) {
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
    /// Bytes of the request body, and those that the client has sent through a tunnel.
    pub bytes_received: u64,
    /// Bytes of the response body, or those that the client was sent through a tunnel.
    pub bytes_sent: u64,
    /// Route, with a kind and names that the API server would accept, and index of the matched rule.
    pub rule: Option<(&'a ObjectRef, usize)>,
    /// Endpoint that responded or was tried last.
    pub upstream: Option<SocketAddr>,
    /// How often an endpoint was selected.
    pub attempts: u8,
    /// Duration from the begin of the last attempt to the head of its response.
    pub response_time: Option<Duration>,
    /// What an endpoint picker has made of the request, if one was asked.
    pub picker: Option<&'static str>,
    /// The first endpoint that it has chosen.
    pub picked: Option<SocketAddr>,
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

/// Appends a rule of a route, a namespaced object, which is written as [`ObjectRef`] prints it.
// Lines of requests and of connections share this and the next two. Those of requests are the frequent ones.
#[inline]
pub(super) fn write_rule(line: &mut Vec<u8>, route: &ObjectRef, index: usize) {
    let ObjectName {
        kind,
        namespace,
        name,
        ..
    } = &**route;
    line.extend_from_slice(b",\"route\":\"");
    for part in [kind, " ", namespace, "/", name, "\""] {
        line.extend_from_slice(part.as_bytes());
    }
    line.extend_from_slice(b",\"rule\":");
    write_number(line, index);
}

/// Appends a duration, and the bytes that were received and sent in it.
#[inline]
pub(super) fn write_sizes(line: &mut Vec<u8>, duration: Duration, (received, sent): (u64, u64)) {
    line.extend_from_slice(b",\"duration_ms\":");
    write_milliseconds(line, duration);
    line.extend_from_slice(b",\"bytes_received\":");
    write_number(line, received);
    line.extend_from_slice(b",\"bytes_sent\":");
    write_number(line, sent);
}

/// Appends the address of an endpoint.
#[inline]
pub(super) fn write_upstream(line: &mut Vec<u8>, upstream: SocketAddr) {
    line.extend_from_slice(b",\"upstream\":\"");
    write_address(line, upstream);
    line.push(b'"');
}

/// Appends the members that are known at the end of a request, and the end of the line.
fn write_completion(line: &mut Vec<u8>, end: &Completion<'_>) {
    line.extend_from_slice(b",\"status\":");
    write_number(line, end.status);
    write_sizes(line, end.duration, (end.bytes_received, end.bytes_sent));
    if let Some((route, index)) = end.rule {
        write_rule(line, route, index);
    }
    if let Some(upstream) = end.upstream {
        write_upstream(line, upstream);
    }
    if let Some(time) = end.response_time {
        line.extend_from_slice(b",\"upstream_ms\":");
        write_milliseconds(line, time);
    }
    if end.attempts > 1 {
        line.extend_from_slice(b",\"attempts\":");
        write_number(line, end.attempts);
    }
    if let Some(picker) = end.picker {
        line.extend_from_slice(b",\"picker\":");
        write_plain(line, picker.as_bytes());
    }
    if let Some(picked) = end.picked {
        line.extend_from_slice(b",\"picked\":\"");
        write_address(line, picked);
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
    if let Some(id) = end.trace_id {
        line.extend_from_slice(b",\"trace_id\":\"");
        id.iter()
            .for_each(|byte| line.extend_from_slice(&hex::DIGITS[usize::from(*byte)]));
        line.push(b'"');
    }
    line.extend_from_slice(b"}\n");
}

pub(super) fn write_number(line: &mut Vec<u8>, number: impl itoa::Integer) {
    line.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn write_milliseconds(line: &mut Vec<u8>, duration: Duration) {
    let micros = duration.as_micros() as u64;
    write_number(line, micros / 1000);
    let mut digits = *b".000";
    write_digits(&mut digits[1..], micros % 1000);
    line.extend_from_slice(&digits);
}

#[cfg(test)]
mod tests;
