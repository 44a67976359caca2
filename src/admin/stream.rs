//! Bodies of responses that go on. That of a tap has lines as they come, and an empty line as a sign of life; its drop closes
//! the tap. That of events has them as they come.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep};

use crate::telemetry::tap::{Batch, TapReader};

/// Maximum time of a stream.
pub(super) const MAX_STREAM: Duration = Duration::from_secs(60 * 60);
/// Time in which lines are gathered, so that their number does not count.
const GATHER: Duration = Duration::from_millis(50);
/// Time without lines after which an empty one is sent, so that a client that has left is noticed.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Time between two lines about requests that are not shown.
const HIDDEN_PERIOD: Duration = Duration::from_secs(10);

/// The body of a tap's response.
pub(super) struct TapBody {
    reader: TapReader,
    hidden: Hidden,
    /// Not before it is over, lines are sent.
    gather: Pin<Box<Sleep>>,
    /// When it is over, an empty line is sent.
    quiet: Pin<Box<Sleep>>,
    end: Instant,
}

impl TapBody {
    /// The body of what `reader` takes. Begins with an empty line at once: the tap is open.
    pub(super) fn new(reader: TapReader) -> Self {
        Self {
            reader,
            hidden: Hidden::default(),
            gather: Box::pin(sleep(Duration::ZERO)),
            quiet: Box::pin(sleep(Duration::ZERO)),
            end: Instant::now() + MAX_STREAM,
        }
    }
}

impl Body for TapBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        ready!(this.gather.as_mut().poll(cx));
        let now = Instant::now();
        if now >= this.end {
            return Poll::Ready(None);
        }
        let lines = match this.reader.poll_take(cx) {
            Poll::Ready(batch) => this.hidden.text(batch, now),
            Poll::Pending => {
                ready!(this.quiet.as_mut().poll(cx));
                this.hidden.text(Batch::default(), now)
            }
        };
        this.gather.as_mut().reset(now + GATHER);
        this.quiet.as_mut().reset(now + HEARTBEAT);
        Poll::Ready(Some(Ok(Frame::data(lines.into()))))
    }
}

/// The body of events. Its drop ends their sender.
pub(super) struct EventBody(pub(super) mpsc::Receiver<Bytes>);

impl Body for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let event = ready!(self.get_mut().0.poll_recv(cx));
        Poll::Ready(event.map(|event| Ok(Frame::data(event))))
    }
}

/// Requests that a tap does not show, since the last line about them.
#[derive(Default)]
struct Hidden {
    skipped: u64,
    dropped: u64,
    /// Not before it, the next line is sent.
    next: Option<Instant>,
}

impl Hidden {
    /// The lines of a batch, and then, once in [`HIDDEN_PERIOD`], how many requests are not among them. An empty line if
    /// there is nothing to send.
    fn text(&mut self, batch: Batch, now: Instant) -> Vec<u8> {
        let Batch {
            mut lines,
            skipped,
            dropped,
        } = batch;
        self.skipped += skipped;
        self.dropped += dropped;
        let is_due = self.next.is_none_or(|next| next <= now);
        if is_due && (self.skipped, self.dropped) != (0, 0) {
            let Self {
                skipped, dropped, ..
            } = std::mem::take(self);
            let counts = format!("{{\"skipped\":{skipped},\"dropped\":{dropped}}}\n");
            lines.extend_from_slice(counts.as_bytes());
            self.next = Some(now + HIDDEN_PERIOD);
        }
        if lines.is_empty() {
            lines.push(b'\n');
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(lines: &[u8], skipped: u64) -> Batch {
        Batch {
            lines: lines.to_vec(),
            skipped,
            dropped: 1,
        }
    }

    #[test]
    fn counts_follow_the_lines_once_in_a_period() {
        let mut hidden = Hidden::default();
        let start = Instant::now();
        let nothing = hidden.text(Batch::default(), start);
        assert_eq!(nothing, b"\n");
        let first = hidden.text(batch(b"{}\n", 3), start);
        assert_eq!(first, b"{}\n{\"skipped\":3,\"dropped\":1}\n");
        let early = start + HIDDEN_PERIOD / 2;
        assert_eq!(hidden.text(batch(b"{}\n", 4), early), b"{}\n");
        assert_eq!(hidden.text(batch(b"", 5), early), b"\n");
        let due = hidden.text(Batch::default(), start + HIDDEN_PERIOD);
        assert_eq!(due, b"{\"skipped\":9,\"dropped\":2}\n");
    }
}
