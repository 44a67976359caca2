//! RequestMirror filters: the backend that gets copies, and the fraction of requests to copy.

use std::num::NonZeroU32;

use crate::api::filter::{Fraction as FractionSpec, RequestMirror};
use crate::ir::filter::{Fraction, Mirror};

use super::backend::ResolveBackend;
use crate::translate::reason::{Fault, unsupported};

/// The denominator of a percentage, and the default denominator of a fraction.
const HUNDRED: NonZeroU32 = NonZeroU32::MIN.saturating_add(99);

/// Translates a mirror.
pub(in crate::translate) fn translate(
    block: &RequestMirror,
    field: &str,
    backend: ResolveBackend<'_>,
) -> Result<Mirror, Fault> {
    let RequestMirror {
        backend_ref,
        percent,
        fraction,
    } = block;
    let share = share(*percent, fraction.as_ref(), field)?;
    Ok(Mirror {
        target: backend(backend_ref, &format!("{field}.backendRef"), None),
        share,
    })
}

/// Returns the fraction of requests to copy; all by default.
fn share(
    percent: Option<i32>,
    fraction: Option<&FractionSpec>,
    field: &str,
) -> Result<Fraction, Fault> {
    let (numerator, denominator, field) = match (percent, fraction) {
        (Some(_), Some(_)) => {
            let message = "percent and fraction exclude each other; remove one";
            return Err(unsupported(field, message));
        }
        (Some(percent), None) => (percent, HUNDRED, format!("{field}.percent")),
        (None, Some(fraction)) => {
            let field = format!("{field}.fraction");
            let denominator = denominator(fraction.denominator, &field)?;
            (fraction.numerator, denominator, field)
        }
        (None, None) => {
            return Ok(Fraction {
                numerator: 100,
                denominator: HUNDRED,
            });
        }
    };
    let numerator = u32::try_from(numerator).ok();
    let numerator = numerator.filter(|numerator| *numerator <= denominator.get());
    let numerator = numerator.ok_or_else(|| {
        let message = format!("the fraction of requests is not between 0 and {denominator}");
        unsupported(&field, &message)
    })?;
    Ok(Fraction {
        numerator,
        denominator,
    })
}

fn denominator(denominator: Option<i32>, field: &str) -> Result<NonZeroU32, Fault> {
    let Some(denominator) = denominator else {
        return Ok(HUNDRED);
    };
    let positive = u32::try_from(denominator).ok().and_then(NonZeroU32::new);
    positive.ok_or_else(|| {
        let message = format!("{denominator} is not a positive number");
        unsupported(&format!("{field}.denominator"), &message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fraction(numerator: i32, denominator: Option<i32>) -> Option<FractionSpec> {
        Some(FractionSpec {
            numerator,
            denominator,
        })
    }

    #[test]
    fn share_is_a_percentage_or_a_fraction() {
        for (percent, fraction, expected) in [
            (None, None, (100, 100)),
            (Some(0), None, (0, 100)),
            (Some(35), None, (35, 100)),
            (None, fraction(1, None), (1, 100)),
            (None, fraction(25, Some(50)), (25, 50)),
            (
                None,
                fraction(i32::MAX, Some(i32::MAX)),
                (2_147_483_647, 2_147_483_647),
            ),
        ] {
            let share = share(percent, fraction.as_ref(), "f").unwrap();
            assert_eq!((share.numerator, share.denominator.get()), expected);
        }
    }

    #[test]
    fn refuses_share_outside_its_bounds() {
        for (percent, fraction, expected) in [
            (
                Some(101),
                None,
                "f.percent: the fraction of requests is not between 0 and 100",
            ),
            (
                Some(-1),
                None,
                "f.percent: the fraction of requests is not between 0 and 100",
            ),
            (
                Some(1),
                fraction(1, None),
                "f: percent and fraction exclude each other; remove one",
            ),
            (
                None,
                fraction(3, Some(2)),
                "f.fraction: the fraction of requests is not between 0 and 2",
            ),
            (
                None,
                fraction(0, Some(0)),
                "f.fraction.denominator: 0 is not a positive number",
            ),
        ] {
            let fault = share(percent, fraction.as_ref(), "f").unwrap_err();
            assert_eq!(fault.message, expected);
        }
    }
}
