//! `retry` of a rule (GEP-1731).

use std::time::Duration;

use crate::api::http_route::HttpRetry;
use crate::ir::route::Retry;

use crate::translate::duration;
use crate::translate::reason::{Fault, Reason};

/// Default of `attempts`, which the API leaves to the implementation.
const DEFAULT_ATTEMPTS: u32 = 1;
/// Default of `backoff`, which the API leaves to the implementation.
const DEFAULT_BACKOFF: Duration = Duration::from_millis(25);

/// Translates the `retry` of the rule at `field`; `None` if it permits no retry.
pub(in crate::translate) fn translate(
    spec: &HttpRetry,
    field: &str,
) -> Result<Option<Retry>, Fault> {
    let field = format!("{field}.retry");
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
    let attempts = spec.attempts.unwrap_or(DEFAULT_ATTEMPTS);
    Ok((attempts > 0).then_some(Retry {
        attempts,
        codes,
        backoff,
    }))
}
