//! `portcullis explain`: shows what the configuration of a folder or a cluster, or the one that a running proxy serves, does
//! with a request, without sending it.

mod policies;
mod positionals;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::error::ErrorKind;
use form_urlencoded::Serializer;
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::timeout;

use self::positionals::{Positionals, USAGE};
use super::admin_client::{self, AdminUrl, Page, TokenFlag};
use super::check;
use super::flags::{LocationFlags, PermissionFlags};
use super::gateway::{self, GatewayFlags, Pods, Responses};
use super::objects::{ClusterFlags, ObjectSource, is_default};
use super::output::{self, OutputFlag, OutputFormat};
use super::value::namespace;
use crate::admin::FOUND;
use crate::explain::{Configuration, ExplainedRequest, Findings, Header, State, Values, explain};
use crate::ir::RuleId;
use crate::settings::location::Location;
use crate::table::{Listener, Port, Table};
use crate::translate::{Options, Translator};

/// Timeout of the response of a proxy, which waits for earlier explanations.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Explain which listener, rule and backends handle a request, and why others do not.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = USAGE,
    after_help = "\
Examples:
  portcullis explain config/quickstart 'GET http://demo.example.com:8080/hello'
  portcullis explain config/quickstart 'POST http://demo.example.com:8080/hello?debug=1' -H 'X-Version: canary'
  portcullis explain -o json config/quickstart http://demo.example.com:8080/hello
  portcullis explain --backend-tls-floor gateway config/quickstart http://demo.example.com:8080/hello
  portcullis explain --admin http://127.0.0.1:19000 http://demo.example.com:8080/hello
  portcullis explain --kubernetes --gateway infra/edge https://demo.example.com/hello
  portcullis explain -n infra gateway/edge https://demo.example.com/hello

Sends nothing to a backend. With DIR, reads and translates the folder as `run` does, matches the request against the result,
and shows every TLS policy for the backends with its level, and why it applies or not. Pass the same permissions, zone and
node as to `run`. With --kubernetes, reads the objects of a cluster once, writes nothing, and does the same; a kind that is
not served or that the user may not read is named on standard error and treated as absent. With --admin, asks a running proxy
what the configuration in service does with the request, and shows its revision, and health and requests in flight of the
endpoints. Permissions and location are then those of the proxy. With -n NAMESPACE gateway/NAME, asks all pods of a Gateway
that the controller has created in the same way, and shows once what several of them respond. That takes the rights to list
pods, and to get and create pods/portforward.
Exit codes: 0 if a rule matches, in all pods, 1 if none matches, 2 for wrong usage, 3 if the folder or the cluster cannot be
read, or the proxy or one of the pods cannot be reached."
)]
pub struct Args {
    /// The folder and the request.
    #[command(flatten)]
    positionals: Positionals,
    /// Ask the proxy with this admin address, such as http://127.0.0.1:19000, instead of reading DIR
    #[arg(long, value_name = "URL")]
    admin: Option<AdminUrl>,
    /// Ask all pods of a Gateway in this namespace, which is named as gateway/NAME instead of DIR
    #[arg(
        long,
        short,
        value_name = "NAMESPACE",
        conflicts_with_all = ["admin", "kubernetes"],
        value_parser = namespace
    )]
    namespace: Option<String>,
    /// The token of the proxy.
    #[command(flatten)]
    token: TokenFlag,
    /// The cluster.
    #[command(flatten)]
    cluster: ClusterFlags,
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
    let source = args.source().unwrap_or_else(|wrong| {
        let error = command.error(ErrorKind::ValueValidation, wrong);
        error.exit()
    });
    let mut request = args.positionals.request.clone();
    if let Err(wrong) = request.add_headers(&args.header) {
        command.error(ErrorKind::ValueValidation, wrong).exit();
    }
    if args.trusted_proxy {
        request.trust();
    }
    let is_found = match source {
        Source::Proxy(url) => ask(url, args)?,
        Source::Pods(gateway) => return ask_pods(&gateway, args),
        Source::Objects(source) => explain_objects(source, &request, args)?,
    };
    Ok(code(is_found))
}

