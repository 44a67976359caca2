//! Metrics of the requests that rules match, summed by route unless the page has the detail of rules.

use std::fmt;

use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};

use super::{CODE_CLASSES, Detail, Metrics, Page, Standard, object_labels};
use crate::ir::RuleId;
use crate::table::{Histogram, Table};

/// Counts of the requests of a rule, or of all rules of a route.
#[derive(Default)]
struct Requests {
    classes: [u64; 5],
    retries: u64,
    in_flight: u64,
}

impl Metrics {
    /// Omits routes without requests, so that the size of the page depends on use.
    pub(super) fn rules(&self, page: &mut Page<'_>) -> fmt::Result {
        let mut requests: Vec<(RuleLabels<'_>, Requests)> = Vec::new();
        for rule in self.table.rules() {
            let stats = &rule.state.stats;
            let (classes, in_flight) = (stats.classes(), stats.in_flight());
            if in_flight == 0 && classes == [0; 5] {
                continue;
            }
            let sum = of_same(&mut requests, RuleLabels(&rule.ir.id, self.detail));
            sum.retries += stats.retries();
            sum.in_flight = sum.in_flight.wrapping_add(in_flight);
            for (sum, count) in sum.classes.iter_mut().zip(classes) {
                *sum += count;
            }
        }
        let counts = requests.iter().flat_map(|(labels, requests)| {
            let classes = CODE_CLASSES.into_iter().zip(requests.classes);
            classes
                .filter(|(_, count)| *count > 0)
                .map(move |(class, count)| ((*labels, [("code", class)]), count))
        });
        page.counters(
            "requests",
            "Responses, by route and class of status",
            counts,
        )?;
        let retries = requests.iter().map(|(labels, it)| (*labels, it.retries));
        let retries = retries.filter(|(_, count)| *count > 0);
        page.counters("retries", "Retries that a rule's retry allowed", retries)?;
        let in_flight = requests.iter().map(|(labels, it)| (*labels, it.in_flight));
        page.gauges("requests_in_flight", "Requests in progress", in_flight)
    }
}

impl Standard {
    pub(super) fn requests(&self, page: &mut Page<'_>) -> fmt::Result {
        let help = "Duration from the request head to the last byte of the response";
        let durations = durations(&self.0, self.1);
        page.durations("http_server_request_duration", help, durations)
    }
}

fn durations(table: &Table, detail: Detail) -> Vec<(RuleLabels<'_>, Histogram)> {
    let mut durations: Vec<(RuleLabels<'_>, Histogram)> = Vec::new();
    for rule in table.rules() {
        let histogram = rule.state.stats.durations();
        if histogram.count() > 0 {
            of_same(&mut durations, RuleLabels(&rule.ir.id, detail)).add(&histogram);
        }
    }
    durations
}

/// Returns the sum with these labels, which is the last one or a new one: the rules of a route follow each other.
fn of_same<'a, 'b, T: Default>(
    sums: &'a mut Vec<(RuleLabels<'b>, T)>,
    labels: RuleLabels<'b>,
) -> &'a mut T {
    if sums.last().is_none_or(|(last, _)| !last.is_same(&labels)) {
        sums.push((labels, T::default()));
    }
    let last = sums.len() - 1;
    &mut sums[last].1
}

/// Labels of a rule, or of its route.
#[derive(Clone, Copy)]
pub(super) struct RuleLabels<'a>(pub(super) &'a RuleId, pub(super) Detail);

impl RuleLabels<'_> {
    fn is_same(&self, other: &Self) -> bool {
        self.0.route == other.0.route && (self.1 == Detail::Routes || self.0 == other.0)
    }
}

impl EncodeLabelSet for RuleLabels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        let Self(RuleId { route, index, name }, detail) = self;
        object_labels("route", route).encode(encoder)?;
        [("kind", &*route.kind)].encode(encoder)?;
        if *detail == Detail::Routes {
            return Ok(());
        }
        // A name that is a number could be the index of another rule of the route.
        let name = name.as_ref().filter(|name| name.parse::<usize>().is_err());
        let rule = name.map_or_else(|| index.to_string(), ToString::to_string);
        [("rule", rule)].encode(encoder)
    }
}
