//! What HTTP/3 clients may not do: unknown certificates and addresses, malformed streams, large heads and floods.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http::{HeaderValue, Response};
use portcullis::telemetry::metrics::HandshakeFailure;
use quinn::{ConnectionError, TransportErrorCode};
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use serde_json::json;
use tokio::sync::{mpsc, watch};

use crate::access_policy::{access, gateway, ip_rules};
use crate::client::Client;
use crate::client_policy::clients;
use crate::harness::tls::{self, Certificate};
use crate::harness::yaml;
use crate::http3::{before, http3_policy};
use crate::http3_client::{
    Http3, UNKNOWN_STREAM, data, greet_from, head, headers, quic_at, trusting, within,
};
use crate::origin::{Origin, empty, full};
use crate::scene::{Objects, Scene, https, secret, to};
use crate::tls_origin::{Authority, Issued};

/// A client with a certificate.
fn presenting(certificate: Option<&Issued>) -> Arc<ClientConfig> {
    let mut config = (*trusting()).clone();
    if let Some(certificate) = certificate {
        let key = PrivateKeyDer::from_pem_slice(certificate.key_pem.as_bytes()).expect("a key");
        let key = any_supported_type(&key).expect("a usable key");
        let certified = CertifiedKey::new(vec![certificate.der.clone()], key);
        config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(certified));
    }
    Arc::new(config)
}

#[tokio::test]
async fn clients_need_valid_certificates_where_tls_does() {
    let origin = Origin::echo("origin").await;
    let (authority, other) = (Authority::new(), Authority::new());
    let reference = json!({"group": "", "kind": "ConfigMap", "name": "ca"});
    let validation = json!({"caCertificateRefs": [reference], "mode": "AllowValidOnly"});
    let frontend = json!({"frontend": {"default": {"validation": validation}}});
    let authorities = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ca"},
        "data": {"ca.crt": authority.pem},
    });
    let listeners = [https("a", 443, "a.com", &["a"])];
    let more = format!("  tls: {frontend}\n");
    let objects = Objects::default()
        .with(yaml::gateway_with("gateway", &listeners, &more))
        .with(secret("a", &Certificate::new(&["a.com"])))
        .with(authorities.to_string())
        .with(http3_policy())
        .service("origin", &[origin.address])
        .route("route", &[to("origin")]);
    let scene = Scene::start(&objects);
    let address = quic_at(&scene, 443);
    let valid = authority.issue(&["client.test"]);
    let config = presenting(Some(&valid));
    // The session is resumed the second time.
    for _ in 0..2 {
        let client = Http3::try_connect(address, "a.com", &config).await;
        let answer = client.expect("a handshake").get("a.com", "/").await;
        let xfcc = answer.received()["headers"]["x-forwarded-client-cert"].clone();
        assert!(
            xfcc.as_str().is_some_and(|it| it.starts_with("Hash=")),
            "{xfcc}"
        );
    }
    for certificate in [
        None,
        Some(other.issue(&["client.test"])),
        Some(authority.issue_expired(&["client.test"])),
    ] {
        let config = presenting(certificate.as_ref());
        let ended = match Http3::try_connect(address, "a.com", &config).await {
            // The handshake of a client is complete before the proxy has verified it.
            Ok(client) => within(client.connection.closed()).await,
            Err(error) => error,
        };
        let ConnectionError::ConnectionClosed(close) = &ended else {
            panic!("{ended:?}");
        };
        let alerts = [116, 51, 48, 45, 42].map(TransportErrorCode::crypto);
        assert!(alerts.contains(&close.error_code), "{ended:?}");
    }
    assert_eq!(origin.requests(), 2);
}

