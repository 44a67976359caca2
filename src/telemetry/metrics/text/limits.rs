//! Metrics of limits of requests.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::policy_labels::{Label, policy_labels};
use super::{Metrics, Page};
use crate::table::Limiter;

impl Metrics {
    pub(super) fn limits(&self, page: &mut Page<'_>) -> fmt::Result {
        let limiters = self.table.limiters();
        let exceeded = limiters
            .iter()
            .map(|it| (labels(it), it.exceeded.load(Relaxed)));
        let help = "Requests over a limit, which were refused unless its mode is Audit";
        page.counters("limit_exceeded", help, exceeded)?;
        let evicted = limiters.iter().map(|it| (labels(it), it.evicted()));
        let help = "Keys of a limit whose place another key took before their time had passed";
        page.counters("limit_keys_evicted", help, evicted)?;
        self.leases(page)
    }

    /// Limits that pods share, if there may be other pods.
    fn leases(&self, page: &mut Page<'_>) -> fmt::Result {
        let group = self.table.limit_group();
        if !group.is_open() {
            return Ok(());
        }
        let counts = &group.counts;
        let tokens = [
            ("asked", &counts.asked),
            ("borrowed", &counts.borrowed),
            ("granted", &counts.granted),
            ("unowned", &counts.unowned),
        ];
        let tokens = tokens
            .iter()
            .map(|(what, count)| ([("what", (*what).to_owned())], count.load(Relaxed)));
        let help = "Tokens of limits with scope Gateway that pods asked of others, borrowed, granted to others, or replaced while the owner was away";
        page.counters("limit_lease_tokens", help, tokens)?;
        let help = "Connections between pods that ended because the other side broke the protocol";
        page.counter("limit_peer_faults", help, counts.faults.load(Relaxed))?;
        let away = counts.away.load(Relaxed) as i64;
        let help = "Other ready pods of the Gateway that do not respond to this one";
        page.gauge("limit_peers_away", help, away)
    }
}

fn labels(limiter: &Arc<Limiter>) -> Vec<Label> {
    let mode = if limiter.ir.is_audit {
        "Audit"
    } else {
        "Enforce"
    };
    let own = [
        ("limit", limiter.ir.name.to_string()),
        ("mode", mode.to_owned()),
    ];
    policy_labels(&limiter.policy, own)
}
