//! Encodes all metrics as OpenMetrics text. Owns the names of the metrics.

mod backends;
mod certificates;
pub(super) mod exemplars;
mod limits;
mod outcomes;
mod policy_labels;
mod rules;
mod standard;
#[cfg(test)]
mod tests;
mod token_requests;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use self::outcomes::Responses;
use super::{HandshakeFailure, ProcessStats, TimeoutKind};
use crate::ir::ObjectRef;
use crate::settings::metrics::MetricsDetail;
use crate::table::{DURATION_BOUNDS_MICROS, Histogram, Table};

const CODE_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Content type of [`write()`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Writes all metrics, in pieces of less than a line.
///
/// # Errors
/// Those of `text`.
pub fn write<W: fmt::Write>(text: &mut W, metrics: Metrics) -> fmt::Result {
    let mut standard = Registry::default();
    standard.register_collector(Box::new(Standard(metrics.table.clone(), metrics.detail)));
    let mut own = Registry::with_prefix("portcullis");
    own.register_collector(Box::new(metrics));
    text::encode_registry(text, &own)?;
    text::encode_registry(text, &standard)?;
    text::encode_eof(text)
}

/// Metrics with names that conventions give, which have no prefix.
#[derive(Debug)]
struct Standard(Arc<Table>, MetricsDetail);

impl Collector for Standard {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        self.requests(&mut page)?;
        self.backends(&mut page)?;
        page.process()
    }
}

/// What metrics are of.
#[derive(Debug)]
pub struct Metrics {
    /// The table in service.
    pub table: Arc<Table>,
    /// Counters of the process.
    pub process: ProcessStats,
    /// Number of dropped access log records.
    pub dropped: u64,
    /// How detailed metrics of requests are.
    pub detail: MetricsDetail,
    /// Number of problems by kind and severity.
    pub problems: Vec<((&'static str, &'static str), u64)>,
}

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        self.rules(&mut page)?;
        self.responses(&mut page)?;
        self.backends(&mut page)?;
        self.filter_requests(&mut page)?;
        self.releases(&mut page)?;
        self.connections(&mut page)?;
        self.traces(&mut page)?;
        self.forwarded(&mut page)?;
        self.configuration(&mut page)?;
        self.listeners(&mut page)?;
        self.certificates(&mut page)?;
        self.limits(&mut page)?;
        self.dns(&mut page)?;
        self.key_sets(&mut page)?;
        self.token_requests(&mut page)?;
        self.stream(&mut page)?;
        self.controller(&mut page)
    }
}

impl Metrics {
    /// Connections that are forwarded as they are, and datagrams.
    fn forwarded(&self, page: &mut Page<'_>) -> fmt::Result {
        let stats = &self.process.connections;
        let sessions = stats.udp_sessions.load(Relaxed);
        let sessions = sessions.saturating_sub(stats.udp_sessions_ended.load(Relaxed));
        page.gauge(
            "udp_sessions_open",
            "Client addresses whose datagrams are forwarded",
            sessions as i64,
        )?;
        for (name, help, count) in [
            (
                "udp_sessions",
                "Client addresses whose datagrams were forwarded",
                &stats.udp_sessions,
            ),
            (
                "udp_datagrams_dropped",
                "Datagrams that a full socket did not take",
                &stats.dropped_datagrams,
            ),
            (
                "unforwarded",
                "Connections of TLS, TCP and UDP listeners that no backend could be connected to for",
                &stats.unforwarded,
            ),
        ] {
            page.counter(name, help, count.load(Relaxed))?;
        }
        Ok(())
    }

