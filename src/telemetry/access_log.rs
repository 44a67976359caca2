//! The access log: one JSON line per request, and per connection that is forwarded as it is. Each worker formats lines into a buffer of its own, and
//! passes whole buffers to a `LineWriter`, which never blocks it.

mod added;
mod connection;
mod connection_end;
mod escape;
mod line;
mod omitted;
mod time;

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use http::request;
use rand::RngExt;

pub use self::added::Message;
pub use self::connection::Connection;
pub use self::connection_end::ConnectionEnd;
pub(super) use self::line::Begun;
use self::line::LONGEST_LINE;
pub use self::line::{Completion, Line};
use self::time::{TimestampText, WallClock};
use super::lines::{BUFFER, LineWriter, Sink};
use crate::ir::GatewayLog;
use crate::settings::{self, AccessLogFilter, AccessLogTarget};

/// What messages call this log.
const NAME: &str = "access log";
/// Length at which a buffer is full: another line could exceed its size.
const FULL: usize = BUFFER - LONGEST_LINE;
/// Maximum number of unused [`Line`]s that a worker keeps for reuse.
const MAX_UNUSED: usize = 256;

/// Handle to the access log. Clones share one writer. Dropping the last clone and the last
/// [`WorkerLog`] waits until their lines are written, unless the reader of the log is stuck.
#[derive(Clone, Debug)]
pub struct AccessLog(Option<Arc<Writer>>);

#[derive(Debug)]
struct Writer {
    lines: LineWriter,
    filter: AccessLogFilter,
}

impl AccessLog {
    /// Starts the log.
    ///
    /// # Errors
    /// When the file cannot be opened, with its path, or a thread cannot be started.
    pub fn start(settings: &settings::AccessLog) -> io::Result<Self> {
        let sink = match &settings.target {
            AccessLogTarget::Off => return Ok(Self::disabled()),
            AccessLogTarget::Stdout => Sink::stdout(NAME)?,
            AccessLogTarget::File(path) => Sink::file(NAME, path)?,
        };
        Self::to(sink, settings.filter)
    }

    fn to(sink: Sink, filter: AccessLogFilter) -> io::Result<Self> {
        let notice = |dropped| {
            tracing::warn!("{dropped} lines of the {NAME} were dropped: its reader was too slow");
        };
        let lines = LineWriter::start("access-log", sink, notice)?;
        Ok(Self(Some(Arc::new(Writer { lines, filter }))))
    }

    /// Creates a disabled access log.
    pub fn disabled() -> Self {
        Self(None)
    }

    /// The part of one worker; `None` if the log is disabled.
    pub fn worker(&self) -> Option<WorkerLog> {
        let writer = self.0.clone()?;
        Some(WorkerLog {
            writer,
            clock: WallClock::new(),
            times: RefCell::default(),
            lines: RefCell::default(),
            unused: RefCell::default(),
        })
    }

    /// Reopens the file of the log, if it has one.
    pub fn reopen(&self) {
        if let Some(writer) = &self.0 {
            writer.lines.reopen();
        }
    }

    /// Waits until all lines are written, unless the reader of the log is stuck. Later lines are
    /// dropped.
    pub fn finish(&self) {
        if let Some(writer) = &self.0 {
            writer.lines.finish();
        }
    }

    /// Number of dropped lines.
    pub fn dropped(&self) -> u64 {
        self.0.as_ref().map_or(0, |writer| writer.lines.dropped())
    }
}

/// The access log of one worker. Passes its lines on when its buffer is full, when it is flushed and
/// when it is dropped.
#[derive(Debug)]
pub struct WorkerLog {
    writer: Arc<Writer>,
    clock: WallClock,
    times: RefCell<TimestampText>,
    lines: RefCell<Vec<u8>>,
    #[expect(
        clippy::vec_box,
        reason = "records hold the boxes, so that they are small"
    )]
    unused: RefCell<Vec<Box<Line>>>,
}

impl WorkerLog {
    /// Begins the line of a request of `client`, an address, whose head was read at `start`. `tick` is the worker's coarse time.
    pub fn open(
        &self,
        client: &str,
        parts: &request::Parts,
        start: Instant,
        tick: u64,
    ) -> Box<Line> {
        let mut line = self.unused.borrow_mut().pop().unwrap_or_default();
        let time = self.clock.at(start, tick);
        line.begin(time, &mut self.times.borrow_mut(), client, parts);
        line
    }

