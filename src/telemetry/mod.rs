//! Telemetry: the log on standard error, the access log, and metrics.

pub mod access_log;
pub mod metrics;

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

pub use access_log::AccessLog;
pub use metrics::{ConfigStats, ConnectionStats, ProcessStats, TimeoutKind};

use crate::settings::LogFormat;

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
}

/// Libraries that log errors which the process logs itself, or events that any client can cause,
/// such as rustls' warnings about server names. Explicit directives override this.
const NOISY: &str = "kube_client=off,kube_runtime=off,notify=error,rustls::msgs=error";

/// Starts logging to standard error. `filter` is a level such as `info`, or directives such as
/// `info,portcullis::proxy=debug`.
pub fn start_log(format: LogFormat, filter: &str) -> Result<(), LogError> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(directives(filter)?)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => builder.try_init(),
    }
    .map_err(|_| LogError::Started)
}

fn directives(filter: &str) -> Result<EnvFilter, LogError> {
    EnvFilter::builder()
        .parse(format!("{NOISY},{filter}"))
        .map_err(|source| LogError::Filter {
            filter: filter.to_owned(),
            source,
        })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
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
