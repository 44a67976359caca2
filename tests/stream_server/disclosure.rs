//! What clients without access to a Gateway learn, which is nothing of it, and what the log says of them.

use std::io::{self, Write};
use std::sync::{Arc, LazyLock, Mutex};

use http::header::DATE;
use http::{HeaderMap, StatusCode};
use serde_json::json;

use crate::scene::{Controller, block_on, gateway, token};

/// Status, headers without the date, and body of the response to a token for a Gateway.
async fn response(
    controller: &Controller,
    gateway: &str,
    token: &str,
) -> (StatusCode, HeaderMap, String) {
    let request = controller.request(gateway, token, None);
    let (status, mut pod) = controller.send(request).await;
    let mut headers = std::mem::take(&mut pod.headers);
    headers.remove(DATE);
    (status, headers, pod.rest().await)
}

/// A forged token that claims to be of a pod with this ServiceAccount.
fn forged(account: &str, number: usize) -> String {
    let object = |name: &str| json!({"name": name, "uid": "1"});
    token(&json!({
        "jti": number,
        "kubernetes.io": {"namespace": "infra", "serviceaccount": object(account), "pod": object("edge-1")},
    }))
}

#[test]
fn refusals_do_not_tell_which_gateways_exist() {
    block_on(async {
        let controller = Controller::start().await;
        let mut responses = Vec::new();
        for gateway in ["edge", "other", "unknown"] {
            for account in ["edge-portcullis", "unknown-portcullis"] {
                let forged = forged(account, responses.len());
                responses.push(response(&controller, gateway, &forged).await);
            }
        }
        let genuine = controller.token("edge-1");
        for gateway in ["other", "unknown"] {
            responses.push(response(&controller, gateway, &genuine).await);
        }
        assert_eq!(responses[0].0, StatusCode::FORBIDDEN);
        for other in &responses {
            assert_eq!(*other, responses[0]);
        }
    });
}

/// What this process logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

static LOG: LazyLock<Log> = LazyLock::new(|| {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    // Other tests may have logged meanwhile, which leaves a place that logs without a subscriber.
    tracing::callsite::rebuild_interest_cache();
    log
});

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// The names of Gateways are of this test alone, since all tests share the log.
#[test]
fn log_says_why_a_stream_is_rejected() {
    LazyLock::force(&LOG);
    block_on(async {
        let mut controller = Controller::start().await;
        controller.put([gateway("logged")]);
        let genuine = controller.token("edge-1");
        for (gateway, token, why) in [
            (
                "logged",
                &forged("logged-portcullis", 0),
                "the API server rejected the token",
            ),
            ("logged", &genuine, "is not the ServiceAccount of"),
            (
                "logged-unknown",
                &controller.token("edge-2"),
                "the Gateway does not exist",
            ),
        ] {
            let (status, ..) = response(&controller, gateway, token).await;
            assert_eq!(status, StatusCode::FORBIDDEN);
            let start = format!("rejected a stream of Gateway infra/{gateway}: ");
            let text = LOG.text();
            let mut lines = text.lines().filter(|line| line.contains(&start));
            assert!(lines.any(|line| line.contains(why)), "{why}: {text}");
        }
        // Names that clients invent share one line.
        let invented = "logged-invented";
        response(&controller, invented, &controller.token("edge-3")).await;
        assert!(!LOG.text().contains(invented));
    });
}
