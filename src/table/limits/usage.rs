//! The keys of a limit as operators see them: how many there are, and which use most of it. Must not know what keys are made of.

use super::Limiter;
use super::pace::Pace;
use super::parts::{Entry, Parts};
use crate::runtime::monotonic;

/// Number of keys that are named.
const NAMED: usize = 5;

/// How much keys use of a limit in this process.
#[derive(Debug, Default)]
pub struct Usage {
    /// Number of keys that use some of its rate, or of its requests in progress: that which has more.
    pub keys: usize,
    /// Those that use most, the first most of all.
    pub most: Vec<KeyUsage>,
}

/// How much a key uses of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyUsage {
    /// Tells keys apart in this process, or in all pods if the limit counts for these. No client or request can be found from it.
    pub digest: u32,
    /// Hundredths of the burst, or of the requests in progress, that are used: with 100, further requests are over the limit.
    pub percent: u64,
}

impl Limiter {
    /// Returns what keys use now. Looks at all keys that this process counts.
    pub fn usage(&self) -> Usage {
        self.usage_at(monotonic::nanos())
    }

    pub(super) fn usage_at(&self, now: u64) -> Usage {
        let mut usage = Usage::default();
        if let Some(rate) = &self.ir.rate {
            let interval = Pace::of(rate).interval();
            let used = |arrival: u64| arrival.saturating_sub(now).div_ceil(interval);
            usage.add(&self.counters.arrivals, used, rate.burst);
        }
        if let Some(max) = self.ir.concurrent {
            usage.add(&self.counters.in_progress, |count| count, max.into());
        }
        usage
    }
}

impl Usage {
    /// Adds keys with what they use of `whole`.
    fn add<E: Entry>(&mut self, table: &Parts<E>, used: impl Fn(u64) -> u64, whole: u64) {
        let mut keys = 0;
        table.for_each(|key, value| {
            let used = used(value);
            if used > 0 {
                keys += 1;
                let percent = u128::from(used) * 100 / u128::from(whole.max(1));
                self.name(KeyUsage {
                    digest: (key >> 32) as u32,
                    percent: percent as u64,
                });
            }
        });
        self.keys = self.keys.max(keys);
    }

    /// Names a key if it is one of those that use most.
    fn name(&mut self, key: KeyUsage) {
        let place = self.most.partition_point(|it| it.percent >= key.percent);
        if place < NAMED {
            self.most.insert(place, key);
            self.most.truncate(NAMED);
        }
    }
}
