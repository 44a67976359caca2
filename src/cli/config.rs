//! `portcullis config`: what is in service in a running proxy, as tables.

use std::io::{self, Write};

use serde_json::Value;

use super::admin_client::{self, AdminFlags};
use super::output::{self, OutputFlag, OutputFormat};
use super::table::{Table, header};

/// Show the ports, routes, backends, certificates or policies in service
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis config routes --admin http://127.0.0.1:19000
  portcullis config certificates --admin http://127.0.0.1:19000
  portcullis config backends --admin http://127.0.0.1:19000 -o json

Asks a running proxy. Sends nothing to a backend. Keys, and values of headers and query parameters in matches, are never
shown.
Exit codes: 0 on success, 2 for wrong usage, 3 if the proxy cannot be reached.")]
pub struct Args {
    /// What to show
    #[arg(value_enum)]
    part: Part,
    /// The proxy.
    #[command(flatten)]
    proxy: AdminFlags,
    /// Format of the output.
    #[command(flatten)]
    format: OutputFlag,
}

/// A part of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Ports with their listeners
    Ports,
    /// Routes with their rules
    Routes,
    /// Backends with their endpoints and health
    Backends,
    /// Certificates of listeners, the next to expire first
    Certificates,
    /// Policies with their conditions
    Policies,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Ports => "ports",
            Self::Routes => "routes",
            Self::Backends => "backends",
            Self::Certificates => "certificates",
            Self::Policies => "policies",
        }
    }
}

/// Prints a part of the configuration.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let document = admin_client::document(&args.proxy, args.part.name())?;
    let mut out = io::stdout().lock();
    match args.format.output {
        OutputFormat::Json => output::json(&document, &mut out)?,
        OutputFormat::Text => write!(out, "{}", table(args.part, &document))?,
    }
    Ok(())
}

/// The rows of an item.
type Rows = fn(&Value) -> Vec<Vec<String>>;

fn table(part: Part, document: &Value) -> Table {
    let (columns, rows): (&[&str], Rows) = match part {
        Part::Ports => (
            &[
                "PORT", "GATEWAY", "LISTENER", "PROTOCOL", "HOSTNAME", "ROUTES",
            ],
            of_port,
        ),
        Part::Routes => (&["ROUTE", "RULE", "MATCHES", "BACKENDS", "5XX"], of_route),
        Part::Backends => (
            &[
                "BACKEND",
                "ENDPOINT",
                "STATE",
                "CAUSE",
                "IN FLIGHT",
                "ERRORS",
            ],
            of_backend,
        ),
        Part::Certificates => (&["EXPIRES", "SECRET", "NAMES", "LISTENERS"], of_certificate),
        Part::Policies => (&["POLICY", "FOR", "CONDITION", "MESSAGE"], of_policy),
    };
    let rows = items(&document[part.name()]).iter().flat_map(rows);
    Table([header(columns)].into_iter().chain(rows).collect())
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(text).collect::<Vec<_>>().join(", "),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    }
}

fn of_port(port: &Value) -> Vec<Vec<String>> {
    let row = |listener: &Value| {
        vec![
            text(&port["address"]),
            text(&port["gateway"]),
            text(&listener["name"]),
            text(&listener["protocol"]),
            text(&listener["hostname"]),
            text(&listener["routes"]),
        ]
    };
    items(&port["listeners"]).iter().map(row).collect()
}

fn of_route(route: &Value) -> Vec<Vec<String>> {
    let name = format!(
        "{} {}/{}",
        text(&route["kind"]),
        text(&route["namespace"]),
        text(&route["name"])
    );
    let row = |rule: &Value| {
        let backend = |it: &Value| format!("{} ({})", text(&it["backend"]), it["weight"]);
        let backends: Vec<_> = items(&rule["backends"]).iter().map(backend).collect();
        vec![
            name.clone(),
            text(&rule["rule"]),
            text(&rule["matches"]),
            backends.join(", "),
            text(&rule["requests"]["5xx"]),
        ]
    };
    items(&route["rules"]).iter().map(row).collect()
}

fn of_backend(backend: &Value) -> Vec<Vec<String>> {
    let errors = backend["errors"].as_object();
    let errors = errors.into_iter().flatten();
    let errors: Vec<_> = errors
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    let errors = if errors.is_empty() {
        "-".to_owned()
    } else {
        errors.join(", ")
    };
    let row = |[address, state, cause, in_flight]: [String; 4]| {
        let backend = text(&backend["backend"]);
        vec![backend, address, state, cause, in_flight, errors.clone()]
    };
    let endpoints = items(&backend["endpoints"]);
    if endpoints.is_empty() {
        return vec![row(["-", "no endpoint", "-", "-"].map(str::to_owned))];
    }
    let of =
        |it: &Value| row(["address", "state", "cause", "inFlight"].map(|name| text(&it[name])));
    endpoints.iter().map(of).collect()
}

fn of_certificate(certificate: &Value) -> Vec<Vec<String>> {
    vec![vec![
        text(&certificate["expires"]),
        text(&certificate["source"]),
        text(&certificate["names"]),
        text(&certificate["listeners"]),
    ]]
}

fn of_policy(policy: &Value) -> Vec<Vec<String>> {
    let row = |condition: &Value| {
        let part = |name: &str| text(&condition[name]);
        vec![
            text(&policy["policy"]),
            text(&policy["for"]),
            format!("{}={} ({})", part("type"), part("status"), part("reason")),
            part("message"),
        ]
    };
    items(&policy["conditions"]).iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn backend_without_endpoints_has_a_row() {
        let endpoint = json!({"address": "10.0.0.1:80", "state": "ejected", "cause": "refuses connections", "inFlight": 2});
        let document = json!({"backends": [
            {"backend": "Service a/b:80", "endpoints": [endpoint], "errors": {"connect": 3}},
            {"backend": "Service a/c:80", "endpoints": [], "errors": {}},
        ]});
        let expected = "\
BACKEND         ENDPOINT     STATE        CAUSE                IN FLIGHT  ERRORS
Service a/b:80  10.0.0.1:80  ejected      refuses connections  2          connect 3
Service a/c:80  -            no endpoint  -                    -          -
";
        assert_eq!(table(Part::Backends, &document).to_string(), expected);
    }
}
