//! Exemplars of OpenMetrics: the trace of a sampled request, on the counter and on the bucket that count it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, text};
use prometheus_client::registry::Registry;

use super::backends::BackendLabels;
use super::outcomes::{LabelledOutcome, OutcomeLabels};
use super::rules::RuleLabels;
use super::{Metrics, Page, write};
use crate::ir::hex;
use crate::settings::metrics::MetricsDetail;
use crate::table::{Backend, DURATION_BOUNDS_MICROS, Exemplar, Rule, Table};

/// Like [`write`](super::write), with the traces of sampled requests, which only OpenMetrics has room for.
///
/// # Errors
/// Those of `text`.
pub fn write_with_exemplars<W: fmt::Write>(text: &mut W, metrics: Metrics) -> fmt::Result {
    let sampled = all(&metrics.table);
    if sampled.is_empty() {
        return write(text, metrics);
    }
    let values: Vec<(Exemplar, f64)> = sampled.iter().flat_map(Sampled::values).collect();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Series(sampled, metrics.detail)));
    let mut lines = String::new();
    text::encode_registry(&mut lines, &registry)?;
    let mut text = Exemplified {
        text,
        by_series: by_series(&lines, &values),
        line: String::new(),
    };
    write(&mut text, metrics)
}

/// Returns the newest exemplar of each series, as a line has it. `lines` are those of [`Series`], one for each value.
fn by_series<'a>(lines: &'a str, values: &[(Exemplar, f64)]) -> HashMap<&'a str, String> {
    let series = lines.lines().filter_map(series_of);
    let mut newest: HashMap<&str, (SystemTime, String)> = HashMap::new();
    for (series, (exemplar, value)) in series.zip(values) {
        let newer = |(time, _): &(SystemTime, String)| *time >= exemplar.time;
        if !newest.get(series).is_some_and(newer) {
            newest.insert(series, (exemplar.time, written(exemplar, *value)));
        }
    }
    let newest = newest.into_iter();
    newest.map(|(series, (_, text))| (series, text)).collect()
}

/// Passes metrics on line by line, each with its exemplar.
struct Exemplified<'a, W> {
    text: &'a mut W,
    by_series: HashMap<&'a str, String>,
    /// What has come of a line.
    line: String,
}

impl<W: fmt::Write> fmt::Write for Exemplified<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.split_inclusive('\n') {
            let Some(end) = part.strip_suffix('\n') else {
                self.line.push_str(part);
                continue;
            };
            self.line.push_str(end);
            self.text.write_str(&self.line)?;
            let exemplar = series_of(&self.line).and_then(|series| self.by_series.get(series));
            self.text.write_str(exemplar.map_or("", String::as_str))?;
            self.text.write_str("\n")?;
            self.line.clear();
        }
        Ok(())
    }
}

/// A sampled request, and what has counted it.
#[derive(Debug)]
enum Sampled {
    /// The whole request, by its rule.
    Request(Arc<Rule>, Exemplar),
    /// The attempt that got a response, by its backend.
    Attempt(Arc<Backend>, Exemplar),
}

impl Sampled {
    /// The values of its series, in the order of [`Series`].
    fn values(&self) -> Vec<(Exemplar, f64)> {
        let seconds = |exemplar: &Exemplar| micros(exemplar) as f64 / 1e6;
        match self {
            Self::Request(_, exemplar) => vec![(*exemplar, 1.0), (*exemplar, seconds(exemplar))],
            Self::Attempt(_, exemplar) => vec![(*exemplar, seconds(exemplar))],
        }
    }
}

/// Returns the last sampled requests of all rules and backends.
fn all(table: &Table) -> Vec<Sampled> {
    let requests = table.rules().flat_map(|rule| {
        let exemplars = rule.state.stats.exemplars();
        exemplars.map(|exemplar| Sampled::Request(rule.clone(), exemplar))
    });
    let attempts = table.backends().filter_map(|backend| {
        let exemplar = backend.stats.exemplar()?;
        Some(Sampled::Attempt(backend.clone(), exemplar))
    });
    requests.chain(attempts).collect()
}

/// Name and labels of a sample; `None` for a line that is no sample.
fn series_of(line: &str) -> Option<&str> {
    let (series, _) = line.rsplit_once(' ')?;
    (!line.starts_with('#')).then_some(series)
}

/// The duration as it is counted.
fn micros(exemplar: &Exemplar) -> u64 {
    u64::try_from(exemplar.elapsed.as_micros()).unwrap_or(u64::MAX)
}

fn written(exemplar: &Exemplar, value: f64) -> String {
    let trace = hex::encode(&exemplar.trace_id);
    let time = exemplar.time.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!(
        " # {{trace_id=\"{trace}\"}} {value} {:.3}",
        time.as_secs_f64()
    )
}

/// The series that exemplars belong to, as lines of a page: for a request the counter, then the bucket; for an attempt the
/// bucket.
#[derive(Debug)]
struct Series(Vec<Sampled>, MetricsDetail);

