//! The positional arguments of `portcullis explain`: a folder, which may be missing, and then a request.

use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, Error, FromArgMatches};

use crate::cli::objects::{CONFIG_DIR, default_folder};
use crate::explain::ExplainedRequest;

/// The usage, of whose positional arguments clap knows only that each may be missing.
pub(super) const USAGE: &str = "portcullis explain [OPTIONS] [DIR|FILE|-] <REQUEST>";

/// Methods that users of other tools write apart from the URL.
const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];

/// The positional arguments as they are written. `allow_missing_positional` of clap is not for them: with it, a folder is
/// taken for the request where an option stands between the two.
#[derive(Args, Debug)]
struct WrittenPositionals {
    /// Folder or file of Gateway API YAML, or `-` for standard input
    #[arg(value_name = "DIR|FILE|-", env = CONFIG_DIR)]
    config_dir: Option<PathBuf>,
    /// Method and URL, such as 'GET https://host/path'; the default method is GET. For routes of TLS, TCP and UDP, a URL such
    /// as 'tls://host:8443'
    #[arg(value_name = "REQUEST")]
    request: Option<String>,
}

/// The folder, of the arguments or else of the environment, and the request.
#[derive(Debug)]
pub(super) struct Positionals {
    pub(super) folder: Option<PathBuf>,
    pub(super) request: ExplainedRequest,
}

impl Positionals {
    fn new(folder: Option<PathBuf>, request: Option<String>) -> Result<Self, Error> {
        let request = request.ok_or_else(|| wrong("a request is missing"))?;
        let method = folder.as_deref().and_then(Path::to_str);
        if let Some(method) = method.filter(|it| METHODS.contains(it)) {
            let message = format!("method and URL are one argument, '{method} {request}'");
            return Err(wrong(&message));
        }
        let request = request.parse::<ExplainedRequest>();
        let request = request.map_err(|error| wrong(&error))?;
        Ok(Self { folder, request })
    }
}

fn wrong(message: &str) -> Error {
    let message = format!(
        "{message}: write `portcullis explain [DIR|FILE|-] 'GET https://host/path'`, the request last"
    );
    Error::raw(ErrorKind::ValueValidation, message)
}

impl FromArgMatches for Positionals {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let source = matches.value_source("config_dir");
        let WrittenPositionals {
            config_dir,
            request,
        } = WrittenPositionals::from_arg_matches(matches)?;
        match (config_dir, request) {
            // A single argument is the request.
            (Some(only), None) if source == Some(ValueSource::CommandLine) => {
                Self::new(default_folder(), only.into_os_string().into_string().ok())
            }
            (folder, request) => Self::new(folder, request),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Positionals {
    fn augment_args(command: Command) -> Command {
        WrittenPositionals::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        WrittenPositionals::augment_args_for_update(command)
    }
}
