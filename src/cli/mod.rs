//! The command line: one file per subcommand, each with its flags, its help and what it does. Decides exit codes and
//! how failures are told; everything else is the library's.

pub mod certificate;
pub mod check;
pub mod controller;
pub mod echo;
pub mod explain;
pub mod flags;
pub mod quickstart;
pub mod run;
pub mod shift;
pub mod value;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

/// A Kubernetes Gateway API data plane: serves Gateway API objects as traffic.
#[derive(Debug, Parser)]
#[command(
    name = "portcullis",
    version,
    about,
    propagate_version = true,
    after_help = "\
Examples:
  portcullis quickstart
  portcullis run --config-dir config/quickstart
  portcullis check config/quickstart
  portcullis explain config/quickstart 'GET http://demo.example.com:8080/hello'
  portcullis shift shop/shop v2=10%

Exit codes: 0 done, 1 failed or not accepted, 2 for wrong usage."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Quickstart(quickstart::Args),
    Run(Box<run::Args>),
    Controller(controller::Args),
    Check(check::Args),
    Explain(explain::Args),
    Shift(Box<shift::Args>),
    Echo(echo::Args),
}

/// The whole command line, as the documentation describes it.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Does what the arguments, the first of which is the program's name, ask for.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = Cli::parse_from(arguments);
    let result = match &cli.command {
        Command::Quickstart(args) => quickstart::run(args).map(|()| ExitCode::SUCCESS),
        Command::Run(args) => run::run(args).map(|()| ExitCode::SUCCESS),
        Command::Controller(args) => controller::run(args).map(|()| ExitCode::SUCCESS),
        Command::Check(args) => check::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Shift(args) => shift::run(args),
        Command::Echo(args) => echo::run(args).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        eprintln!("portcullis: {error:#}");
        ExitCode::FAILURE
    })
}

/// Waits for SIGTERM or SIGINT.
async fn stopped() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
