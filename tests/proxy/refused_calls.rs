//! gRPC-Web calls that a filter refuses.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Response;
use serde_json::json;

use crate::cors::{clients, fetch, gateway, start};
use crate::external_auth::{auth, with_filters};
use crate::origin::{Origin, full};

#[tokio::test]
async fn denied_grpc_web_call_gets_a_status_in_its_body() {
    let app = Origin::echo("app").await;
    let server = Origin::new(|_| async {
        let denied = Response::builder()
            .status(403)
            .header("content-encoding", "gzip");
        denied.body(full("compressed")).expect("a response")
    })
    .await;
    let objects = gateway()
        .service("app", &[app.address])
        .service("auth", &[server.address]);
    let rules = [with_filters("/", json!([auth("auth", &json!({}))]))];
    let scene = start(objects.route("route", &rules));
    let trailers = "grpc-status: 7\r\ngrpc-message: Forbidden\r\n";
    let length = [0x80, 0, 0, 0, trailers.len() as u8];
    let part = [&length[..], trailers.as_bytes()].concat();
    let text = STANDARD.encode(&part).into_bytes();
    for mut client in clients(&scene).await {
        for (format, body) in [
            ("application/grpc-web+proto", &part),
            ("application/grpc-web-text+proto", &text),
        ] {
            let answer = fetch(&mut client, "POST", "/", &[("content-type", format)]).await;
            assert_eq!(
                (answer.status, answer.header("content-type")),
                (200, format)
            );
            assert!(!answer.headers.contains_key("grpc-status"));
            assert!(!answer.headers.contains_key("content-encoding"));
            assert_eq!(answer.body, body[..]);
        }
        let call = [("content-type", "application/grpc")];
        let answer = fetch(&mut client, "POST", "/", &call).await;
        assert_eq!(answer.header("grpc-status"), "7");
        assert!(!answer.headers.contains_key("content-encoding"));
    }
    assert_eq!(app.requests(), 0);
}
