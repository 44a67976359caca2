//! `portcullis status`: whether a running proxy works, and what is wrong.

use std::io;
use std::process::ExitCode;

use serde_json::Value;

use super::admin_client::{self, AdminFlags};
use super::fleet::{self, FleetFlags};
use super::output::{self, FailOn, FindingsFormat};
use super::problem;

/// Show whether a running proxy works, and what is wrong
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis status --admin http://127.0.0.1:19000
  portcullis status --admin http://127.0.0.1:19000 -o json
  portcullis status -o wide
  portcullis status --fail-on error
  portcullis status --readiness
  portcullis status -n infra gateway/edge
  portcullis status -n infra gateway/edge --watch
  portcullis status -n infra gateway/edge --problems

Shows readiness, the configuration in service and every problem with what to do, errors first, and of these the ones with the
most effect on requests: a controller or API server that is away, ports that are not bound, overload, certificates that expire
soon, are not yet valid or not for the hostname of their listener, TLS handshakes of clients and sign-ins that fail, backends
without endpoints, rules whose requests failed in the last minutes or that have no weight above 0, endpoints that fail or are
ejected with the cause, backends that became slow, files and objects that cannot be read, conditions, policies that do less than
they seem to, and rules that get no request. What may make the requests of a rule fail comes before these failures. An object of a folder has its file and line.
A problem is an error if requests or connections get a wrong response or none, or an object is not served as written, and a
warning if that may happen.
Sends nothing to a backend. In a cluster, use kubectl port-forward pod/NAME 19000 first.
With gateway/NAME, shows a row for each pod of a Gateway that the controller has created: version, revision of the controller,
for how long it has had no controller, connections, and problems by kind. That takes the rights to list pods and to get pods/proxy.
With the right to get gateways, it also warns of a Gateway that is not programmed, such as one whose pods the API server refuses.
With -o wide, each field of a problem has a line of its own: cause, location, effect, remedy and since.
With --problems or -o wide, also names each problem once, after the pods that have it. That takes the rights to get and create
pods/portforward, too.
Exit codes: 0 if the proxy is ready and nothing is wrong (warnings do not count with --fail-on error), or with --readiness if it
is ready, 1 otherwise, 2 for wrong usage, 3 if it cannot be reached.")]
pub struct Args {
    /// The proxy.
    #[command(flatten)]
    proxy: AdminFlags,
    /// Format of the output
    #[arg(long, short, value_enum, default_value_t)]
    output: FindingsFormat,
    /// Ask only whether the proxy, or a controller, is ready, as probes do: from any address, without a token
    #[arg(long, conflicts_with_all = ["output", "fail_on", "gateway"])]
    readiness: bool,
    /// What ends with exit code 1: errors, or warnings too
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = FailOn::Warning)]
    fail_on: FailOn,
    /// All pods of a Gateway.
    #[command(flatten)]
    fleet: FleetFlags,
}

/// Prints the status. The exit code says whether something is wrong.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.readiness {
        let (is_ready, reason) = admin_client::readiness(&args.proxy)?;
        output::text(&reason, &mut io::stdout().lock())?;
        return Ok(ExitCode::from(u8::from(!is_ready)));
    }
    if args.fleet.is_set() {
        return fleet::run(&args.fleet, args.output, args.fail_on);
    }
    let status = admin_client::document(&args.proxy, "status")?;
    let mut out = io::stdout().lock();
    match args.output {
        FindingsFormat::Json => output::json(&status, &mut out)?,
        FindingsFormat::Yaml => output::yaml(&status, &mut out)?,
        FindingsFormat::Text => output::text(&text(&status, problem::line), &mut out)?,
        FindingsFormat::Wide => output::text(&text(&status, problem::lines), &mut out)?,
    }
    Ok(ExitCode::from(u8::from(!is_well(&status, args.fail_on))))
}

/// Reports whether a proxy is ready, and has no problem that ends with exit code 1.
fn is_well(status: &Value, fail_on: FailOn) -> bool {
    let problems = status["problems"].as_array();
    let mut problems = problems.into_iter().flatten();
    status["ready"] == true && !problems.any(|it| fail_on.includes(it["severity"].as_str()))
}

