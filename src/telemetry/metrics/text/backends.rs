//! Metrics of backends and of their releases.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};

use super::outcomes::status_label;
use super::{CODE_CLASSES, Metrics, Page, object_labels};
use crate::ir::{BackendId, TlsUse, UpstreamProtocol};
use crate::table::{
    AuthResult, Backend, Endpoints, MirrorResult, PageResult, PickResult, Release, Releases,
    TlsFailure, UpstreamFault,
};

impl Metrics {
    pub(super) fn responses(&self, page: &mut Page<'_>) -> fmt::Result {
        let responses = self.table.backends().flat_map(|backend| {
            let responses = backend.stats.responses().into_iter();
            responses.map(move |(status, count)| {
                let labels = (BackendLabels(backend), status_label(status));
                (labels, count)
            })
        });
        let help = "Responses of endpoints, by status";
        page.counters("upstream_responses", help, responses)
    }

    pub(super) fn backends(&self, page: &mut Page<'_>) -> fmt::Result {
        let backends = self.table.backends();
        let backends: Vec<_> = backends.map(|it| (BackendLabels(it), it)).collect();
        let connects = backends
            .iter()
            .map(|(own, backend)| (*own, backend.stats.connects()));
        page.counters(
            "upstream_connections",
            "Connections opened to endpoints",
            connects,
        )?;
        let errors = by(
            "reason",
            &UpstreamFault::ALL,
            &backends,
            |backend, fault| (fault.name(), backend.stats.faults(fault)),
        );
        page.counters("upstream_errors", "Failed attempts at endpoints", errors)?;
        let tls_failures = by("reason", &TlsFailure::ALL, &backends, |backend, failure| {
            (failure.name(), backend.stats.tls_failures(failure))
        });
        page.counters(
            "upstream_tls_handshake_failures",
            "Failed TLS handshakes with endpoints",
            tls_failures,
        )?;
        let hedged = backends
            .iter()
            .map(|(own, backend)| (*own, backend.stats.hedged_connects()));
        page.counters(
            "upstream_hedged_connects",
            "Hedged connects to a second endpoint because the first was slow",
            hedged,
        )?;
        let fallbacks = backends.iter().filter_map(|(own, backend)| {
            let count = backend.stats.fallbacks();
            (count > 0).then_some((*own, count))
        });
        page.counters(
            "upstream_fallback_requests",
            "Requests to the address of a Service because its endpoints are out of date and do not answer",
            fallbacks,
        )?;
        let refused = backends.iter().filter_map(|(own, backend)| {
            let count = backend.stats.refused_retries();
            (count > 0).then_some((*own, count))
        });
        page.counters(
            "upstream_retries_over_budget",
            "Retries that a traffic policy's retryConstraint did not permit",
            refused,
        )?;
        let ejections = backends
            .iter()
            .map(|(own, backend)| (*own, backend.stats.ejections()));
        page.counters("upstream_ejections", "Ejections of endpoints", ejections)?;
        let avoided = backends.iter().map(|(own, backend)| {
            let endpoints = backend.endpoints();
            let avoided = endpoints.iter().filter(|it| it.health.is_avoided()).count();
            (*own, avoided as i64)
        });
        page.gauges(
            "upstream_endpoints_ejected",
            "Endpoints that failed and have not succeeded since",
            avoided,
        )?;
        let endpoints = backends
            .iter()
            .map(|(own, backend)| (*own, backend.endpoints().len() as i64));
        page.gauges("upstream_endpoints", "Usable endpoints", endpoints)
    }

