//! Active health checks and settings of ejection, by BackendPolicies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::backend_policy::policy;
use crate::backend_tls::{self, authorities, trust};
use crate::client::{Client, read_until, write_text};
use crate::harness::TEST_TIMEOUT;
use crate::origin::{Origin, full, stream};
use crate::scene::{Objects, Scene, eventually, prefix, to};
use crate::tls_origin::{Authority, TlsOrigin};

pub(crate) const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A check every second of which one decides.
fn active(mut check: Value) -> Value {
    check["interval"] = "1s".into();
    check["healthyThreshold"] = 1.into();
    check["unhealthyThreshold"] = 1.into();
    check["jitter"] = 0.into();
    json!({"healthCheck": {"active": check}})
}

pub(crate) fn http() -> Value {
    active(json!({"http": {"path": "/healthz", "host": "health.test"}}))
}

pub(crate) fn service(addresses: &[std::net::SocketAddr], spec: Value) -> Objects {
    Objects::http()
        .service("app", addresses)
        .route("route", &[to("app")])
        .with(policy(spec))
}

/// A backend whose health the test sets.
pub(crate) struct Checked {
    pub(crate) origin: Origin,
    status: Arc<AtomicU16>,
    pub(crate) checks: Arc<AtomicUsize>,
    served: Arc<AtomicUsize>,
}

impl Checked {
    pub(crate) async fn start(status: u16) -> Self {
        let status = Arc::new(AtomicU16::new(status));
        let (checks, served) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let seen = (status.clone(), checks.clone(), served.clone());
        let origin = Origin::new(move |request: Request<Incoming>| {
            let (status, checks, served) = seen.clone();
            async move {
                let response = Response::builder();
                if request.uri().path() != "/healthz" {
                    served.fetch_add(1, SeqCst);
                    return response.body(full("ok")).expect("a response");
                }
                checks.fetch_add(1, SeqCst);
                assert_eq!(request.headers()["host"], "health.test");
                let response = response.status(status.load(SeqCst));
                response.body(full("health")).expect("a response")
            }
        });
        Self {
            origin: origin.await,
            status,
            checks,
            served,
        }
    }

    fn served(&self) -> usize {
        self.served.load(SeqCst)
    }
}

/// Waits until this number of endpoints has failed checks. There is no notification.
pub(crate) async fn until_failed(scene: &Scene, count: usize) {
    let failed = || {
        let table = scene.state().table.load();
        let mut backends = table.backends();
        let app = backends.find(|it| &*it.id.object.name == "app");
        let endpoints = app.expect("a backend").endpoints();
        endpoints
            .iter()
            .filter(|it| it.health.has_failed_checks())
            .count()
    };
    eventually("endpoints have failed", async || failed() == count).await;
}

async fn all_get(scene: &Scene, count: usize, status: u16) {
    for _ in 0..count {
        let mut client = Client::http1(scene.at(80)).await;
        assert_eq!(client.get("a.com", "/").await.status, status);
    }
}

#[tokio::test]
async fn endpoint_that_fails_checks_gets_no_requests_until_it_passes() {
    let (one, two) = (Checked::start(200).await, Checked::start(503).await);
    let addresses = [one.origin.address, two.origin.address];
    let scene = Scene::with(&service(&addresses, http()), |settings| {
        settings.workers = 2
    });
    until_failed(&scene, 1).await;
    let before = two.served();
    all_get(&scene, 50, 200).await;
    assert_eq!((one.served(), two.served()), (50, before));
    two.status.store(204, SeqCst);
    until_failed(&scene, 0).await;
    all_get(&scene, 50, 200).await;
    assert!(two.served() > before);
}