/// Returns a status as text, with problems as `show` has them.
fn text(status: &Value, show: fn(&Value) -> String) -> String {
    let part = |name: &str| match &status[name] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let ready = match (&status["ready"], &status["waiting"]) {
        (Value::Bool(true), _) => "ready".to_owned(),
        (_, Value::String(waiting)) => format!("not ready: {waiting}"),
        _ => "not ready".to_owned(),
    };
    let revision = match &status["revision"] {
        Value::Null => String::new(),
        revision => {
            let connected = status["controllerConnected"] == true;
            let state = if connected {
                "connected"
            } else {
                "NOT connected"
            };
            format!(", revision {revision} of the controller, which is {state}")
        }
    };
    let configuration = match status["loadedAt"].as_str() {
        Some(since) => format!(
            "generation {}, in service since {since}",
            part("generation")
        ),
        None => "none in service yet".to_owned(),
    };
    let mut text = format!(
        "Portcullis {}: {ready}\nconfiguration: {configuration}{revision}\n\
         serving: {} ports, {} routes, {} backends with {} endpoints ({} ejected), {} client connections\n",
        part("version"),
        part("ports"),
        part("routes"),
        part("backends"),
        part("endpoints"),
        part("endpointsEjected"),
        part("connections"),
    );
    let problems = status["problems"].as_array().map_or(&[][..], |it| it);
    match problems.len() {
        0 => text.push_str("problems: none\n"),
        count => text.push_str(&format!("problems: {count}\n")),
    }
    let lines = problems.iter().map(show);
    for line in lines.flat_map(|it| it.lines().map(str::to_owned).collect::<Vec<_>>()) {
        text.push_str(&format!("  {line}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn problems_are_listed_with_their_objects() {
        let expired = json!({
            "in": "service", "severity": "error", "object": "Secret a/b", "message": "has expired", "since": "2026-01-02T00:00:00Z",
        });
        let located = json!({
            "severity": "warning", "object": "HTTPRoute a/c", "message": "is lost", "file": "/etc/c.yaml", "document": 2, "line": 7,
        });
        let file = json!({"object": "/d.yaml", "message": "is broken", "file": "/d.yaml", "document": 0, "line": 0});
        let status = json!({
            "version": "1", "ready": false, "waiting": "port 80 is in use", "generation": 3, "revision": 7,
            "controllerConnected": false, "loadedAt": "2026-01-01T00:00:00Z", "connections": 5, "ports": 1, "routes": 2,
            "backends": 3, "endpoints": 4, "endpointsEjected": 1,
            "problems": [expired, located, file],
        });
        let expected = "Portcullis 1: not ready: port 80 is in use\n\
            configuration: generation 3, in service since 2026-01-01T00:00:00Z, revision 7 of the controller, which is NOT connected\n\
            serving: 1 ports, 2 routes, 3 backends with 4 endpoints (1 ejected), 5 client connections\n\
            problems: 3\n  error: Secret a/b: has expired (since 2026-01-02T00:00:00Z)\n  \
            warning: /etc/c.yaml:7 (document 2): HTTPRoute a/c: is lost\n  /d.yaml: is broken\n";
        assert_eq!(text(&status, problem::line), expected);
        let wide = text(&status, problem::lines);
        let last = "\n  warning: HTTPRoute a/c\n    cause: is lost\n    location: /etc/c.yaml:7 (document 2)\n  \
            /d.yaml\n    cause: is broken\n    location: /d.yaml\n";
        assert!(wide.ends_with(last), "{wide}");
    }

    #[test]
    fn warnings_fail_unless_only_errors_do() {
        let status = |severities: &[&str]| {
            let problems: Vec<_> = severities
                .iter()
                .map(|it| json!({"severity": it}))
                .collect();
            json!({"ready": true, "problems": problems})
        };
        for (severities, is_well_on_warning, is_well_on_error) in [
            (&[][..], true, true),
            (&["warning"][..], false, true),
            (&["warning", "error"][..], false, false),
        ] {
            let status = status(severities);
            assert_eq!(is_well(&status, FailOn::Warning), is_well_on_warning);
            assert_eq!(is_well(&status, FailOn::Error), is_well_on_error);
        }
        let of_former_version = json!({"ready": true, "problems": [{}]});
        assert!(!is_well(&of_former_version, FailOn::Error));
        let not_ready = json!({"ready": false, "problems": []});
        assert!(!is_well(&not_ready, FailOn::Error));
    }

    #[test]
    fn nothing_is_in_service_while_the_first_objects_load() {
        let status = json!({
            "version": "1", "ready": false, "waiting": "the objects are read", "generation": 0, "loadedAt": null,
            "connections": 0, "ports": 0, "routes": 0, "backends": 0, "endpoints": 0, "endpointsEjected": 0, "problems": [],
        });
        let text = text(&status, problem::line);
        assert!(
            text.contains("\nconfiguration: none in service yet\n"),
            "{text}"
        );
    }
}