#[tokio::test]
async fn rules_about_addresses_hold() {
    let origin = Origin::echo("origin").await;
    let policy = access("deny", &gateway(), &ip_rules(&[], &["127.0.0.2"]));
    let scene = Scene::start(&before(&origin).with(policy));
    let address = quic_at(&scene, 443);
    for (from, expected) in [(1, 200), (2, 403)] {
        let from = Ipv4Addr::new(127, 0, 0, from);
        let client = Http3::connect_from(from.into(), address, "a.com", &trusting()).await;
        let answer = client.expect("a handshake").get("a.com", "/").await;
        assert_eq!(answer.status, expected, "{from}");
    }
}

/// The address that the rules of [`permitted_here`] refuse.
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

fn permitted_here(origin: &Origin) -> Objects {
    before(origin).with(access("deny", &gateway(), &ip_rules(&[], &["127.0.0.2"])))
}

#[tokio::test]
async fn clients_that_move_lose_what_their_address_was_permitted() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&permitted_here(&origin));
    let client = Http3::connect(quic_at(&scene, 443), "a.com").await;
    assert_eq!(client.get("a.com", "/").await.status, 200);
    // As behind a NAT that has forgotten the port.
    client.move_to(Ipv4Addr::LOCALHOST.into());
    assert_eq!(client.get("a.com", "/").await.status, 200);
    client.move_to(ELSEWHERE);
    let _request = client.begin("POST", "a.com", "/", &[]).await;
    assert_eq!(client.closed().await, 0x100);
    assert_eq!(origin.requests(), 2);
}

#[tokio::test]
async fn requests_of_clients_that_move_get_no_response() {
    let (release, released) = watch::channel(false);
    let origin = Origin::new(move |_| {
        let mut released = released.clone();
        async move {
            released.wait_for(|it| *it).await.expect("released");
            Response::new(full("secret"))
        }
    })
    .await;
    let scene = Scene::start(&permitted_here(&origin));
    let client = Http3::connect(quic_at(&scene, 443), "a.com").await;
    let mut exchange = client.begin("GET", "a.com", "/", &[]).await;
    exchange.send.finish().expect("open");
    origin.until_requests(1).await;
    client.move_to(ELSEWHERE);
    // The connection may have ended by now: then there is no response either.
    let _ = client.until_read().await;
    release.send_replace(true);
    assert_eq!(client.closed().await, 0x100);
    assert!(exchange.receive.frame().await.is_err());
}

#[tokio::test]
async fn forged_addresses_take_no_place_of_clients() {
    let origin = Origin::echo("origin").await;
    let spec = json!({"http3": {}, "connections": {"maxPerClient": 1}});
    let objects = Objects::gateway(&[https("a", 443, "a.com", &["a"])])
        .with(secret("a", &Certificate::new(&["a.com"])))
        .with(clients("limits", &gateway(), &spec))
        .service("origin", &[origin.address])
        .route("route", &[to("origin")]);
    let scene = Scene::start(&objects);
    let address = quic_at(&scene, 443);
    let _forged = greet_from(Ipv4Addr::LOCALHOST.into(), address, "a.com").await;
    scene.until_stats("greeted", |it| it.accepted == 1).await;
    let client = Http3::connect(address, "a.com").await;
    assert_eq!(client.get("a.com", "/").await.status, 200);
    let ended = match Http3::try_connect(address, "a.com", &trusting()).await {
        // The handshake of a client is complete before the proxy counts it.
        Ok(second) => within(second.connection.closed()).await,
        Err(error) => error,
    };
    let is_refused = matches!(
        ended,
        ConnectionError::ApplicationClosed(_) | ConnectionError::ConnectionClosed(_)
    );
    assert!(is_refused, "{ended:?}");
    assert_eq!(client.get("a.com", "/").await.status, 200);
}