/// A backend that reads requests and does not respond once it is dead.
pub(crate) async fn mortal(is_dead: &Arc<AtomicBool>) -> Origin {
    let is_dead = is_dead.clone();
    let serve = move |mut stream| {
        let is_dead = is_dead.clone();
        async move {
            loop {
                read_until(&mut stream, "\r\n\r\n").await;
                if is_dead.load(SeqCst) {
                    return std::future::pending().await;
                }
                write_text(&mut stream, OK).await;
            }
        }
    };
    Origin::raw(serve).await
}

#[tokio::test]
async fn endpoint_that_dies_silently_fails_no_request_once_it_is_detected() {
    let is_dead = Arc::<AtomicBool>::default();
    let mute = mortal(&is_dead).await;
    let healthy = Checked::start(200).await;
    let mut spec = http();
    spec["healthCheck"]["active"]["timeout"] = "200ms".into();
    let addresses = [mute.address, healthy.origin.address];
    let scene = Scene::with(&service(&addresses, spec), |settings| settings.workers = 2);
    all_get(&scene, 20, 200).await;
    is_dead.store(true, SeqCst);
    until_failed(&scene, 1).await;
    let served = healthy.served();
    timeout(TEST_TIMEOUT, all_get(&scene, 100, 200))
        .await
        .expect("no request waits for the dead endpoint");
    assert_eq!(healthy.served(), served + 100);
}

#[tokio::test]
async fn endpoint_is_checked_once_per_interval_whatever_the_routes_and_workers() {
    let origin = Checked::start(200).await;
    let grpc = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GRPCRoute", "metadata": {"name": "grpc"},
        "spec": {
            "parentRefs": [{"name": "gateway"}], "hostnames": ["grpc.test"],
            "rules": [{"backendRefs": [{"name": "app", "port": 80}]}],
        },
    });
    let objects = service(&[origin.origin.address], http())
        .route("one", &[prefix("/one", "app"), prefix("/two", "app")])
        .route("two", &[prefix("/three", "app")])
        .with(grpc.to_string());
    let begin = Instant::now();
    let _scene = Scene::with(&objects, |settings| settings.workers = 4);
    eventually("three checks", async || origin.checks.load(SeqCst) >= 3).await;
    assert!(begin.elapsed() >= Duration::from_millis(1990));
}

#[tokio::test]
async fn all_endpoints_are_used_if_all_fail_checks() {
    let (one, two) = (Checked::start(500).await, Checked::start(500).await);
    let addresses = [one.origin.address, two.origin.address];
    let scene = Scene::start(&service(&addresses, http()));
    until_failed(&scene, 2).await;
    all_get(&scene, 60, 200).await;
    assert!(one.served() > 10 && two.served() > 10);
}

#[tokio::test]
async fn policy_that_goes_ends_its_checks() {
    let (one, two) = (Checked::start(200).await, Checked::start(503).await);
    let addresses = [one.origin.address, two.origin.address];
    let mut scene = Scene::start(&service(&addresses, http()));
    until_failed(&scene, 1).await;
    let random = json!({"loadBalancing": {"type": "Random"}});
    scene.replace(&service(&addresses, random)).await;
    until_failed(&scene, 0).await;
    all_get(&scene, 40, 200).await;
    assert!(two.served() > 0);
}

#[tokio::test]
async fn connection_is_a_check() {
    let healthy = Origin::echo("alive").await;
    let addresses = [healthy.address, Origin::dead()];
    let scene = Scene::start(&service(&addresses, active(json!({"tcp": {}}))));
    until_failed(&scene, 1).await;
    all_get(&scene, 20, 200).await;
}

/// A server of gRPC with this health, and the requests that it got.
async fn grpc_server(status: u8) -> Origin {
    Origin::new(move |request: Request<Incoming>| async move {
        assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
        let (frames, body) = stream();
        let message = Bytes::from(vec![0, 0, 0, 0, 2, 8, status]);
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        tokio::spawn(async move {
            let _ = frames.send(Frame::data(message)).await;
            let _ = frames.send(Frame::trailers(trailers)).await;
        });
        let response = Response::builder().header("content-type", "application/grpc");
        response.body(body).expect("a response")
    })
    .await
}