    /// Completes the line of a request and writes it, if the filter of its Gateway admits it, or else that of the process.
    /// Returns true if the caller must [`flush`](Self::flush) the buffer later, since this is its first line.
    pub fn close(
        &self,
        mut line: Box<Line>,
        end: &Completion<'_>,
        log: Option<&GatewayLog>,
    ) -> bool {
        let is_admitted = admits(log, end).unwrap_or_else(|| self.admits(end.is_error()));
        let is_first = is_admitted && self.append(line.end(end, log));
        self.reuse(line);
        is_first
    }

    /// Writes the line of a connection that has ended, as [`close`](Self::close) does for a request. `tick` is the worker's
    /// coarse time.
    #[cold]
    pub fn log_connection(
        &self,
        connection: &Connection<'_>,
        tick: u64,
        log: Option<&GatewayLog>,
    ) -> bool {
        let is_error = connection.error().is_some();
        if !admits_connection(log, connection).unwrap_or_else(|| self.admits(is_error)) {
            return false;
        }
        let time = self.clock.at(connection.start, tick);
        let mut line = self.unused.borrow_mut().pop().unwrap_or_default();
        let text = line.describe(time, &mut self.times.borrow_mut(), connection, log);
        let is_first = self.append(text);
        self.reuse(line);
        is_first
    }

    /// Adds a line to the buffer. Returns true if it is the first one there.
    #[inline]
    fn append(&self, text: &[u8]) -> bool {
        let mut lines = self.lines.borrow_mut();
        if lines.len() + text.len() > BUFFER {
            self.writer.lines.push(&mut lines);
        }
        let is_first = lines.is_empty();
        if lines.capacity() < BUFFER {
            lines.reserve_exact(BUFFER);
        }
        lines.extend_from_slice(text);
        if lines.len() >= FULL {
            self.writer.lines.push(&mut lines);
        }
        is_first
    }

    /// Keeps the memory of a written line.
    #[inline]
    fn reuse(&self, line: Box<Line>) {
        let mut unused = self.unused.borrow_mut();
        if unused.len() < MAX_UNUSED && line.is_usual() {
            unused.push(line);
        }
    }

    /// Frees the memory of lines that is kept for reuse.
    pub fn free_unused(&self) {
        self.unused.borrow_mut().clear();
    }

    /// Passes on the lines of the buffer.
    pub fn flush(&self) {
        let mut lines = self.lines.borrow_mut();
        if !lines.is_empty() {
            self.writer.lines.push(&mut lines);
        }
    }

    fn admits(&self, is_error: bool) -> bool {
        match self.writer.filter {
            AccessLogFilter::ALL => true,
            _ if is_error => true,
            AccessLogFilter::ERRORS => false,
            share => rand::rng().random_range(0..1_000_000) < share.millionths(),
        }
    }
}

impl Line {
    /// Completes the line and returns its text, if the filter of its Gateway admits the request.
    pub fn into_text(
        mut self,
        end: &Completion<'_>,
        log: Option<&GatewayLog>,
    ) -> Option<Box<[u8]>> {
        let is_admitted = admits(log, end).unwrap_or(true);
        is_admitted.then(|| self.end(end, log).into())
    }
}

impl Connection<'_> {
    /// Returns the text of its line, if the filter of its Gateway admits the connection.
    pub fn into_text(self, log: Option<&GatewayLog>) -> Option<Box<[u8]>> {
        if !admits_connection(log, &self).unwrap_or(true) {
            return None;
        }
        let time = WallClock::new().at(self.start, 0);
        let mut line = Line::default();
        Some(
            line.describe(time, &mut TimestampText::default(), &self, log)
                .into(),
        )
    }
}

/// Returns the status that a request counts as: 499 without a response (0), since its client has closed it.
pub fn counted_status(status: u16) -> u16 {
    match status {
        0 => 499,
        status => status,
    }
}

/// Reports whether the filter of a Gateway admits a request; `None` if it has none.
fn admits(log: Option<&GatewayLog>, end: &Completion<'_>) -> Option<bool> {
    let filter = log?.filter.as_ref()?;
    let status = counted_status(end.status);
    Some(filter.admits(status, end.duration, || rand::rng().random()))
}

/// Reports whether the filter of a Gateway admits a connection; `None` if it has none.
fn admits_connection(log: Option<&GatewayLog>, connection: &Connection<'_>) -> Option<bool> {
    let filter = log?.filter.as_ref()?;
    let is_error = connection.error().is_some();
    Some(filter.admits_connection(is_error, connection.duration, || rand::rng().random()))
}

impl Drop for WorkerLog {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests;
