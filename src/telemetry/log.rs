//! The log of the process on standard error. No thread waits for its reader: lines go through a
//! `LineWriter`. Panics are lines of the log too.

mod level;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal, Write};
use std::panic::PanicHookInfo;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub use self::level::{Level, LevelError};
use self::level::{LevelControl, directives};
use super::lines::{LineWriter, Sink};
use crate::settings::LogFormat;

/// The log, of which a process has one, like its subscriber.
static LOG: OnceLock<LineWriter> = OnceLock::new();
/// The control of its level.
static LEVEL: OnceLock<LevelControl> = OnceLock::new();

/// What messages call this log.
const NAME: &str = "log";

/// Why the log cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The level or the directives are invalid.
    #[error("the log level `{filter}` cannot be read: {source}")]
    Filter {
        /// The given filter.
        filter: String,
        /// The parse error.
        source: tracing_subscriber::filter::ParseError,
    },
    /// A log was started already.
    #[error("the log is started already")]
    Started,
    /// Standard error is closed, or a thread cannot be started.
    #[error("cannot write to standard error: {0}")]
    Io(#[from] io::Error),
}

/// Starts logging to standard error. `filter` is a level such as `info`, or directives such as
/// `info,portcullis::proxy=debug`. The process must call [`finish`] before it exits.
pub fn start(format: LogFormat, filter: &str) -> Result<(), LogError> {
    let directives = directives(filter).map_err(|source| LogError::Filter {
        filter: filter.to_owned(),
        source,
    })?;
    let writer = LineWriter::start("log", Sink::stderr(NAME)?, |dropped| {
        tracing::warn!("{dropped} lines of this log were dropped: its reader was too slow");
    })?;
    LOG.set(writer).map_err(|_| LogError::Started)?;
    let builder = tracing_subscriber::fmt()
        .with_writer(|| Line)
        .with_ansi(io::stderr().is_terminal());
    // Reloading fails only without a subscriber, and a process keeps its own.
    let (apply, started): (level::Apply, _) = match format {
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true);
            let builder = builder.with_env_filter(directives).with_filter_reloading();
            let handle = builder.reload_handle();
            let apply = move |filter| drop(handle.reload(filter));
            (Box::new(apply), builder.try_init())
        }
        LogFormat::Text => {
            let builder = builder.with_env_filter(directives).with_filter_reloading();
            let handle = builder.reload_handle();
            let apply = move |filter| drop(handle.reload(filter));
            (Box::new(apply), builder.try_init())
        }
    };
    started.map_err(|_| LogError::Started)?;
    // Only one call gets here.
    let _ = LEVEL.set(LevelControl::new(filter, apply));
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
}

/// Writes a line that is not an event, such as the error that ends the process.
pub fn write_line(line: &str) {
    match LOG.get() {
        Some(log) => log.push_line(format!("{line}\n").as_bytes()),
        None => eprintln!("{line}"),
    }
}

/// Waits until all lines are written, unless the reader of the log is stuck.
pub fn finish() {
    if let Some(log) = LOG.get() {
        log.finish();
    }
}

/// Number of dropped lines.
pub fn dropped() -> u64 {
    LOG.get().map_or(0, LineWriter::dropped)
}

/// Returns the level of the log; `None` if no log was started.
pub fn level() -> Option<Level> {
    LEVEL.get().map(LevelControl::get)
}

/// Sets the level of the log for a time. The caller must call [`expire_level`] when it is over.
///
/// # Errors
/// When `directives` has anything but levels, also by module; when the time is not from 1 s to 24 h; without a log.
pub fn set_level(directives: &str, time: Duration) -> Result<Level, LevelError> {
    let level = LEVEL.get().ok_or(LevelError::NotStarted)?;
    level.set(directives, time, Instant::now())
}

/// Returns to the configured level if the time of another one is over. Returns whether it was.
pub fn expire_level() -> bool {
    LEVEL
        .get()
        .is_some_and(|level| level.expire(Instant::now()))
}

/// The standard hook would write to standard error itself, and block.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed").to_owned();
    let backtrace = Backtrace::capture();
    match backtrace.status() {
        BacktraceStatus::Captured => tracing::error!("thread {thread} {panic}\n{backtrace}"),
        _ => tracing::error!("thread {thread} {panic}"),
    }
}

/// Passes on an event, which the subscriber writes at once.
struct Line;

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(log) = LOG.get() {
            log.push_line(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            written.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(filter: &str) -> String {
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(directives(filter).expect("directives"))
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(target: "rustls::msgs::handshake", "Illegal SNI hostname received");
            tracing::warn!("something of ours");
        });
        let bytes = written.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[test]
    fn suppresses_client_caused_messages_by_default() {
        let usual = logged("info");
        assert!(usual.contains("ours") && !usual.contains("SNI"), "{usual}");
        let asked = logged("info,rustls::msgs=warn");
        assert!(asked.contains("ours") && asked.contains("SNI"), "{asked}");
    }
}
