//! Encodes all metrics as OpenMetrics text. Owns the names of the metrics.

mod backends;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::{ProcessStats, TimeoutKind};
use crate::ir::RuleId;
use crate::table::{DURATION_BOUNDS_MICROS, RuleStats, Table};

const CODE_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Content type of [`encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Encodes all metrics. `dropped` is the number of dropped access log records.
pub fn encode(table: Arc<Table>, process: ProcessStats, dropped: u64) -> String {
    let mut registry = Registry::with_prefix("portcullis");
    registry.register_collector(Box::new(Metrics {
        table,
        process,
        dropped,
    }));
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = text::encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Metrics {
    table: Arc<Table>,
    process: ProcessStats,
    dropped: u64,
}

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        self.rules(&mut page)?;
        self.backends(&mut page)?;
        self.filter_requests(&mut page)?;
        self.releases(&mut page)?;
        self.connections(&mut page)?;
        self.configuration(&mut page)?;
        self.dns(&mut page)?;
        self.stream(&mut page)?;
        self.controller(&mut page)
    }
}

impl Metrics {
    /// Omits rules without requests, so that the size of the page depends on use.
    fn rules(&self, page: &mut Page<'_>) -> fmt::Result {
        let rules: Vec<(RuleLabels<'_>, &RuleStats)> = self
            .table
            .rules()
            .map(|rule| (RuleLabels(&rule.ir.id), &rule.state.stats))
            .filter(|(_, stats)| stats.in_flight() != 0 || stats.classes() != [0; 5])
            .collect();
        let counts = rules.iter().flat_map(|(rule, stats)| {
            let classes = CODE_CLASSES.into_iter().zip(stats.classes());
            classes
                .filter(|(_, count)| *count > 0)
                .map(move |(class, count)| (rule.and("code", class), count))
        });
        page.counters("requests", "Responses, by rule and class of status", counts)?;
        let retries = rules.iter().map(|(rule, stats)| (*rule, stats.retries()));
        let retries = retries.filter(|(_, count)| *count > 0);
        page.counters("retries", "Retries that a rule's retry allowed", retries)?;
        let in_flight = rules.iter().map(|(rule, stats)| (*rule, stats.in_flight()));
        page.gauges("requests_in_flight", "Requests in progress", in_flight)?;
        let help = "Duration from the request head to the last byte of the response";
        page.durations("request_duration", help, &rules)
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
        page.gauge("connections_parked", "Parked client connections", parked)?;
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
                "tls_handshakes",
                "Completed TLS handshakes",
                &stats.handshakes,
            ),
            (
                "tls_handshake_failures",
                "Failed TLS handshakes",
                &stats.handshake_failures,
            ),
            (
                "bad_requests",
                "Requests that are not valid HTTP",
                &stats.bad_requests,
            ),
        ] {
            page.counter(name, help, count.load(Relaxed))?;
        }
        let unmatched = stats.unmatched.by_status();
        let unmatched = unmatched.filter(|(_, count)| *count > 0);
        page.counters(
            "unmatched_requests",
            "Requests that matched no rule, by status",
            unmatched.map(|(status, count)| ([("code", status)], count)),
        )?;
        let timeouts = TimeoutKind::ALL.map(|kind| ([("kind", kind.name())], stats.timeouts(kind)));
        page.counters(
            "timeouts",
            "Client connections and streams ended by a timeout",
            timeouts,
        )?;
        page.counter(
            "access_log_dropped",
            "Dropped lines of the access log",
            self.dropped,
        )
    }

    fn configuration(&self, page: &mut Page<'_>) -> fmt::Result {
        let config = &self.process.config;
        let generation = config.generation() as i64;
        page.gauge(
            "config_generation",
            "Configurations served so far",
            generation,
        )?;
        let problems = config.problems() as i64;
        page.gauge("config_problems", "Problems of the configuration", problems)?;
        let loaded = config.loaded_at().as_secs() as i64;
        let help = "Time of the last configuration change, in seconds since the Unix epoch";
        page.gauge("config_load_timestamp", help, loaded)?;
        if let Some(contact) = config.contact() {
            let help =
                "Time of the last response of the API server, in seconds since the Unix epoch";
            page.gauge(
                "api_server_contact_timestamp",
                help,
                contact.as_secs() as i64,
            )?;
        }
        let mut expiry: BTreeMap<String, i64> = BTreeMap::new();
        let listeners = self.table.ir.ports.iter().flat_map(|port| &port.listeners);
        for certificate in listeners
            .filter_map(|one| one.tls())
            .flat_map(|tls| &tls.certificates)
        {
            expiry.insert(certificate.source.to_string(), certificate.not_after);
        }
        let expiry = expiry
            .iter()
            .map(|(source, time)| ([("certificate", source.as_str())], *time));
        let help = "Expiry of a certificate, in seconds since the Unix epoch";
        page.gauges("certificate_expiry_timestamp", help, expiry)?;
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        page.gauges("build", "The program", [(version, 1)])
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

    fn stream(&self, page: &mut Page<'_>) -> fmt::Result {
        let Some(stream) = &self.process.stream else {
            return Ok(());
        };
        let connected = i64::from(stream.is_connected());
        let help = "Whether a controller streams objects to this pod";
        page.gauge("stream_connected", help, connected)?;
        let age = stream.age().as_secs() as i64;
        let help = "Seconds since the last stream from a controller ended";
        page.gauge("stream_age_seconds", help, age)?;
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
            "controller_leading",
            "Whether this replica is the leader",
            leading,
        )?;
        page.gauge(
            "controller_streams",
            "Pods connected to the configuration stream",
            i64::try_from(controller.stream.open()).unwrap_or(i64::MAX),
        )?;
        let refusals = controller.stream.refusals();
        let refusals = refusals.map(|(status, count)| ([("status", status)], count));
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

    fn gauges<L: EncodeLabelSet, V: prometheus_client::encoding::EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let kind = MetricType::Gauge;
        let mut metric = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in values {
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn gauge(&mut self, name: &str, help: &str, value: i64) -> fmt::Result {
        let kind = MetricType::Gauge;
        let mut metric = self.0.encode_descriptor(name, help, None, kind)?;
        metric.encode_gauge(&value)
    }

    fn durations(
        &mut self,
        name: &str,
        help: &str,
        rules: &[(RuleLabels<'_>, &RuleStats)],
    ) -> fmt::Result {
        let kind = MetricType::Histogram;
        let unit = Unit::Seconds;
        let mut metric = self.0.encode_descriptor(name, help, Some(&unit), kind)?;
        let bounds =
            DURATION_BOUNDS_MICROS.map(|micros| Duration::from_micros(micros).as_secs_f64());
        for (labels, stats) in rules {
            let counts = stats.durations();
            let bounds = bounds.iter().copied().chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
            let sum = Duration::from_micros(stats.total_micros()).as_secs_f64();
            let count = counts.iter().sum();
            let mut family = metric.encode_family(labels)?;
            family.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

/// Labels of a rule.
#[derive(Clone, Copy)]
struct RuleLabels<'a>(&'a RuleId);

impl<'a> RuleLabels<'a> {
    fn and(self, name: &'static str, value: &'a str) -> LabelledRule<'a> {
        LabelledRule(self, [(name, value)])
    }
}

impl EncodeLabelSet for RuleLabels<'_> {
    fn encode(
        &self,
        encoder: &mut prometheus_client::encoding::LabelSetEncoder<'_>,
    ) -> fmt::Result {
        let route = self.0.route.to_string();
        let rule = match &self.0.name {
            Some(name) => name.to_string(),
            None => self.0.index.to_string(),
        };
        [("route", route.as_str()), ("rule", rule.as_str())].encode(encoder)
    }
}

/// Labels of a rule and one more label.
struct LabelledRule<'a>(RuleLabels<'a>, [(&'static str, &'a str); 1]);

impl EncodeLabelSet for LabelledRule<'_> {
    fn encode(
        &self,
        encoder: &mut prometheus_client::encoding::LabelSetEncoder<'_>,
    ) -> fmt::Result {
        self.0.encode(encoder)?;
        self.1.encode(encoder)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ir::Ir;

    #[test]
    fn new_process_exports_process_metrics() {
        let process = ProcessStats::default();
        process.connections.timed_out(TimeoutKind::Body);
        process.connections.accepted.fetch_add(3, Relaxed);
        process.config.loaded(7, 2);
        let table = Arc::new(Table::build(Arc::new(Ir::default()), None));
        let text = encode(table, process, 4);
        for line in [
            "portcullis_connections_open 3",
            "portcullis_connections_accepted_total 3",
            "portcullis_timeouts_total{kind=\"body\"} 1",
            "portcullis_config_generation 7",
            "portcullis_config_problems 2",
            "portcullis_access_log_dropped_total 4",
        ] {
            assert!(
                text.lines().any(|it| it == line),
                "{line} is not in\n{text}"
            );
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn pod_of_a_controller_exports_stream_metrics() {
        let stream = Arc::new(super::super::StreamStats::default());
        let process = ProcessStats {
            stream: Some(stream.clone()),
            ..ProcessStats::default()
        };
        let table = Arc::new(Table::build(Arc::new(Ir::default()), None));
        let has = |lines: [&str; 3]| {
            let text = encode(table.clone(), process.clone(), 0);
            for line in lines.map(|line| format!("portcullis_stream_{line}")) {
                assert!(
                    text.lines().any(|it| it == line),
                    "{line} is not in\n{text}"
                );
            }
        };
        has(["connected 0", "connections_total 0", "revision 0"]);
        stream.connected();
        stream.committed(7);
        has(["connected 1", "connections_total 1", "revision 7"]);
        has(["age_seconds 0", "connected 1", "revision 7"]);
        stream.disconnected();
        has(["connected 0", "connections_total 1", "revision 7"]);
    }

    #[test]
    fn histogram_buckets_are_cumulative() {
        let stats = RuleStats::default();
        stats.record(200, Duration::from_millis(2));
        stats.record(200, Duration::from_secs(60));
        let id = RuleId {
            route: crate::ir::ObjectRef::gateway_api("HTTPRoute", "ns", "demo"),
            index: 3,
            name: None,
        };
        #[derive(Debug)]
        struct One(RuleId, RuleStats);
        impl Collector for One {
            fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
                Page(encoder).durations("d", "help", &[(RuleLabels(&self.0), &self.1)])
            }
        }
        let mut registry = Registry::default();
        registry.register_collector(Box::new(One(id, stats)));
        let mut text = String::new();
        text::encode(&mut text, &registry).unwrap();
        let labels = "route=\"HTTPRoute ns/demo\",rule=\"3\"";
        assert!(
            text.contains(&format!("d_seconds_bucket{{le=\"0.0025\",{labels}}} 1")),
            "{text}"
        );
        assert!(
            text.contains(&format!("d_seconds_bucket{{le=\"+Inf\",{labels}}} 2")),
            "{text}"
        );
        assert!(
            text.contains(&format!("d_seconds_count{{{labels}}} 2")),
            "{text}"
        );
    }
}
