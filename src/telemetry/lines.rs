//! Lines on their way to a sink that may block or fail. A thread of its own writes them from a
//! bounded queue: adding a line never waits, and lines that do not fit are dropped and counted.

mod queue;
mod sink;

use std::io;
use std::sync::Arc;

pub(super) use self::queue::BUFFER;
#[cfg(test)]
pub(super) use self::queue::QUEUE_BYTES;
use self::queue::{Notice, Queue};
pub(super) use self::sink::Sink;

/// A thread that writes lines. Dropping it ends the thread as [`finish`](Self::finish) does.
#[derive(Debug)]
pub(super) struct LineWriter(Arc<Queue>);

impl LineWriter {
    /// Starts the thread. It calls `notice` with the number of lines that were dropped since the
    /// last call, once lines are written again.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(super) fn start(thread: &str, sink: Sink, notice: Notice) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        std::thread::Builder::new().name(thread.to_owned()).spawn({
            let queue = queue.clone();
            move || queue.write_to(sink, notice)
        })?;
        Ok(Self(queue))
    }

    /// Passes on the lines in `buffer` and leaves an empty buffer in its place.
    pub(super) fn push(&self, buffer: &mut Vec<u8>) {
        self.0.push(buffer);
    }

    /// Adds one line, which ends with a line break.
    pub(super) fn push_line(&self, line: &[u8]) {
        self.0.push_line(line);
    }

    /// Reopens the file of the sink, if it has one.
    pub(super) fn reopen(&self) {
        self.0.reopen();
    }

    /// Number of dropped lines.
    pub(super) fn dropped(&self) -> u64 {
        self.0.dropped()
    }

    /// Waits until all lines are written, but not for a sink that is stuck. The thread then ends;
    /// later lines are dropped.
    pub(super) fn finish(&self) {
        self.0.finish();
    }
}

impl Drop for LineWriter {
    fn drop(&mut self) {
        self.0.finish();
    }
}
