//! `portcullis explain`: the way of one request through a folder's configuration, without sending it. Asks the same
//! table that serves traffic; knows no rule of its own.

mod describe;
mod policies;
mod request;
mod traffic;

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use self::request::Asked;
use super::check;
use super::flags::{LocationFlags, PermissionFlags};
use crate::ir::{Ir, PortProtocol};
use crate::location::Location;
use crate::provider::FileProvider;
use crate::table::{Considered, Listener, MatchVerdict, Port, Rule, Table};
use crate::translate::{Options, Translator};

/// Explain which listener, rule and backends a request gets, and why others are passed over.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis explain config/quickstart 'GET http://demo.example.com:8080/hello'
  portcullis explain config/quickstart 'POST http://demo.example.com:8080/hello?debug=1' -H 'X-Version: canary'
  portcullis explain --backend-tls-floor gateway config/quickstart http://demo.example.com:8080/hello

Nothing is sent: the folder is read and translated as `run` would, and its table is asked. Every policy on TLS to its
backends is shown with its level and why it applies or does not: give the same permissions as `run` has, and its zone and node.
Exit codes: 0 when the request gets to a rule, 1 when it does not or the folder cannot be read, 2 for wrong usage.")]
pub struct Args {
    /// Folder of Gateway API YAML
    #[arg(value_name = "DIR", env = "PORTCULLIS_CONFIG_DIR")]
    config_dir: PathBuf,
    /// Method and URL, such as 'GET https://host/path'; the method can be left out
    #[arg(value_name = "REQUEST")]
    request: Asked,
    /// A header field of the request; may be repeated
    #[arg(long, short = 'H', value_name = "NAME: VALUE", value_parser = request::header)]
    header: Vec<request::Header>,
    /// What objects may do.
    #[command(flatten)]
    permissions: PermissionFlags,
    /// Where the process runs that is explained.
    #[command(flatten)]
    location: LocationFlags,
}

/// Prints the way of the request.
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
    let mut asked = args.request.clone();
    asked.add_headers(&args.header);
    let configuration = Configuration {
        table: &table,
        ir: &ir,
        translator: &translator,
    };
    let (text, found) = explain(configuration, &asked);
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

/// What is asked.
#[derive(Clone, Copy)]
struct Configuration<'a> {
    table: &'a Table,
    ir: &'a Ir,
    /// Knows the policies that do not apply, of which there is nothing in the IR.
    translator: &'a Translator,
}

/// The explanation, and whether the request gets to a rule.
fn explain(configuration: Configuration<'_>, asked: &Asked) -> (String, bool) {
    let table = configuration.table;
    let mut text = format!("{asked}\n");
    let ports = candidates(table, asked);
    if ports.is_empty() {
        line(&mut text, "port", &no_port(table, asked));
        return (text, false);
    }
    let mut found = false;
    for port in ports {
        text.push('\n');
        found |= explain_port(&mut text, port, configuration, asked);
    }
    (text, found)
}

/// The ports that the URL means. Without a port in the URL and a listener on its scheme's, every port of the scheme.
fn candidates<'a>(table: &'a Table, asked: &Asked) -> Vec<&'a Arc<Port>> {
    let speaks = |port: &&Arc<Port>| port.protocol() == asked.protocol();
    let of_scheme: Vec<_> = table.ports().iter().filter(speaks).collect();
    let number = asked.port.unwrap_or(asked.default_port());
    let exact: Vec<_> = of_scheme
        .iter()
        .copied()
        .filter(|port| port.bind().port == number)
        .collect();
    if exact.is_empty() && asked.port.is_none() {
        return of_scheme;
    }
    exact
}

fn no_port(table: &Table, asked: &Asked) -> String {
    let open: Vec<String> = table
        .ports()
        .iter()
        .map(|port| format!("{} ({})", port.bind(), protocol(port.protocol())))
        .collect();
    let open = if open.is_empty() {
        "no port at all".to_owned()
    } else {
        open.join(", ")
    };
    format!(
        "none for {}: the configuration opens {open}",
        asked.scheme()
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
    asked: &Asked,
) -> bool {
    let place = format!(
        "{} ({}) of {}",
        port.bind(),
        protocol(port.protocol()),
        port.ir.gateway
    );
    line(text, "port", &place);
    let listener = match port.protocol() {
        PortProtocol::Http | PortProtocol::Tcp | PortProtocol::Udp => port.listener(&asked.host),
        PortProtocol::Tls => port.listener_for_sni(asked.sni()),
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
        let none = format!("none for {}, only for {}", asked.host, hosts.join(", "));
        line(text, "listener", &format!("{none}: {outcome}"));
        return false;
    };
    explain_listeners(text, port, listener, asked);
    let chosen = explain_rules(text, listener, configuration.ir, asked);
    if let Some(rule) = chosen {
        let translator = configuration.translator;
        let (gateway, listener) = (&port.ir.gateway, &listener.ir.key);
        let policies = translator.backend_policies(&rule.ir.id, gateway, listener);
        labelled(text, "TLS policy", &policies::policies(&policies));
    }
    chosen.is_some()
}

fn explain_listeners(text: &mut String, port: &Port, chosen: &Arc<Listener>, asked: &Asked) {
    let name = &chosen.ir.key.name;
    let host = &chosen.ir.hostname;
    line(text, "listener", &format!("{name}, hostname {host}"));
    for other in port.listeners() {
        if Arc::ptr_eq(other, chosen) {
            continue;
        }
        let why = if other.ir.hostname.contains(&asked.host) {
            "is less specific"
        } else {
            "is another host"
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
    asked: &Asked,
) -> Option<&'a Rule> {
    let view = asked.view();
    let considered = listener.explain(&view);
    let chosen = listener.find(&view);
    match chosen {
        Some(rule) => explain_rule(text, rule, &considered, ir),
        None => line(text, "rule", "none fits: 404"),
    }
    let passed: Vec<_> = considered
        .iter()
        .filter(|one| one.verdict != MatchVerdict::Chosen)
        .collect();
    for (index, one) in passed.iter().enumerate() {
        let label = if index == 0 { "passed over" } else { "" };
        line(text, label, &describe::considered(one));
    }
    let matches: usize = all_matches(listener);
    if matches > considered.len() {
        let others = matches - considered.len();
        let label = if passed.is_empty() { "passed over" } else { "" };
        let count = format!("{others} matches of routes for other hostnames");
        line(text, label, &count);
    }
    chosen.map(AsRef::as_ref)
}

/// Number of matches on a listener, counted once per hostname as they are tried.
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
