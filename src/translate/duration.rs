//! Durations of fields (GEP-2257).

use std::time::Duration;

use crate::api::duration;

use super::reason::{Fault, Reason};

/// Parses the duration at `field`.
pub(super) fn parse(text: &str, field: &str) -> Result<Duration, Fault> {
    duration::parse(text).ok_or_else(|| {
        let message = format!("{field}: {text:?} is not a duration such as 1h30m, 10s or 500ms");
        Fault::new(Reason::UnsupportedValue, message)
    })
}
