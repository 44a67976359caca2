//! Durations of the Gateway API (GEP-2257).

use std::time::Duration;

/// The units, in milliseconds. `ms` precedes `m`, because the first one that a text begins with counts.
pub const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

/// Parses `^([0-9]{1,5}(h|m|s|ms)){1,4}$`; `None` for any other text.
pub fn parse(text: &str) -> Option<Duration> {
    sum(text, 5, 4)
}

/// Writes milliseconds as [`parse`] reads them; `None` if they are too many.
pub(crate) fn written(mut milliseconds: u64) -> Option<String> {
    let mut text = String::new();
    for (unit, factor) in UNITS.iter().rev() {
        let count = milliseconds / factor;
        milliseconds %= factor;
        if count > 0 {
            text.push_str(&format!("{count}{unit}"));
        }
    }
    parse(&text).map(|_| text)
}

/// Parses a duration with any number of parts and digits.
pub fn parse_unlimited(text: &str) -> Option<Duration> {
    sum(text, usize::MAX, usize::MAX)
}

fn sum(text: &str, max_digits: usize, max_parts: usize) -> Option<Duration> {
    let (mut rest, mut total, mut parts) = (text, 0_u64, 0);
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at(digits);
        if digits > max_digits {
            return None;
        }
        let number: u64 = number.parse().ok()?;
        let (after, unit) = UNITS
            .iter()
            .find_map(|(name, unit)| Some((tail.strip_prefix(name)?, *unit)))?;
        total = number.checked_mul(unit)?.checked_add(total)?;
        parts += 1;
        rest = after;
    }
    (1..=max_parts)
        .contains(&parts)
        .then_some(Duration::from_millis(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_durations_of_gep_2257() {
        let cases = [
            ("10s", Some(10_000)),
            ("1h30m", Some(5_400_000)),
            ("500ms", Some(500)),
            ("1m1ms", Some(60_001)),
            ("0s", Some(0)),
            ("99999h", Some(359_996_400_000)),
            ("", None),
            ("10", None),
            ("s", None),
            ("1.5s", None),
            ("100000s", None),
            ("1s1s1s1s1s", None),
            ("-1s", None),
            ("1d", None),
        ];
        for (text, milliseconds) in cases {
            let expected = milliseconds.map(Duration::from_millis);
            assert_eq!(parse(text), expected, "{text:?}");
        }
    }

    #[test]
    fn unlimited_durations_do_not_overflow() {
        let long = Duration::from_secs(100_000);
        assert_eq!(parse_unlimited("100000s"), Some(long));
        assert_eq!(
            parse_unlimited("20000s20000s20000s20000s20000s"),
            Some(long)
        );
        assert_eq!(parse_unlimited("18446744073709551615h"), None);
        assert_eq!(parse_unlimited("18446744073709551615ms1ms"), None);
        assert_eq!(parse_unlimited(""), None);
    }
}
