//! The Secret with the CA: created, watched, and recreated when corrupted.

use http::StatusCode;
use serde_json::json;
use tokio::time::timeout;

use crate::scene::{Controller, TEST_TIMEOUT, block_on};

const SECRET: (&str, &str, &str) = ("Secret", "portcullis-system", "portcullis-controller-ca");

#[test]
fn recreates_corrupted_ca_secret_without_ending_streams() {
    block_on(async {
        let controller = Controller::start().await;
        let before = controller.bundle().await;
        let mut pod = controller.pod(None).await;
        pod.change().await;
        let (kind, namespace, name) = SECRET;
        let mut secret = controller.api.object(kind, namespace, name);
        secret["data"] = json!({"ca.crt": "bm8="});
        controller.api.put(secret);
        let mut bundle = controller.outputs.trust.bundle.subscribe();
        let is_new = bundle.wait_for(|bundle| bundle.as_ref() != Some(&before));
        let after = timeout(TEST_TIMEOUT, is_new)
            .await
            .unwrap()
            .unwrap()
            .clone()
            .unwrap();
        let request = || controller.request("edge", &controller.token("edge-2"), None);
        // Waits until the server uses the new CA, so that the old bundle is rejected.
        let mut tls = controller.outputs.trust.tls.subscribe();
        while controller.try_send(&after, request()).await.is_err() {
            timeout(TEST_TIMEOUT, tls.changed()).await.unwrap().unwrap();
        }
        assert!(controller.try_send(&before, request()).await.is_err());
        pod.write_text(&json!({}));
        assert_eq!(pod.line().await, Some(json!({"leader": {}})));
    });
}

#[test]
fn uses_an_existing_ca_secret() {
    block_on(async {
        let controller = Controller::start().await;
        let (kind, namespace, name) = SECRET;
        let secret = controller.api.object(kind, namespace, name);
        let keys: Vec<_> = secret["data"].as_object().unwrap().keys().collect();
        assert_eq!(keys, ["ca.crt", "session.key", "tls.crt", "tls.key"]);
        let (status, _) = controller
            .send(controller.request("edge", &controller.token("edge-1"), None))
            .await;
        assert_eq!(status, StatusCode::OK);
    });
}

#[test]
fn pods_get_the_session_secret_that_is_accepted_too() {
    block_on(async {
        let controller = Controller::start().await;
        let secrets = async || {
            let mut pod = controller.pod(None).await;
            let lines = pod.change().await;
            lines[1]["sessionSecret"].clone()
        };
        let before = secrets().await;
        assert_eq!(before.get("accepted"), None);
        let (kind, namespace, name) = SECRET;
        let mut secret = controller.api.object(kind, namespace, name);
        let data = secret["data"].as_object_mut().unwrap();
        let previous = data.insert("session.key".to_owned(), json!("bmV4".repeat(11)));
        data.insert("session.accepted.key".to_owned(), previous.unwrap());
        controller.api.put(secret);
        let mut followed = controller.outputs.trust.session_secret.subscribe();
        let is_rotated =
            followed.wait_for(|it| it.as_ref().is_some_and(|it| it.accepted.is_some()));
        timeout(TEST_TIMEOUT, is_rotated).await.unwrap().unwrap();
        let after = secrets().await;
        assert_eq!(after["accepted"], before["secret"]);
        assert_ne!(after["secret"], before["secret"]);
    });
}
