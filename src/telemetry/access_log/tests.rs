//! The log as a whole: what reaches the writer, in which requests, and what is dropped.

use std::io::Write;
use std::sync::mpsc;
use std::time::Duration;

use http::Request;

use super::*;
use crate::ir::access_log::{FieldSource, LogFilter};
use crate::ir::telemetry::Share;
use crate::telemetry::lines::QUEUE_BYTES;

/// Sends what is written to a channel.
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

fn channel(filter: AccessLogFilter) -> (AccessLog, mpsc::Receiver<Vec<u8>>) {
    let (sender, receiver) = mpsc::channel();
    let log = AccessLog::to(Sink::new(NAME, Channel(sender)), filter);
    (log.unwrap(), receiver)
}

/// Blocks writes until the sender is dropped.
struct Stuck {
    released: mpsc::Receiver<()>,
    began: mpsc::Sender<()>,
}

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.began.send(());
        let _ = self.released.recv();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn end(status: u16, error: Option<&'static str>) -> Completion<'static> {
    Completion {
        status,
        duration: Duration::ZERO,
        bytes_received: 0,
        bytes_sent: 0,
        rule: None,
        upstream: None,
        attempts: 0,
        response_time: None,
        picker: None,
        picked: None,
        release: None,
        error,
        trace_id: None,
    }
}

fn log_path(log: &WorkerLog, path: &str, end: &Completion<'_>) -> bool {
    log_as(log, path, end, None)
}

fn log_as(log: &WorkerLog, path: &str, end: &Completion<'_>, of: Option<&GatewayLog>) -> bool {
    let (parts, ()) = Request::get(path).body(()).unwrap().into_parts();
    let line = log.open("127.0.0.1:4000", &parts, Instant::now(), 0);
    log.close(line, end, of)
}

fn lines(receiver: &mpsc::Receiver<Vec<u8>>) -> Vec<serde_json::Value> {
    let text: Vec<u8> = receiver.iter().flatten().collect();
    let text = String::from_utf8(text).unwrap();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn writes_all_lines_before_it_is_dropped() {
    let (log, receiver) = channel(AccessLogFilter::ALL);
    let workers = [log.worker().unwrap(), log.worker().unwrap()];
    for index in 0..1000 {
        for worker in &workers {
            log_path(worker, &format!("/{index}"), &end(200, None));
        }
    }
    assert_eq!(log.dropped(), 0);
    drop((log, workers));
    assert_eq!(lines(&receiver).len(), 2000);
}

#[test]
fn passes_on_the_lines_of_a_flush_in_one_write() {
    let (log, receiver) = channel(AccessLogFilter::ALL);
    let worker = log.worker().unwrap();
    assert!(log_path(&worker, "/a", &end(200, None)));
    assert!(!log_path(&worker, "/b", &end(200, None)));
    worker.flush();
    let written = receiver.recv().unwrap();
    assert_eq!(written.iter().filter(|byte| **byte == b'\n').count(), 2);
    worker.flush();
    assert!(log_path(&worker, "/c", &end(200, None)));
    drop((worker, log));
    assert_eq!(lines(&receiver).len(), 1);
}

#[test]
fn reuses_the_lines_of_ended_requests() {
    let (log, _receiver) = channel(AccessLogFilter::ALL);
    let worker = log.worker().unwrap();
    for _ in 0..3 {
        log_path(&worker, "/a", &end(200, None));
    }
    assert_eq!(worker.unused.borrow().len(), 1);
}

#[test]
fn errors_pass_every_filter() {
    for filter in [AccessLogFilter::ERRORS, "0.000001".parse().unwrap()] {
        let (log, receiver) = channel(filter);
        let worker = log.worker().unwrap();
        let errors = [
            end(400, None),
            end(503, Some("the backend has no ready endpoint")),
            end(0, Some("the client disconnected")),
            end(200, Some("aborted: the backend failed during the response")),
        ];
        for end in &errors {
            log_path(&worker, "/error", end);
        }
        drop((worker, log));
        assert_eq!(lines(&receiver).len(), errors.len());
    }
    let (log, receiver) = channel(AccessLogFilter::ERRORS);
    let worker = log.worker().unwrap();
    assert!(!log_path(&worker, "/", &end(200, None)));
    assert!(!log_path(&worker, "/", &end(399, None)));
    drop((worker, log));
    assert!(lines(&receiver).is_empty());
}

#[test]
fn samples_a_share_of_the_requests() {
    let (log, receiver) = channel("0.25".parse().unwrap());
    let worker = log.worker().unwrap();
    for _ in 0..10_000 {
        log_path(&worker, "/", &end(200, None));
    }
    drop((worker, log));
    // Ten standard deviations of a binomial with n = 10,000 and p = 1/4.
    assert!((2_067..=2_933).contains(&lines(&receiver).len()));
}

/// Settings that log these requests only.
fn filtered(min_status: Option<u16>, sample: Share) -> GatewayLog {
    GatewayLog {
        filter: Some(LogFilter {
            min_status,
            min_duration: Some(Duration::from_secs(1)),
            sample,
        }),
        ..GatewayLog::default()
    }
}

#[test]
fn filter_of_a_gateway_decides_instead_of_that_of_the_process() {
    let (log, receiver) = channel(AccessLogFilter::ERRORS);
    let worker = log.worker().unwrap();
    let of = filtered(Some(499), Share::NONE);
    let slow = Completion {
        duration: Duration::from_secs(1),
        ..end(200, None)
    };
    // A request without a response counts as 499.
    for (path, end) in [
        ("/error", &end(404, None)),
        ("/aborted", &end(200, Some("the client disconnected"))),
        ("/none", &end(0, Some("the client disconnected"))),
        ("/failed", &end(500, None)),
        ("/slow", &slow),
    ] {
        log_as(&worker, path, end, Some(&of));
    }
    log_as(
        &worker,
        "/all",
        &end(200, None),
        Some(&filtered(None, Share::ALL)),
    );
    // Settings without a filter leave the decision to the process.
    log_as(
        &worker,
        "/ok",
        &end(200, None),
        Some(&GatewayLog::default()),
    );
    drop((worker, log));
    let lines = lines(&receiver);
    let paths: Vec<_> = lines.iter().map(|line| &line["path"]).collect();
    assert_eq!(paths, ["/none", "/failed", "/slow", "/all"]);
}

#[test]
fn filter_of_a_gateway_admits_a_share_of_the_requests() {
    let of = filtered(
        None,
        Share {
            numerator: 1,
            denominator: 4,
        },
    );
    let text = |_: &u32| Line::default().into_text(&end(200, None), Some(&of));
    let count = (0..10_000).filter_map(|it| text(&it)).count();
    // Ten standard deviations of a binomial with n = 10,000 and p = 1/4.
    assert!((2_067..=2_933).contains(&count), "{count}");
}

#[test]
fn long_lines_with_further_fields_stay_whole_in_buffers_of_the_usual_size() {
    let (log, receiver) = channel(AccessLogFilter::ALL);
    let worker = log.worker().unwrap();
    let escaped: std::sync::Arc<str> = "\u{1}".repeat(300).into();
    let add = (0..16).map(|index| {
        let name = format!("{index:a>64}");
        (name.into(), FieldSource::Literal(escaped.clone()))
    });
    let of = GatewayLog {
        add: add.collect(),
        ..GatewayLog::default()
    };
    for _ in 0..10 {
        let (parts, ()) = Request::get("/").body(()).unwrap().into_parts();
        let mut line = worker.open("127.0.0.1:4000", &parts, Instant::now(), 0);
        line.add(&of, Message::Request, &parts.headers);
        worker.close(line, &end(200, None), Some(&of));
    }
    drop((worker, log));
    let written: Vec<_> = receiver.iter().collect();
    assert!(
        written
            .iter()
            .all(|it| it.len() <= BUFFER && it.ends_with(b"}\n"))
    );
    let text = String::from_utf8(written.concat()).unwrap();
    assert_eq!(text.lines().count(), 10);
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let value = line[format!("{:a>64}", 7)].as_str().unwrap();
        assert_eq!(value, format!("{}…", "\u{1}".repeat(256)));
    }
}

#[test]
fn counts_lines_that_cannot_be_written() {
    let sink = Sink::file(NAME, std::path::Path::new("/dev/full")).unwrap();
    let log = AccessLog::to(sink, AccessLogFilter::ALL).unwrap();
    let worker = log.worker().unwrap();
    for _ in 0..3 {
        log_path(&worker, "/a", &end(200, None));
    }
    worker.flush();
    log.finish();
    assert_eq!(log.dropped(), 3);
}

#[test]
fn drops_and_counts_lines_while_the_sink_is_stuck() {
    const REQUESTS: u64 = 100_000;
    let (release, released) = mpsc::channel();
    let (began, has_begun) = mpsc::channel();
    let log = AccessLog::to(
        Sink::new(NAME, Stuck { released, began }),
        AccessLogFilter::ALL,
    )
    .unwrap();
    let worker = log.worker().unwrap();
    // Dropped before the log, which waits for its sink.
    let release = release;
    log_path(&worker, "/first", &end(200, None));
    worker.flush();
    has_begun.recv().unwrap();
    for index in 0..REQUESTS {
        log_path(&worker, "/a", &end(200, None));
        if index % 3 == 0 {
            worker.flush();
        }
    }
    worker.flush();
    let kept = REQUESTS - log.dropped();
    // A line takes about 200 bytes.
    assert!(kept * 150 <= QUEUE_BYTES as u64, "{kept}");
    assert!(kept * 250 > QUEUE_BYTES as u64 / 2, "{kept}");
    drop(release);
}

#[test]
fn does_not_wait_for_a_stuck_sink_at_the_end() {
    let (release, released) = mpsc::channel();
    let (began, has_begun) = mpsc::channel();
    let sink = Sink::new(NAME, Stuck { released, began });
    let log = AccessLog::to(sink, AccessLogFilter::ALL).unwrap();
    let worker = log.worker().unwrap();
    log_path(&worker, "/a", &end(200, None));
    worker.flush();
    has_begun.recv().unwrap();
    log_path(&worker, "/b", &end(200, None));
    // Each of them would wait for the sink, which is released only afterwards.
    log.finish();
    drop((worker, log));
    drop(release);
}
