//! Metrics with names that conventions give: those of Prometheus' client libraries for processes, and those of
//! OpenTelemetry for HTTP.

use std::fmt;

use prometheus_client::encoding::NoLabelSet;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::super::usage::Usage;
use super::backends::BackendLabels;
use super::{Page, Standard};

impl Standard {
    /// Omits backends without responses, so that the size of the page depends on use.
    pub(super) fn backends(&self, page: &mut Page<'_>) -> fmt::Result {
        let backends = self.0.backends();
        let times = backends.map(|it| (BackendLabels(it), it.stats.response_times()));
        let times = times.filter(|(_, histogram)| histogram.count() > 0);
        let help = "Time from the begin of an attempt at an endpoint, with its connect, to the head of the response";
        page.durations("http_client_request_duration", help, times)
    }
}

impl Page<'_> {
    pub(super) fn process(&mut self) -> fmt::Result {
        let usage = Usage::now();
        let help = "CPU time, user and system";
        let kind = MetricType::Counter;
        let mut cpu =
            (self.0).encode_descriptor("process_cpu", help, Some(&Unit::Seconds), kind)?;
        cpu.encode_counter::<NoLabelSet, _, u64>(&usage.cpu.as_secs_f64(), None)?;
        if let Some(start) = usage.start {
            let help = "Unix time when the process has started";
            self.timestamp("process_start_time", help, start)?;
        }
        for (name, help, unit, value) in [
            (
                "process_resident_memory",
                "Resident memory",
                Some(&Unit::Bytes),
                usage.resident,
            ),
            (
                "process_open_fds",
                "Open file descriptors",
                None,
                usage.descriptors,
            ),
            (
                "process_max_fds",
                "Limit of open file descriptors",
                None,
                usage.max_descriptors,
            ),
        ] {
            if let Some(value) = value {
                let kind = MetricType::Gauge;
                let mut metric = (self.0).encode_descriptor(name, help, unit, kind)?;
                metric.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?;
            }
        }
        Ok(())
    }
}
