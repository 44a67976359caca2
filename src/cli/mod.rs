//! The command line: one file per subcommand, with its flags, help and entry point. Maps results to exit codes and
//! error messages.

pub mod admin_client;
pub mod certificate;
pub mod check;
pub mod completions;
pub mod config;
pub mod controller;
pub mod echo;
pub mod explain;
pub mod flags;
pub mod fleet;
pub mod gateway;
pub mod infrastructure;
pub mod log_level;
pub mod man;
pub mod migrate;
pub mod objects;
pub mod output;
mod pods;
mod problem;
pub mod quickstart;
pub mod run;
mod samples;
pub mod shift;
mod signals;
pub mod status;
mod table;
pub mod tap;
pub mod top;
pub mod value;
mod visible;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::{Arg, ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};

use self::output::UNREACHABLE;
use crate::telemetry::log;

/// Version, commit and profile of the build.
const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("PORTCULLIS_COMMIT"),
    ", profile ",
    env!("PORTCULLIS_PROFILE"),
    ")"
);

/// Exit code when the reader of standard output has ended, such as `head -1`: that of a program which SIGPIPE ends.
const NO_READER: u8 = 128 + 13;

/// A Kubernetes Gateway API data plane: serves Gateway API objects as traffic.
#[derive(Debug, Parser)]
#[command(
    name = "portcullis",
    version = VERSION,
    about,
    propagate_version = true,
    after_help = "\
Examples:
  portcullis quickstart
  portcullis run --config-dir config/quickstart
  portcullis check config/quickstart
  portcullis explain config/quickstart 'GET http://demo.example.com:8080/hello'
  portcullis shift shop/shop v2=10%

Exit codes: 0 on success, 1 on failure or if an object is not accepted, 2 for wrong usage, 3 if a
folder, cluster or proxy cannot be read, 141 if the reader of the output ends first."
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
    Migrate(migrate::Args),
    Status(status::Args),
    Config(config::Args),
    Top(top::Args),
    Tap(tap::Args),
    LogLevel(log_level::Args),
    Shift(Box<shift::Args>),
    Echo(echo::Args),
    Completions(completions::Args),
    Man(man::Args),
}

impl Command {
    /// Returns the exit code of an error. That of commands which judge or show what others have differs from that of what they
    /// find.
    fn failure(&self) -> ExitCode {
        match self {
            Self::Check(_)
            | Self::Explain(_)
            | Self::Status(_)
            | Self::Config(_)
            | Self::Top(_)
            | Self::Tap(_)
            | Self::LogLevel(_) => ExitCode::from(UNREACHABLE),
            Self::Quickstart(_)
            | Self::Run(_)
            | Self::Controller(_)
            | Self::Migrate(_)
            | Self::Shift(_)
            | Self::Echo(_)
            | Self::Completions(_)
            | Self::Man(_) => ExitCode::FAILURE,
        }
    }
}

/// The definition of the command line, from which the documentation is generated.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the subcommand of the arguments. The first argument is the program's name.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = parse(arguments);
    let result = match &cli.command {
        Command::Quickstart(args) => quickstart::run(args).map(|()| ExitCode::SUCCESS),
        Command::Run(args) => run::run(args).map(|()| ExitCode::SUCCESS),
        Command::Controller(args) => controller::run(args).map(|()| ExitCode::SUCCESS),
        Command::Check(args) => check::run(args, command()),
        Command::Explain(args) => explain::run(args, command()),
        Command::Migrate(args) => migrate::run(args),
        Command::Status(args) => status::run(args),
        Command::Config(args) => config::run(args),
        Command::Top(args) => top::run(args),
        Command::Tap(args) => tap::run(args),
        Command::LogLevel(args) => log_level::run(args).map(|()| ExitCode::SUCCESS),
        Command::Shift(args) => shift::run(args, command()),
        Command::Echo(args) => echo::run(args).map(|()| ExitCode::SUCCESS),
        Command::Completions(args) => completions::run(args, command())
            .map(|()| ExitCode::SUCCESS)
            .map_err(Into::into),
        Command::Man(args) => man::run(args, command()).map(|()| ExitCode::SUCCESS),
    };
    let code = result.unwrap_or_else(|error| {
        if has_no_reader(&error) {
            return ExitCode::from(NO_READER);
        }
        log::write_line(&visible::lines(&format!("portcullis: {error:#}")));
        cli.command.failure()
    });
    log::finish();
    code
}

/// Parses the arguments. Wrong ones, and requests for help, end the process.
fn parse(arguments: impl IntoIterator<Item = OsString>) -> Cli {
    let command = command().mut_subcommands(|command| command.mut_args(without_false));
    let matches = command.get_matches_from(arguments);
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// Removes the variable of a switch that it sets to `false`: the parser takes any value for a switch that is given, which
/// excludes others.
fn without_false(arg: Arg) -> Arg {
    let value = arg.get_env().and_then(std::env::var_os);
    let is_false = value.is_some_and(|value| value == "false");
    match is_false && matches!(arg.get_action(), ArgAction::SetTrue) {
        true => arg.env(None::<&'static str>),
        false => arg,
    }
}

/// Reports whether a command ended because nobody reads its output any more. Errors of connections have a context.
fn has_no_reader(error: &anyhow::Error) -> bool {
    let of_output = error.downcast_ref::<io::Error>();
    let of_output = of_output.filter(|_| error.chain().len() == 1);
    of_output.is_some_and(|it| it.kind() == io::ErrorKind::BrokenPipe)
}
