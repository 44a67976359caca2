//! `retry` of a rule (GEP-1731), and of a RoutePolicy.

use std::time::Duration;

use crate::api::http_route::HttpRetry;
use crate::ir::route::Retry;

use super::duration;
use super::reason::{Fault, Reason};

/// Default of `attempts`, which the API leaves to the implementation.
const DEFAULT_ATTEMPTS: u32 = 1;
/// Default of `backoff`, which the API leaves to the implementation.
const DEFAULT_BACKOFF: Duration = Duration::from_millis(25);

/// Translates the `retry` of the object at `field`.
pub(super) fn translate(spec: &HttpRetry, field: &str) -> Result<Retry, Fault> {
    if let Some(code) = spec.codes.iter().find(|code| !(400..=599).contains(*code)) {
        let message = format!("{field}.codes: {code} is not a status of 400 to 599");
        return Err(Fault::new(Reason::UnsupportedValue, message));
    }
    let mut codes = spec.codes.clone();
    codes.sort_unstable();
    codes.dedup();
    let backoff = match &spec.backoff {
        Some(text) => duration::parse(text, &format!("{field}.backoff"))?,
        None => DEFAULT_BACKOFF,
    };
    Ok(Retry {
        attempts: spec.attempts.unwrap_or(DEFAULT_ATTEMPTS),
        codes,
        backoff,
    })
}
