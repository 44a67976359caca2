//! Whether the limits of a policy admit a request: all of them count it, or none.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::{ClientIdentity, CountedLimits, CountedRequest, LimitedRequest, Limiter};
use crate::table::matcher::fits;

/// Rules of a RateLimitPolicy (`maxItems` of its schema).
const MAX_RULES: usize = 8;

/// When limits count a request.
#[derive(Clone, Copy, Debug)]
pub enum LimitPhase<'a> {
    /// Before authentication: limits without an identity.
    Before,
    /// Once the identity of the client is known: limits by it.
    Identified(&'a ClientIdentity<'a>),
}

/// A request that limits admit.
#[derive(Debug, Default)]
pub struct WithinLimits<'a> {
    /// What the request counts as, if that is anything.
    pub counted: Option<Box<CountedRequest>>,
    /// The limit that it is closest to, if that is one of requests per period.
    pub remaining: Option<Remaining>,
    /// A limit that it is over, but that only counts.
    pub audited: Option<&'a Limiter>,
    /// What it has taken of the limits so far.
    pub taken: TakenTokens,
}

/// The keys of which a request has taken a token, by the index of the limit in its policy; 0 is none.
#[derive(Clone, Copy, Debug, Default)]
pub struct TakenTokens([u64; MAX_RULES]);

/// A request over a limit.
#[derive(Clone, Copy, Debug)]
pub struct OverLimit<'a> {
    /// The limit.
    pub limiter: &'a Limiter,
    /// Its index in its policy.
    pub index: usize,
    /// The time after which the request may be sent again.
    pub after: Duration,
}

/// The state of the limit that a request is closest to.
#[derive(Clone, Copy, Debug)]
pub struct Remaining {
    /// The index of the limit in its policy.
    pub limit: usize,
    /// Requests that are still admitted now.
    pub requests: u64,
    /// The time until all of the burst is admitted again.
    pub reset: Duration,
}

impl CountedLimits {
    /// Counts a request at `now`, in nanoseconds, by the limits of a phase. Adds that to what it counts as by those before.
    ///
    /// # Errors
    /// When it is over a limit. Then no limit counts it, also of the phase before, so that the requests of one client that are
    /// refused take nothing from others.
    pub(in crate::table) fn admit<'a>(
        &'a self,
        request: &LimitedRequest<'_>,
        phase: LimitPhase<'_>,
        now: u64,
        within: &mut WithinLimits<'a>,
    ) -> Result<(), OverLimit<'a>> {
        let none = ClientIdentity::default();
        let (identity, is_identified) = match phase {
            LimitPhase::Before => (&none, false),
            LimitPhase::Identified(identity) => (identity, true),
        };
        let mut over: Option<OverLimit<'a>> = None;
        for (index, limiter) in self.limits.iter().enumerate() {
            if limiter.ir.needs_identity() != is_identified || !limiter.applies(request) {
                continue;
            }
            let key = limiter.key(request, identity);
            match limiter.admit(key, now, &mut within.counted) {
                Ok(remaining) => within.take(index, key, remaining),
                Err(after) => {
                    limiter.exceeded.fetch_add(1, Relaxed);
                    if limiter.ir.is_audit {
                        within.audited.get_or_insert(limiter);
                    } else if over.is_none_or(|known| known.after < after) {
                        over = Some(OverLimit {
                            limiter,
                            index,
                            after,
                        });
                    }
                }
            }
        }
        over.map_or(Ok(()), |over| {
            self.give_back(within.taken, now);
            Err(over)
        })
    }

    #[cold]
    fn give_back(&self, taken: TakenTokens, now: u64) {
        for (limiter, key) in self.limits.iter().zip(taken.0) {
            if key != 0 {
                limiter.give_back(key, now);
            }
        }
    }
}

impl WithinLimits<'_> {
    /// Notes that a limit has counted the request, and how many requests it still admits until when, if that is known.
    fn take(&mut self, limit: usize, key: u64, remaining: Option<(u64, Duration)>) {
        if let Some(taken) = self.taken.0.get_mut(limit) {
            *taken = key;
        }
        if let Some((requests, reset)) = remaining
            && self.remaining.is_none_or(|known| requests < known.requests)
        {
            self.remaining = Some(Remaining {
                limit,
                requests,
                reset,
            });
        }
    }
}

impl Limiter {
    /// Reports whether it counts a request.
    fn applies(&self, request: &LimitedRequest<'_>) -> bool {
        let condition = self.ir.condition.as_ref();
        condition.is_none_or(|condition| fits(condition, &request.view))
            && !self.ir.exempt.contains(request.client)
    }
}
