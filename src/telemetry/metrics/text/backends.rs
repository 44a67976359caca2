//! Metrics of backends and of their releases.

use std::fmt;

use super::{CODE_CLASSES, Metrics, Page};
use crate::table::{
    AuthResult, Endpoints, MirrorResult, Release, Releases, TlsFailure, UpstreamFault,
};

impl Metrics {
    pub(super) fn backends(&self, page: &mut Page<'_>) -> fmt::Result {
        let backends: Vec<_> = self
            .table
            .backends()
            .map(|backend| (backend.id.to_string(), backend))
            .collect();
        let connects = backends
            .iter()
            .map(|(id, backend)| ([("backend", id.as_str())], backend.stats.connects()));
        page.counters(
            "upstream_connections",
            "Connections opened to endpoints",
            connects,
        )?;
        let errors = backends.iter().flat_map(|(id, backend)| {
            UpstreamFault::ALL.into_iter().filter_map(move |fault| {
                let labels = [("backend", id.as_str()), ("reason", fault.name())];
                let count = backend.stats.faults(fault);
                (count > 0).then_some((labels, count))
            })
        });
        page.counters("upstream_errors", "Failed attempts at endpoints", errors)?;
        let tls_failures = backends.iter().flat_map(|(id, backend)| {
            TlsFailure::ALL.into_iter().filter_map(move |failure| {
                let labels = [("backend", id.as_str()), ("reason", failure.name())];
                let count = backend.stats.tls_failures(failure);
                (count > 0).then_some((labels, count))
            })
        });
        page.counters(
            "upstream_tls_failures",
            "Failed TLS handshakes with endpoints",
            tls_failures,
        )?;
        let hedged = backends
            .iter()
            .map(|(id, backend)| ([("backend", id.as_str())], backend.stats.hedged_connects()));
        page.counters(
            "upstream_hedged_connects",
            "Hedged connects to a second endpoint because the first was slow",
            hedged,
        )?;
        let refused = backends.iter().filter_map(|(id, backend)| {
            let count = backend.stats.refused_retries();
            (count > 0).then_some(([("backend", id.as_str())], count))
        });
        page.counters(
            "upstream_retries_over_budget",
            "Retries that a traffic policy's retryConstraint did not permit",
            refused,
        )?;
        let ejections = backends
            .iter()
            .map(|(id, backend)| ([("backend", id.as_str())], backend.stats.ejections()));
        page.counters("upstream_ejections", "Ejections of endpoints", ejections)?;
        let avoided = backends.iter().map(|(id, backend)| {
            let endpoints = backend.endpoints();
            let avoided = endpoints.iter().filter(|it| it.health.is_avoided()).count();
            ([("backend", id.as_str())], avoided as i64)
        });
        page.gauges(
            "upstream_endpoints_avoided",
            "Endpoints that failed and have not succeeded since",
            avoided,
        )?;
        let endpoints = backends
            .iter()
            .map(|(id, backend)| ([("backend", id.as_str())], backend.endpoints().len() as i64));
        page.gauges("upstream_endpoints", "Usable endpoints", endpoints)
    }

    /// Requests that filters send to backends.
    pub(super) fn filter_requests(&self, page: &mut Page<'_>) -> fmt::Result {
        let backends: Vec<_> = self
            .table
            .backends()
            .map(|backend| (backend.id.to_string(), backend))
            .collect();
        let mirrored = backends.iter().flat_map(|(id, backend)| {
            MirrorResult::ALL.into_iter().filter_map(move |result| {
                let labels = [("backend", id.as_str()), ("result", result.name())];
                let count = backend.stats.mirrored_requests(result);
                (count > 0).then_some((labels, count))
            })
        });
        page.counters(
            "mirrored_requests",
            "Copies of requests that mirrors sent to backends, by result",
            mirrored,
        )?;
        let authorizations = backends.iter().flat_map(|(id, backend)| {
            AuthResult::ALL.into_iter().filter_map(move |result| {
                let labels = [("backend", id.as_str()), ("result", result.name())];
                let count = backend.stats.authorizations(result);
                (count > 0).then_some((labels, count))
            })
        });
        page.counters(
            "authorizations",
            "Requests that authorization servers decided about, by result",
            authorizations,
        )
    }

