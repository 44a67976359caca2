//! What clients without access to a Gateway learn, which is nothing of it.

use http::header::DATE;
use http::{HeaderMap, StatusCode};
use serde_json::json;

use crate::scene::{Controller, block_on, token};

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
