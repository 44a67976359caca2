//! Metrics of certificates: those that expire soonest one by one, and the number of all by the time that is left. A
//! Gateway may have thousands.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;

use super::{Metrics, Page, object_labels};
use crate::ir::ObjectRef;

/// Maximum number of certificates with a series of their own.
const MAX_SERIES: usize = 100;
const DAY: i64 = 24 * 60 * 60;
/// Seconds until which certificates of a count expire, and its label. Those that expire later are `later`.
const BOUNDS: [(i64, &str); 5] = [
    (0, "expired"),
    (DAY, "1d"),
    (7 * DAY, "7d"),
    (14 * DAY, "14d"),
    (30 * DAY, "30d"),
];

impl Metrics {
    pub(super) fn certificates(&self, page: &mut Page<'_>) -> fmt::Result {
        let ports = self.table.ir.ports.iter();
        let certificates = ports.flat_map(|port| port.certificates());
        let expiry: BTreeMap<_, _> = certificates
            .map(|one| (&one.source, one.not_after))
            .collect();
        let help = "Certificates of listeners, by the time until they expire";
        let counts = counts(expiry.values().copied(), Timestamp::now().as_second());
        page.gauges(
            "certificates",
            help,
            counts.map(|(label, count)| ([("expires", label)], count)),
        )?;
        let soonest = soonest(expiry).into_iter();
        let times = soonest.map(|(secret, time)| (object_labels("secret", secret), time));
        let help = "Unix time when the certificate expires, of those that expire soonest";
        page.timestamps("certificate_expiry_timestamp", help, times)
    }
}

/// Returns the certificates that expire first, in order of their names.
fn soonest(expiry: BTreeMap<&ObjectRef, i64>) -> Vec<(&ObjectRef, i64)> {
    let mut all: Vec<_> = expiry.into_iter().collect();
    if all.len() > MAX_SERIES {
        all.select_nth_unstable_by_key(MAX_SERIES, |(secret, time)| (*time, *secret));
        all.truncate(MAX_SERIES);
        all.sort_unstable();
    }
    all
}

fn counts(times: impl Iterator<Item = i64>, now: i64) -> [(&'static str, i64); BOUNDS.len() + 1] {
    let labels = BOUNDS.map(|(_, label)| label);
    let mut counts = [0; BOUNDS.len() + 1];
    for time in times {
        let left = time.saturating_sub(now);
        counts[BOUNDS.partition_point(|(bound, _)| *bound < left)] += 1;
    }
    std::array::from_fn(|at| (labels.get(at).copied().unwrap_or("later"), counts[at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_certificate_counts_once() {
        let times = [
            -5,
            0,
            1,
            DAY,
            DAY + 1,
            8 * DAY,
            15 * DAY,
            31 * DAY,
            i64::MAX,
        ];
        let expected = [
            ("expired", 2),
            ("1d", 2),
            ("7d", 1),
            ("14d", 1),
            ("30d", 1),
            ("later", 2),
        ];
        assert_eq!(
            counts(
                times.into_iter().map(|time| time.saturating_add(1000)),
                1000
            ),
            expected
        );
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let secret = |index: usize| ObjectRef::new("", "Secret", "team", &format!("{index:03}"));
        let secrets: Vec<_> = (0..MAX_SERIES + 50).map(secret).collect();
        let last = secrets.len() as i64;
        let expiry = |count: usize| -> BTreeMap<_, _> {
            let all = secrets[..count].iter().zip(0..);
            all.map(|(secret, index)| (secret, last - index)).collect()
        };
        assert_eq!(soonest(expiry(MAX_SERIES)).len(), MAX_SERIES);
        let found = soonest(expiry(secrets.len()));
        let names: Vec<_> = found.iter().map(|(secret, _)| &*secret.name).collect();
        let expected: Vec<_> = secrets[50..].iter().map(|secret| &*secret.name).collect();
        assert_eq!(names, expected);
    }
}
