//! What `portcullis status`, `/api/v1/problems` and the metric name first while something is wrong, and that they name nothing
//! once it is repaired. docs/operations.md has each text.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::api::{document, portcullis_at, stdout};
use crate::client::get;
use crate::harness::TEST_TIMEOUT;
use crate::incidents::documented;
use crate::scene::Scene;

/// The first problem of a process.
pub(crate) struct Problem<'a> {
    pub(crate) kind: &'a str,
    /// A part of its object, which may begin with an address.
    pub(crate) object: &'a str,
    /// Cause and remedy, as parts of its message.
    pub(crate) texts: &'a [&'a str],
}

impl Problem<'_> {
    fn is(&self, shown: &Value) -> bool {
        let has = |field: &str, part: &str| {
            let text = shown[field].as_str();
            text.is_some_and(|text| text.contains(part))
        };
        let mut texts = self.texts.iter();
        shown["kind"] == self.kind
            && has("object", self.object)
            && texts.all(|text| has("message", text))
    }
}

/// Waits until `problem` is the first one of a process everywhere at once: on the page of its admin server, in the metric and of
/// the command.
pub(crate) async fn is_first_at(admin: SocketAddr, problem: &Problem<'_>) {
    problem.texts.iter().for_each(|text| documented(text));
    let mut unlike = String::new();
    let found = async {
        while let Err(shown) = look(admin, problem).await {
            unlike = shown;
            // What happens to requests has no change notification.
            sleep(Duration::from_millis(10)).await;
        }
    };
    let found = timeout(TEST_TIMEOUT, found).await;
    let Problem {
        kind,
        object,
        texts,
    } = problem;
    assert!(
        found.is_ok(),
        "{kind} {object}: {texts:?} is not first of\n{unlike}"
    );
}

/// Looks for the problem everywhere. Returns what is shown where it is not the first one.
async fn look(admin: SocketAddr, problem: &Problem<'_>) -> Result<(), String> {
    let answer = get(admin, "localhost", "/api/v1/problems").await;
    let shown: Value = serde_json::from_str(answer.text()).expect("JSON");
    let first = &shown["problems"][0];
    if !problem.is(first) {
        return Err(format!("{shown:#}"));
    }
    let severity = first["severity"].as_str().expect("a severity");
    let metrics = get(admin, "localhost", "/metrics").await;
    let kind = problem.kind;
    let name = format!("portcullis_problems{{kind=\"{kind}\",severity=\"{severity}\"}} ");
    let mut lines = metrics.text().lines();
    let count = lines.find_map(|line| line.strip_prefix(&name));
    if count.is_none_or(|it| it == "0") {
        return Err(format!("{name}{count:?}"));
    }
    let status = portcullis_at(admin, &["status"]).await;
    let printed = stdout(&status);
    let mut lines = printed
        .lines()
        .skip_while(|it| !it.starts_with("problems: "));
    let line = lines.nth(1).unwrap_or_default();
    let mut texts = [problem.object]
        .into_iter()
        .chain(problem.texts.iter().copied());
    let is_of_severity = line.trim_start().starts_with(&format!("{severity}: "));
    match status.status.code() == Some(1) && is_of_severity && texts.all(|text| line.contains(text))
    {
        true => Ok(()),
        false => Err(printed),
    }
}

/// The same for a scene.
pub(crate) async fn is_first(scene: &Scene, problem: &Problem<'_>) {
    is_first_at(scene.admin_address(), problem).await;
}

/// Waits until nothing is wrong once what is recent has begun anew.
pub(crate) async fn is_gone(scene: &Scene) {
    let mut shown = Value::Null;
    let gone = async {
        loop {
            scene.state().sample();
            scene.state().sample();
            shown = document(scene, "problems").await;
            if shown["total"] == 0 {
                return;
            }
            // What happens to requests has no change notification.
            sleep(Duration::from_millis(10)).await;
        }
    };
    let gone = timeout(TEST_TIMEOUT, gone).await;
    assert!(gone.is_ok(), "{shown:#}");
    let metrics = get(scene.admin_address(), "localhost", "/metrics").await;
    let counts = metrics.text().lines();
    let counts = counts.filter_map(|line| line.strip_prefix("portcullis_problems"));
    let counts: Vec<_> = counts.filter(|line| !line.ends_with(" 0")).collect();
    assert!(counts.is_empty(), "{counts:?}");
    let status = portcullis_at(scene.admin_address(), &["status"]).await;
    let printed = stdout(&status);
    assert!(printed.contains("problems: none\n"), "{printed}");
    assert_eq!(status.status.code(), Some(0));
}
