//! `portcullis explain`: shows how a folder's configuration would route one request, without sending it. Uses the same
//! table as the proxy, so that both match alike.

mod describe;
mod policies;
mod request;
mod traffic;

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use self::request::ExplainedRequest;
use super::check;
use super::flags::{LocationFlags, PermissionFlags};
use crate::ir::{Ir, PortProtocol};
use crate::location::Location;
use crate::provider::FileProvider;
use crate::table::{Considered, Listener, MatchVerdict, Port, Rule, Table};
use crate::translate::{Options, Translator};

/// Explain which listener, rule and backends handle a request, and why others do not.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis explain config/quickstart 'GET http://demo.example.com:8080/hello'
  portcullis explain config/quickstart 'POST http://demo.example.com:8080/hello?debug=1' -H 'X-Version: canary'
  portcullis explain --backend-tls-floor gateway config/quickstart http://demo.example.com:8080/hello

Sends nothing: reads and translates the folder as `run` does, and matches the request against the result. Shows every TLS
policy for the backends with its level, and why it applies or not. Pass the same permissions, zone and node as to `run`.
Exit codes: 0 if a rule matches, 1 if none matches or the folder cannot be read, 2 for wrong usage.")]
pub struct Args {
    /// Folder of Gateway API YAML
    #[arg(value_name = "DIR", env = "PORTCULLIS_CONFIG_DIR")]
    config_dir: PathBuf,
    /// Method and URL, such as 'GET https://host/path'; the default method is GET
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
}

/// Prints the explanation. Fails with exit code 1 if no rule matches.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let load = FileProvider::new(args.config_dir.clone()).load()?;
    let mut translator = Translator::new(Options {
        location: Location::from(&args.location),
        ..check::options(&args.permissions)
    });
    let translation = translator.translate(&load.snapshot, None);
    let faults = load.problems.len() + translation.report.problems().count();
    let ir = Arc::new(translation.ir);
    let table = Table::build(ir.clone(), None);
    let mut request = args.request.clone();
    request.add_headers(&args.header);
    let configuration = Configuration {
        table: &table,
        ir: &ir,
        translator: &translator,
    };
    let (text, found) = explain(configuration, &request);
    print!("{text}");
    if faults > 0 {
        println!("\n{faults} problems in the folder: see `portcullis check`");
    }
    Ok(if found {
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

/// Returns the explanation, and whether a rule matches.
fn explain(configuration: Configuration<'_>, request: &ExplainedRequest) -> (String, bool) {
    let table = configuration.table;
    let mut text = format!("{request}\n");
    let ports = candidates(table, request);
    if ports.is_empty() {
        line(&mut text, "port", &no_port(table, request));
        return (text, false);
    }
    let mut found = false;
    for port in ports {
        text.push('\n');
        found |= explain_port(&mut text, port, configuration, request);
    }
    (text, found)
}

/// The ports that the URL may refer to. If the URL has no port and nothing listens on the default port of its scheme,
/// these are all ports of the scheme.
fn candidates<'a>(table: &'a Table, request: &ExplainedRequest) -> Vec<&'a Arc<Port>> {
    let speaks = |port: &&Arc<Port>| port.protocol() == request.protocol();
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

fn no_port(table: &Table, request: &ExplainedRequest) -> String {
    let open: Vec<String> = table
        .ports()
        .iter()
        .map(|port| format!("{} ({})", port.bind(), protocol(port.protocol())))
        .collect();
    let open = if open.is_empty() {
        "no port".to_owned()
    } else {
        open.join(", ")
    };
    format!(
        "none for {}: the configuration opens {open}",
        request.scheme()
    )
}

fn protocol(protocol: PortProtocol) -> &'static str {
    match protocol {
        PortProtocol::Http => "http",
        PortProtocol::Tls => "https",
        PortProtocol::Tcp => "tcp",
        PortProtocol::Udp => "udp",
    }
}

