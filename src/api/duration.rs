//! Durations of the Gateway API (GEP-2257).

use std::time::Duration;

/// Parses `^([0-9]{1,5}(h|m|s|ms)){1,4}$`; `None` for any other text.
pub fn parse(text: &str) -> Option<Duration> {
    let (mut rest, mut total, mut parts) = (text, Duration::ZERO, 0);
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at(digits);
        if digits > 5 {
            return None;
        }
        let number: u64 = number.parse().ok()?;
        // `ms` precedes `m`, because the first suffix that matches counts.
        let units = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
        let (after, unit) = units
            .iter()
            .find_map(|(name, unit)| Some((tail.strip_prefix(name)?, unit)))?;
        total += Duration::from_millis(number * unit);
        parts += 1;
        rest = after;
    }
    (1..=4).contains(&parts).then_some(total)
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
}
