//! `portcullis explain`: shows how a folder's configuration would route one request, without sending it. Uses the same
//! table as the proxy, so that both match alike.

mod describe;
mod explanation;
mod policies;
mod request;
mod traffic;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use self::explanation::{Explanation, nearest};
use self::request::ExplainedRequest;
use super::check;
use super::flags::{LocationFlags, PermissionFlags};
use super::output::{self, OutputFlag, OutputFormat};
use crate::ir::{Ir, PortProtocol};
use crate::provider::FileProvider;
use crate::settings::location::Location;
use crate::table::{Considered, Listener, MatchVerdict, Port, Rule, Table};
use crate::translate::{Options, Translator};

/// Explain which listener, rule and backends handle a request, and why others do not.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis explain config/quickstart 'GET http://demo.example.com:8080/hello'
  portcullis explain config/quickstart 'POST http://demo.example.com:8080/hello?debug=1' -H 'X-Version: canary'
  portcullis explain -o json config/quickstart http://demo.example.com:8080/hello
  portcullis explain --backend-tls-floor gateway config/quickstart http://demo.example.com:8080/hello

Sends nothing: reads and translates the folder as `run` does, and matches the request against the result. Shows every TLS
policy for the backends with its level, and why it applies or not. Pass the same permissions, zone and node as to `run`.
Exit codes: 0 if a rule matches, 1 if none matches or the folder cannot be read, 2 for wrong usage.")]
pub struct Args {
    /// Folder of Gateway API YAML
    #[arg(value_name = "DIR", env = "PORTCULLIS_CONFIG_DIR")]
    config_dir: PathBuf,
    /// Method and URL, such as 'GET https://host/path'; the default method is GET. For routes of TLS, TCP and UDP, a URL such
    /// as 'tls://host:8443'
    #[arg(value_name = "REQUEST")]
    request: ExplainedRequest,
    /// A header of the request; may be repeated
    #[arg(long, short = 'H', value_name = "NAME: VALUE", value_parser = request::header)]
    header: Vec<request::Header>,
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

/// Prints the explanation. Fails with exit code 1 if no rule matches.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let load = FileProvider::new(args.config_dir.clone()).load()?;
    let mut translator = Translator::new(Options {
        location: Location::from(&args.location),
        ..check::options(&args.permissions)
    });
    let translation = translator.translate(&load.snapshot, None);
    let problems = load.problems.iter();
    let faults = problems.filter(|problem| problem.is_fault()).count();
    let faults = faults + translation.report.problems().count();
    let ir = Arc::new(translation.ir);
    let table = Table::build(ir.clone(), None);
    let mut request = args.request.clone();
    request.add_headers(&args.header);
    let configuration = Configuration {
        table: &table,
        ir: &ir,
        translator: &translator,
    };
    let mut explanation = explain(configuration, &request);
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
    Ok(if explanation.found {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The configuration that is explained.
#[derive(Clone, Copy)]
struct Configuration<'a> {
    table: &'a Table,
    ir: &'a Ir,
    /// Returns the policies that do not apply, which the IR does not contain.
    translator: &'a Translator,
}

/// Explains a request.
fn explain(configuration: Configuration<'_>, request: &ExplainedRequest) -> Explanation {
    let table = configuration.table;
    let mut explanation = Explanation::new(request.to_string());
    let ports = candidates(table, request);
    if ports.is_empty() {
        explanation.lines("port", no_port(table, request));
    }
    for port in ports {
        explanation.begin_port();
        let found = explain_port(&mut explanation, port, configuration, request);
        explanation.found |= found;
    }
    explanation
}

/// The ports that the URL may refer to. If the URL has no port and nothing listens on the default port of its scheme,
/// these are all ports of the scheme.
fn candidates<'a>(table: &'a Table, request: &ExplainedRequest) -> Vec<&'a Arc<Port>> {
    let speaks = |port: &&Arc<Port>| port.protocol() == request.protocol;
    let of_scheme: Vec<_> = table.ports().iter().filter(speaks).collect();
    let number = request.port.unwrap_or(request.default_port());
    let exact: Vec<_> = of_scheme
        .iter()
        .copied()
        .filter(|port| port.bind().port == number)
        .collect();
    if exact.is_empty() && request.port.is_none() {
        return of_scheme;
    }
    exact
}

/// Says that the port of the request is closed, or speaks another protocol, and which ports are open.
fn no_port(table: &Table, request: &ExplainedRequest) -> Vec<String> {
    let number = request.port.unwrap_or(request.default_port());
    let scheme = request.scheme();
    let same = table.ports().iter().find(|port| port.bind().port == number);
    let first = match same {
        Some(port) => {
            let gateway = &port.ir.gateway;
            let speaks = protocol(port.protocol());
            format!("port {number} of {gateway} is not for {scheme}, but for {speaks}")
        }
        None => format!("port {number} is closed: no listener has it"),
    };
    let open = nearest(
        table.ports().iter().collect(),
        |port| usize::from(port.bind().port.abs_diff(number)),
        |port| format!("open: {} ({})", port.bind(), protocol(port.protocol())),
        "open ports",
    );
    let none = open
        .is_empty()
        .then(|| "the configuration opens no port".to_owned());
    std::iter::once(first).chain(open).chain(none).collect()
}