fn code(is_found: bool) -> ExitCode {
    ExitCode::from(u8::from(!is_found))
}

/// What is asked about a request.
#[derive(Debug)]
enum Source<'a> {
    /// A running proxy.
    Proxy(&'a AdminUrl),
    /// All pods of a Gateway.
    Pods(Box<GatewayFlags>),
    /// Objects that no proxy serves.
    Objects(ObjectSource<'a>),
}

impl Args {
    /// Returns what is asked. --admin has precedence over a folder from the environment.
    fn source(&self) -> Result<Source<'_>, &'static str> {
        let folder = self.positionals.folder.as_deref();
        if let Some(namespace) = &self.namespace {
            return self.pods(namespace);
        }
        self.cluster.check()?;
        match &self.admin {
            Some(_) if self.cluster.kubernetes => Err(
                "--kubernetes and --admin exclude each other: the first is a cluster, the other a running proxy",
            ),
            Some(_) if folder.is_some_and(|folder| !is_default(folder)) => Err(
                "DIR and --admin exclude each other: the first is a folder, the other a running proxy",
            ),
            Some(url) => Ok(Source::Proxy(url)),
            None if folder.is_none() && !self.cluster.kubernetes => Err(
                "name a folder of Gateway API YAML, a cluster with --kubernetes, or a running proxy with --admin \
                 http://127.0.0.1:19000",
            ),
            None => ObjectSource::new(folder, &self.cluster).map(Source::Objects),
        }
    }

    /// Returns the Gateway in a namespace, which takes the place of the folder.
    fn pods(&self, namespace: &str) -> Result<Source<'_>, &'static str> {
        let named = self.positionals.folder.as_deref().and_then(Path::to_str);
        let gateway = named.and_then(|named| gateway::gateway(named).ok());
        let gateway = gateway.ok_or(
            "-n NAMESPACE is that of a Gateway: name it as gateway/NAME, in lower case, before the request",
        )?;
        let ClusterFlags {
            kubeconfig,
            context,
            ..
        } = &self.cluster;
        let flags = GatewayFlags::new((namespace, gateway), kubeconfig.clone(), context.clone());
        Ok(Source::Pods(Box::new(flags)))
    }
}

/// Explains what the configuration of a source does. Returns whether a rule matches.
fn explain_objects(
    source: ObjectSource<'_>,
    request: &ExplainedRequest,
    args: &Args,
) -> anyhow::Result<bool> {
    let options = Options {
        controller_name: args.cluster.controller_name.as_arc().clone(),
        location: Location::from(&args.location),
        ..check::options(&args.permissions, source.mode())
    };
    let (load, _) = source.load(&options, false)?;
    let mut translator = Translator::new(options);
    let translation = translator.translate(&load.snapshot, None);
    let problems = load.problems.iter();
    let faults = problems.filter(|problem| problem.is_fault()).count();
    let faults = faults + translation.report.problems().count();
    let table = Table::build(Arc::new(translation.ir), None);
    let explanation = explain(
        Configuration {
            table: &table,
            state: State::Offline {
                policies: &|rule, port, listener| of_rule(&translator, rule, port, listener),
            },
            values: Values::Shown,
        },
        Findings {
            report: &translation.report,
            names: &*load.snapshot,
            now: Timestamp::now(),
        },
        request,
    );
    let mut out = io::stdout().lock();
    match args.format.output {
        OutputFormat::Json => output::json(&explanation, &mut out)?,
        OutputFormat::Text => {
            output::text(&explanation, &mut out)?;
            if faults > 0 {
                writeln!(
                    out,
                    "\n{faults} problems in {source}: see `portcullis check`"
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
    let path = path(args);
    let token = args.token.read()?;
    let page = admin_client::runtime()?.block_on(async {
        let page = timeout(RESPONSE_TIMEOUT, admin_client::get(url, &path, token)).await;
        page.unwrap_or_else(|_| bail!("no response within {} s", RESPONSE_TIMEOUT.as_secs()))
    });
    let explanation = page.and_then(Explanation::of);
    let explanation = explanation.with_context(|| format!("cannot ask the proxy at {url}"))?;
    output::text(&explanation.text, &mut io::stdout().lock())?;
    Ok(explanation.is_found)
}

/// What a proxy says of a request.
struct Explanation {
    text: String,
    is_found: bool,
}

impl Explanation {
    fn of(page: Page) -> anyhow::Result<Self> {
        let is_found = is_found(&page)?;
        let text = page.body;
        Ok(Self { text, is_found })
    }
}

/// Reports whether a rule matches.
fn is_found(page: &Page) -> anyhow::Result<bool> {
    match (page.status.as_u16(), page.header(FOUND)) {
        (200, Some(found)) => Ok(found == "true"),
        (404, _) => Err(anyhow!("it has no /explain: it may be an older version")),
        (431, _) => Err(anyhow!("the request and its headers are too long for it")),
        (200, None) => Err(anyhow!("its response is not that of a proxy")),
        (status, _) => Err(anyhow!("status {status}: {}", page.body.trim())),
    }
}

/// Asks all pods of a Gateway what the configuration in service does.
fn ask_pods(flags: &GatewayFlags, args: &Args) -> anyhow::Result<ExitCode> {
    let pods = Pods::new(flags)?;
    let pages = pods.pages(&path(args))?.into_iter();
    let explanations: Responses<Explanation> = pages
        .map(|(pod, page)| (pod, page.and_then(Explanation::of)))
        .collect();
    let mut out = io::stdout().lock();
    match args.format.output {
        OutputFormat::Json => output::json(&pods.json(&documents(&explanations)), &mut out)?,
        OutputFormat::Text => output::text(&text(&explanations), &mut out)?,
    }
    if explanations.iter().any(|(_, it)| it.is_err()) {
        return Ok(gateway::report(&explanations));
    }
    let mut explained = explanations.iter().filter_map(|(_, it)| it.as_ref().ok());
    Ok(code(explained.all(|it| it.is_found)))
}

fn documents(explanations: &Responses<Explanation>) -> Responses<Value> {
    let document = |explanation: &anyhow::Result<Explanation>| match explanation {
        Ok(it) => serde_json::from_str::<Value>(&it.text).context("its response is not JSON"),
        Err(error) => Err(anyhow!("{error:#}")),
    };
    let explanations = explanations.iter();
    explanations
        .map(|(pod, it)| (pod.clone(), document(it)))
        .collect()
}

/// Explanations under the names of the pods, each once.
fn text(explanations: &Responses<Explanation>) -> String {
    let mut groups: Vec<(Vec<&str>, &str)> = Vec::new();
    for (pod, explanation) in explanations {
        let Ok(Explanation { text, .. }) = explanation else {
            continue;
        };
        match groups.iter_mut().find(|(_, other)| *other == text.as_str()) {
            Some((pods, _)) => pods.push(pod),
            None => groups.push((vec![pod.as_str()], text.as_str())),
        }
    }
    let of = |(pods, text): &(Vec<&str>, &str)| {
        let word = if pods.len() == 1 { "pod" } else { "pods" };
        format!("{word} {}:\n{text}", pods.join(", "))
    };
    groups.iter().map(of).collect::<Vec<_>>().join("\n")
}

fn path(args: &Args) -> String {
    format!("/explain?{}", query(args))
}

/// The query of the request to the proxy.
fn query(args: &Args) -> String {
    let mut query = Serializer::new(String::new());
    query.append_pair("request", &args.positionals.request.to_string());
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