    /// Requests that filters and policies send to backends.
    pub(super) fn filter_requests(&self, page: &mut Page<'_>) -> fmt::Result {
        let backends = self.table.backends();
        let backends: Vec<_> = backends.map(|it| (BackendLabels(it), it)).collect();
        let mirrored = by(
            "result",
            &MirrorResult::ALL,
            &backends,
            |backend, result| (result.name(), backend.stats.mirrored_requests(result)),
        );
        page.counters(
            "mirrored_requests",
            "Copies of requests that mirrors sent to backends, by result",
            mirrored,
        )?;
        let authorizations = by("result", &AuthResult::ALL, &backends, |backend, result| {
            (result.name(), backend.stats.authorizations(result))
        });
        page.counters(
            "external_auth_requests",
            "Requests that authorization servers decided about, by result",
            authorizations,
        )?;
        let pages = by("result", &PageResult::ALL, &backends, |backend, result| {
            (result.name(), backend.stats.pages(result))
        });
        page.counters(
            "error_page_requests",
            "Requests for error pages that backends have, by result",
            pages,
        )?;
        let picks = by("result", &PickResult::ALL, &backends, |backend, result| {
            (result.name(), backend.stats.picks(result))
        });
        page.counters(
            "picker_requests",
            "Requests that endpoint pickers of backends were asked about, by result",
            picks,
        )?;
        let times = backends
            .iter()
            .map(|(own, backend)| (*own, backend.stats.pick_times()));
        let times = times.filter(|(_, histogram)| histogram.count() > 0);
        page.durations(
            "picker_duration",
            "Time from the question to an endpoint picker to its choice, with that in which the body of the request comes",
            times,
        )
    }

    /// Includes statuses that a release has not had, so that the rate of the first error is known.
    pub(super) fn releases(&self, page: &mut Page<'_>) -> fmt::Result {
        let backends = self.table.backends();
        let backends: Vec<_> = backends.map(|it| (it, it.endpoints())).collect();
        let releases: Vec<LabelledRelease<'_>> = backends
            .iter()
            .flat_map(|(backend, endpoints)| labelled(backend, endpoints))
            .collect();
        let requests = releases.iter().flat_map(|one| {
            let classes = CODE_CLASSES.into_iter().zip(one.release.stats.classes());
            classes.map(|(class, count)| ((one.labels(), [("code", class)]), count))
        });
        let help = "Requests to releases of backends, by class of the response's status";
        page.counters("upstream_release_requests", help, requests)?;
        let errors = releases.iter().flat_map(|one| {
            let faults = UpstreamFault::ALL.into_iter();
            let faults = faults.map(|fault| (fault, one.release.stats.faults(fault)));
            let counted = faults.filter(|(_, count)| *count > 0);
            counted.map(|(fault, count)| ((one.labels(), [("reason", fault.name())]), count))
        });
        let help = "Failed attempts at endpoints of releases";
        page.counters("upstream_release_errors", help, errors)?;
        let shares = releases
            .iter()
            .map(|one| (one.labels(), one.releases.share(one.release)));
        let help = "Share of a backend's requests that a release gets, from 0 to 1";
        page.gauges("upstream_release_share", help, shares)?;
        let endpoints = releases
            .iter()
            .map(|one| (one.labels(), one.release.endpoints.len() as i64));
        let help = "Usable endpoints of a release";
        page.gauges("upstream_release_endpoints", help, endpoints)
    }
}

/// A count of a backend by a further label.
type Counted<'a> = ((BackendLabels<'a>, [(&'static str, &'static str); 1]), u64);

/// Returns the counts of backends by a further label: for each of `all` its value and its count. Leaves out those that are 0.
fn by<'a, T: Copy>(
    label: &'static str,
    all: &[T],
    backends: &[(BackendLabels<'a>, &'a Arc<Backend>)],
    read: impl Fn(&Backend, T) -> (&'static str, u64),
) -> Vec<Counted<'a>> {
    let counts = backends.iter().flat_map(|(own, backend)| {
        let counts = all.iter().map(|one| read(backend, *one));
        counts.map(|(value, count)| ((*own, [(label, value)]), count))
    });
    counts.filter(|(_, count)| *count > 0).collect()
}

/// Labels of a backend. They tell apart all that the identity does.
#[derive(Clone, Copy)]
pub(super) struct BackendLabels<'a>(pub(super) &'a Backend);

