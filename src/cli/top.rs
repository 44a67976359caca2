//! `portcullis top`: the busiest routes of a running proxy, by what they did between two looks.

mod connections;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use self::connections::Connections;
use super::admin_client::{self, AdminFlags};
use super::gateway::{self, GatewayFlags, Pods};
use super::output::{self, OutputFlag, OutputFormat};
use super::table::{Table, of_pods};
use crate::table::quantile;

/// Show the routes of a running proxy by requests or connections per second, with errors, durations and bytes
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis top --admin http://127.0.0.1:19000
  portcullis top --once --admin http://127.0.0.1:19000
  portcullis top --once -o json --admin http://127.0.0.1:19000
  portcullis top -n infra gateway/edge

Reads the counters of the proxy every two seconds. p50 and p99 are estimates from the buckets of its histograms.
Connections of TCPRoutes and TLSRoutes and sessions of UDPRoutes have a table of their own. FAILED/S are those whose
line of the access log has an error, and sessions that could not begin. RECEIVED/S is what clients have sent.
With gateway/NAME, a route has a row for each pod of a Gateway that the controller has created. That takes the rights to list
pods, and to get and create pods/portforward. While the API server is away, `top` says so and goes on.
Exit codes: 0 on success, 2 for wrong usage, 3 if the proxy, or with --once one of the pods, cannot be reached.")]
pub struct Args {
    /// The proxy.
    #[command(flatten)]
    proxy: AdminFlags,
    /// All pods of a Gateway.
    #[command(flatten)]
    gateway: GatewayFlags,
    /// Print once and end
    #[arg(long)]
    once: bool,
    /// Number of routes in each table
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
    /// Format of the output.
    #[command(flatten)]
    format: OutputFlag,
}

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(2);

/// Prints the routes until it is ended, or once.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let pods = Pods::of(&args.gateway)?;
    let (mut before, _) = looks(args, pods.as_ref())?;
    loop {
        std::thread::sleep(INTERVAL);
        let (now, code) = match looks(args, pods.as_ref()) {
            Ok(looked) => looked,
            // An API server that is away for a while, or pods that are replaced.
            Err(error) if pods.is_some() && !args.once => {
                gateway::say_away(&error);
                continue;
            }
            Err(error) => return Err(error),
        };
        let mut activity = Activity::between(&before, &now);
        activity.requests.truncate(args.limit);
        activity.connections.truncate(args.limit);
        before = now;
        let mut out = io::stdout().lock();
        match args.format.output {
            OutputFormat::Json => output::json(&activity.rows(), &mut out)?,
            OutputFormat::Text => {
                if !args.once && out.is_terminal() {
                    // Clears the screen.
                    write!(out, "\x1b[H\x1b[2J")?;
                }
                output::text(&activity, &mut out)?;
            }
        }
        out.flush()?;
        if args.once {
            return Ok(code);
        }
    }
}

/// A look at each proxy, by the name of its pod if it is one of a Gateway.
type Looks = BTreeMap<Option<String>, Look>;

/// Looks at all proxies. Returns the exit code too.
fn looks(args: &Args, pods: Option<&Pods>) -> anyhow::Result<(Looks, ExitCode)> {
    const DOCUMENT: &str = "routes";
    let Some(pods) = pods else {
        let document = admin_client::document(&args.proxy, DOCUMENT)?;
        let look = Look::of(&document, Instant::now());
        return Ok((Looks::from([(None, look)]), ExitCode::SUCCESS));
    };
    let responses = pods.documents(DOCUMENT)?;
    let code = gateway::report(&responses);
    let now = Instant::now();
    let looks = responses
        .into_iter()
        .filter_map(|(pod, document)| Some((Some(pod), Look::of(&document.ok()?, now))));
    Ok((looks.collect(), code))
}

/// What routes did between two looks, the busiest first.
struct Activity {
    requests: Vec<Requests>,
    /// Of routes that forward connections or datagrams as they are.
    connections: Vec<Connections>,
}

/// A route in JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum Row<'a> {
    Requests(&'a Requests),
    Connections(&'a Connections),
}

impl Activity {
    /// Returns what the routes of all proxies did between two looks at each.
    fn between(before: &Looks, now: &Looks) -> Self {
        let (mut requests, mut connections) = (Vec::new(), Vec::new());
        for (pod, now) in now {
            // A pod that has just been added has no earlier look.
            let Some(before) = before.get(pod) else {
                continue;
            };
            let activity = now.since(before);
            let of_requests = activity.requests.into_iter();
            requests.extend(of_requests.map(|it| Requests {
                pod: pod.clone(),
                ..it
            }));
            let of_connections = activity.connections.into_iter();
            connections.extend(of_connections.map(|it| Connections {
                pod: pod.clone(),
                ..it
            }));
        }
        sort(&mut requests);
        connections::sort(&mut connections);
        Self {
            requests,
            connections,
        }
    }

    fn rows(&self) -> Vec<Row<'_>> {
        let connections = self.connections.iter().map(Row::Connections);
        let requests = self.requests.iter().map(Row::Requests);
        requests.chain(connections).collect()
    }
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.connections.is_empty() {
            return write!(f, "{}", table(&self.requests));
        }
        if !self.requests.is_empty() {
            writeln!(f, "{}", table(&self.requests))?;
        }
        write!(f, "{}", connections::table(&self.connections))
    }
}

