//! `portcullis log-level`: the level of the log of a running proxy or controller.

use std::io;
use std::time::Duration;

use form_urlencoded::Serializer;
use http::Method;
use serde_json::Value;

use super::admin_client::{self, AdminFlags};
use super::output::{self, OutputFlag, OutputFormat};
use super::value::Span;

/// Show or set the level of the log of a running proxy or controller
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis log-level --admin http://127.0.0.1:19000
  portcullis log-level debug --admin http://127.0.0.1:19000
  portcullis log-level info,portcullis::proxy=debug --for 1h --admin http://127.0.0.1:19000

The configured level is in effect again when the time is over, or when the process restarts. Released programs have no events
of level trace. In a cluster, use kubectl port-forward pod/NAME 19000 first.
Exit codes: 0 on success, 2 for wrong usage, 3 if the process cannot be reached or refuses the level.")]
pub struct Args {
    /// New level: error, warn, info, debug, trace or off; or directives such as info,portcullis::proxy=debug [default: show
    /// the level]
    #[arg(value_name = "LEVEL")]
    level: Option<String>,
    /// How long the new level is in effect, from 1s to 24h
    #[arg(long = "for", value_name = "TIME", default_value_t = Span(DEFAULT_TIME), requires = "level")]
    time: Span,
    /// The process.
    #[command(flatten)]
    proxy: AdminFlags,
    /// Format of the output.
    #[command(flatten)]
    format: OutputFlag,
}

const DEFAULT_TIME: Duration = Duration::from_secs(10 * 60);

/// Prints the level, after setting it if one is named.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let level = match &args.level {
        None => admin_client::document(&args.proxy, "log-level")?,
        Some(level) => {
            let seconds = args.time.0.as_secs().to_string();
            let (path, start) = ("log-level?".to_owned(), "log-level?".len());
            let mut query = Serializer::for_suffix(path, start);
            query.append_pair("level", level);
            query.append_pair("seconds", &seconds);
            admin_client::exchange(&args.proxy, &Method::PUT, &query.finish())?
        }
    };
    let mut out = io::stdout().lock();
    match args.format.output {
        OutputFormat::Json => output::json(&level, &mut out)?,
        OutputFormat::Text => output::text(&(text(&level) + "\n"), &mut out)?,
    }
    Ok(())
}

fn text(level: &Value) -> String {
    let part = |name: &str| level[name].as_str().unwrap_or_default();
    match level["expiresInSeconds"].as_u64() {
        None => part("level").to_owned(),
        Some(seconds) => format!(
            "{} for {}, then {}",
            part("level"),
            Span(Duration::from_secs(seconds)),
            part("configured")
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_has_the_time_of_a_level() {
        let level = |left: Value| {
            text(&json!({"level": "debug", "configured": "info", "expiresInSeconds": left}))
        };
        assert_eq!(level(Value::Null), "debug");
        assert_eq!(level(json!(600)), "debug for 10m, then info");
        assert_eq!(level(json!(61)), "debug for 61s, then info");
    }
}
