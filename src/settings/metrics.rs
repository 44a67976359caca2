//! How detailed metrics of requests are, as plain values. Must not know what counts them.

use std::fmt;
use std::str::FromStr;

/// How detailed metrics of requests are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetricsDetail {
    /// Whether requests are counted by rule, and not by route. Default: no.
    pub per_rule: bool,
    /// Labels of durations, in addition to those of the route or rule. Default: none.
    pub durations_by: DurationLabels,
}

/// A label of durations of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurationLabel {
    /// The method of the request.
    Method,
    /// The class of the status of the response.
    StatusClass,
}

impl DurationLabel {
    const ALL: [Self; 2] = [Self::Method, Self::StatusClass];

    fn name(self) -> &'static str {
        match self {
            Self::Method => "method",
            Self::StatusClass => "status-class",
        }
    }
}

impl fmt::Display for DurationLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DurationLabel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|label| label.name() == text);
        known.ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            format!("`{text}` is not a label of durations; supported are: {known}")
        })
    }
}

/// A set of labels of durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationLabels {
    /// Whether [`DurationLabel::Method`] is one of them.
    pub method: bool,
    /// Whether [`DurationLabel::StatusClass`] is one of them.
    pub status_class: bool,
}

impl DurationLabels {
    /// Reports whether the set is empty.
    #[inline]
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

impl FromIterator<DurationLabel> for DurationLabels {
    fn from_iter<I: IntoIterator<Item = DurationLabel>>(labels: I) -> Self {
        let mut all = Self::default();
        for label in labels {
            match label {
                DurationLabel::Method => all.method = true,
                DurationLabel::StatusClass => all.status_class = true,
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_labels_are_parsed() {
        for label in DurationLabel::ALL {
            assert_eq!(label.to_string().parse(), Ok(label));
        }
        let labels = ["method", "method"].map(str::parse::<DurationLabel>);
        let labels: DurationLabels = labels.into_iter().flatten().collect();
        assert!(labels.method && !labels.status_class && !labels.is_empty());
        let error = "status".parse::<DurationLabel>().unwrap_err();
        assert!(
            error.ends_with("supported are: method, status-class"),
            "{error}"
        );
    }
}