/// What a route that takes requests did between two looks.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Requests {
    /// The pod, if it is one of a Gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<String>,
    route: String,
    requests_per_second: f64,
    /// Share of 5xx, from 0 to 1.
    errors: f64,
    /// In seconds; without requests there is none.
    p50: Option<f64>,
    p99: Option<f64>,
    in_flight: u64,
}

/// The counters of all routes.
struct Look {
    time: Instant,
    bounds: Vec<f64>,
    routes: BTreeMap<String, Counters>,
    forwarding: BTreeMap<String, connections::Counters>,
}

/// The counters of a route that takes requests.
#[derive(Clone, Default)]
struct Counters {
    all: u64,
    failed: u64,
    in_flight: u64,
    durations: Vec<u64>,
}

impl Look {
    fn of(document: &Value, time: Instant) -> Self {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let bounds = list(&document["durationBounds"]);
        let mut routes = BTreeMap::<String, Counters>::new();
        let mut forwarding = BTreeMap::<String, connections::Counters>::new();
        for route in list(&document["routes"]) {
            let part = |name: &str| route[name].as_str().unwrap_or_default();
            let name = format!("{} {}/{}", part("kind"), part("namespace"), part("name"));
            let rules = list(&route["rules"]);
            let forwarded: Vec<_> = rules.iter().map(|rule| &rule["forwarded"]).collect();
            if forwarded.iter().any(|it| it.is_object()) {
                let counters = forwarding.entry(name).or_default();
                forwarded.iter().for_each(|it| counters.add(it));
                continue;
            }
            let counters = routes.entry(name).or_default();
            for rule in rules {
                let number = |value: &Value| value.as_u64().unwrap_or_default();
                let classes = rule["requests"].as_object();
                counters.all += classes
                    .into_iter()
                    .flatten()
                    .map(|(_, it)| number(it))
                    .sum::<u64>();
                counters.failed += number(&rule["requests"]["5xx"]);
                counters.in_flight += number(&rule["inFlight"]);
                let durations = list(&rule["durations"]);
                counters.durations.resize(durations.len(), 0);
                for (sum, count) in counters.durations.iter_mut().zip(&durations) {
                    *sum += number(count);
                }
            }
        }
        Self {
            time,
            bounds: bounds.iter().filter_map(Value::as_f64).collect(),
            routes,
            forwarding,
        }
    }

    /// Returns what routes did since an earlier look.
    fn since(&self, before: &Self) -> Activity {
        let seconds = self
            .time
            .duration_since(before.time)
            .as_secs_f64()
            .max(1e-3);
        let none = Counters::default();
        let activity = |(route, now): (&String, &Counters)| {
            let before = before.routes.get(route).unwrap_or(&none);
            // Counters begin again when a route is replaced.
            let all = now.all.saturating_sub(before.all);
            let failed = now.failed.saturating_sub(before.failed);
            let earlier = before.durations.iter().chain(std::iter::repeat(&0));
            let durations = now.durations.iter().zip(earlier);
            let durations: Vec<u64> = durations
                .map(|(now, before)| now.saturating_sub(*before))
                .collect();
            Requests {
                pod: None,
                route: route.clone(),
                requests_per_second: all as f64 / seconds,
                errors: failed as f64 / all.max(1) as f64,
                p50: quantile(0.5, &self.bounds, &durations),
                p99: quantile(0.99, &self.bounds, &durations),
                in_flight: now.in_flight,
            }
        };
        let mut routes: Vec<_> = self.routes.iter().map(activity).collect();
        sort(&mut routes);
        Activity {
            requests: routes,
            connections: self.forwarded_since(before, seconds),
        }
    }

    fn forwarded_since(&self, before: &Self, seconds: f64) -> Vec<Connections> {
        let none = connections::Counters::default();
        let connections = |(route, now): (&String, &connections::Counters)| {
            let before = before.forwarding.get(route).unwrap_or(&none);
            now.since(before, route, seconds)
        };
        let mut routes: Vec<_> = self.forwarding.iter().map(connections).collect();
        connections::sort(&mut routes);
        routes
    }
}

/// Sorts the busiest routes first.
fn sort(routes: &mut [Requests]) {
    routes.sort_by(|one, other| {
        let by_rate = other
            .requests_per_second
            .total_cmp(&one.requests_per_second);
        by_rate.then_with(|| (&one.route, &one.pod).cmp(&(&other.route, &other.pod)))
    });
}