fn explain_port(
    text: &mut String,
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
    line(text, "port", &place);
    let listener = match port.protocol() {
        PortProtocol::Http | PortProtocol::Tcp | PortProtocol::Udp => port.listener(&request.host),
        PortProtocol::Tls => port.listener_for_sni(request.sni()),
    };
    let Some(listener) = listener else {
        let hosts: Vec<String> = port
            .listeners()
            .iter()
            .map(|listener| listener.ir.hostname.to_string())
            .collect();
        let outcome = match port.protocol() {
            PortProtocol::Http => "404",
            PortProtocol::Tls => "the handshake is refused",
            PortProtocol::Tcp | PortProtocol::Udp => "nothing is forwarded",
        };
        let none = format!("none for {}, only for {}", request.host, hosts.join(", "));
        line(text, "listener", &format!("{none}: {outcome}"));
        return false;
    };
    explain_listeners(text, port, listener, request);
    let chosen = explain_rules(text, listener, configuration.ir, request);
    if let Some(rule) = chosen {
        let translator = configuration.translator;
        let (gateway, listener) = (&port.ir.gateway, &listener.ir.key);
        let policies = translator.backend_policies(&rule.ir.id, gateway, listener);
        labelled(text, "TLS policy", &policies::policies(&policies));
    }
    chosen.is_some()
}

fn explain_listeners(
    text: &mut String,
    port: &Port,
    chosen: &Arc<Listener>,
    request: &ExplainedRequest,
) {
    let name = &chosen.ir.key.name;
    let host = &chosen.ir.hostname;
    line(text, "listener", &format!("{name}, hostname {host}"));
    for other in port.listeners() {
        if Arc::ptr_eq(other, chosen) {
            continue;
        }
        let why = if other.ir.hostname.contains(&request.host) {
            "is less specific"
        } else {
            "does not match"
        };
        let name = &other.ir.key.name;
        let passed = format!("not {name}: hostname {} {why}", other.ir.hostname);
        line(text, "", &passed);
    }
    if let Some(tls) = chosen.ir.tls() {
        line(text, "TLS", &describe::tls(tls));
    }
}

fn explain_rules<'a>(
    text: &mut String,
    listener: &'a Listener,
    ir: &Ir,
    request: &ExplainedRequest,
) -> Option<&'a Rule> {
    let view = request.view();
    let considered = listener.explain(&view);
    let chosen = listener.find(&view);
    match chosen {
        Some(rule) => explain_rule(text, rule, &considered, ir),
        None => line(text, "rule", "none matches: 404"),
    }
    let passed: Vec<_> = considered
        .iter()
        .filter(|one| one.verdict != MatchVerdict::Chosen)
        .collect();
    for (index, one) in passed.iter().enumerate() {
        let label = if index == 0 { "not chosen" } else { "" };
        line(text, label, &describe::considered(one));
    }
    let matches: usize = all_matches(listener);
    if matches > considered.len() {
        let others = matches - considered.len();
        let label = if passed.is_empty() { "not chosen" } else { "" };
        let count = format!("{others} matches of routes for other hostnames");
        line(text, label, &count);
    }
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

fn explain_rule(text: &mut String, rule: &Rule, considered: &[Considered<'_>], ir: &Ir) {
    let is_chosen = |one: &&Considered<'_>| one.verdict == MatchVerdict::Chosen;
    if let Some(one) = considered.iter().find(is_chosen) {
        line(text, "rule", &describe::considered(one));
    }
    labelled(text, "filters", &describe::filters(&rule.ir.filters));
    labelled(text, "timeouts", &describe::timeouts(&rule.ir.timeouts));
    labelled(text, "retry", &describe::retry(rule.ir.retry.as_ref()));
    labelled(text, "backends", &describe::action(&rule.ir, ir));
}

fn labelled(text: &mut String, label: &str, lines: &[String]) {
    for (index, one) in lines.iter().enumerate() {
        line(text, if index == 0 { label } else { "" }, one);
    }
}

fn line(text: &mut String, label: &str, rest: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{label:<12}{rest}");
}

#[cfg(test)]
mod tests;