fn protocol(protocol: PortProtocol) -> &'static str {
    match protocol {
        PortProtocol::Http => "http",
        PortProtocol::Tls => "https or tls",
        PortProtocol::Tcp => "tcp",
        PortProtocol::Udp => "udp",
    }
}

fn explain_port(
    explanation: &mut Explanation,
    port: &Port,
    configuration: Configuration<'_>,
    request: &ExplainedRequest,
) -> bool {
    let place = format!(
        "{} ({}) of {}",
        port.bind(),
        protocol(port.protocol()),
        port.ir.gateway
    );
    explanation.line("port", place);
    let listener = match port.protocol() {
        PortProtocol::Http | PortProtocol::Tcp | PortProtocol::Udp => port.listener(&request.host),
        PortProtocol::Tls => port.listener_for_sni(request.sni()),
    };
    let Some(listener) = listener else {
        explanation.lines("listener", no_listener(port, request));
        return false;
    };
    explain_listeners(explanation, port, listener, request);
    let chosen = explain_rules(explanation, listener, configuration.ir, request);
    if let Some(rule) = chosen {
        let translator = configuration.translator;
        let (gateway, listener) = (&port.ir.gateway, &listener.ir.key);
        let policies = translator.backend_policies(&rule.ir.id, gateway, listener);
        explanation.lines("TLS policy", policies::policies(&policies));
    }
    chosen.is_some()
}

/// Says that no listener of a port is for the host, what happens, and which hosts there are.
fn no_listener(port: &Port, request: &ExplainedRequest) -> Vec<String> {
    let outcome = match port.protocol() {
        PortProtocol::Http => "404",
        PortProtocol::Tls => "the handshake is refused",
        PortProtocol::Tcp | PortProtocol::Udp => "nothing is forwarded",
    };
    let host = &request.host;
    let hosts = nearest(
        port.listeners().iter().collect(),
        |listener| strsim::damerau_levenshtein(host, &listener.ir.hostname.to_string()),
        |listener| {
            format!(
                "for {}: listener {}",
                listener.ir.hostname, listener.ir.key.name
            )
        },
        "listeners",
    );
    let first = format!("none for {host}: {outcome}");
    std::iter::once(first).chain(hosts).collect()
}

fn explain_listeners(
    explanation: &mut Explanation,
    port: &Port,
    chosen: &Arc<Listener>,
    request: &ExplainedRequest,
) {
    let name = &chosen.ir.key.name;
    let host = &chosen.ir.hostname;
    explanation.line("listener", format!("{name}, hostname {host}"));
    let others = port.listeners().iter();
    let others = others.filter(|other| !Arc::ptr_eq(other, chosen)).collect();
    let matches = |other: &Listener| other.ir.hostname.contains(&request.host);
    let passed = |other: &&Arc<Listener>| {
        let why = match matches(other) {
            true => "is less specific",
            false => "does not match",
        };
        let name = &other.ir.key.name;
        format!("not {name}: hostname {} {why}", other.ir.hostname)
    };
    let distance = |other: &&Arc<Listener>| usize::from(!matches(other));
    explanation.lines_after(nearest(others, distance, passed, "listeners"));
    if let Some(tls) = chosen.ir.tls() {
        explanation.line("TLS", describe::tls(tls));
    }
}

fn explain_rules<'a>(
    explanation: &mut Explanation,
    listener: &'a Listener,
    ir: &Ir,
    request: &ExplainedRequest,
) -> Option<&'a Rule> {
    let view = request.view();
    let considered = listener.explain(&view);
    let chosen = listener.find(&view);
    match chosen {
        Some(rule) => explain_rule(explanation, rule, &considered, ir),
        None => explanation.line("rule", "none matches: 404"),
    }
    let others = all_matches(listener).saturating_sub(considered.len());
    let passed = considered.into_iter();
    let passed = passed
        .filter(|one| one.verdict != MatchVerdict::Chosen)
        .collect();
    let distance = |one: &Considered<'_>| describe::distance(one, view.path);
    let mut lines = nearest(
        passed,
        distance,
        describe::considered,
        "matches of this hostname",
    );
    lines.extend((others > 0).then(|| format!("{others} matches of routes for other hostnames")));
    explanation.lines("not chosen", lines);
    chosen.map(AsRef::as_ref)
}

/// Number of matches on a listener. Counts a match once for each hostname, like [`Listener::explain`].
fn all_matches(listener: &Listener) -> usize {
    let routes = listener.ir.routes.iter();
    routes
        .map(|attached| {
            let rules = attached.route.rules.iter();
            attached.hostnames.len() * rules.map(|rule| rule.matches.len()).sum::<usize>()
        })
        .sum()
}

fn explain_rule(
    explanation: &mut Explanation,
    rule: &Rule,
    considered: &[Considered<'_>],
    ir: &Ir,
) {
    let is_chosen = |one: &&Considered<'_>| one.verdict == MatchVerdict::Chosen;
    if let Some(one) = considered.iter().find(is_chosen) {
        explanation.line("rule", describe::considered(one));
    }
    explanation.lines("filters", describe::filters(&rule.ir.filters, ir));
    explanation.lines("timeouts", describe::timeouts(&rule.ir.timeouts));
    explanation.lines("retry", describe::retry(rule.ir.retry.as_deref()));
    explanation.lines("backends", describe::action(&rule.ir, ir));
}

#[cfg(test)]
mod tests;