impl EncodeLabelSet for BackendLabels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        let BackendId {
            object, port, tls, ..
        } = &self.0.id;
        // The identity has the protocol only where it is not that of the port.
        let protocol = match self.0.protocol {
            UpstreamProtocol::Http1 => "http1",
            UpstreamProtocol::H2c => "http2",
            UpstreamProtocol::Tcp => "tcp",
            UpstreamProtocol::Udp => "udp",
        };
        let tls = tls.as_ref().map_or_else(|| "none".to_owned(), tls_name);
        object_labels("backend", object).encode(encoder)?;
        [("kind", &*object.kind), ("port", &port.to_string())].encode(encoder)?;
        [("protocol", protocol), ("tls", &tls)].encode(encoder)
    }
}

/// The policy that applies, and the Gateway whose client certificate is presented.
fn tls_name(TlsUse { policy, client }: &TlsUse) -> String {
    match client {
        None => policy.to_string(),
        Some(client) => format!("{policy}, client certificate of {client}"),
    }
}

/// A release with its backend.
struct LabelledRelease<'a> {
    backend: BackendLabels<'a>,
    releases: &'a Releases,
    release: &'a Release,
}

fn labelled<'a>(
    backend: &'a Backend,
    endpoints: &'a Endpoints,
) -> impl Iterator<Item = LabelledRelease<'a>> {
    let releases = endpoints.releases().into_iter();
    releases.flat_map(move |releases| {
        releases.iter().map(move |release| LabelledRelease {
            backend: BackendLabels(backend),
            releases,
            release,
        })
    })
}

impl<'a> LabelledRelease<'a> {
    fn labels(&self) -> (BackendLabels<'a>, [(&'static str, &'a str); 1]) {
        (self.backend, [("release", &*self.release.stats.name)])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tests::encode;
    use super::super::{ProcessStats, Table};
    use crate::ir;
    use crate::ir::Ir;
    use crate::runtime::per_worker::WorkerId;
    use crate::table::UpstreamFault;

    #[test]
    fn exports_counters_and_shares_of_releases() {
        let release = |name: &str, weight, ports: std::ops::Range<u16>| ir::Release {
            name: name.into(),
            weight,
            token: "".into(),
            addresses: ports.map(|port| ([127, 0, 0, 1], port).into()).collect(),
        };
        let backend = ir::Backend::plain(ir::Endpoints::Releases(ir::Releases {
            cookie: None,
            releases: vec![release("v1", 3, 1..4), release("v2", 1, 0..0)],
        }));
        let ir = Ir {
            ports: Vec::new(),
            backends: [Arc::new(backend)].into(),
            ..Ir::default()
        };
        let table = Arc::new(Table::build(Arc::new(ir), None));
        for backend in table.backends() {
            let endpoints = backend.endpoints();
            let releases = endpoints.releases().unwrap();
            releases[0].stats.record(WorkerId::ONLY, 200);
            releases[1].stats.record(WorkerId::ONLY, 503);
            releases[1].stats.failed(UpstreamFault::NoEndpoint);
        }
        let text = encode(
            table,
            ProcessStats::default(),
            0,
            super::super::MetricsDetail::default(),
        );
        let classes = [("v1", [0, 1, 0, 0, 0]), ("v2", [0, 0, 0, 0, 1])];
        let requests = classes.iter().flat_map(|(release, counts)| {
            (1..).zip(counts).map(move |(class, count)| {
                format!(r#"requests_total{{release="{release}",code="{class}xx"}} {count}"#)
            })
        });
        let others = [
            "errors_total{release=\"v2\",reason=\"no_endpoint\"} 1",
            "share{release=\"v1\"} 0.75",
            "share{release=\"v2\"} 0.25",
            "endpoints{release=\"v1\"} 3",
            "endpoints{release=\"v2\"} 0",
        ];
        let own =
            r#"namespace="ns",backend="one",kind="Service",port="80",protocol="http1",tls="none","#;
        let lines = text.lines().filter_map(|line| {
            let line = line.strip_prefix("portcullis_upstream_release_")?;
            Some(line.replace(own, ""))
        });
        let expected: Vec<_> = requests.chain(others.map(str::to_owned)).collect();
        assert_eq!(lines.collect::<Vec<_>>(), expected, "{text}");
    }
}
