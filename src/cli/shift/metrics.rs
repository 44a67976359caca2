//! Request and error counts of releases: reads pages of metrics, and sums up increases over a sliding window.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::object_name::ObjectName;
use crate::cli::samples::samples;

/// The counter of requests per release.
const COUNTER: &str = "portcullis_upstream_release_requests_total";

/// Number of requests, and of those with a status of 5xx.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) requests: u64,
    pub(super) errors: u64,
}

impl Count {
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.errors += other.errors;
    }

    /// The increase since an earlier value. If a counter is lower than before, its process has restarted, and the whole
    /// value is the increase.
    fn since(self, former: Self) -> Self {
        if self.requests < former.requests || self.errors < former.errors {
            return self;
        }
        Self {
            requests: self.requests - former.requests,
            errors: self.errors - former.errors,
        }
    }
}

/// Counts by release.
pub(super) type Counts = BTreeMap<String, Count>;

/// Parses the counts of a ReleaseBackend, summed over its ports. `None` if the page has no counts of it.
pub(super) fn parse(page: &str, ObjectName { namespace, name }: &ObjectName) -> Option<Counts> {
    let mut counts = Counts::new();
    for (mut labels, requests) in samples(page, COUNTER) {
        let has = |label: &str, value: &str| labels.get(label).is_some_and(|it| it == value);
        let is_backend =
            has("kind", "ReleaseBackend") && has("namespace", namespace) && has("backend", name);
        let errors = if has("code", "5xx") { requests } else { 0 };
        if is_backend && let Some(release) = labels.remove("release") {
            let count = counts.entry(release).or_default();
            count.add(Count { requests, errors });
        }
    }
    (!counts.is_empty()).then_some(counts)
}

/// Increases of the counters of several sources in a sliding window.
pub(super) struct Window {
    length: Duration,
    /// The last counters of each source.
    last: BTreeMap<String, Counts>,
    /// The time of the first read.
    begin: Option<Instant>,
    increases: VecDeque<(Instant, Counts)>,
}

impl Window {
    pub(super) fn new(length: Duration) -> Self {
        Self {
            length,
            last: BTreeMap::new(),
            begin: None,
            increases: VecDeque::new(),
        }
    }

    /// Adds the counters of each source. The first page of a source is its baseline and adds nothing.
    pub(super) fn add(&mut self, now: Instant, read: Vec<(String, Counts)>) {
        if read.is_empty() && self.begin.is_none() {
            return;
        }
        self.begin.get_or_insert(now);
        let mut increase = Counts::new();
        for (source, counts) in read {
            if let Some(former) = self.last.get(&source) {
                for (release, count) in &counts {
                    let former = former.get(release).copied().unwrap_or_default();
                    increase
                        .entry(release.clone())
                        .or_default()
                        .add(count.since(former));
                }
            }
            self.last.insert(source, counts);
        }
        self.increases.push_back((now, increase));
        let length = self.length;
        while self
            .increases
            .front()
            .is_some_and(|(at, _)| now.duration_since(*at) >= length)
        {
            self.increases.pop_front();
        }
    }

    /// The requests of a release in the window.
    pub(super) fn count(&self, release: &str) -> Count {
        let mut sum = Count::default();
        for (_, increase) in &self.increases {
            sum.add(increase.get(release).copied().unwrap_or_default());
        }
        sum
    }

    /// The time that the window covers; `None` until counters were read twice.
    pub(super) fn covered(&self, now: Instant) -> Option<Duration> {
        let covered = now.duration_since(self.begin?).min(self.length);
        (!covered.is_zero()).then_some(covered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r#"# HELP portcullis_upstream_release_requests Requests
# TYPE portcullis_upstream_release_requests counter
portcullis_upstream_release_requests_total{namespace="shop",backend="shop",kind="ReleaseBackend",port="80",release="v1",code="2xx"} 90
portcullis_upstream_release_requests_total{namespace="shop",backend="shop",kind="ReleaseBackend",port="80",release="v1",code="5xx"} 1
portcullis_upstream_release_requests_total{namespace="shop",backend="shop",kind="ReleaseBackend",port="8443",tls="BackendTLSPolicy shop/a\"b\\c",release="v1",code="5xx"} 2
portcullis_upstream_release_requests_total{namespace="shop",backend="shop",kind="ReleaseBackend",port="80",release="v2",code="2xx"} 10
portcullis_upstream_release_requests_total{namespace="shop",backend="shop-2",kind="ReleaseBackend",port="80",release="v2",code="2xx"} 1000
portcullis_upstream_release_requests_total{namespace="prod",backend="shop",kind="ReleaseBackend",port="80",release="v2",code="2xx"} 1000
portcullis_upstream_release_requests_total{namespace="shop",backend="shop",kind="ReleaseBackend",port="80",release="v2
portcullis_upstream_connections_total{namespace="shop",backend="shop",kind="ReleaseBackend",port="80"} 7
# EOF
"#;

    fn count(requests: u64, errors: u64) -> Count {
        Count { requests, errors }
    }

    fn counts(releases: &[(&str, u64, u64)]) -> Counts {
        let one = |(name, requests, errors): &(&str, u64, u64)| {
            ((*name).to_owned(), count(*requests, *errors))
        };
        releases.iter().map(one).collect()
    }

    #[test]
    fn sums_requests_of_all_ports_of_a_backend() {
        let backend = |name: &str| name.parse().expect("a name");
        let read = parse(PAGE, &backend("shop/shop"));
        assert_eq!(read, Some(counts(&[("v1", 93, 3), ("v2", 10, 0)])));
        assert_eq!(parse(PAGE, &backend("shop/sho")), None);
        assert_eq!(parse("<html>", &backend("shop/shop")), None);
    }

    #[test]
    fn window_sums_increases_of_sources() {
        let mut window = Window::new(Duration::from_secs(10));
        let begin = Instant::now();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let page = |source: &str, requests, errors| {
            (source.to_owned(), counts(&[("v2", requests, errors)]))
        };
        window.add(at(0), Vec::new());
        assert_eq!(window.covered(at(1)), None);
        window.add(at(1), vec![page("a", 1000, 50), page("b", 10, 0)]);
        assert_eq!(window.covered(at(1)), None);
        window.add(
            at(2),
            vec![page("a", 1010, 51), page("b", 30, 0), page("c", 7, 7)],
        );
        assert_eq!(window.count("v2"), count(30, 1));
        assert_eq!(window.covered(at(2)), Some(Duration::from_secs(1)));
        // Source `a` was not read for a while, and source `b` was restarted.
        window.add(at(5), vec![page("a", 1020, 51), page("b", 3, 2)]);
        window.add(at(6), vec![page("c", 8, 7)]);
        assert_eq!(window.count("v2"), count(44, 3));
        assert_eq!(window.count("v1"), count(0, 0));
        window.add(at(13), Vec::new());
        assert_eq!(window.count("v2"), count(14, 2));
        assert_eq!(window.covered(at(13)), Some(Duration::from_secs(10)));
        window.add(at(16), Vec::new());
        assert_eq!(window.count("v2"), count(0, 0));
    }
}