#[tokio::test]
async fn forged_addresses_evict_no_client() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::with(&before(&origin), |settings| {
        settings.limits.max_connections = Some(1);
    });
    let mut idle = Client::tls(scene.at(443), "a.com", &tls::client(&["http/1.1"])).await;
    assert_eq!(idle.get("a.com", "/").await.status, 200);
    let forged = greet_from(Ipv4Addr::LOCALHOST.into(), quic_at(&scene, 443), "a.com").await;
    let mut packet = [0; 2048];
    // The greeting may take two datagrams, of which the client sends the second one here, too.
    loop {
        let (_, from) = within(forged.recv_from(&mut packet))
            .await
            .expect("received");
        if from == quic_at(&scene, 443) {
            break;
        }
    }
    // The form and type of a Retry packet (RFC 9000, 17.2.5).
    assert_eq!(packet[0] & 0xb0, 0xb0, "{:?}", &packet[..5]);
    assert_eq!(scene.state().stats.connections.evicted.load(Relaxed), 0);
    assert_eq!(idle.get("a.com", "/").await.status, 200);
}

#[tokio::test]
async fn connections_after_a_goaway_make_way_for_new_clients() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::with(&before(&origin), |settings| {
        settings.workers = 1;
        settings.limits.max_connections = Some(1);
        settings.limits.keep_alive_timeout = Duration::from_millis(10);
    });
    let client = Http3::connect(quic_at(&scene, 443), "a.com").await;
    // A head that is not complete keeps the connection.
    let mut unfinished = client.stream().await;
    unfinished.write(&[1]).await;
    assert_eq!(client.get("a.com", "/").await.status, 200);
    let mut control = None;
    for _ in 0..2 {
        client.goaway(&mut control).await;
    }
    let config = tls::client(&["http/1.1"]);
    let mut other = Client::tls(scene.at(443), "a.com", &config).await;
    assert_eq!(client.closed().await, 0x100);
    assert_eq!(other.get("a.com", "/").await.status, 200);
}

#[tokio::test]
async fn new_clients_get_places_of_idle_connections_of_any_worker() {
    /// Every other one has another worker than the one before, on average.
    const CLIENTS: usize = 24;
    let origin = Origin::echo("origin").await;
    let scene = Scene::with(&before(&origin), |settings| {
        settings.workers = 2;
        settings.limits.max_connections = Some(1);
    });
    let address = quic_at(&scene, 443);
    let mut last: Option<Http3> = None;
    for number in 0..CLIENTS {
        let client = Http3::connect(address, "a.com").await;
        client.until_read().await.expect("served");
        if let Some(last) = last.replace(client) {
            assert_eq!(last.closed().await, 0x100, "{number}");
        }
    }
}

#[tokio::test]
async fn stalled_handshakes_make_way_for_new_clients() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::with(&before(&origin), |settings| {
        settings.workers = 1;
        settings.limits.max_handshakes = 1;
    });
    let address = quic_at(&scene, 443);
    let _stalled = greet_from(Ipv4Addr::LOCALHOST.into(), address, "a.com").await;
    scene.until_stats("greeted", |it| it.accepted == 1).await;
    let client = Http3::connect(address, "a.com").await;
    assert_eq!(client.get("a.com", "/").await.status, 200);
    scene.until("the stalled one is evicted", |server| {
        let stats = &server.state().stats.connections;
        stats.handshake_failures(HandshakeFailure::Evicted) == 1
    });
}