    fn connections(&self, page: &mut Page<'_>) -> fmt::Result {
        let stats = &self.process.connections;
        let open = stats.open() as i64;
        page.gauge("connections_open", "Client connections", open)?;
        let by_worker = stats
            .by_worker
            .get()
            .into_iter()
            .flat_map(|workers| &**workers);
        let by_worker = by_worker
            .enumerate()
            .map(|(worker, open)| ([("worker", worker)], open.load(Relaxed) as i64));
        page.gauges(
            "worker_connections",
            "Client connections by worker thread",
            by_worker,
        )?;
        let parked = stats.parked.load(Relaxed) as i64;
        page.gauge(
            "connections_idle",
            "Idle client connections that hold no buffers",
            parked,
        )?;
        for (name, help, count) in [
            (
                "connections_accepted",
                "Client connections",
                &stats.accepted,
            ),
            (
                "connections_refused",
                "Client connections rejected by the limit",
                &stats.refused,
            ),
            (
                "connections_evicted",
                "Idle client connections closed in favor of new ones",
                &stats.evicted,
            ),
            (
                "tls_handshakes",
                "Completed TLS handshakes",
                &stats.handshakes,
            ),
            (
                "bad_requests",
                "Requests that are not valid HTTP",
                &stats.bad_requests,
            ),
        ] {
            page.counter(name, help, count.load(Relaxed))?;
        }
        self.busy_workers(page)?;
        self.failures(page)?;
        page.counter(
            "access_log_dropped_lines",
            "Dropped lines of the access log",
            self.dropped,
        )?;
        let help = "Dropped lines of the log on standard error";
        page.counter("log_dropped_lines", help, crate::telemetry::log::dropped())
    }

    /// Connections, streams and requests that ended without a response of a backend, by the reason.
    fn failures(&self, page: &mut Page<'_>) -> fmt::Result {
        let stats = &self.process.connections;
        let failures = HandshakeFailure::ALL.map(|failure| {
            (
                [("reason", failure.name())],
                stats.handshake_failures(failure),
            )
        });
        let help = "Failed TLS handshakes with clients";
        page.counters("tls_handshake_failures", help, failures)?;
        let denied = [
            ("limit", &stats.over_limits),
            ("proxy_protocol", &stats.without_header),
        ];
        let denied = denied.map(|(reason, count)| ([("reason", reason)], count.load(Relaxed)));
        let help = "Client connections closed by a ClientPolicy";
        page.counters("connections_denied", help, denied)?;
        let mut unmatched = Responses::default();
        for outcomes in stats.unmatched.iter() {
            outcomes.read(|outcome, count| unmatched.add(outcome, count));
        }
        let help = "Requests that matched no rule";
        page.counters("unmatched_requests", help, unmatched.iter())?;
        let timeouts =
            TimeoutKind::ALL.map(|kind| ([("timeout", kind.name())], stats.timeouts(kind)));
        page.counters(
            "timeouts",
            "Client connections and streams ended by a timeout",
            timeouts,
        )
    }

    fn traces(&self, page: &mut Page<'_>) -> fmt::Result {
        let traces = &self.process.traces;
        let help = "Spans that a collector has accepted";
        let (exported, dropped) = (traces.exported(), traces.dropped());
        page.counter("trace_exported_spans", help, exported.spans)?;
        let help = "Spans that were dropped, since a collector was away or too slow";
        page.counter("trace_dropped_spans", help, dropped.spans)?;
        let help = "Records of the access log that a collector has accepted";
        page.counter("otlp_log_exported_records", help, exported.records)?;
        let help =
            "Records of the access log that were dropped, since a collector was away or too slow";
        page.counter("otlp_log_dropped_records", help, dropped.records)
    }

    fn busy_workers(&self, page: &mut Page<'_>) -> fmt::Result {
        let busy = self.process.connections.busy_micros.iter().enumerate();
        let help = "Time in which a worker thread was not idle";
        let kind = MetricType::Counter;
        let unit = Some(&Unit::Seconds);
        let mut metric = (page.0).encode_descriptor("worker_busy", help, unit, kind)?;
        for (worker, micros) in busy {
            let labels = [("worker", worker)];
            let mut family = metric.encode_family(&labels)?;
            let busy = Duration::from_micros(micros.load(Relaxed)).as_secs_f64();
            family.encode_counter::<NoLabelSet, _, u64>(&busy, None)?;
        }
        Ok(())
    }

