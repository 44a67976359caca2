//! `portcullis status` of all pods of a Gateway: a row for each, from its metrics, and their problems.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::admin_client::runtime;
use super::gateway::{self, GatewayFlags, Responses};
use super::output::{self, FailOn, FindingsFormat};
use super::pods::GatewayClient;
use super::problem;
use super::samples::samples;
use super::table::{Table, header};

/// Time between two looks with --watch.
const INTERVAL: Duration = Duration::from_secs(2);

/// The Gateway whose pods have a row each.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "All pods of a Gateway")]
pub struct FleetFlags {
    /// The Gateway.
    #[command(flatten)]
    gateway: GatewayFlags,
    /// Show the pods again every two seconds, until a signal
    #[arg(long, requires = "gateway")]
    watch: bool,
    /// Name each problem after the pods that have it, with what to do, as for one proxy
    #[arg(long, requires = "gateway")]
    problems: bool,
}

impl FleetFlags {
    /// Reports whether a command asks the pods of a Gateway.
    pub(super) fn is_set(&self) -> bool {
        self.gateway.is_set()
    }
}

/// Prints the pods. The exit code says whether something is wrong.
///
/// # Errors
/// When the API server cannot be reached or does not list the pods, or when there is none.
pub(super) fn run(
    flags: &FleetFlags,
    format: FindingsFormat,
    fail_on: FailOn,
) -> anyhow::Result<ExitCode> {
    runtime()?.block_on(show(flags, format, fail_on))
}

