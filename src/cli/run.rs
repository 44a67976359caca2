//! `portcullis run`: serves a folder until it is told to leave. Knows nothing of how it is served.

use std::path::PathBuf;

use super::flags::ServeFlags;
use crate::{server, telemetry};

/// Serve the Gateways of a folder of Gateway API YAML.
///
/// Reads every *.yaml, *.yml and *.json below the folder, serves what is valid and reloads on change or SIGHUP.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis run --config-dir config/quickstart
  portcullis run --config-dir /etc/portcullis --admin 0.0.0.0:19000 --log-format json \\
      --trusted-proxies 10.0.0.0/8,fd00::/8 --body-timeout 1m

Signals: SIGTERM and SIGINT drain, a second one cuts at once; SIGHUP reloads the folder.
Exit codes: 0 after draining, 1 when it cannot start, 2 for wrong usage.")]
pub struct Args {
    /// Folder of Gateway API YAML
    #[arg(long, value_name = "DIR", env = "PORTCULLIS_CONFIG_DIR")]
    config_dir: PathBuf,
    /// Everything that is not about where objects come from.
    #[command(flatten)]
    serve: ServeFlags,
}

/// Serves until it is told to leave.
pub fn run(args: &Args) -> anyhow::Result<()> {
    telemetry::start_log(args.serve.log.log_format, &args.serve.log.filter())?;
    server::run(&args.serve.settings(args.config_dir.clone()))
}