#[tokio::test]
async fn call_of_the_health_service_is_a_check() {
    let (serving, not_serving) = (grpc_server(1).await, grpc_server(2).await);
    let addresses = [serving.address, not_serving.address];
    let spec = active(json!({"grpc": {"service": "shop"}}));
    let scene = Scene::start(&service(&addresses, spec));
    until_failed(&scene, 1).await;
    serving.until_requests(2).await;
    let table = scene.state().table.load();
    let backend = table.backends().next().expect("a backend");
    let endpoints = backend.endpoints();
    let failed = endpoints.iter().find(|it| it.health.has_failed_checks());
    assert_eq!(failed.map(|it| it.address), Some(not_serving.address));
}

#[tokio::test]
async fn checks_use_tls_of_the_backend() {
    let (authority, other) = (Authority::new(), Authority::new());
    let issued = authority.issue(&[backend_tls::NAME]);
    let origin = TlsOrigin::start(&issued).await;
    for (trusted, failed) in [(&authority, 0), (&other, 1)] {
        let objects = service(&[origin.address], active(json!({"http": {}})))
            .with(backend_tls::policy(
                "app",
                &trust(backend_tls::NAME),
                &json!({}),
            ))
            .with(authorities("ca", &trusted.pem));
        let scene = Scene::start(&objects);
        let (before, begin) = (origin.requests(), Instant::now());
        while failed == 0 && origin.requests() == before && begin.elapsed() < TEST_TIMEOUT {
            // No notification tells the change.
            sleep(Duration::from_millis(5)).await;
        }
        until_failed(&scene, failed).await;
    }
}

/// The endpoints of one backend that never answer do not delay the checks of another.
#[tokio::test]
async fn slow_endpoints_do_not_delay_checks_of_other_backends() {
    let mute = Origin::raw(|_stream| std::future::pending()).await;
    let failing = Checked::start(503).await;
    let healthy = Checked::start(200).await;
    let mut slow = policy(http()).replace("\"app\"", "\"slow\"");
    slow = slow.replace("\"policy\"", "\"slow-policy\"");
    let slow = slow.replacen("\"jitter\":0", "\"jitter\":0,\"timeout\":\"60s\"", 1);
    let addresses = [failing.origin.address, healthy.origin.address];
    let objects = service(&addresses, http())
        .service("slow", &[mute.address])
        .route("slow", &[prefix("/slow", "slow")])
        .with(slow);
    let scene = Scene::start(&objects);
    until_failed(&scene, 1).await;
    eventually("a connection", async || mute.connections() != 0).await;
    failing.status.store(200, SeqCst);
    until_failed(&scene, 0).await;
}

#[tokio::test]
async fn failed_requests_eject_after_the_number_of_the_policy() {
    let (bad, good) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let count = bad.clone();
    let failing = Origin::raw(move |mut stream| {
        let count = count.clone();
        async move {
            read_until(&mut stream, "\r\n\r\n").await;
            count.fetch_add(1, SeqCst);
        }
    })
    .await;
    let count = good.clone();
    let healthy = Origin::raw(move |mut stream| {
        let count = count.clone();
        async move {
            loop {
                read_until(&mut stream, "\r\n\r\n").await;
                count.fetch_add(1, SeqCst);
                write_text(&mut stream, OK).await;
            }
        }
    })
    .await;
    let passive = json!({"consecutiveErrors": 1, "ejection": "1h"});
    let spec = json!({"healthCheck": {"passive": passive}});
    let scene = Scene::start(&service(&[failing.address, healthy.address], spec));
    let mut client = Client::http1(scene.at(80)).await;
    for _ in 0..60 {
        client.post("a.com", "/", "b").await;
    }
    assert_eq!(bad.load(SeqCst), 1);
    assert_eq!(good.load(SeqCst), 59);
}
