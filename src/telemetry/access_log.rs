//! The access log: one JSON line per request, written by a separate thread. Sending never blocks:
//! the queue is bounded in bytes, and records that do not fit are dropped and counted.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use http::Method;
use jiff::Timestamp;
use serde::Serialize;

use crate::ir::Rule;

/// Maximum bytes of queued records. A typical record takes about 300.
const QUEUE_BYTES: usize = 8 << 20;

/// How long the writer batches records, so that a busy process does not wake it for each one.
const GATHER: Duration = Duration::from_millis(20);

/// Size of a batch of lines in bytes.
const CHUNK: usize = 64 << 10;

/// Number of records for which the queue keeps its memory after a burst.
const RETAINED: usize = 4096;

/// Record of a completed request. Client-controlled texts are [`excerpt`]s.
#[derive(Clone, Debug)]
pub struct AccessRecord {
    /// Time when the head was read.
    pub time: SystemTime,
    /// Method.
    pub method: Method,
    /// Path without query, since query values can be credentials.
    pub path: Box<str>,
    /// Requested host without port; empty if the request was malformed.
    pub host: Box<str>,
    /// Status of the response; 0 if there was none.
    pub status: u16,
    /// Duration from the request head to the last byte of the response.
    pub duration: Duration,
    /// Bytes of the response body.
    pub bytes_sent: u64,
    /// Bytes of the request body.
    pub bytes_received: u64,
    /// Protocol of the client, such as `HTTP/2`.
    pub protocol: &'static str,
    /// Remote address of the client connection.
    pub client: SocketAddr,
    /// `X-Request-Id`.
    pub request_id: Box<str>,
    /// Matched rule.
    pub rule: Option<Arc<Rule>>,
    /// Endpoint that responded or was tried last.
    pub upstream: Option<SocketAddr>,
    /// Release of the backend that the request was in.
    pub release: Option<Arc<str>>,
    /// Why Portcullis responded itself or aborted the exchange.
    pub error: Option<&'static str>,
    /// `User-Agent`.
    pub user_agent: Option<Box<str>>,
}

impl AccessRecord {
    /// Memory size in bytes.
    fn size(&self) -> usize {
        let texts = [&self.path, &self.host, &self.request_id];
        let texts = texts.into_iter().chain(&self.user_agent);
        size_of::<Self>() + texts.map(|text| text.len()).sum::<usize>()
    }
}

/// Truncates text to `limit` bytes for a record. Appends `…` if it was truncated.
pub fn excerpt(text: &[u8], limit: usize) -> Box<str> {
    if text.len() <= limit {
        return String::from_utf8_lossy(text).into();
    }
    let starts_character = |at: &usize| text[*at] & 0xc0 != 0x80;
    let end = (0..=limit).rev().take(4).find(starts_character);
    let mut excerpt = String::from_utf8_lossy(&text[..end.unwrap_or(limit)]).into_owned();
    excerpt.push('…');
    excerpt.into()
}

/// Handle to the access log. Clones share one writer. Dropping the last clone waits until sent
/// records are written.
#[derive(Clone, Debug)]
pub struct AccessLog(Option<Arc<Writer>>);

#[derive(Debug)]
struct Writer {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    filled: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    records: Vec<AccessRecord>,
    /// Bytes of queued records and of those that the writer has taken but not written.
    bytes: usize,
    closed: bool,
}

impl AccessLog {
    /// Starts writing to standard output.
    pub fn start() -> io::Result<Self> {
        Self::to(io::stdout())
    }

    /// Starts writing to `sink`.
    pub fn to(sink: impl Write + Send + 'static) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let thread = std::thread::Builder::new()
            .name("access-log".into())
            .spawn({
                let queue = queue.clone();
                move || queue.write_to(sink)
            })?;
        Ok(Self(Some(Arc::new(Writer {
            queue,
            thread: Some(thread),
        }))))
    }

    /// Creates a disabled access log.
    pub fn disabled() -> Self {
        Self(None)
    }

    /// Whether records are written. Callers skip building records otherwise.
    pub fn enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Queues a record. Never blocks: drops the record if the queue is full.
    pub fn send(&self, record: AccessRecord) {
        if let Some(writer) = &self.0 {
            writer.queue.push(record);
        }
    }

