//! `portcullis tap`: requests of a running proxy while they happen.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use form_urlencoded::Serializer;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::{Method, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::time::timeout;

use super::admin_client::{self, AdminFlags};
use super::gateway::{self, GatewayFlags, Pods};
use super::output::{OutputFlag, OutputFormat, UNREACHABLE};
use super::pods::{GatewayClient, GatewayPod};
use super::value::Span;
use super::visible;
use crate::telemetry::log;
use crate::telemetry::tap::{MAX_RATE, StatusFilter};

/// Show requests of a running proxy while they happen, one line each
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  portcullis tap --admin http://127.0.0.1:19000
  portcullis tap --route shop/web --status 5xx --admin http://127.0.0.1:19000
  portcullis tap --host shop.example.com --min-duration 500ms --max-rps 100 -o json --admin http://127.0.0.1:19000
  portcullis tap --status 5xx -n infra gateway/edge

Shows requests that end while it runs: time, method, host with path, status, duration, route with the index of its rule,
backend, endpoint, and why Portcullis responded itself or aborted the exchange. Never queries, headers, cookies, credentials
or bodies. Requests do not wait for it: those that it does not show are counted. Ends after an hour. With gateway/NAME, shows
the requests of all pods of a Gateway that the controller has created, with up to --max-rps of each; lines begin with the pod.
That takes the rights to list pods, and to get and create pods/portforward.
Exit codes: 0 when the proxy ends, 2 for wrong usage, 3 if it, or one of the pods, cannot be reached or has too many taps.")]
pub struct Args {
    /// Only requests of this route, [KIND ]NAMESPACE/NAME
    #[arg(long, value_name = "ROUTE")]
    route: Option<String>,
    /// Only requests for this host; *.example.com is all hosts below example.com
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Only requests of this method
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,
    /// Only requests whose path has this prefix
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    /// Only responses of this status, such as 503, or of this class, such as 5xx
    #[arg(long, value_name = "STATUS", value_parser = status)]
    status: Option<String>,
    /// Only requests that take at least this long
    #[arg(long, value_name = "TIME")]
    min_duration: Option<Span>,
    /// Maximum number of requests per second that are shown, from 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RATE)))]
    max_rps: u32,
    /// The proxy.
    #[command(flatten)]
    proxy: AdminFlags,
    /// All pods of a Gateway.
    #[command(flatten)]
    gateway: GatewayFlags,
    /// Format of the output: a line, or a JSON document in a line.
    #[command(flatten)]
    format: OutputFlag,
}

/// Time without a sign of life after which the proxy is gone.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

fn status(text: &str) -> Result<String, &'static str> {
    let is_status = StatusFilter::parse(text).is_some();
    let text = is_status.then(|| text.to_owned());
    text.ok_or("must be a status such as 503, or a class such as 5xx")
}

