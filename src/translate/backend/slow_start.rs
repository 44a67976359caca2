//! The annotation for slow start of the endpoints of a Service.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::api::annotation::SLOW_START as ANNOTATION;
use crate::api::core::Service;
use crate::api::duration;

/// Permitted durations.
const PERMITTED: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(15 * 60);

/// Returns how long the share of an added endpoint grows. `None` without the annotation. The error continues a sentence
/// that begins with the name of the Service.
pub(super) fn read(service: &Service) -> Result<Option<Duration>, String> {
    let Some(value) = service.metadata.annotations.get(ANNOTATION) else {
        return Ok(None);
    };
    let window = duration::parse(value).filter(|window| PERMITTED.contains(window));
    window.map(Some).ok_or_else(|| {
        format!(
            "annotation {ANNOTATION} is {value:?}, which is ignored (no slow start); set a duration from 1s to 15m, such as 30s"
        )
    })
}
