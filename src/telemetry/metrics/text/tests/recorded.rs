//! The recorded scrape that `tests/promql` checks queries on: it has a series of every metric, with the labels of a page.

use std::collections::BTreeSet;
use std::fs;

use serde_json::json;

use super::*;
use crate::table::{GrantType, Histogram, TokenOutcome};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/promql/scrape.txt");

/// Durations of requests.
const SERVER: &str = "http_server_request_duration_seconds";

/// The objects of [`OBJECTS`], with a certificate, a sign-in and a limit that pods share.
fn snapshot() -> Snapshot {
    let mut snapshot = Snapshot::default();
    let mut add = |object: Value| {
        let admission = api::admit(object);
        snapshot.insert(admission.object.expect("a valid object"));
    };
    for object in serde_saphyr::from_multiple::<Value>(OBJECTS).unwrap() {
        add(object);
    }
    let key = rcgen::KeyPair::generate().unwrap();
    let parameters = rcgen::CertificateParams::new(vec!["a.com".to_owned()]).unwrap();
    let certificate = parameters.self_signed(&key).unwrap();
    let metadata = |name: &str| json!({"name": name, "namespace": "edge"});
    add(json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata("certificate"),
        "stringData": {"tls.crt": certificate.pem(), "tls.key": key.serialize_pem()},
    }));
    let tls = json!({"certificateRefs": [{"name": "certificate"}]});
    let listener = json!({"name": "tls", "port": 443, "protocol": "HTTPS", "tls": tls});
    add(json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": metadata("secure"),
        "spec": {"gatewayClassName": "portcullis", "listeners": [listener]},
    }));
    let target = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "web"});
    add(json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "AccessPolicy", "metadata": metadata("desk"),
        "spec": {"targetRefs": [target], "oidc": {"issuer": "https://login.example.com", "clientID": "desk"}},
    }));
    let target = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "web"});
    let limit = json!({
        "name": "hourly", "scope": "Gateway", "limit": {"requests": 10, "per": "Hour"},
        "key": [{"type": "ClientIP"}],
    });
    add(json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "RateLimitPolicy", "metadata": metadata("visitors"),
        "spec": {"targetRefs": [target], "rules": [limit]},
    }));
    snapshot
}

/// The table, with requests whose durations have these labels.
fn recorded_table(labels: DurationLabels) -> Table {
    let mut translator = Translator::new(Options::default());
    let ir = translator.translate(&snapshot(), None).ir;
    let table = Table::build(Arc::new(ir), None);
    table.limit_group().open();
    for rule in table.rules() {
        let stats = &rule.state.stats;
        for (status, error) in [
            (200, None),
            (404, None),
            (503, Some("the backend has no ready endpoint")),
        ] {
            let outcome = Outcome {
                error,
                ..Outcome::of_status(status)
            };
            stats.record(WorkerId::ONLY, outcome, Duration::from_millis(1), labels);
        }
        stats.retried(WorkerId::ONLY);
    }
    for backend in table.backends() {
        let stats = &backend.stats;
        for status in [200, 503] {
            stats.responded(WorkerId::ONLY, status, Duration::from_millis(1));
        }
        stats.failed(UpstreamFault::Reset);
        stats.tls_failed(TlsFailure::Name);
        stats.mirrored(MirrorResult::Failed);
        stats.authorized(AuthResult::Denied);
        stats.paged(PageResult::Timeout);
        stats.picked(PickResult::Picked);
        stats.picked(PickResult::FailedOpen);
        stats.pick_took(WorkerId::ONLY, Duration::from_millis(1));
        stats.authorized(AuthResult::Allowed);
        stats.retry_refused();
        backend.fell_back();
    }
    for oidc in table.sign_ins().values() {
        oidc.token_endpoint
            .count(GrantType::Code, TokenOutcome::Issued);
        oidc.token_endpoint
            .count(GrantType::Code, TokenOutcome::Unavailable);
        oidc.token_endpoint
            .count(GrantType::RefreshToken, TokenOutcome::Issued);
    }
    table
}

/// A page without options, the durations of requests with the option of their labels, and releases.
fn recorded() -> String {
    let table = Arc::new(recorded_table(PLAIN));
    let mut page = encode(table, process(), 0, MetricsDetail::default());
    let end = page.rfind("# EOF").unwrap();
    page.truncate(end);
    let table = Arc::new(recorded_table(LABELLED));
    let detail = MetricsDetail {
        durations_by: LABELLED,
        ..MetricsDetail::default()
    };
    let labelled = encode(table, ProcessStats::default(), 0, detail);
    for line in labelled.lines().filter(|line| line.starts_with(SERVER)) {
        page.push_str(line);
        page.push('\n');
    }
    let labels = r#"namespace="app",backend="app",kind="ReleaseBackend",port="80",protocol="http1",tls="none",release="v1""#;
    for (name, more) in [
        ("requests_total", ",code=\"2xx\""),
        ("requests_total", ",code=\"5xx\""),
        ("errors_total", ",reason=\"reset\""),
        ("share", ""),
        ("endpoints", ""),
    ] {
        page.push_str(&format!(
            "portcullis_upstream_release_{name}{{{labels}{more}}} 1\n"
        ));
    }
    page.push_str("# EOF\n");
    page
}

/// Returns the series of a page: names and labels.
fn series(page: &str) -> BTreeSet<String> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    let series = lines.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned()));
    series.collect()
}

#[test]
fn recorded_scrape_has_the_series_of_a_page() {
    let page = recorded();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(PATH, &page).unwrap();
    }
    let written = fs::read_to_string(PATH).unwrap();
    assert_eq!(
        series(&written),
        series(&page),
        "run this test with UPDATE_DOCS=1"
    );
    let buckets = Histogram::default().buckets.len();
    let server = series(&page);
    let server = server
        .iter()
        .filter(|it| it.starts_with(&format!("{SERVER}_bucket")));
    // Without labels, and for three classes of statuses.
    assert_eq!(server.count(), 4 * buckets);
}