fn table(routes: &[Requests]) -> Table {
    let columns = ["ROUTE", "REQUESTS/S", "5XX", "P50", "P99", "IN FLIGHT"];
    of_pods(&columns, routes.iter().map(row).collect())
}

/// The cells of a route, with its pod.
fn row(it: &Requests) -> (Option<&str>, Vec<String>) {
    let milliseconds = |seconds: Option<f64>| {
        seconds.map_or("-".to_owned(), |seconds| format!("{:.1} ms", seconds * 1e3))
    };
    let cells = vec![
        it.route.clone(),
        format!("{:.1}", it.requests_per_second),
        format!("{:.2}%", it.errors * 100.0),
        milliseconds(it.p50),
        milliseconds(it.p99),
        it.in_flight.to_string(),
    ];
    (it.pod.as_deref(), cells)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn look(time: Instant, all: u64, failed: u64, durations: [u64; 3]) -> Look {
        let rule = json!({
            "requests": {"2xx": all - failed, "5xx": failed}, "inFlight": 1, "durations": durations,
        });
        let route = json!({"kind": "HTTPRoute", "namespace": "a", "name": "b", "rules": [rule]});
        let document = json!({"durationBounds": [0.01, 0.02], "routes": [route]});
        Look::of(&document, time)
    }

    #[test]
    fn rates_are_those_between_two_looks() {
        let start = Instant::now();
        let before = look(start, 100, 50, [100, 0, 0]);
        let now = look(start + Duration::from_secs(2), 120, 51, [100, 20, 0]);
        let activity = now.since(&before);
        let expected = Requests {
            pod: None,
            route: "HTTPRoute a/b".to_owned(),
            requests_per_second: 10.0,
            errors: 0.05,
            p50: Some(0.015),
            p99: Some(0.0199),
            in_flight: 1,
        };
        assert_eq!(activity.requests, [expected]);
        let expected = "\
ROUTE          REQUESTS/S  5XX    P50      P99      IN FLIGHT
HTTPRoute a/b  10.0        5.00%  15.0 ms  19.9 ms  1
";
        assert_eq!(activity.to_string(), expected);
    }

    #[test]
    fn each_pod_has_a_row_with_the_busiest_first() {
        let start = Instant::now();
        let pod = |name: &str| Some(name.to_owned());
        let before = Looks::from([
            (pod("edge-1"), look(start, 100, 50, [100, 0, 0])),
            (pod("edge-2"), look(start, 100, 50, [100, 0, 0])),
        ]);
        let now = start + Duration::from_secs(2);
        let now = Looks::from([
            (pod("edge-1"), look(now, 120, 50, [100, 20, 0])),
            (pod("edge-2"), look(now, 140, 50, [100, 40, 0])),
            // Has just been added.
            (pod("edge-3"), look(now, 10, 0, [10, 0, 0])),
        ]);
        let activity = Activity::between(&before, &now);
        let expected = "\
POD     ROUTE          REQUESTS/S  5XX    P50      P99      IN FLIGHT
edge-2  HTTPRoute a/b  20.0        0.00%  15.0 ms  19.9 ms  1
edge-1  HTTPRoute a/b  10.0        0.00%  15.0 ms  19.9 ms  1
";
        assert_eq!(activity.to_string(), expected);
        let rows = serde_json::to_value(activity.rows()).unwrap();
        assert_eq!(rows[1]["pod"], "edge-1");
    }

    #[test]
    fn connections_have_a_table_of_their_own_with_the_busiest_route_first() {
        let look = |time: Instant, totals: [u64; 2], sent: u64| {
            let route = |(name, total): (&str, u64)| {
                let forwarded = json!({
                    "open": 3, "total": total, "failed": total / 5, "bytesReceived": 64, "bytesSent": sent,
                });
                let rule = json!({"requests": {}, "durations": [], "forwarded": forwarded});
                json!({"kind": "TCPRoute", "namespace": "a", "name": name, "rules": [rule]})
            };
            let routes: Vec<Value> = ["b", "c"].into_iter().zip(totals).map(route).collect();
            Look::of(&json!({"durationBounds": [], "routes": routes}), time)
        };
        let start = Instant::now();
        let before = look(start, [10, 10], 1000);
        let now = look(start + Duration::from_secs(2), [10, 15], 4000);
        let activity = now.since(&before);
        let expected = "\
ROUTE         NEW/S  FAILED/S  RECEIVED/S  SENT/S  OPEN
TCPRoute a/c  2.5    0.5       0 B         1.5 kB  3
TCPRoute a/b  0.0    0.0       0 B         1.5 kB  3
";
        assert_eq!(activity.to_string(), expected);
        let rows = serde_json::to_value(activity.rows()).unwrap();
        let expected = json!({
            "route": "TCPRoute a/c", "newPerSecond": 2.5, "failedPerSecond": 0.5,
            "bytesReceivedPerSecond": 0.0, "bytesSentPerSecond": 1500.0, "open": 3,
        });
        assert_eq!(rows[0], expected);
    }
}