#[tokio::test]
async fn too_large_heads_get_431() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&before(&origin));
    let client = Http3::connect(quic_at(&scene, 443), "a.com").await;
    let large = "x".repeat(70_000);
    let answer = client.ask("GET", "a.com", "/", &[("x", &large)]).await;
    assert_eq!(answer.status, 431);
    let many: Vec<_> = (0..200).map(|number| format!("x-{number}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), "y")).collect();
    assert_eq!(client.ask("GET", "a.com", "/", &many).await.status, 431);
    assert_eq!(client.get("a.com", "/").await.status, 200);
    assert_eq!(origin.requests(), 1);
}

#[tokio::test]
async fn malformed_requests_end_their_stream() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&before(&origin));
    let client = Http3::connect(quic_at(&scene, 443), "a.com").await;
    let message_error = 0x10e;
    for fields in [
        &[(":method", "GET"), (":scheme", "https"), (":path", "/")][..],
        &[(":method", "GET"), (":authority", "a.com"), (":path", "/")],
        &[(":status", "200")],
    ] {
        let mut exchange = client.stream().await;
        exchange.write(&headers(fields)).await;
        assert_eq!(exchange.reset().await, message_error, "{fields:?}");
    }
    for (name, value) in [
        ("connection", "close"),
        ("te", "gzip"),
        ("Upper", "x"),
        ("content-length", "x"),
    ] {
        let mut exchange = client.begin("GET", "a.com", "/", &[(name, value)]).await;
        assert_eq!(exchange.reset().await, message_error, "{name}");
    }
    let lengths = [("content-length", "3")];
    let mut longer = client.begin("POST", "a.com", "/", &lengths).await;
    longer.write(&data(b"four")).await;
    assert_eq!(longer.reset().await, message_error);
    let mut shorter = client.begin("POST", "a.com", "/", &lengths).await;
    shorter.send.finish().expect("open");
    assert_eq!(shorter.reset().await, message_error);
    let mut empty = client.stream().await;
    empty.send.finish().expect("open");
    assert_eq!(empty.reset().await, 0x10d);
    assert_eq!(client.get("a.com", "/").await.status, 200);
}

#[tokio::test]
async fn malformed_streams_end_their_connection() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&before(&origin));
    let address = quic_at(&scene, 443);
    let begun = head("POST", "a.com", "/", &[]);
    let trailers = headers(&[("x-trailer", "x")]);
    for (what, bytes, code) in [
        ("DATA before HEADERS", data(b"x"), 0x105),
        (
            "DATA after trailers",
            [begun.clone(), trailers.clone(), data(b"x")].concat(),
            0x105,
        ),
        (
            "HEADERS after trailers",
            [begun, trailers.clone(), trailers].concat(),
            0x105,
        ),
        ("SETTINGS on a request stream", vec![4, 0], 0x105),
        ("a frame of HTTP/2", vec![6, 0], 0x105),
        ("a dynamic table", vec![1, 3, 2, 0, 0x80], 0x200),
    ] {
        let client = Http3::connect(address, "a.com").await;
        let mut exchange = client.stream().await;
        exchange.write(&bytes).await;
        let _ = exchange.send.finish();
        assert_eq!(client.closed().await, code, "{what}");
    }
    for (what, bytes, code) in [
        ("a second control stream", vec![0], 0x103),
        ("a push stream", vec![1, 0], 0x103),
        ("an encoder with a table", vec![2, 0x3f, 0xbd, 0x01], 0x201),
        ("an acknowledgment of nothing", vec![3, 0x84], 0x202),
    ] {
        let client = Http3::connect(address, "a.com").await;
        // The proxy has read the control stream.
        assert_eq!(client.get("a.com", "/").await.status, 200);
        let mut stream = within(client.connection.open_uni()).await.expect("open");
        within(stream.write_all(&bytes)).await.expect("sent");
        assert_eq!(client.closed().await, code, "{what}");
    }
    let client = Http3::connect(address, "a.com").await;
    let mut unknown = within(client.connection.open_uni()).await.expect("open");
    within(unknown.write_all(&[0x21, 1, 2]))
        .await
        .expect("sent");
    let stopped = within(unknown.stopped()).await.expect("open");
    assert_eq!(stopped.expect("a code").into_inner(), 0x103);
    assert_eq!(client.get("a.com", "/").await.status, 200);
}

