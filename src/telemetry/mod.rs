//! What a process tells of itself: the log on standard error, the access log on standard output and the numbers of
//! `/metrics`. Reads the table, and knows nothing of connections, of how requests are handled or of the admin server.

pub mod access_log;
pub mod metrics;

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

pub use access_log::{AccessLog, AccessRecord};
pub use metrics::{ConfigStats, ConnectionStats, ProcessStats, TimeoutKind};

use crate::settings::LogFormat;

/// Why the log cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The level or directives make no sense.
    #[error("the log level `{filter}` cannot be read: {source}")]
    Filter {
        /// What was asked for.
        filter: String,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// The process has a log already.
    #[error("the log is started already")]
    Started,
}

/// Libraries that log as failures what we tell ourselves, in words that help and not at every try. Directives for them
/// bring theirs back.
const NOISY: &str = "kube_client=off,kube_runtime=off,notify=error";

/// Starts the process's log on standard error. `filter` is a level such as `info`, or directives such as
/// `info,portcullis::proxy=debug`.
pub fn start_log(format: LogFormat, filter: &str) -> Result<(), LogError> {
    let directives = EnvFilter::builder()
        .parse(format!("{NOISY},{filter}"))
        .map_err(|source| LogError::Filter {
            filter: filter.to_owned(),
            source,
        })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(directives)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => builder.try_init(),
    }
    .map_err(|_| LogError::Started)
}
