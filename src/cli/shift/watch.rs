//! `--watch`: prints a table of the releases every second, and rolls back if a release has too many errors.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::change::Percent;
use super::cluster::{Cluster, Mode, Observed};
use super::metrics::{Count, Window};
use super::object_name::ObjectName;
use super::scrape::{Scrape, Scraper};
use super::steps::{apply_steps, command};
use super::weights::Step;
use crate::cli::admin_client::AdminUrl;
use crate::cli::output::{self, OutputFormat};
use crate::cli::table::{Table, header, of_number};
use crate::cli::visible;
use crate::settings::NamespacedName;

/// Time between tables.
const PERIOD: Duration = Duration::from_secs(1);
/// Minimum number of requests in the window before the error rate counts.
const MIN_REQUESTS: u64 = 100;
/// Maximum number of unreadable sources that are named.
const NAMED_FAILURES: usize = 3;
/// Exit code after a rollback.
const ROLLED_BACK: u8 = 3;
/// Placeholder for an unknown value.
const UNKNOWN: &str = "-";

/// Settings of `--watch`.
pub(super) struct WatchSettings<'a> {
    pub(super) name: &'a ObjectName,
    pub(super) gateways: &'a [NamespacedName],
    pub(super) admin: &'a [AdminUrl],
    /// When to end; `None` watches until a signal.
    pub(super) length: Option<Duration>,
    /// Time over which rates are computed.
    pub(super) window: Duration,
    pub(super) format: OutputFormat,
    pub(super) abort: Option<Abort<'a>>,
}

/// The condition for a rollback, and the weights to restore.
pub(super) struct Abort<'a> {
    pub(super) above: Percent,
    pub(super) releases: Vec<&'a str>,
    pub(super) rollback: Vec<Step>,
    pub(super) mode: Mode,
}

/// Watches until the time is over, a signal, or a rollback.
pub(super) async fn watch(
    cluster: &Cluster,
    first: Observed,
    settings: &WatchSettings<'_>,
) -> anyhow::Result<ExitCode> {
    let mut watching = Watching {
        cluster,
        settings,
        observed: first,
        window: Window::new(settings.window),
        scraper: Scraper::new(cluster, settings.name, settings.gateways, settings.admin),
        screen: Screen::new(),
    };
    let end = async {
        match settings.length {
            Some(length) => sleep(length).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = end => {}
        stopped = super::super::signals::stopped() => return Ok(stopped.map(|()| ExitCode::SUCCESS)?),
        code = watching.run() => return code,
    }
    if settings.abort.is_some() && watching.window.covered(Instant::now()).is_none() {
        anyhow::bail!(
            "no metrics of {} could be read, so --abort-above could not be evaluated; the new weights stay",
            settings.name
        );
    }
    Ok(ExitCode::SUCCESS)
}

struct Watching<'a> {
    cluster: &'a Cluster,
    settings: &'a WatchSettings<'a>,
    observed: Observed,
    window: Window,
    scraper: Scraper<'a>,
    screen: Screen,
}

