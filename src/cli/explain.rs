//! `portcullis explain`: shows what a folder's configuration, or the one that a running proxy serves, does with a request,
//! without sending it.

mod policies;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::error::ErrorKind;
use form_urlencoded::Serializer;
use tokio::time::timeout;

use super::admin_client::{self, AdminUrl, Page, TokenFlag};
use super::check;
use super::flags::{LocationFlags, PermissionFlags};
use super::output::{self, OutputFlag, OutputFormat};
use crate::admin::FOUND;
use crate::explain::{Configuration, ExplainedRequest, Header, State, Values, explain};
use crate::ir::RuleId;
use crate::provider::FileProvider;
use crate::settings::location::Location;
use crate::table::{Listener, Port, Table};
use crate::translate::{Options, Translator};

/// The variable for the folder.
const CONFIG_DIR: &str = "PORTCULLIS_CONFIG_DIR";
/// Timeout of the response of a proxy, which waits for earlier explanations.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Explain which listener, rule and backends handle a request, and why others do not.
#[derive(clap::Args, Debug)]
#[command(
    allow_missing_positional = true,
    after_help = "\
Examples:
  portcullis explain config/quickstart 'GET http://demo.example.com:8080/hello'
  portcullis explain config/quickstart 'POST http://demo.example.com:8080/hello?debug=1' -H 'X-Version: canary'
  portcullis explain -o json config/quickstart http://demo.example.com:8080/hello
  portcullis explain --backend-tls-floor gateway config/quickstart http://demo.example.com:8080/hello
  portcullis explain --admin http://127.0.0.1:19000 http://demo.example.com:8080/hello

Sends nothing to a backend. With DIR, reads and translates the folder as `run` does, matches the request against the result,
and shows every TLS policy for the backends with its level, and why it applies or not. Pass the same permissions, zone and
node as to `run`. With --admin, asks a running proxy what the configuration in service does with the request, and shows its
revision, and health and requests in flight of the endpoints. Permissions and location are then those of the proxy.
Exit codes: 0 if a rule matches, 1 if none matches, the folder cannot be read or the proxy cannot be reached, 2 for wrong
usage."
)]
pub struct Args {
    /// Folder of Gateway API YAML
    #[arg(value_name = "DIR", env = CONFIG_DIR)]
    config_dir: Option<PathBuf>,
    /// Method and URL, such as 'GET https://host/path'; the default method is GET. For routes of TLS, TCP and UDP, a URL such
    /// as 'tls://host:8443'
    #[arg(value_name = "REQUEST", required = true)]
    request: ExplainedRequest,
    /// Ask the proxy with this admin address, such as http://127.0.0.1:19000, instead of reading DIR
    #[arg(long, value_name = "URL")]
    admin: Option<AdminUrl>,
    /// The token of the proxy.
    #[command(flatten)]
    token: TokenFlag,
    /// A header of the request; may be repeated
    #[arg(long, short = 'H', value_name = "NAME: VALUE")]
    header: Vec<Header>,
    /// The client is a trusted proxy, whose X-Forwarded-* headers are kept
    #[arg(long)]
    trusted_proxy: bool,
    /// With --admin, show the values of headers and query parameters in matches, which may be credentials
    #[arg(long, requires = "admin")]
    values: bool,
    /// Permissions of objects.
    #[command(flatten)]
    permissions: PermissionFlags,
    /// Location of the proxy.
    #[command(flatten)]
    location: LocationFlags,
    /// Format of the output.
    #[command(flatten)]
    format: OutputFlag,
}