    fn configuration(&self, page: &mut Page<'_>) -> fmt::Result {
        let config = &self.process.config;
        let generation = config.generation() as i64;
        page.gauge(
            "config_generation",
            "Generation of the configuration in service",
            generation,
        )?;
        let problems = config.problems() as i64;
        page.gauge("config_problems", "Problems of the configuration", problems)?;
        let problems = self.problems.iter();
        let problems = problems.map(|((kind, severity), count)| {
            let labels = [("kind", *kind), ("severity", *severity)];
            (labels, *count as i64)
        });
        let help = "What is wrong with the configuration or in service, by kind and severity";
        page.gauges("problems", help, problems)?;
        let help = "Unix time of the last configuration change";
        page.timestamp(
            "config_load_timestamp",
            help,
            config.loaded_at().unwrap_or_default(),
        )?;
        if let Some(contact) = config.contact() {
            let help = "Unix time of the last response of the API server";
            page.timestamp("api_server_contact_timestamp", help, contact)?;
            let help = "Objects with a change that waits for policies";
            page.gauge("waiting_objects", help, config.waiting() as i64)?;
        }
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        page.infos("build", "Version of the program", [version])
    }

    /// Lists a listener once per port, whatever the number of its addresses.
    fn listeners(&self, page: &mut Page<'_>) -> fmt::Result {
        let mut listeners = BTreeSet::new();
        for port in &self.table.ir.ports {
            for listener in &port.listeners {
                let protocol = listener.protocol.name();
                listeners.insert((&port.gateway, &listener.key, port.bind.port, protocol));
            }
        }
        let listeners = listeners.into_iter().map(|(gateway, key, port, protocol)| {
            let set = &key.origin;
            let set = (set != gateway).then(|| format!("{}/{}", set.namespace, set.name));
            let set = ("listener_set", set.unwrap_or_default());
            let port = ("port", port.to_string());
            let own = [set, ("listener", key.name.to_string()), port];
            let protocol = [("protocol", protocol)];
            (object_labels("gateway", gateway), (own, protocol))
        });
        page.infos("listener", "Listeners in service", listeners)
    }

    fn dns(&self, page: &mut Page<'_>) -> fmt::Result {
        let stats = &self.process.dns;
        let lookups = stats.lookups();
        let lookups = lookups.map(|(result, count)| ([("result", result)], count));
        let help = "DNS lookups of backend hostnames, by result";
        page.counters("dns_lookups", help, lookups)?;
        let help = "Resolved addresses that are neither public nor allowed";
        page.counter("dns_refused_addresses", help, stats.refused_addresses())
    }

    /// Keys of token issuers, in total: the number of issuers has no bound.
    fn key_sets(&self, page: &mut Page<'_>) -> fmt::Result {
        let stats = &self.process.key_sets;
        let fetches = stats.fetches();
        let fetches = fetches.map(|(result, count)| ([("result", result)], count));
        let help = "Fetches of the keys of token issuers, by result";
        page.counters("jwks_fetches", help, fetches)?;
        let sets = stats.sets().into_iter();
        let sets = sets.map(|(state, count)| ([("state", state)], count as i64));
        let help = "Key sets of token issuers, by whether the last fetch succeeded";
        page.gauges("jwks_key_sets", help, sets)?;
        let help = "Unix time when the key set was fetched that was not fetched for the longest time; 0 without any";
        let oldest = Duration::from_millis(stats.oldest());
        page.timestamp("jwks_oldest_fetch_timestamp", help, oldest)
    }