/// Prints requests until the proxy, or all pods, end.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(pods) = Pods::of(&args.gateway)? {
        return pods.block_on(|gateway| of_pods(gateway, args));
    }
    let url = &args.proxy.admin;
    let token = args.proxy.token.read()?;
    let path = path(args);
    admin_client::runtime()?.block_on(async {
        let response = admin_client::request(url, &Method::GET, &path, token);
        let response = timeout(READ_TIMEOUT, response).await;
        let response = response
            .context("no response in time")?
            .with_context(|| format!("cannot ask {url}"))?;
        let body = accepted(response, url).await?;
        begin(args, url);
        print(body, args.format.output, None).await
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Prints requests of all pods of a Gateway until they end, or nobody reads them.
async fn of_pods(gateway: &GatewayClient, args: &Args) -> anyhow::Result<ExitCode> {
    let (path, format) = (path(args), args.format.output);
    let path = path.as_str();
    let pods = gateway.pods().await?;
    begin(args, &format!("each of {} pods", pods.len()));
    let taps = pods.iter().map(|pod| async move {
        let shown = of_pod(gateway, pod, path, format).await;
        (pod, shown)
    });
    let mut taps: FuturesUnordered<_> = taps.collect();
    let mut code = ExitCode::SUCCESS;
    while let Some((pod, shown)) = taps.next().await {
        match shown {
            Ok(()) => {}
            // Of the output: those of the pod have a context.
            Err(error) if error.chain().len() == 1 && error.is::<io::Error>() => {
                return Err(error);
            }
            Err(error) => {
                gateway::say(&pod.name, &error);
                code = ExitCode::from(UNREACHABLE);
            }
        }
    }
    Ok(code)
}

async fn of_pod(
    gateway: &GatewayClient,
    pod: &GatewayPod,
    path: &str,
    format: OutputFormat,
) -> anyhow::Result<()> {
    let response = timeout(READ_TIMEOUT, gateway::request(gateway, pod, path)).await;
    let response = response
        .context("no response in time")?
        .context("cannot connect")?;
    let body = accepted(response, &"it").await?;
    print(body, format, Some(&pod.name)).await
}

/// Returns the body of a response that has requests.
async fn accepted(response: Response<Incoming>, of: &impl Display) -> anyhow::Result<Incoming> {
    let status = response.status();
    let body = response.into_body();
    if status == StatusCode::OK {
        return Ok(body);
    }
    let text = body.collect().await?.to_bytes();
    bail!(
        "{of} responds {status}: {}",
        String::from_utf8_lossy(&text).trim()
    );
}

/// Says what is shown.
fn begin(args: &Args, of: &impl Display) {
    log::write_line(&format!(
        "showing up to {} requests per second of {of}, until Ctrl-C",
        args.max_rps
    ));
}

fn path(args: &Args) -> String {
    const PATH: &str = "/api/v1/tap?";
    let mut query = Serializer::for_suffix(PATH.to_owned(), PATH.len());
    query.append_pair("maxRps", &args.max_rps.to_string());
    for (name, value) in [
        ("route", &args.route),
        ("host", &args.host),
        ("method", &args.method),
        ("path", &args.path),
        ("status", &args.status),
    ] {
        if let Some(value) = value {
            query.append_pair(name, value);
        }
    }
    if let Some(Span(time)) = args.min_duration {
        query.append_pair("minDurationMs", &time.as_millis().to_string());
    }
    query.finish()
}

/// Prints the lines of a body, of a pod if it is named.
async fn print(mut body: Incoming, format: OutputFormat, pod: Option<&str>) -> anyhow::Result<()> {
    let mut rest = Vec::new();
    loop {
        let frame = timeout(READ_TIMEOUT, body.frame()).await;
        let frame = frame.context("the proxy sends nothing")?;
        let Some(frame) = frame.transpose().context("the proxy closed the tap")? else {
            return Ok(());
        };
        rest.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
        let Some(end) = rest.iter().rposition(|byte| *byte == b'\n') else {
            continue;
        };
        let text = String::from_utf8_lossy(&rest[..end]).into_owned();
        rest.drain(..=end);
        let mut out = io::stdout().lock();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let line = match (format, pod) {
                (OutputFormat::Json, None) => line.to_owned(),
                (OutputFormat::Json, Some(pod)) => named(line, pod),
                (OutputFormat::Text, None) => shown(line),
                (OutputFormat::Text, Some(pod)) => format!("{pod}  {}", shown(line)),
            };
            writeln!(out, "{}", visible::line(&line))?;
        }
        out.flush()?;
    }
}

/// A line of JSON with the name of its pod.
fn named(line: &str, pod: &str) -> String {
    match line.trim_start().strip_prefix('{') {
        // A name in Kubernetes needs no escapes.
        Some(rest) => format!("{{\"pod\":\"{pod}\",{rest}"),
        None => line.to_owned(),
    }
}

/// The text of a line of JSON.
fn shown(line: &str) -> String {
    let Ok(request) = serde_json::from_str::<Value>(line) else {
        return line.to_owned();
    };
    let part = |name: &str| match &request[name] {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    };
    if request["skipped"].is_u64() {
        return format!(
            "({} requests more than --max-rps, {} that were too many to send)",
            part("skipped"),
            part("dropped")
        );
    }
    let route = match &request["route"] {
        Value::Null => "no route".to_owned(),
        _ => format!("{} rule {}", part("route"), part("rule")),
    };
    let mut columns = vec![
        part("time"),
        format!("{} {}{}", part("method"), part("host"), part("path")),
        part("status"),
        format!("{} ms", part("durationMs")),
        route,
        part("backend"),
        part("endpoint"),
    ];
    columns.extend(request["reason"].as_str().map(str::to_owned));
    columns.join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_line() {
        let line = r#"{"time":"2026-01-01T00:00:00.000000Z","method":"GET","host":"a.com","path":"/b","status":502,
            "durationMs":1.5,"route":"HTTPRoute shop/web","rule":1,"backend":null,"endpoint":"10.0.0.1:80","reason":"it failed"}"#;
        let expected = "2026-01-01T00:00:00.000000Z  GET a.com/b  502  1.5 ms  HTTPRoute shop/web rule 1  -  10.0.0.1:80  it failed";
        assert_eq!(shown(line), expected);
        let counts = shown(r#"{"skipped":7,"dropped":0}"#);
        assert_eq!(
            counts,
            "(7 requests more than --max-rps, 0 that were too many to send)"
        );
    }

    #[test]
    fn the_pod_is_a_member_of_a_line() {
        let line = named(r#"{"status":200,"reason":null}"#, "edge-1");
        assert_eq!(line, r#"{"pod":"edge-1","status":200,"reason":null}"#);
    }
}
