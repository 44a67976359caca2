//! `portcullis config`: what is in service in a running proxy, as tables.

use std::io;
use std::process::ExitCode;

use serde_json::Value;

use super::admin_client::{self, AdminFlags};
use super::gateway::{self, GatewayFlags, Pods};
use super::output::{self, OutputFlag, OutputFormat};
use super::table::{Table, of_pods};

/// Show the ports, routes, backends, certificates or policies in service
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis config routes --admin http://127.0.0.1:19000
  portcullis config certificates --admin http://127.0.0.1:19000
  portcullis config backends --admin http://127.0.0.1:19000 -o json
  portcullis config backends -n infra gateway/edge

Asks a running proxy, or with gateway/NAME all pods of a Gateway that the controller has created, whose names then begin the
rows. That takes the rights to list pods, and to get and create pods/portforward. Sends nothing to a backend. Keys, and values
of headers and query parameters in matches, are never shown.
Exit codes: 0 on success, 2 for wrong usage, 3 if the proxy, or one of the pods, cannot be reached.")]
pub struct Args {
    /// What to show
    #[arg(value_enum)]
    part: Part,
    /// The proxy.
    #[command(flatten)]
    proxy: AdminFlags,
    /// All pods of a Gateway.
    #[command(flatten)]
    gateway: GatewayFlags,
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

/// Prints a part of the configuration, of the proxy or of all pods.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let name = args.part.name();
    let Some(pods) = Pods::of(&args.gateway)? else {
        let document = admin_client::document(&args.proxy, name)?;
        print(args, &document, &[(None, &document)])?;
        return Ok(ExitCode::SUCCESS);
    };
    let responses = pods.documents(name)?;
    let documents = responses.iter();
    let documents: Vec<_> = documents
        .filter_map(|(pod, document)| Some((Some(pod.as_str()), document.as_ref().ok()?)))
        .collect();
    print(args, &pods.json(&responses), &documents)?;
    Ok(gateway::report(&responses))
}

/// Documents, each with the name of its pod.
type Documents<'a> = [(Option<&'a str>, &'a Value)];

fn print(args: &Args, json: &Value, documents: &Documents<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match args.format.output {
        OutputFormat::Json => output::json(json, &mut out),
        OutputFormat::Text => output::text(&table(args.part, documents), &mut out),
    }
}

/// The rows of an item.
type Rows = fn(&Value) -> Vec<Vec<String>>;

fn table(part: Part, documents: &Documents<'_>) -> Table {
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
    let mut all = Vec::new();
    for (pod, document) in documents {
        let rows = items(&document[part.name()]).iter().flat_map(rows);
        all.extend(rows.map(|row| (*pod, row)));
    }
    of_pods(columns, all)
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
        let table = |pod| table(Part::Backends, &[(pod, &document)]).to_string();
        assert_eq!(table(None), expected);
        let of_pod = table(Some("edge-1"));
        assert!(of_pod.starts_with("POD     BACKEND  "), "{of_pod}");
        assert!(of_pod.contains("\nedge-1  Service a/c:80  -  "), "{of_pod}");
    }
}