impl Collector for Series {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        let Self(sampled, detail) = self;
        for one in sampled {
            match one {
                Sampled::Request(rule, exemplar) => {
                    let labels = RuleLabels(&rule.ir.id, detail.per_rule);
                    let outcome = OutcomeLabels::new(exemplar.outcome, detail.per_rule);
                    page.counters("portcullis_requests", "", [((labels, outcome), 0)])?;
                    let labelled = LabelledOutcome::new(exemplar.outcome, detail.durations_by);
                    let labels = (labels, labelled);
                    page.bucket("http_server_request_duration", labels, exemplar)?;
                }
                Sampled::Attempt(backend, exemplar) => {
                    let labels = BackendLabels(backend);
                    page.bucket("http_client_request_duration", labels, exemplar)?;
                }
            }
        }
        Ok(())
    }
}

impl Page<'_> {
    /// Writes the bucket of a histogram that counts a duration.
    fn bucket<L: EncodeLabelSet>(
        &mut self,
        histogram: &str,
        labels: L,
        exemplar: &Exemplar,
    ) -> fmt::Result {
        let name = format!("{histogram}_seconds_bucket");
        let micros = micros(exemplar);
        let mut bounds = DURATION_BOUNDS_MICROS.iter();
        match bounds.find(|bound| **bound >= micros) {
            Some(bound) => {
                let bound = [("le", Duration::from_micros(*bound).as_secs_f64())];
                self.gauges(&name, "", [((bound, labels), 0)])
            }
            None => self.gauges(&name, "", [(([("le", "+Inf")], labels), 0)]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::per_worker::WorkerId;
    use crate::settings::metrics::DurationLabels;
    use crate::table::Outcome;
    use crate::telemetry::metrics::ProcessStats;
    use crate::telemetry::metrics::text::tests::{RULES, table};

    /// Records a sampled request that ended `seconds` after 1970.
    fn sample(table: &Table, millis: u64, seconds: u64, worker: usize) {
        let stats = &table.rules().next().unwrap().state.stats;
        let (worker, outcome) = (WorkerId::new(worker, 1), Outcome::of_status(200));
        let elapsed = Duration::from_millis(millis);
        let labels = DurationLabels::default();
        stats.record(worker, outcome, elapsed, labels);
        stats.sampled(
            worker,
            Exemplar {
                outcome,
                elapsed,
                trace_id: [seconds as u8; 16],
                time: UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 250),
            },
        );
    }

    #[test]
    fn traces_are_on_the_counter_and_the_bucket_of_a_request() {
        let table = table();
        let page = |detail| {
            let mut text = String::new();
            let metrics = Metrics {
                table: table.clone(),
                process: ProcessStats::default(),
                dropped: 0,
                detail,
                problems: Vec::new(),
            };
            write_with_exemplars(&mut text, metrics).unwrap();
            text
        };
        assert!(!page(MetricsDetail::default()).contains("trace_id"));
        sample(&table, 4, 1, 0);
        sample(&table, 30_000, 2, 0);
        let route = r#"namespace="app",route="site",kind="HTTPRoute""#;
        let status = r#"http_response_status_code="200",error_type="""#;
        let trace = "02".repeat(16);
        let method = r#"rule="0",http_request_method="_OTHER""#;
        for (detail, counter, bucket) in [
            (
                MetricsDetail::default(),
                format!("portcullis_requests_total{{{route},{status}}} 5"),
                format!("{route}}} 5"),
            ),
            (
                RULES,
                format!("portcullis_requests_total{{{route},{method},{status}}} 3"),
                format!("{route},rule=\"0\"}} 3"),
            ),
        ] {
            let page = page(detail);
            let bucket =
                format!("http_server_request_duration_seconds_bucket{{le=\"+Inf\",{bucket}");
            for (sample, value) in [(counter, "1"), (bucket, "30")] {
                let line = format!("{sample} # {{trace_id=\"{trace}\"}} {value} 2.250\n");
                assert!(page.contains(&line), "{line} is not in\n{page}");
            }
            assert_eq!(page.matches(" # {").count(), 2);
            assert!(page.ends_with("# EOF\n"));
        }
        sample(&table, 4, 3, 0);
        let backend = table.backends().next().unwrap();
        backend.stats.sampled(Exemplar {
            outcome: Outcome::of_status(200),
            elapsed: Duration::from_millis(2),
            trace_id: [4; 16],
            time: UNIX_EPOCH,
        });
        let page = page(MetricsDetail::default());
        let attempts = page.lines().filter(|line| line.contains("0404"));
        let attempts: Vec<_> = attempts.collect();
        assert_eq!(attempts.len(), 1, "{page}");
        assert!(
            attempts[0].starts_with("http_client_request_duration_seconds_bucket{le=\"0.0025\",")
        );
        assert!(attempts[0].ends_with("\"} 0.002 0.000"));
        let bucket = format!("_bucket{{le=\"0.005\",{route}}} 5 # {{trace_id=\"0303");
        assert!(page.contains(&bucket));
    }
}
