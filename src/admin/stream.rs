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
const QUIET: Duration = Duration::from_secs(1);

/// The body of a tap's response.
pub(super) struct TapBody {
    reader: TapReader,
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
            Poll::Ready(batch) => text(batch),
            Poll::Pending => {
                ready!(this.quiet.as_mut().poll(cx));
                b"\n".to_vec()
            }
        };
        this.gather.as_mut().reset(now + GATHER);
        this.quiet.as_mut().reset(now + QUIET);
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

/// The lines of a batch, and then how many requests are not among them.
fn text(batch: Batch) -> Vec<u8> {
    let Batch {
        mut lines,
        skipped,
        dropped,
    } = batch;
    if (skipped, dropped) != (0, 0) {
        let counts = format!("{{\"skipped\":{skipped},\"dropped\":{dropped}}}\n");
        lines.extend_from_slice(counts.as_bytes());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_the_lines() {
        let batch = Batch {
            lines: b"{}\n".to_vec(),
            skipped: 3,
            dropped: 1,
        };
        assert_eq!(text(batch), b"{}\n{\"skipped\":3,\"dropped\":1}\n");
        assert_eq!(text(Batch::default()), b"");
    }
}
