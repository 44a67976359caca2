//! Times of the access log: wall-clock time derived from the monotonic clock, and its text.

use std::cell::Cell;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// Microseconds of a second.
const SECOND: u64 = 1_000_000;

/// Wall-clock time of instants. Compares the clocks once per tick, which saves a call per request.
#[derive(Debug)]
pub(super) struct WallClock {
    /// Tick of the last comparison.
    tick: Cell<u64>,
    /// An instant and its time in microseconds since 1970.
    known: Cell<(Instant, u64)>,
}

impl WallClock {
    pub(super) fn new() -> Self {
        Self {
            tick: Cell::new(u64::MAX),
            known: Cell::new((Instant::now(), 0)),
        }
    }

    /// Microseconds since 1970 at `instant`.
    pub(super) fn at(&self, instant: Instant, tick: u64) -> u64 {
        if self.tick.replace(tick) != tick {
            let time = SystemTime::now().duration_since(UNIX_EPOCH);
            let micros = time.map_or(0, |time| time.as_micros() as u64);
            self.known.set((Instant::now(), micros));
        }
        let (known, micros) = self.known.get();
        match instant.checked_duration_since(known) {
            Some(after) => micros + after.as_micros() as u64,
            None => micros.saturating_sub((known - instant).as_micros() as u64),
        }
    }
}

/// Text of the last second, since most times share it.
#[derive(Debug, Default)]
pub(super) struct TimestampText {
    second: u64,
    /// The time up to the seconds, as in `1970-01-01T00:00:00.`.
    text: String,
}

impl TimestampText {
    /// Appends a time in microseconds since 1970, as in `1970-01-01T00:00:00.000000Z`.
    pub(super) fn write(&mut self, line: &mut Vec<u8>, micros: u64) {
        let second = micros / SECOND;
        if self.text.is_empty() || self.second != second {
            let time = i64::try_from(second).map(Timestamp::from_second);
            let time = time.ok().and_then(Result::ok).unwrap_or_default();
            self.text = time.to_string().replace('Z', ".");
            self.second = second;
        }
        line.extend_from_slice(self.text.as_bytes());
        let mut digits = *b"000000Z";
        write_digits(&mut digits[..6], micros % SECOND);
        line.extend_from_slice(&digits);
    }
}

/// Fills `digits` with the last decimal digits of `value`.
pub(super) fn write_digits(digits: &mut [u8], mut value: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn text(times: &mut TimestampText, micros: u64) -> String {
        let mut line = Vec::new();
        times.write(&mut line, micros);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn times_have_microseconds() {
        let mut times = TimestampText::default();
        assert_eq!(text(&mut times, 0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(text(&mut times, 42), "1970-01-01T00:00:00.000042Z");
        let micros = 1_709_208_000_999_999;
        assert_eq!(text(&mut times, micros), "2024-02-29T12:00:00.999999Z");
        assert_eq!(text(&mut times, micros + 1), "2024-02-29T12:00:01.000000Z");
        assert_eq!(text(&mut times, micros), "2024-02-29T12:00:00.999999Z");
        text(&mut times, u64::MAX);
    }

    #[test]
    fn wall_clock_follows_instants() {
        let clock = WallClock::new();
        let now = Instant::now();
        let micros = clock.at(now, 0);
        let system = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        assert!((system.as_micros() as u64).abs_diff(micros) < 60_000_000);
        let later = clock.at(now + Duration::from_millis(7), 0);
        assert!((6_999..=7_001).contains(&(later - micros)), "{later}");
    }
}