impl Watching<'_> {
    /// Runs until a rollback.
    async fn run(&mut self) -> anyhow::Result<ExitCode> {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let (observed, mut scrape) = tokio::join!(self.cluster.read(), self.scraper.scrape());
            match observed {
                Ok(observed) => self.observed = observed,
                Err(error) => scrape.failures.insert(0, format!("{error:#}")),
            }
            let now = Instant::now();
            self.window.add(now, std::mem::take(&mut scrape.counts));
            self.show(now, &scrape)?;
            let Some(abort) = &self.settings.abort else {
                continue;
            };
            let count = |name: &str| (name.to_owned(), self.window.count(name));
            let mut counts = abort.releases.iter().map(|name| count(name));
            let above = |(_, count): &(String, Count)| is_above(*count, abort.above);
            if let Some((release, count)) = counts.find(above) {
                return self.roll_back(abort, &release, count).await;
            }
        }
    }

    fn show(&mut self, now: Instant, scrape: &Scrape) -> io::Result<()> {
        let rows: Vec<Row> = self.rows(now);
        if self.settings.format == OutputFormat::Json {
            let observation = Observation {
                time: Timestamp::now(),
                releases: &rows,
                sources: scrape.read,
                failures: &scrape.failures,
            };
            return output::json(&observation, &mut io::stdout());
        }
        if self.screen.is_terminal {
            let names = [
                "RELEASE",
                "READY",
                "WEIGHT",
                "SHARE",
                "REQUESTS/S",
                "ERRORS",
            ];
            let rows = rows.iter().map(|row| row.cells().to_vec());
            let table = Table([header(&names)].into_iter().chain(rows).collect());
            return self.screen.redraw(&format!("{table}{}", sources(scrape)));
        }
        let time = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let mut text = String::new();
        for row in &rows {
            let [release, ready, weight, share, rate, errors] = row.cells();
            text.push_str(&format!(
                "{time} release={release} ready={ready} weight={weight} share={share} requests_per_second={rate} errors={errors}\n"
            ));
        }
        if !scrape.failures.is_empty() {
            text.push_str(&format!("{time} {}", sources(scrape)));
        }
        self.screen.print(&visible::lines(&text))
    }

    /// Returns a row for each listed release, and for the other releases in status.
    fn rows(&self, now: Instant) -> Vec<Row> {
        let Observed { spec, status, .. } = &self.observed;
        let listed = spec.releases.iter();
        let listed = listed.map(|release| (release.value.as_str(), Some(release.weight)));
        let is_listed = |name: &str| spec.releases.iter().any(|it| it.value == name);
        let others = status.releases.iter().map(|release| release.value.as_str());
        let others = others
            .filter(|name| !is_listed(name))
            .map(|name| (name, None));
        let covered = self.window.covered(now);
        let row = |(name, weight): (&str, Option<u32>)| {
            let status = self.observed.release(name);
            let count = self.window.count(name);
            Row {
                release: name.to_owned(),
                ready: status.map(|status| status.ready),
                weight,
                share: status.map(|status| status.effective_percent),
                rate: covered.map(|covered| count.requests as f64 / covered.as_secs_f64()),
                errors: error_percent(count),
            }
        };
        listed.chain(others).map(row).collect()
    }

    async fn roll_back(
        &self,
        abort: &Abort<'_>,
        release: &str,
        count: Count,
    ) -> anyhow::Result<ExitCode> {
        let Count { requests, errors } = count;
        let percent = error_percent(count).map(of_number).unwrap_or_default();
        let reason = format!(
            "{percent} of the requests to release {release} had a status of 5xx ({errors} of {requests} within {} s), more \
             than {}",
            self.settings.window.as_secs(),
            abort.above
        );
        let by_hand = command(self.settings.name, &abort.rollback);
        let uid = &self.observed.uid;
        if let Err(error) = apply_steps(self.cluster, uid, &abort.rollback, abort.mode).await {
            anyhow::bail!(
                "{reason}, but the weights cannot be rolled back: {error:#}. To roll back, run {by_hand}"
            );
        }
        let weights: Vec<_> = abort
            .rollback
            .iter()
            .map(|(name, weight)| format!("{name}={weight}"))
            .collect();
        eprintln!(
            "portcullis: {reason}: the weights are rolled back to {}",
            weights.join(" ")
        );
        Ok(ExitCode::from(ROLLED_BACK))
    }
}

/// Reports whether the error rate is above the limit, with enough requests to decide.
fn is_above(count: Count, limit: Percent) -> bool {
    let errors = u128::from(count.errors) * u128::from(Percent::WHOLE);
    count.requests >= MIN_REQUESTS
        && errors > u128::from(count.requests) * u128::from(limit.thousandths())
}

