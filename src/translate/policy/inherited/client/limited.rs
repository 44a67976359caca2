//! Times of a ClientPolicy that have a maximum.

use std::time::Duration;

use crate::translate::duration;
use crate::translate::reason::{Fault, invalid};

/// A time, and its text.
pub(super) type Limit = (Duration, &'static str);

/// Parses a time of at least a second.
pub(super) fn limited(text: &str, field: &str, (most, name): Limit) -> Result<Duration, Fault> {
    match duration::parse(text, field) {
        Ok(time) if time < Duration::from_secs(1) || time > most => {
            invalid(format!("{field}: must be 1s to {name}"))
        }
        Ok(time) => Ok(time),
        Err(fault) => invalid(fault.message),
    }
}