#[tokio::test]
async fn storm_of_resets_ends_the_connection_and_no_other() {
    let origin = Origin::new(|_| async {
        std::future::pending::<()>().await;
        Response::new(empty())
    })
    .await;
    let scene = Scene::start(&before(&origin));
    let address = quic_at(&scene, 443);
    let neighbour = Http3::connect(address, "a.com").await;
    let mut waiting = neighbour.begin("GET", "a.com", "/", &[]).await;
    waiting.send.finish().expect("open");
    let client = Http3::connect(address, "a.com").await;
    let storm = async {
        // More than any bucket of cancellations holds.
        while client.connection.close_reason().is_none() {
            let Ok((mut send, mut receive)) = client.connection.open_bi().await else {
                return;
            };
            let request = head("GET", "a.com", "/", &[]);
            if send.write_all(&request).await.is_err() {
                return;
            }
            let _ = send.reset(0x10c_u32.into());
            let _ = receive.stop(0x10c_u32.into());
        }
    };
    within(storm).await;
    assert_eq!(client.closed().await, 0x107);
    let other = neighbour.ask("TRACE", "a.com", "/", &[]).await;
    assert_eq!(other.status, 405);
    assert!(neighbour.connection.close_reason().is_none());
}

#[tokio::test]
async fn storm_of_streams_of_an_unknown_type_ends_the_connection() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&before(&origin));
    let client = Http3::connect(quic_at(&scene, 443), "a.com").await;
    let storm = async {
        while client.connection.close_reason().is_none() {
            let Ok(mut stream) = client.connection.open_uni().await else {
                return;
            };
            if stream.write_all(&[UNKNOWN_STREAM]).await.is_err() {
                return;
            }
            let _ = stream.finish();
        }
    };
    within(storm).await;
    assert_eq!(client.closed().await, 0x107);
}

#[tokio::test]
async fn heads_that_are_not_read_count_as_memory_of_their_client() {
    /// With more heads than any worker has memory for.
    const CONNECTIONS: usize = 20;
    const STREAMS: usize = 96;
    let long = HeaderValue::from_bytes(&[b'x'; 15_000]).expect("a value");
    let origin = Origin::new(move |_| {
        let mut response = Response::new(empty());
        for name in ["x-a", "x-b", "x-c", "x-d"] {
            response.headers_mut().insert(name, long.clone());
        }
        async move { response }
    })
    .await;
    let scene = Scene::start(&before(&origin));
    let address = quic_at(&scene, 443);
    let (mut clients, mut exchanges) = (Vec::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        let client = Http3::connect(address, "a.com").await;
        for _ in 0..STREAMS {
            let mut exchange = client.begin("GET", "a.com", "/", &[]).await;
            exchange.send.finish().expect("open");
            exchanges.push(exchange);
        }
        clients.push(client);
    }
    let resets = exchanges.iter_mut().map(|exchange| {
        Box::pin(async move {
            match exchange.receive.stream.received_reset().await {
                Ok(Some(code)) => code.into_inner(),
                // The window of the connection has room for the first heads.
                _ => std::future::pending().await,
            }
        })
    });
    let (code, ..) = within(futures_util::future::select_all(resets)).await;
    assert_eq!(code, 0x107);
}

#[tokio::test]
async fn cancelled_request_ends_the_one_to_the_backend() {
    let (report, mut reports) = mpsc::channel(1);
    let origin = Origin::raw(move |mut stream| {
        let report = report.clone();
        async move {
            crate::client::read_until(&mut stream, "\r\n\r\n").await;
            report.send("begun").await.expect("reported");
            let _ = crate::client::read_all(&mut stream).await;
            report.send("ended").await.expect("reported");
        }
    })
    .await;
    let scene = Scene::start(&before(&origin));
    let client = Http3::connect(quic_at(&scene, 443), "a.com").await;
    let mut exchange = client.begin("GET", "a.com", "/", &[]).await;
    exchange.send.finish().expect("open");
    assert_eq!(within(reports.recv()).await, Some("begun"));
    let stopped = exchange.receive.stream.stop(0x10c_u32.into());
    stopped.expect("open");
    assert_eq!(within(reports.recv()).await, Some("ended"));
    drop(client);
}