fn error_percent(count: Count) -> Option<f64> {
    (count.requests > 0).then(|| count.errors as f64 * 100.0 / count.requests as f64)
}

/// What is observed in one second.
#[derive(Serialize)]
struct Observation<'a> {
    time: Timestamp,
    releases: &'a [Row],
    /// Number of admin addresses that were read.
    sources: usize,
    /// Why others could not be read.
    failures: &'a [String],
}

/// The row of a release.
#[derive(Serialize)]
struct Row {
    release: String,
    ready: Option<u32>,
    weight: Option<u32>,
    share: Option<f64>,
    rate: Option<f64>,
    errors: Option<f64>,
}

impl Row {
    fn cells(&self) -> [String; 6] {
        let number = |number: Option<u32>| number.map_or(UNKNOWN.to_owned(), |it| it.to_string());
        let share = |share: Option<f64>| share.map_or(UNKNOWN.to_owned(), of_number);
        [
            self.release.clone(),
            number(self.ready),
            number(self.weight),
            share(self.share),
            self.rate
                .map_or(UNKNOWN.to_owned(), |rate| format!("{rate:.1}")),
            share(self.errors),
        ]
    }
}

/// Describes how many sources were read, and the errors of others.
fn sources(scrape: &Scrape) -> String {
    let failures = &scrape.failures;
    let mut text = format!("metrics read from {}", scrape.read);
    if !failures.is_empty() {
        let named: Vec<_> = failures
            .iter()
            .take(NAMED_FAILURES)
            .map(|failure| visible::line(failure))
            .collect();
        text.push_str(&format!(
            ", {} failed: {}",
            failures.len(),
            named.join("; ")
        ));
    }
    if failures.len() > NAMED_FAILURES {
        text.push_str("; …");
    }
    text.push('\n');
    text
}

/// Standard output: redrawn in place on a terminal, otherwise written line by line.
struct Screen {
    is_terminal: bool,
    /// Lines of the last table.
    drawn: usize,
}

impl Screen {
    fn new() -> Self {
        Self {
            is_terminal: io::stdout().is_terminal(),
            drawn: 0,
        }
    }

    fn redraw(&mut self, text: &str) -> io::Result<()> {
        let up = match self.drawn {
            0 => String::new(),
            // Moves the cursor up to the first line of the last table, and clears everything below.
            lines => format!("\x1b[{lines}A\x1b[J"),
        };
        self.drawn = text.lines().count();
        // Turns off line wrap meanwhile, so that each line takes one row and `drawn` is right.
        self.print(&format!("{up}\x1b[?7l{text}\x1b[?7h"))
    }

    #[allow(clippy::unused_self, reason = "the screen is where text goes")]
    fn print(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_rate_needs_a_minimum_of_requests() {
        let limit = |text: &str| text.parse::<Percent>().unwrap();
        let is_above =
            |requests, errors, text: &str| is_above(Count { requests, errors }, limit(text));
        assert!(!is_above(99, 99, "5%"));
        assert!(!is_above(100, 5, "5%"));
        assert!(is_above(100, 6, "5%"));
        assert!(is_above(1000, 1, "0%"));
        assert!(!is_above(1000, 0, "0%"));
        assert!(!is_above(1000, 1000, "100%"));
    }

    #[test]
    fn sources_counts_failures_and_names_some() {
        let mut scrape = Scrape {
            read: 2,
            ..Scrape::default()
        };
        assert_eq!(sources(&scrape), "metrics read from 2\n");
        scrape.failures = vec!["a: \u{1b}[2J".to_owned()];
        let escaped = "metrics read from 2, 1 failed: a: \\u001b[2J\n";
        assert_eq!(sources(&scrape), escaped);
        scrape.failures = ["a: x", "b: x", "c: x", "d: x"].map(str::to_owned).to_vec();
        assert_eq!(
            sources(&scrape),
            "metrics read from 2, 4 failed: a: x; b: x; c: x; …\n"
        );
    }
}
