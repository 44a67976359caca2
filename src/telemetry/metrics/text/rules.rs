//! Metrics of the requests that rules match, summed by route unless the page has the detail of rules.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};

use super::outcomes::{LabelledOutcome, Responses};
use super::{Metrics, Page, Standard, object_labels};
use crate::ir::RuleId;
use crate::settings::metrics::MetricsDetail;
use crate::table::{CountedRule, Histogram, Outcome, Table};

/// Counts of the requests of a rule, or of all rules of a route.
struct Requests {
    responses: Responses,
    retries: u64,
    in_flight: u64,
}

impl Requests {
    fn new(detail: MetricsDetail) -> Self {
        Self {
            responses: Responses::new(detail.per_rule),
            retries: 0,
            in_flight: 0,
        }
    }
}

impl Metrics {
    /// Omits routes without requests, so that the size of the page depends on use.
    pub(super) fn rules(&self, page: &mut Page<'_>) -> fmt::Result {
        let mut requests: Vec<(RuleLabels<'_>, Requests)> = Vec::new();
        for rule in counted_rules(&self.table, self.detail) {
            let stats = &rule.state.stats;
            let in_flight = stats.in_flight();
            if in_flight == 0 && !stats.has_requests() {
                continue;
            }
            let labels = RuleLabels(rule.id, self.detail.per_rule);
            let sum = of_same(&mut requests, labels, || Requests::new(self.detail));
            sum.retries += stats.retries();
            sum.in_flight = sum.in_flight.wrapping_add(in_flight);
            stats.outcomes(|outcome, count| sum.responses.add(outcome, count));
        }
        let counts = requests.iter().flat_map(|(labels, requests)| {
            let responses = requests.responses.iter();
            responses.map(move |(outcome, count)| ((*labels, outcome), count))
        });
        page.counters("requests", "Responses, by route, status and error", counts)?;
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
        let durations = durations.into_iter().flat_map(|(rule, histograms)| {
            let histograms = histograms.into_iter();
            histograms.map(move |(outcome, histogram)| {
                let outcome = LabelledOutcome::new(outcome, self.1.durations_by);
                ((rule, outcome), histogram)
            })
        });
        page.durations("http_server_request_duration", help, durations)
    }
}

/// Returns the rules with series, or that are part of those of their route. Without the former ones, a counter of a route
/// would go down when a rule is removed, which readers take for a restart from 0.
fn counted_rules(table: &Table, detail: MetricsDetail) -> impl Iterator<Item = CountedRule<'_>> {
    let rules = table.counted_rules();
    rules.filter(move |rule| !(detail.per_rule && rule.is_former))
}

/// Durations by what their labels tell of the outcome.
type Durations = BTreeMap<Outcome, Histogram>;

fn durations(table: &Table, detail: MetricsDetail) -> Vec<(RuleLabels<'_>, Durations)> {
    let mut durations: Vec<(RuleLabels<'_>, Durations)> = Vec::new();
    for rule in counted_rules(table, detail) {
        let histograms = rule.state.stats.durations_by(detail.durations_by);
        if histograms.is_empty() {
            continue;
        }
        let labels = RuleLabels(rule.id, detail.per_rule);
        let sums = of_same(&mut durations, labels, Durations::default);
        for (outcome, histogram) in histograms {
            sums.entry(outcome).or_default().add(&histogram);
        }
    }
    durations
}

/// Returns the sum with these labels, which is the last one or a new one: the rules of a route follow each other.
fn of_same<'a, 'b, T>(
    sums: &'a mut Vec<(RuleLabels<'b>, T)>,
    labels: RuleLabels<'b>,
    create: impl FnOnce() -> T,
) -> &'a mut T {
    if sums.last().is_none_or(|(last, _)| !last.is_same(&labels)) {
        sums.push((labels, create()));
    }
    let last = sums.len() - 1;
    &mut sums[last].1
}

/// Labels of a rule, or of its route if the second is not set.
#[derive(Clone, Copy)]
pub(super) struct RuleLabels<'a>(pub(super) &'a RuleId, pub(super) bool);

impl RuleLabels<'_> {
    fn is_same(&self, other: &Self) -> bool {
        self.0.route == other.0.route && (!self.1 || self.0 == other.0)
    }
}

impl EncodeLabelSet for RuleLabels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        let Self(RuleId { route, index, name }, per_rule) = self;
        object_labels("route", route).encode(encoder)?;
        [("kind", &*route.kind)].encode(encoder)?;
        if !per_rule {
            return Ok(());
        }
        // A name that is a number could be the index of another rule of the route.
        let name = name.as_ref().filter(|name| name.parse::<usize>().is_err());
        let rule = name.map_or_else(|| index.to_string(), ToString::to_string);
        [("rule", rule)].encode(encoder)
    }
}