    /// Includes statuses that a release has not had, so that the rate of the first error is known.
    pub(super) fn releases(&self, page: &mut Page<'_>) -> fmt::Result {
        let backends: Vec<_> = self
            .table
            .backends()
            .map(|backend| (backend.id.to_string(), backend.endpoints()))
            .filter(|(_, endpoints)| endpoints.releases().is_some())
            .collect();
        let releases: Vec<LabelledRelease<'_>> = backends
            .iter()
            .flat_map(|(id, endpoints)| labelled(id, endpoints))
            .collect();
        let requests = releases.iter().flat_map(|one| {
            let classes = CODE_CLASSES.into_iter().zip(one.release.stats.classes());
            classes.map(|(class, count)| (one.labels_and("code", class), count))
        });
        let help = "Requests to releases of backends, by class of the response's status";
        page.counters("upstream_release_requests", help, requests)?;
        let errors = releases.iter().flat_map(|one| {
            let faults = UpstreamFault::ALL.into_iter();
            let faults = faults.map(|fault| (fault, one.release.stats.faults(fault)));
            let counted = faults.filter(|(_, count)| *count > 0);
            counted.map(|(fault, count)| (one.labels_and("reason", fault.name()), count))
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

/// A release with the identity of its backend.
struct LabelledRelease<'a> {
    backend: &'a str,
    releases: &'a Releases,
    release: &'a Release,
}

fn labelled<'a>(
    backend: &'a str,
    endpoints: &'a Endpoints,
) -> impl Iterator<Item = LabelledRelease<'a>> {
    let releases = endpoints.releases().into_iter();
    releases.flat_map(move |releases| {
        releases.iter().map(move |release| LabelledRelease {
            backend,
            releases,
            release,
        })
    })
}

impl LabelledRelease<'_> {
    fn labels(&self) -> [(&'static str, &str); 2] {
        [("backend", self.backend), ("release", self.name())]
    }

    fn labels_and<'a>(
        &'a self,
        label: &'static str,
        value: &'a str,
    ) -> [(&'static str, &'a str); 3] {
        [
            ("backend", self.backend),
            ("release", self.name()),
            (label, value),
        ]
    }

    fn name(&self) -> &str {
        &self.release.stats.name
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{ProcessStats, Table, encode};
    use crate::ir;
    use crate::ir::{BackendId, Ir, ObjectRef, UpstreamProtocol};
    use crate::table::UpstreamFault;

    #[test]
    fn exports_counters_and_shares_of_releases() {
        let release = |name: &str, weight, ports: std::ops::Range<u16>| ir::Release {
            name: name.into(),
            weight,
            token: "".into(),
            addresses: ports.map(|port| ([127, 0, 0, 1], port).into()).collect(),
        };
        let backend = ir::Backend {
            id: BackendId {
                object: ObjectRef::core("Service", "ns", "one"),
                port: 80,
                tls: None,
                for_grpc: false,
            },
            protocol: UpstreamProtocol::Http1,
            tls: None,
            endpoints: ir::Endpoints::Releases(ir::Releases {
                cookie: None,
                releases: vec![release("v1", 3, 1..4), release("v2", 1, 0..0)],
            }),
            slow_start: None,
            traffic: None,
        };
        let ir = Ir {
            ports: Vec::new(),
            backends: [Arc::new(backend)].into(),
        };
        let table = Arc::new(Table::build(Arc::new(ir), None));
        for backend in table.backends() {
            let endpoints = backend.endpoints();
            let releases = endpoints.releases().unwrap();
            releases[0].stats.record(200);
            releases[1].stats.record(503);
            releases[1].stats.failed(UpstreamFault::NoEndpoint);
        }
        let text = encode(table, ProcessStats::default(), 0);
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
        let lines = text.lines().filter_map(|line| {
            let line = line.strip_prefix("portcullis_upstream_release_")?;
            Some(line.replace("backend=\"Service ns/one:80\",", ""))
        });
        let expected: Vec<_> = requests.chain(others.map(str::to_owned)).collect();
        assert_eq!(lines.collect::<Vec<_>>(), expected, "{text}");
    }
}