/// Prints the explanation. Fails with exit code 1 if no rule matches. `command` is the definition of the command line.
pub fn run(args: &Args, mut command: clap::Command) -> anyhow::Result<ExitCode> {
    let mut request = args.request.clone();
    let wrong = request.add_headers(&args.header).err();
    if let Some(wrong) = wrong.or_else(|| args.wrong_usage()) {
        command.error(ErrorKind::ValueValidation, wrong).exit();
    }
    if args.trusted_proxy {
        request.trust();
    }
    let is_found = match (&args.admin, &args.config_dir) {
        (Some(url), _) => ask(url, args)?,
        (None, Some(folder)) => explain_folder(folder, &request, args)?,
        (None, None) => bail!("neither DIR nor --admin"),
    };
    Ok(if is_found {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

impl Args {
    /// Returns an error in the combination of arguments. --admin has precedence over a folder from the environment.
    fn wrong_usage(&self) -> Option<String> {
        let folder = self.config_dir.as_deref().map(Path::as_os_str);
        let is_default = |folder: &OsStr| std::env::var_os(CONFIG_DIR).as_deref() == Some(folder);
        match (&self.admin, folder) {
            (Some(_), Some(folder)) if !is_default(folder) => Some(
                "DIR and --admin exclude each other: the first is a folder, the other a running proxy"
                    .to_owned(),
            ),
            (None, None) => Some(
                "name a folder of Gateway API YAML, or a running proxy with --admin http://127.0.0.1:19000"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

/// Explains what the configuration of a folder does. Returns whether a rule matches.
fn explain_folder(folder: &Path, request: &ExplainedRequest, args: &Args) -> anyhow::Result<bool> {
    let load = FileProvider::new(folder.to_owned()).load()?;
    let mut translator = Translator::new(Options {
        location: Location::from(&args.location),
        ..check::options(&args.permissions)
    });
    let translation = translator.translate(&load.snapshot, None);
    let problems = load.problems.iter();
    let faults = problems.filter(|problem| problem.is_fault()).count();
    let faults = faults + translation.report.problems().count();
    let table = Table::build(Arc::new(translation.ir), None);
    let mut explanation = explain(
        Configuration {
            table: &table,
            state: State::Offline {
                policies: &|rule, port, listener| of_rule(&translator, rule, port, listener),
            },
            values: Values::Shown,
        },
        request,
    );
    explanation.add_notes(&translation.report.notes);
    let mut out = io::stdout().lock();
    match args.format.output {
        OutputFormat::Json => output::json(&explanation, &mut out)?,
        OutputFormat::Text => {
            write!(out, "{explanation}")?;
            if faults > 0 {
                writeln!(
                    out,
                    "\n{faults} problems in the folder: see `portcullis check`"
                )?;
            }
        }
    }
    Ok(explanation.is_found())
}

/// Describes the policies on TLS of the backends of a rule.
fn of_rule(
    translator: &Translator,
    rule: &RuleId,
    port: &Port,
    listener: &Listener,
) -> Vec<String> {
    let (gateway, listener) = (&port.ir.gateway, &listener.ir.key);
    policies::policies(&translator.backend_policies(rule, gateway, listener))
}

/// Asks a proxy what the configuration in service does. Returns whether a rule matches.
fn ask(url: &AdminUrl, args: &Args) -> anyhow::Result<bool> {
    let path = format!("/explain?{}", query(args));
    let token = args.token.read()?;
    let page = admin_client::runtime()?.block_on(async {
        let page = timeout(RESPONSE_TIMEOUT, admin_client::get(url, &path, token)).await;
        page.unwrap_or_else(|_| bail!("no response within {} s", RESPONSE_TIMEOUT.as_secs()))
    });
    let page = page.with_context(|| format!("cannot ask the proxy at {url}"))?;
    let Page { status, body, .. } = &page;
    match (status.as_u16(), page.header(FOUND)) {
        (200, Some(found)) => {
            io::stdout().lock().write_all(body.as_bytes())?;
            Ok(found == "true")
        }
        (404, _) => Err(anyhow!("it has no /explain: it may be an older version")),
        (431, _) => Err(anyhow!("the request and its headers are too long for it")),
        (200, None) => Err(anyhow!("its response is not that of a proxy")),
        (status, _) => Err(anyhow!("status {status}: {}", body.trim())),
    }
    .with_context(|| format!("cannot ask the proxy at {url}"))
}

/// The query of the request to the proxy.
fn query(args: &Args) -> String {
    let mut query = Serializer::new(String::new());
    query.append_pair("request", &args.request.to_string());
    for header in &args.header {
        query.append_pair("header", &header.to_string());
    }
    for (name, is_set) in [("trusted", args.trusted_proxy), ("values", args.values)] {
        if is_set {
            query.append_pair(name, "true");
        }
    }
    if args.format.output == OutputFormat::Json {
        query.append_pair("output", "json");
    }
    query.finish()
}

#[cfg(test)]
mod tests;
