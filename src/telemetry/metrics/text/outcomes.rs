//! Responses by outcome, with the labels of the semantic conventions of OpenTelemetry for HTTP.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};

use crate::settings::metrics::DurationLabels;
use crate::table::{KnownMethod, Outcome};

/// Sums by outcome.
#[derive(Default)]
pub(super) struct Responses {
    by_outcome: BTreeMap<Outcome, u64>,
    has_methods: bool,
}

impl Responses {
    /// Sums by method, too, if `has_methods` is set.
    pub(super) fn new(has_methods: bool) -> Self {
        Self {
            by_outcome: BTreeMap::new(),
            has_methods,
        }
    }

    pub(super) fn add(&mut self, mut outcome: Outcome, count: u64) {
        if !self.has_methods {
            outcome.method = KnownMethod::default();
        }
        if count > 0 {
            *self.by_outcome.entry(outcome).or_default() += count;
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (OutcomeLabels, u64)> {
        let outcomes = self.by_outcome.iter();
        outcomes.map(|(outcome, count)| (OutcomeLabels(*outcome, self.has_methods), *count))
    }
}

/// The status and the error of an outcome, and its method if that is set. `error_type` is empty without an error, which
/// Prometheus treats as no label.
#[derive(Clone, Copy)]
pub(super) struct OutcomeLabels(Outcome, bool);

impl OutcomeLabels {
    pub(super) fn new(outcome: Outcome, has_method: bool) -> Self {
        Self(outcome, has_method)
    }
}

impl EncodeLabelSet for OutcomeLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        let Self(outcome, has_method) = self;
        let Outcome {
            method,
            status,
            error,
        } = outcome;
        if *has_method {
            [("http_request_method", method.name())].encode(encoder)?;
        }
        status_label(*status).encode(encoder)?;
        [("error_type", error.unwrap_or_default())].encode(encoder)
    }
}

/// What labels of durations tell of an outcome.
#[derive(Clone, Copy)]
pub(super) struct LabelledOutcome(Outcome, DurationLabels);

impl LabelledOutcome {
    pub(super) fn new(outcome: Outcome, labels: DurationLabels) -> Self {
        Self(outcome.labelled(labels), labels)
    }
}

impl EncodeLabelSet for LabelledOutcome {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        let Self(outcome, labels) = self;
        if labels.method {
            [("http_request_method", outcome.method.name())].encode(encoder)?;
        }
        match labels.status_class {
            true => status_label(outcome.status).encode(encoder),
            false => Ok(()),
        }
    }
}

/// The label of a status, or of the class of statuses, from 1 to 5.
pub(super) fn status_label(status: u16) -> [(&'static str, String); 1] {
    let text = match status {
        class @ ..100 => format!("{class}xx"),
        status => status.to_string(),
    };
    [("http_response_status_code", text)]
}