async fn show(
    flags: &FleetFlags,
    format: FindingsFormat,
    fail_on: FailOn,
) -> anyhow::Result<ExitCode> {
    let gateway = flags.gateway.client().await?;
    let mut is_shown = false;
    loop {
        match fetch(&gateway, flags, format).await {
            Ok(fleet) => {
                print(&fleet, format, flags.watch)?;
                if !flags.watch {
                    return Ok(ExitCode::from(u8::from(!fleet.is_well(fail_on))));
                }
                is_shown = true;
            }
            // An API server that is away for a while, or pods that are replaced.
            Err(error) if is_shown => gateway::say_away(&error),
            Err(error) => return Err(error),
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

async fn fetch(
    gateway: &GatewayClient,
    flags: &FleetFlags,
    format: FindingsFormat,
) -> anyhow::Result<Fleet> {
    let pages = gateway.metrics().await?;
    let mut fleet = Fleet::new(gateway.namespace().to_owned(), pages, Timestamp::now());
    fleet.is_wide = format == FindingsFormat::Wide;
    let unprogrammed = gateway.unprogrammed().await;
    fleet.unprogrammed = unprogrammed.map(|why| format!("{}: {why}", gateway.described()));
    if flags.problems || fleet.is_wide {
        fleet.describe(gateway::documents(gateway, "problems").await?);
    }
    Ok(fleet)
}

fn print(fleet: &Fleet, format: FindingsFormat, is_watch: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match format {
        FindingsFormat::Json => output::json(fleet, &mut out)?,
        FindingsFormat::Yaml => output::yaml(fleet, &mut out)?,
        FindingsFormat::Text | FindingsFormat::Wide => {
            if is_watch && out.is_terminal() {
                // Clears the screen.
                write!(out, "\x1b[H\x1b[2J")?;
            }
            output::text(fleet, &mut out)?;
        }
    }
    out.flush()
}

/// The pods of a Gateway.
#[derive(Debug, Serialize)]
struct Fleet {
    namespace: String,
    pods: Vec<PodStatus>,
    /// Why the Gateway is not programmed, if that is known. Its pods serve what they have.
    #[serde(skip_serializing_if = "Option::is_none")]
    unprogrammed: Option<String>,
    /// Whether the pods were asked what their problems are.
    #[serde(skip)]
    is_described: bool,
    /// Whether each field of a problem has a line of its own.
    #[serde(skip)]
    is_wide: bool,
}

/// What the metrics of a pod say. What they do not have is `None`.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodStatus {
    name: String,
    version: Option<String>,
    /// The revision of the controller that is served.
    revision: Option<u64>,
    /// For how long no controller has been connected.
    lag_seconds: Option<u64>,
    connections: Option<u64>,
    /// The kinds of problems, errors first, then those with the most effect on requests.
    problems: Vec<ProblemCount>,
    /// What they are, if the pod was asked and has responded.
    #[serde(skip_serializing_if = "Option::is_none")]
    descriptions: Option<Vec<Value>>,
    /// Why there are no metrics.
    error: Option<String>,
}

/// Problems of a kind and a severity.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct ProblemCount {
    kind: String,
    /// `None` of a version whose metric has none.
    severity: Option<String>,
    count: u64,
}

impl Fleet {
    fn new(
        namespace: String,
        pages: Vec<(String, Result<String, String>)>,
        now: Timestamp,
    ) -> Self {
        let pods = pages.into_iter().map(|(name, page)| match page {
            Ok(page) => PodStatus::of(name, &page, now),
            Err(error) => PodStatus {
                name,
                error: Some(error),
                ..PodStatus::default()
            },
        });
        Self {
            namespace,
            pods: pods.collect(),
            unprogrammed: None,
            is_described: false,
            is_wide: false,
        }
    }

    /// Adds what the problems are. Says on standard error which pods have metrics and do not tell.
    fn describe(&mut self, documents: Responses<Value>) {
        self.is_described = true;
        for (pod, document) in documents {
            let mut pods = self.pods.iter_mut();
            let Some(status) = pods.find(|status| status.name == pod) else {
                continue;
            };
            match document {
                Ok(document) => status.descriptions = document["problems"].as_array().cloned(),
                Err(error) if status.error.is_none() => gateway::say(&pod, &error),
                Err(_) => {}
            }
        }
    }

    /// Each problem once, with the pods that have it. Those of a pod are in its order.
    fn descriptions(&self) -> Vec<(String, Vec<&str>)> {
        let mut found: Vec<(String, Vec<&str>)> = Vec::new();
        let described = match self.is_wide {
            true => problem::detailed,
            false => problem::described,
        };
        for pod in &self.pods {
            for problem in pod.descriptions.iter().flatten().map(described) {
                match found.iter_mut().find(|(other, _)| *other == problem) {
                    Some((_, pods)) => pods.push(&pod.name),
                    None => found.push((problem, vec![pod.name.as_str()])),
                }
            }
        }
        found
    }

    fn is_well(&self, fail_on: FailOn) -> bool {
        let is_programmed = self.unprogrammed.is_none() || fail_on == FailOn::Error;
        is_programmed && self.pods.iter().all(|pod| pod.is_well(fail_on))
    }
}

impl PodStatus {
    fn of(name: String, page: &str, now: Timestamp) -> Self {
        let problems = samples(page, "portcullis_problems").filter(|(_, count)| *count > 0);
        let problems = problems.filter_map(|(mut labels, count)| {
            let kind = labels.remove("kind")?;
            let severity = labels.remove("severity");
            Some(ProblemCount {
                kind,
                severity,
                count,
            })
        });
        let number = |name: &str| samples(page, name).next().map(|(_, value)| value);
        let contact = number("portcullis_stream_contact_timestamp_seconds");
        let is_connected = number("portcullis_stream_connected") == Some(1);
        let lag = |contact: u64| match is_connected {
            true => 0,
            false => now.as_second().unsigned_abs().saturating_sub(contact),
        };
        let mut builds = samples(page, "portcullis_build_info");
        Self {
            name,
            version: builds.find_map(|(mut labels, _)| labels.remove("version")),
            revision: number("portcullis_stream_revision"),
            lag_seconds: contact.map(lag),
            connections: number("portcullis_connections_open"),
            problems: problems.collect(),
            descriptions: None,
            error: None,
        }
    }

    /// Without a controller, the pod serves what it had: that is a warning.
    fn is_well(&self, fail_on: FailOn) -> bool {
        let mut severities = self.problems.iter().map(|it| it.severity.as_deref());
        let is_late = self.lag_seconds.unwrap_or(0) > 0;
        self.error.is_none()
            && !severities.any(|it| fail_on.includes(it))
            && !(is_late && fail_on == FailOn::Warning)
    }

    /// What is wrong.
    fn state(&self) -> String {
        let counts = self.problems.iter();
        let count = |it: &ProblemCount| match &it.severity {
            Some(severity) => format!("{} {} ({severity})", it.kind, it.count),
            None => format!("{} {}", it.kind, it.count),
        };
        let counts: Vec<_> = counts.map(count).collect();
        match &self.error {
            Some(error) => format!("NOT read: {error}"),
            None if counts.is_empty() => "none".to_owned(),
            None => counts.join(", "),
        }
    }
}

impl fmt::Display for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = [
            "POD",
            "VERSION",
            "REVISION",
            "LAG",
            "CONNECTIONS",
            "PROBLEMS",
        ];
        let number =
            |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |it| it.to_string());
        let row = |pod: &PodStatus| {
            let lag = pod.lag_seconds.map(|it| format!("{it} s"));
            let cells = [pod.version.clone(), Some(number(pod.revision)), lag];
            let cells = cells.map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
            let ends = [number(pod.connections), pod.state()];
            let name = [pod.name.clone()].into_iter();
            name.chain(cells).chain(ends).collect::<Vec<_>>()
        };
        let rows = [header(&columns)].into_iter();
        write!(
            f,
            "{}",
            Table(rows.chain(self.pods.iter().map(row)).collect())
        )?;
        if let Some(why) = &self.unprogrammed {
            writeln!(f, "warning: {why}")?;
        }
        for (problem, pods) in self.descriptions() {
            writeln!(f, "{}: {problem}", pods.join(", "))?;
        }
        if !self.is_described && self.pods.iter().any(|pod| !pod.problems.is_empty()) {
            writeln!(f, "causes and remedies: the same command with --problems")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PAGE: &str = "\
# TYPE portcullis_build info
portcullis_build_info{version=\"0.2.0\"} 1
portcullis_connections_open 12
portcullis_problems{kind=\"controller\",severity=\"warning\"} 1
portcullis_problems{kind=\"port\",severity=\"error\"} 0
portcullis_problems{kind=\"failing\",severity=\"error\"} 2
portcullis_stream_connected 0
portcullis_stream_contact_timestamp_seconds 1000.5
portcullis_stream_revision 7
# EOF
";

    #[test]
    fn pods_have_a_row_each() {
        let well = PAGE
            .replace("warning\"} 1", "warning\"} 0")
            .replace("error\"} 2", "error\"} 0")
            .replace("connected 0", "connected 1");
        let pages = vec![
            ("edge-1".to_owned(), Ok(well)),
            ("edge-2".to_owned(), Ok(PAGE.to_owned())),
            ("edge-3".to_owned(), Err("status 503".to_owned())),
        ];
        let now = Timestamp::from_second(1042).unwrap();
        let fleet = Fleet::new("infra".to_owned(), pages, now);
        let expected = "\
POD     VERSION  REVISION  LAG   CONNECTIONS  PROBLEMS
edge-1  0.2.0    7         0 s   12           none
edge-2  0.2.0    7         42 s  12           controller 1 (warning), failing 2 (error)
edge-3  -        -         -     -            NOT read: status 503
causes and remedies: the same command with --problems
";
        assert_eq!(fleet.to_string(), expected);
        assert!(!fleet.is_well(FailOn::Error));
        let problem = |object: &str, since: &str| json!({"object": object, "message": "is lost", "since": since});
        let mut described = fleet;
        described.describe(vec![
            ("edge-1".to_owned(), Ok(json!({"problems": []}))),
            (
                "edge-2".to_owned(),
                Ok(json!({"problems": [problem("a", "1"), problem("b", "1")]})),
            ),
            (
                "edge-3".to_owned(),
                Ok(json!({"problems": [problem("a", "2")]})),
            ),
        ]);
        let text = described.to_string();
        let lines: Vec<_> = text.lines().skip(4).collect();
        assert_eq!(lines, ["edge-2, edge-3: a: is lost", "edge-2: b: is lost"]);
        described.is_wide = true;
        let text = described.to_string();
        let lines: Vec<_> = text.lines().skip(4).collect();
        let expected = [
            "edge-2, edge-3: a",
            "  cause: is lost",
            "edge-2: b",
            "  cause: is lost",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn pod_that_has_no_controller_serves_what_it_had() {
        let now = Timestamp::from_second(1042).unwrap();
        let is_well = |page: &str| {
            let pod = PodStatus::of("edge-1".to_owned(), page, now);
            [FailOn::Warning, FailOn::Error].map(|fail_on| pod.is_well(fail_on))
        };
        let late = PAGE.replace("error\"} 2", "error\"} 0");
        assert_eq!(is_well(PAGE), [false, false]);
        assert_eq!(is_well(&late), [false, true]);
        let well = late
            .replace("warning\"} 1", "warning\"} 0")
            .replace("connected 0", "connected 1");
        assert_eq!(is_well(&well), [true, true]);
        // A former version names no severity.
        let former = format!("{well}portcullis_problems{{kind=\"slow\"}} 1\n");
        assert_eq!(is_well(&former), [false, false]);
    }
}
