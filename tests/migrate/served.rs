//! Each migrated application, served in this process and asked what its table says: it answers as ingress-nginx does, unless
//! the report says that it does not.

use std::fs;
use std::path::Path;

use http::Method;
use portcullis::migrate::{Migration, Outcome};
use portcullis::settings::permissions::InsecureBackend;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::client::{Client, connect, whole, write_text};
use crate::harness::tls::{self, Certificate};
use crate::origin::{empty, full};
use crate::scene::{self, Scene};
use crate::surroundings::Surroundings;
use crate::table::{Row, Served, rows};
use crate::{cases, run, settings_of};

/// Number of the applications.
const MIN_CASES: usize = 60;
/// The part of them that need no hand and answer every request as ingress-nginx does.
const MIN_SAME: f64 = 0.85;
/// Number of the requests to each application.
const MIN_ROWS: usize = 3;

/// What a table finds.
struct Verdict {
    /// Rows that are neither as ingress-nginx answers nor as the report says.
    wrong: Vec<String>,
    /// Whether all rows are as ingress-nginx answers.
    is_same: bool,
}

#[tokio::test]
async fn applications_answer_as_with_ingress_nginx() {
    let (mut wrong, mut others) = (Vec::new(), Vec::new());
    let cases = cases();
    for case in &cases {
        let migration = run(case);
        let verdict = judged(case, &migration).await;
        wrong.extend(verdict.wrong);
        if migration.report.needs_hand() || !verdict.is_same {
            others.push(case);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let same = cases.len() - others.len();
    assert!(cases.len() >= MIN_CASES, "{} cases", cases.len());
    let part = same as f64 / cases.len() as f64;
    assert!(
        part >= MIN_SAME,
        "{same} of {} need no hand and answer the same, and these do not: {others:#?}",
        cases.len()
    );
}

/// Serves an application and asks all rows of its table, in their order.
async fn judged(case: &Path, migration: &Migration) -> Verdict {
    let table = case.join("answers.txt");
    let rows = rows(&fs::read_to_string(&table).unwrap_or_default());
    let mut verdict = Verdict {
        wrong: Vec::new(),
        is_same: rows.iter().all(|row| row.differs.is_none()),
    };
    if rows.len() < MIN_ROWS {
        let few = format!("{} has {} rows", table.display(), rows.len());
        verdict.wrong.push(few);
    }
    let (scene, _surroundings) = serve(case, migration).await;
    for row in &rows {
        let served = ask(&scene, row).await;
        let place = format!("{}:{}", table.display(), row.line);
        let differences = row.differences(&served);
        let found = match &row.differs {
            None => differences,
            Some(setting) if !is_reported(migration, setting) => {
                vec![format!(
                    "the report does not say that {setting} has another meaning or is not possible"
                )]
            }
            Some(_) if differences.is_empty() => vec!["it does not differ".to_owned()],
            Some(_) => Vec::new(),
        };
        let found = found.into_iter().map(|text| format!("{place}: {text}"));
        verdict.wrong.extend(found);
    }
    verdict
}

/// Reports whether a line of the report says that a setting does not do what it does in ingress-nginx.
fn is_reported(migration: &Migration, setting: &str) -> bool {
    let changes = [Outcome::ChangedMeaning, Outcome::NotPossible];
    let mut lines = migration.report.lines.iter();
    lines.any(|line| line.setting == setting && changes.contains(&line.outcome))
}

/// Serves what an application becomes, with the permission that the notices ask of the operator.
async fn serve(case: &Path, migration: &Migration) -> (Scene, Surroundings) {
    let input = fs::read_to_string(case.join("input.yaml")).unwrap();
    let settings = settings_of(&input);
    let input: Vec<Value> = serde_saphyr::from_multiple(&input).unwrap();
    let certificate = Certificate::new(&["*.example.com"]);
    let output = migration.output.objects();
    let surroundings = Surroundings::of(output, &input, &settings, &certificate).await;
    let files = migration.output.files().unwrap();
    let mut text: String = files.into_iter().map(|(_, text)| text).collect();
    for object in &surroundings.objects {
        text.push_str(&format!("---\n{object}\n"));
    }
    let scene = Scene::prepared(
        |folder| scene::write(folder, "objects.yaml", &text),
        |settings| settings.permissions.insecure_backend = InsecureBackend::SkipVerify,
    );
    (scene, surroundings)
}

/// Sends the request of a row on a connection of its own.
async fn ask(scene: &Scene, row: &Row) -> Served {
    let port = if row.scheme == "https" { 443 } else { 80 };
    let Some(address) = scene.address(port) else {
        return Served::default();
    };
    let mut stream = connect(address).await;
    if let Some(from) = &row.from {
        let header = format!("PROXY TCP4 {from} 192.0.2.1 50000 {port}\r\n");
        write_text(&mut stream, header).await;
    }
    let is_call = row.method == "GRPC";
    let client = match (&*row.scheme, is_call) {
        ("https", _) => secure(stream, row, is_call).await,
        (_, true) => Some(Client::http2_on(stream).await),
        (_, false) => Some(Client::http1_on(stream).await),
    };
    let Some(mut client) = client else {
        return Served::default();
    };
    let method = if is_call { "POST" } else { row.method.as_str() };
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let mut request = client.request(method, &row.host, &row.path);
    if is_call {
        request = request.header("content-type", "application/grpc");
        request = request.header("te", "trailers");
    }
    for (name, value) in &row.headers {
        request = request.header(name, value);
    }
    let body = match row.body {
        0 => empty(),
        size => full(vec![b'a'; size]),
    };
    let Ok(response) = client.send(request.body(body).unwrap()).await else {
        return Served::default();
    };
    let answer = whole(response).await;
    Served {
        status: answer.status,
        received: serde_json::from_slice(&answer.body).unwrap_or_default(),
        headers: answer.headers,
    }
}

/// Begins TLS; `None` if the handshake fails.
async fn secure(stream: TcpStream, row: &Row, is_call: bool) -> Option<Client> {
    let protocol = if is_call { "h2" } else { "http/1.1" };
    let connector = TlsConnector::from(tls::client(&[protocol]));
    let name = row.host.clone().try_into().unwrap();
    let stream = connector.connect(name, stream).await.ok()?;
    Some(match is_call {
        true => Client::http2_on(stream).await,
        false => Client::http1_on(stream).await,
    })
}
