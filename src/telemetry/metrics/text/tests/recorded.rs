//! The recorded scrape that `tests/promql` checks queries on: it has a series of every metric, with the labels of a page.

use std::collections::BTreeSet;
use std::fs;

use serde_json::json;

use super::*;
use crate::table::Histogram;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/promql/scrape.txt");

/// The objects of [`OBJECTS`], with an endpoint and a certificate.
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
    snapshot
}

fn recorded() -> String {
    let mut translator = Translator::new(Options::default());
    let ir = translator.translate(&snapshot(), None).ir;
    let table = Table::build(Arc::new(ir), None);
    for rule in table.rules() {
        let stats = &rule.state.stats;
        for status in [200, 404, 503] {
            stats.record(WorkerId::ONLY, status, Duration::from_millis(1));
        }
        stats.retried(WorkerId::ONLY);
    }
    for backend in table.backends() {
        let stats = &backend.stats;
        let times = &stats.response_times;
        times.record(WorkerId::ONLY, Duration::from_millis(1));
        stats.failed(UpstreamFault::Reset);
        stats.tls_failed(TlsFailure::Name);
        stats.mirrored(MirrorResult::Failed);
        stats.authorized(AuthResult::Denied);
        stats.authorized(AuthResult::Allowed);
        stats.retry_refused();
        backend.fell_back();
    }
    let mut page = encode(Arc::new(table), process(), 0, Detail::Routes);
    let end = page.rfind("# EOF").unwrap();
    page.truncate(end);
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
        .filter(|it| it.starts_with("http_server_request_duration_seconds_bucket"));
    assert_eq!(server.count(), buckets);
}
