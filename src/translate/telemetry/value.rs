//! Values that several sections of a TelemetryPolicy have: shares and names of headers. Must not know the sections.

use http::{HeaderName, header};

use crate::api::telemetry_policy::Fraction;
use crate::ir::telemetry::Share;
use crate::translate::reason::{Fault, Reason};

/// Headers whose values are credentials.
pub(super) const CREDENTIALS: [HeaderName; 4] = [
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    header::COOKIE,
    header::SET_COOKIE,
];

/// Refuses the value at `field`.
pub(super) fn invalid<T>(field: &str, message: &str) -> Result<T, Fault> {
    Err(Fault::new(Reason::Invalid, format!("{field}: {message}")))
}

/// Parses the share at `field`.
pub(super) fn share(fraction: Option<&Fraction>, field: &str) -> Result<Option<Share>, Fault> {
    let Some(Fraction {
        numerator,
        denominator,
    }) = fraction.copied()
    else {
        return Ok(None);
    };
    if denominator == 0 || numerator > denominator {
        let message = format!("{numerator}/{denominator} is not between 0 and 1");
        return invalid(field, &message);
    }
    Ok(Some(Share {
        numerator,
        denominator,
    }))
}

/// Parses the name of a header at `field`.
pub(super) fn header_name(name: &str, field: &str) -> Result<HeaderName, Fault> {
    HeaderName::from_bytes(name.as_bytes())
        .or_else(|_| invalid(field, &format!("{name:?} is not a header name")))
}
