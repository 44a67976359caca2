//! A point in time as objects carry it. Must not read a clock.

use std::fmt;
use std::num::NonZeroU64;

use jiff::Timestamp;
use serde::de::{Deserialize, Deserializer};
use serde::{Serialize, Serializer};

/// When an object was created or its deletion was requested, to the second, as the API server says it. Takes no more
/// memory if it is absent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time(NonZeroU64);

impl Time {
    /// Seconds that are added, so that the sum is positive: more than the 12,000 years before 1970 that a timestamp may have.
    const OFFSET: i64 = 1 << 40;

    /// Returns the time that is this many seconds after 1970, or before if negative. Out of the range of timestamps, it is
    /// the nearest one in range.
    pub fn from_second(seconds: i64) -> Self {
        let (min, max) = (Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
        let sum = seconds.clamp(min, max) + Self::OFFSET;
        Self(NonZeroU64::MIN.saturating_add(sum.unsigned_abs() - 1))
    }

    /// Returns the seconds since 1970, negative before.
    pub fn as_second(self) -> i64 {
        self.0.get().cast_signed() - Self::OFFSET
    }
}

impl From<Timestamp> for Time {
    fn from(timestamp: Timestamp) -> Self {
        Self::from_second(timestamp.as_second())
    }
}

impl fmt::Display for Time {
    /// As in RFC 3339, in UTC.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let timestamp = Timestamp::from_second(self.as_second());
        timestamp.map_err(|_| fmt::Error)?.fmt(f)
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Timestamp::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_second_and_their_order() {
        let (min, max) = (Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
        let seconds = [min, -62_135_596_800, -1, 0, 1, 1_700_000_000, max];
        let times = seconds.map(Time::from_second);
        assert!(times.is_sorted());
        assert_eq!(times.map(Time::as_second), seconds);
        assert_eq!(Time::from_second(i64::MIN), times[0]);
        assert_eq!(Time::from_second(i64::MAX).as_second(), max);
    }

    #[test]
    fn absent_time_takes_no_memory_of_its_own_and_is_first() {
        assert_eq!(size_of::<Option<Time>>(), size_of::<u64>());
        assert!(None < Some(Time::from_second(i64::MIN)));
    }

    #[test]
    fn fractions_of_seconds_are_dropped() {
        let time: Time = serde_json::from_str("\"2026-11-26T03:04:05.678+01:00\"").unwrap();
        assert_eq!(time.to_string(), "2026-11-26T02:04:05Z");
        let text = serde_json::to_string(&time).unwrap();
        assert_eq!(serde_json::from_str::<Time>(&text).unwrap(), time);
    }
}
