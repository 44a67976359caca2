//! The lines of a pod: splits what it sends, and bounds how often its reports count. Must not know what a report causes.

use std::future::pending;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use memchr::memchr;
use tokio::time::{Instant, sleep, sleep_until};

use crate::wire::{Report, Serves};

/// Maximum size of a report in bytes.
const MAX_REPORT: usize = 64 << 10;
/// Minimum interval between two reports of a pod that count, each of which wakes the control loop. Of those in between, only
/// the last one counts.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);
/// Delay after a pod has asked for a key set. A pod that asks without pause waits for itself alone.
const REFRESH_PAUSE: Duration = Duration::from_millis(10);

/// A line is longer than a report may be.
#[derive(Debug)]
pub(super) struct TooLong;

/// Passes the reports of a body to `record` until a line is too long. A pod may stop reporting and continue to read.
pub(super) async fn receive<B>(mut body: B, mut record: impl FnMut(Report)) -> TooLong
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut lines = Lines::default();
    let mut latest = Latest {
        serves: None,
        next: Instant::now(),
    };
    let mut has_ended = false;
    loop {
        tokio::select! {
            frame = body.frame(), if !has_ended => {
                let Some(Ok(frame)) = frame else {
                    has_ended = true;
                    continue;
                };
                let Ok(data) = frame.into_data() else {
                    continue;
                };
                lines.push(&data);
            }
            () = sleep_until(latest.next), if latest.serves.is_some() => {}
            else => return pending().await,
        }
        latest.take_due().into_iter().for_each(&mut record);
        loop {
            let line = match lines.next_line() {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(too_long) => return too_long,
            };
            match serde_json::from_slice(&line) {
                Ok(Report::Serves(serves)) => {
                    latest.serves = Some(serves);
                    latest.take_due().into_iter().for_each(&mut record);
                }
                Ok(refresh @ Report::RefreshKeySet(_)) => {
                    record(refresh);
                    sleep(REFRESH_PAUSE).await;
                }
                // Skips lines of kinds that this version does not know.
                Err(_) => {}
            }
        }
    }
}

/// The last report of what a pod serves, until it counts.
struct Latest {
    serves: Option<Serves>,
    /// When the next report may count.
    next: Instant,
}

impl Latest {
    fn take_due(&mut self) -> Option<Report> {
        let now = Instant::now();
        if now < self.next {
            return None;
        }
        let serves = self.serves.take()?;
        self.next = now + REPORT_INTERVAL;
        Some(Report::Serves(serves))
    }
}

/// Splits bytes into lines.
#[derive(Default)]
struct Lines {
    buffer: BytesMut,
    /// Bytes at the beginning of the buffer that have no end of a line. They are not searched again.
    searched: usize,
}

impl Lines {
    fn push(&mut self, data: &[u8]) {
        self.buffer.extend_from_slice(data);
    }

    /// Returns the next line that is complete.
    fn next_line(&mut self) -> Result<Option<BytesMut>, TooLong> {
        let end = memchr(b'\n', &self.buffer[self.searched..]);
        let end = end.map(|end| self.searched + end);
        self.searched = end.unwrap_or(self.buffer.len());
        if self.searched > MAX_REPORT {
            return Err(TooLong);
        }
        Ok(end.map(|end| {
            self.searched = 0;
            let line = self.buffer.split_to(end);
            self.buffer.advance(1);
            line
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use tokio::time::timeout;

    use super::*;
    use crate::wire::{KeySetName, Position};

    fn serves(revision: u64) -> Report {
        Report::Serves(Serves {
            position: Position {
                instance: "5f2c".to_owned(),
                revision,
            },
            unbound: BTreeMap::new(),
            binds: None,
            problems: Vec::new(),
            behind: None,
        })
    }

    /// Returns what counts of reports that arrive at once, each in a frame of its own.
    async fn recorded(reports: impl IntoIterator<Item = Report>) -> Vec<Report> {
        let frames = reports.into_iter().map(|report| {
            let mut line = serde_json::to_vec(&report).unwrap();
            line.push(b'\n');
            Ok::<_, Infallible>(Frame::data(Bytes::from(line)))
        });
        let body = StreamBody::new(stream::iter(frames));
        let mut recorded = Vec::new();
        let receiving = receive(body, |report| recorded.push(report));
        let outcome = timeout(Duration::from_secs(60), receiving).await;
        assert!(outcome.is_err(), "the pod may continue to read");
        recorded
    }

    #[tokio::test(start_paused = true)]
    async fn reports_without_pause_count_at_a_pace_and_the_last_one_always() {
        let counted = recorded((0..1000).map(serves)).await;
        assert_eq!(counted, [serves(0), serves(999)]);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_for_key_sets_all_count() {
        let ask = |name: &str| {
            Report::RefreshKeySet(KeySetName {
                namespace: "infra".to_owned(),
                name: name.to_owned(),
            })
        };
        let sent = [serves(1), ask("a"), ask("b"), serves(2)];
        assert_eq!(recorded(sent.clone()).await, sent);
    }

    #[test]
    fn bytes_of_a_line_that_arrives_piece_by_piece_are_searched_once() {
        let mut lines = Lines::default();
        for length in 1..=MAX_REPORT {
            lines.push(b"x");
            assert!(matches!(lines.next_line(), Ok(None)));
            assert_eq!(lines.searched, length);
        }
        lines.push(b"\nab\nc");
        assert_eq!(lines.next_line().unwrap().unwrap().len(), MAX_REPORT);
        assert_eq!(lines.next_line().unwrap().unwrap(), "ab");
        assert!(matches!(lines.next_line(), Ok(None)));
        assert_eq!(lines.searched, 1);
        lines.push(&[b'x'; MAX_REPORT]);
        assert!(lines.next_line().is_err());
    }
}
