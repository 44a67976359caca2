//! The connections of TCPRoutes and TLSRoutes and the sessions of UDPRoutes between two looks.

use serde::Serialize;
use serde_json::Value;

use crate::cli::table::{Table, bytes, of_pods};

/// What a route forwarded between two looks.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Connections {
    /// The pod, if it is one of a Gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pod: Option<String>,
    pub(super) route: String,
    pub(super) new_per_second: f64,
    pub(super) failed_per_second: f64,
    /// Bytes of clients.
    pub(super) bytes_received_per_second: f64,
    /// Bytes that clients were sent.
    pub(super) bytes_sent_per_second: f64,
    pub(super) open: u64,
}

/// The counters of a route.
#[derive(Clone, Copy, Default)]
pub(super) struct Counters {
    open: u64,
    total: u64,
    failed: u64,
    received: u64,
    sent: u64,
}

impl Counters {
    /// Adds the counters of a rule.
    pub(super) fn add(&mut self, forwarded: &Value) {
        let number = |name: &str| forwarded[name].as_u64().unwrap_or_default();
        self.open += number("open");
        self.total += number("total");
        self.failed += number("failed");
        self.received += number("bytesReceived");
        self.sent += number("bytesSent");
    }

    /// Returns what the route did since an earlier look.
    pub(super) fn since(&self, before: &Self, route: &str, seconds: f64) -> Connections {
        // Counters begin again when a route is replaced.
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        Connections {
            pod: None,
            route: route.to_owned(),
            new_per_second: rate(self.total, before.total),
            failed_per_second: rate(self.failed, before.failed),
            bytes_received_per_second: rate(self.received, before.received),
            bytes_sent_per_second: rate(self.sent, before.sent),
            open: self.open,
        }
    }
}

/// Sorts the busiest routes first: by new connections, and then by bytes.
pub(super) fn sort(routes: &mut [Connections]) {
    let bytes = |it: &Connections| it.bytes_received_per_second + it.bytes_sent_per_second;
    routes.sort_by(|one, other| {
        let by_new = other.new_per_second.total_cmp(&one.new_per_second);
        by_new
            .then_with(|| bytes(other).total_cmp(&bytes(one)))
            .then_with(|| (&one.route, &one.pod).cmp(&(&other.route, &other.pod)))
    });
}

pub(super) fn table(routes: &[Connections]) -> Table {
    let columns = ["ROUTE", "NEW/S", "FAILED/S", "RECEIVED/S", "SENT/S", "OPEN"];
    of_pods(&columns, routes.iter().map(row).collect())
}

/// The cells of a route, with its pod.
fn row(it: &Connections) -> (Option<&str>, Vec<String>) {
    let cells = vec![
        it.route.clone(),
        format!("{:.1}", it.new_per_second),
        format!("{:.1}", it.failed_per_second),
        bytes(it.bytes_received_per_second),
        bytes(it.bytes_sent_per_second),
        it.open.to_string(),
    ];
    (it.pod.as_deref(), cells)
}
