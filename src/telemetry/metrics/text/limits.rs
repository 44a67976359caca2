//! Metrics of limits of requests.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

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
        let evicted = limiters
            .iter()
            .map(|it| (labels(it), it.evicted.load(Relaxed)));
        let help = "Keys of a limit whose place another key took before their time had passed";
        page.counters("limit_keys_evicted", help, evicted)
    }
}

fn labels(limiter: &Arc<Limiter>) -> [(&'static str, String); 4] {
    let policy = &limiter.policy;
    let mode = if limiter.ir.is_audit {
        "Audit"
    } else {
        "Enforce"
    };
    [
        ("namespace", policy.namespace.to_string()),
        ("policy", policy.name.to_string()),
        ("limit", limiter.ir.name.to_string()),
        ("mode", mode.to_owned()),
    ]
}