    fn stream(&self, page: &mut Page<'_>) -> fmt::Result {
        let Some(stream) = &self.process.stream else {
            return Ok(());
        };
        let connected = i64::from(stream.is_connected());
        let help = "Whether a controller streams objects to this pod";
        page.gauge("stream_connected", help, connected)?;
        let help = "Unix time when a controller streamed last";
        page.timestamp("stream_contact_timestamp", help, stream.contact())?;
        let revision = stream.revision() as i64;
        let help = "Revision of this pod's objects, as numbered by the controller";
        page.gauge("stream_revision", help, revision)?;
        let help = "Streams opened to a controller";
        page.counter("stream_connections", help, stream.connections())
    }

    fn controller(&self, page: &mut Page<'_>) -> fmt::Result {
        let Some(controller) = &self.process.controller else {
            return Ok(());
        };
        let leading = i64::from(controller.leading.load(Relaxed));
        page.gauge(
            "controller_is_leader",
            "Whether this replica is the leader",
            leading,
        )?;
        page.gauge(
            "controller_streams",
            "Pods connected to the configuration stream",
            i64::try_from(controller.stream.open()).unwrap_or(i64::MAX),
        )?;
        let refusals = controller.stream.refusals();
        let refusals = refusals.map(|(code, count)| ([("code", code)], count));
        page.counters(
            "controller_stream_refusals",
            "Rejected requests for the configuration stream",
            refusals,
        )?;
        let writes = controller.writes();
        let writes = writes.map(|(result, count)| ([("result", result)], count));
        page.counters("status_writes", "Status writes, by result", writes)
    }
}

/// The page being written.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let kind = MetricType::Counter;
        let mut metric = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in values {
            let mut family = metric.encode_family(&labels)?;
            family.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let kind = MetricType::Counter;
        let mut metric = self.0.encode_descriptor(name, help, None, kind)?;
        metric.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    fn gauges<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        self.gauge_family(name, help, None, values)
    }

    fn gauge(&mut self, name: &str, help: &str, value: i64) -> fmt::Result {
        let kind = MetricType::Gauge;
        let mut metric = self.0.encode_descriptor(name, help, None, kind)?;
        metric.encode_gauge(&value)
    }

    fn timestamps<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        times: impl IntoIterator<Item = (L, i64)>,
    ) -> fmt::Result {
        self.gauge_family(name, help, Some(&Unit::Seconds), times)
    }

    fn gauge_family<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        values: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let kind = MetricType::Gauge;
        let mut metric = self.0.encode_descriptor(name, help, unit, kind)?;
        for (labels, value) in values {
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn timestamp(&mut self, name: &str, help: &str, since_epoch: Duration) -> fmt::Result {
        let unit = Some(&Unit::Seconds);
        let kind = MetricType::Gauge;
        let mut metric = self.0.encode_descriptor(name, help, unit, kind)?;
        metric.encode_gauge(&since_epoch.as_secs())
    }

    fn infos<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = L>,
    ) -> fmt::Result {
        let kind = MetricType::Info;
        let mut metric = self.0.encode_descriptor(name, help, None, kind)?;
        for labels in values {
            metric.encode_info(&labels)?;
        }
        Ok(())
    }

    fn durations<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        durations: impl IntoIterator<Item = (L, Histogram)>,
    ) -> fmt::Result {
        let kind = MetricType::Histogram;
        let unit = Unit::Seconds;
        let mut metric = self.0.encode_descriptor(name, help, Some(&unit), kind)?;
        let bounds =
            DURATION_BOUNDS_MICROS.map(|micros| Duration::from_micros(micros).as_secs_f64());
        for (labels, histogram) in durations {
            let bounds = bounds.iter().copied().chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(histogram.buckets).collect();
            let sum = Duration::from_micros(histogram.total_micros).as_secs_f64();
            let mut family = metric.encode_family(&labels)?;
            family.encode_histogram::<NoLabelSet>(sum, histogram.count(), &buckets, None)?;
        }
        Ok(())
    }
}

/// Labels of an object; `label` is that of its name.
fn object_labels<'a>(label: &'static str, object: &'a ObjectRef) -> [(&'static str, &'a str); 2] {
    [("namespace", &object.namespace), (label, &object.name)]
}