    /// Number of dropped records.
    pub fn dropped(&self) -> u64 {
        match &self.0 {
            Some(writer) => writer.queue.dropped.load(Ordering::Relaxed),
            None => 0,
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queue.lock().closed = true;
        self.queue.filled.notify_one();
        if let Some(thread) = self.thread.take() {
            // The result is ignored: an error means that the sink has panicked.
            let _ = thread.join();
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, record: AccessRecord) {
        let size = record.size();
        let mut waiting = self.lock();
        if waiting.bytes + size > QUEUE_BYTES {
            drop(waiting);
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let was_empty = waiting.records.is_empty();
        waiting.bytes += size;
        waiting.records.push(record);
        drop(waiting);
        if was_empty {
            self.filled.notify_one();
        }
    }

    fn write_to(&self, mut sink: impl Write) {
        let mut records = Vec::new();
        let mut lines = Vec::with_capacity(CHUNK);
        while self.take(&mut records) {
            let mut written = 0;
            for record in records.drain(..) {
                written += record.size();
                write_line(&record, &mut lines);
                if lines.len() >= CHUNK {
                    self.write(&mut sink, &mut lines, std::mem::take(&mut written));
                }
            }
            self.write(&mut sink, &mut lines, written);
            records.shrink_to(RETAINED);
        }
    }

    /// Writes `lines` to the sink, clears them, and releases `bytes` of the queue's budget.
    fn write(&self, sink: &mut impl Write, lines: &mut Vec<u8>, bytes: usize) {
        // After a failed write the next lines are tried all the same.
        let _ = sink.write_all(lines).and_then(|()| sink.flush());
        lines.clear();
        self.lock().bytes -= bytes;
    }

    /// Swaps the queued records into `records` once there are some. Returns false when the log is
    /// closed.
    fn take(&self, records: &mut Vec<AccessRecord>) -> bool {
        let mut waiting = self.lock();
        while waiting.records.is_empty() && !waiting.closed {
            waiting = self
                .filled
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if !waiting.closed {
            waiting = self
                .filled
                .wait_timeout_while(waiting, GATHER, |waiting| !waiting.closed)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        std::mem::swap(&mut waiting.records, records);
        !records.is_empty()
    }
}

/// A record in the order of the fields in the log.
#[derive(Serialize)]
struct Line<'a> {
    time: Timestamp,
    client: SocketAddr,
    method: &'a str,
    host: &'a str,
    path: &'a str,
    protocol: &'a str,
    status: u16,
    duration_ms: f64,
    bytes_received: u64,
    bytes_sent: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    route: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    release: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_agent: Option<&'a str>,
}

fn write_line(record: &AccessRecord, lines: &mut Vec<u8>) {
    let rule = record.rule.as_deref();
    let line = Line {
        time: Timestamp::try_from(record.time).unwrap_or(Timestamp::UNIX_EPOCH),
        client: record.client,
        method: record.method.as_str(),
        host: &record.host,
        path: record.path.split('?').next().unwrap_or_default(),
        protocol: record.protocol,
        status: record.status,
        duration_ms: record.duration.as_micros() as f64 / 1000.0,
        bytes_received: record.bytes_received,
        bytes_sent: record.bytes_sent,
        route: rule.map(|rule| rule.id.route.to_string()),
        rule: rule.map(|rule| rule.id.index),
        upstream: record.upstream,
        release: record.release.as_deref(),
        error: record.error,
        request_id: &record.request_id,
        user_agent: record.user_agent.as_deref(),
    };
    let start = lines.len();
    if serde_json::to_writer(&mut *lines, &line).is_err() {
        lines.truncate(start);
        return;
    }
    escape_unprintable(lines, start);
    lines.push(b'\n');
}

/// Escapes characters that JSON allows but a terminal interprets: control characters (JSON escapes
/// only those below U+0020), line separators, and characters that hide or reorder text.
fn escape_unprintable(lines: &mut Vec<u8>, start: usize) {
    if lines[start..]
        .iter()
        .all(|byte| (0x20..0x7f).contains(byte))
    {
        return;
    }
    let line = String::from_utf8_lossy(&lines[start..]).into_owned();
    lines.truncate(start);
    for character in line.chars() {
        if character.is_control() || is_invisible(character) {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                lines.extend_from_slice(format!("\\u{unit:04x}").as_bytes());
            }
        } else {
            lines.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
}

/// Line separators, bidirectional controls, zero-width and other format characters, and tags.
fn is_invisible(character: char) -> bool {
    matches!(character,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::ir::route::{Action, Timeouts};
    use crate::ir::{ObjectRef, RuleId};

    fn record(path: &str) -> AccessRecord {
        AccessRecord {
            time: SystemTime::UNIX_EPOCH + Duration::from_millis(1500),
            method: Method::GET,
            path: path.into(),
            host: "demo.example.com".into(),
            status: 200,
            duration: Duration::from_micros(1234),
            bytes_sent: 13,
            bytes_received: 0,
            protocol: "HTTP/1.1",
            client: "127.0.0.1:4000".parse().unwrap(),
            request_id: "id".into(),
            rule: Some(Arc::new(Rule {
                id: RuleId {
                    route: ObjectRef::gateway_api("HTTPRoute", "default", "demo"),
                    index: 1,
                    name: None,
                },
                matches: Vec::new(),
                filters: Vec::new(),
                action: Action::Forward(Vec::new()),
                timeouts: Timeouts::default(),
                retry: None,
                session: None,
            })),
            upstream: None,
            release: None,
            error: None,
            user_agent: None,
        }
    }

    fn line(record: &AccessRecord) -> String {
        let mut lines = Vec::new();
        write_line(record, &mut lines);
        String::from_utf8(lines).unwrap()
    }

    struct Channel(mpsc::Sender<Vec<u8>>);

    impl Write for Channel {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).unwrap();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn line_is_json_in_documented_order() {
        assert_eq!(
            line(&record("/a")),
            concat!(
                r#"{"time":"1970-01-01T00:00:01.5Z","client":"127.0.0.1:4000","method":"GET","#,
                r#""host":"demo.example.com","path":"/a","protocol":"HTTP/1.1","status":200,"duration_ms":1.234,"#,
                r#""bytes_received":0,"bytes_sent":13,"route":"HTTPRoute default/demo","rule":1,"request_id":"id"}"#,
                "\n"
            )
        );
    }

    #[test]
    fn line_names_the_release_behind_the_endpoint() {
        let mut record = record("/a");
        record.upstream = Some("10.0.0.1:8080".parse().unwrap());
        record.release = Some("shop-v42".into());
        let expected = r#""upstream":"10.0.0.1:8080","release":"shop-v42","request_id""#;
        assert!(line(&record).contains(expected));
    }

    #[test]
    fn line_escapes_what_a_terminal_interprets() {
        let hostile = "/\u{1b}[31m\n\r\"\u{9b}\u{202e}\u{2028}\u{200b}\u{7f}\u{e0041}é";
        let line = line(&record(hostile));
        assert_eq!(line.matches('\n').count(), 1);
        assert!(
            line.trim_end()
                .chars()
                .all(|c| !c.is_control() && !is_invisible(c))
        );
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["path"], hostile);
    }

    #[test]
    fn line_omits_the_query() {
        assert!(!line(&record("/a?token=secret")).contains("secret"));
    }

    #[test]
    fn excerpt_ends_at_a_character_within_the_limit() {
        assert_eq!(&*excerpt(b"/path", 5), "/path");
        assert_eq!(&*excerpt(b"/path", 4), "/pat…");
        assert_eq!(&*excerpt("éé".as_bytes(), 3), "é…");
        assert_eq!(&*excerpt("\u{1f980}x".as_bytes(), 3), "…");
        assert_eq!(&*excerpt(&[0xff; 9], 2), "\u{fffd}\u{fffd}…");
        assert_eq!(&*excerpt(&[0x80; 9], 2), "\u{fffd}\u{fffd}…");
    }

    #[test]
    fn writes_all_records_before_it_is_dropped() {
        let (sender, receiver) = mpsc::channel();
        let log = AccessLog::to(Channel(sender)).unwrap();
        for _ in 0..1000 {
            log.send(record("/a"));
        }
        assert_eq!(log.dropped(), 0);
        drop(log);
        let bytes: Vec<u8> = receiver.iter().flatten().collect();
        assert_eq!(bytes.iter().filter(|byte| **byte == b'\n').count(), 1000);
    }

    struct Stuck(mpsc::Receiver<()>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn stuck() -> (AccessLog, mpsc::Sender<()>) {
        let (release, stuck) = mpsc::channel();
        (AccessLog::to(Stuck(stuck)).unwrap(), release)
    }

    #[test]
    fn drops_and_counts_records_while_the_sink_is_stuck() {
        let (log, release) = stuck();
        let fitting = QUEUE_BYTES / record("/a").size();
        for _ in 0..fitting + 1000 {
            log.send(record("/a"));
        }
        assert_eq!(log.dropped(), 1000);
        drop(release);
    }

    #[test]
    fn bounds_the_memory_of_large_records_while_the_sink_is_stuck() {
        let (log, release) = stuck();
        for _ in 0..1000 {
            log.send(record(&"x".repeat(60_000)));
        }
        assert!(log.dropped() > 800, "{}", log.dropped());
        drop(release);
    }
}
