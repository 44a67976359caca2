//! Connections to pickers, and requests that upgrade theirs.

use std::net::SocketAddr;

use super::server::{Picker, Script};
use super::{Outcome, clients, model, pod, pool, post, rule, serve};
use crate::backend_tls::{NAME, authorities, policy, trust};
use crate::client::{connect, read_until, write_text};
use crate::harness::yaml::service_of;
use crate::origin::{Origin, full};
use crate::scene::{Objects, Scene};
use crate::tls_origin::{Asks, Authority, Issued, TlsOrigin};
use crate::upgrade::{REQUEST, SWITCH};

const HTTP2: Asks<'_> = Asks {
    versions: rustls::ALL_VERSIONS,
    protocols: &["h2"],
    clients_of: None,
};

/// Returns a pool whose picker is a Service without an `appProtocol`, at this address.
fn encrypted(picker: SocketAddr, model: SocketAddr) -> Objects {
    Objects::http()
        .with(pod().to_string())
        .with(service_of("epp", &[picker], ""))
        .with(pool("close", &[model], "epp", "FailClose").to_string())
        .route("route", &[rule("/", "close")])
}

#[tokio::test]
async fn picker_is_asked_in_tls_without_verification_by_default() {
    let server = model("a").await;
    let picker = Picker::start(Script::choosing(&server.address.to_string())).await;
    let certificate = Issued::self_signed(&[]);
    let tls = TlsOrigin::relaying(&certificate, HTTP2, picker.origin.address).await;
    let scene = Scene::start(&encrypted(tls.address, server.address));
    for mut client in clients(&scene).await {
        let outcome = post(&mut client, "/close", full("body")).await;
        assert_eq!(outcome, Outcome::Whole(200, "body".to_owned()));
    }
    tls.assert_encrypted("envoy.service.ext_proc");
}

#[tokio::test]
async fn picker_is_verified_as_a_policy_says() {
    let server = model("a").await;
    let picker = Picker::start(Script::choosing(&server.address.to_string())).await;
    let authority = Authority::new();
    let certificate = authority.issue(&[NAME]);
    let tls = TlsOrigin::relaying(&certificate, HTTP2, picker.origin.address).await;
    let objects = |name| {
        encrypted(tls.address, server.address)
            .with(policy("epp", &trust(name), &serde_json::json!({})))
            .with(authorities("ca", &authority.pem))
    };
    let mut scene = Scene::start(&objects(NAME));
    for mut client in clients(&scene).await {
        let outcome = post(&mut client, "/close", full("body")).await;
        assert_eq!(outcome, Outcome::Whole(200, "body".to_owned()));
    }
    scene.replace(&objects("other.example.com")).await;
    for mut client in clients(&scene).await {
        let outcome = post(&mut client, "/close", full("body")).await;
        assert_eq!(outcome, Outcome::Whole(503, String::new()));
    }
    assert_eq!(server.requests(), 2);
    tls.assert_encrypted("envoy.service.ext_proc");
}

#[tokio::test]
async fn calls_of_many_requests_share_connections() {
    let server = model("a").await;
    let picker = Picker::start(Script::choosing(&server.address.to_string())).await;
    let scene = serve(&picker, &[server.address]);
    let mut client = crate::client::Client::http1(scene.at(80)).await;
    for _ in 0..50 {
        let outcome = post(&mut client, "/close", full("body")).await;
        assert_eq!(outcome, Outcome::Whole(200, "body".to_owned()));
    }
    assert_eq!(
        (picker.origin.requests(), picker.origin.connections()),
        (50, 1)
    );
}

#[tokio::test]
async fn upgrade_is_picked_by_its_head() {
    let server = Origin::raw(|mut stream| async move {
        read_until(&mut stream, "\r\n\r\n").await;
        write_text(&mut stream, format!("{SWITCH}welcome\n")).await;
        let line = read_until(&mut stream, "\n").await;
        write_text(&mut stream, line).await;
    })
    .await;
    let other = Origin::dead();
    let list = server.address.to_string();
    let mut picker = Picker::start(Script::choosing(&list)).await;
    let scene = serve(&picker, &[server.address, other]);
    let mut client = connect(scene.at(80)).await;
    write_text(&mut client, REQUEST.replace("/chat", "/close")).await;
    let head = read_until(&mut client, "welcome\n").await;
    assert!(
        head.to_ascii_lowercase().starts_with("http/1.1 101 "),
        "{head}"
    );
    write_text(&mut client, "ping\n").await;
    assert_eq!(read_until(&mut client, "\n").await, "ping\n");
    let received = picker.received();
    let request = received.iter().find_map(|it| it.request_headers.as_ref());
    assert!(request.expect("a head").end_of_stream);
    let response = received.iter().find_map(|it| it.response_headers.as_ref());
    let response = response.expect("a head");
    assert_eq!(response.values(":status"), ["101"]);
    assert!(response.end_of_stream);
    assert!(
        received
            .iter()
            .all(|it| it.request_body.is_none() && it.response_body.is_none())
    );
}
