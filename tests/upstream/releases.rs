//! Attempts of a request to a backend with releases: they stay in its release.

use std::cell::OnceCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::{Method, StatusCode};
use portcullis::ir;
use portcullis::table::{Backend, ReleaseStats, UpstreamFault};
use portcullis::upstream::SendError;

use crate::harness::ports::closed_address;
use crate::scene::{Endpoint, Silent, TestRequest, Worker, block_on, head, http1};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// Releases by name with weight and endpoints; the token of each is its name.
fn releases(releases: &[(&str, u64, &[SocketAddr])]) -> ir::Endpoints {
    let release = |(name, weight, addresses): &(&str, u64, &[SocketAddr])| {
        let mut addresses = addresses.to_vec();
        addresses.sort();
        ir::Release {
            name: (*name).into(),
            weight: *weight,
            token: (*name).into(),
            addresses,
        }
    };
    ir::Endpoints::Releases(ir::Releases {
        cookie: Some("rel".into()),
        releases: releases.iter().map(release).collect(),
    })
}

fn backend(endpoints: &ir::Endpoints) -> Backend {
    let backend = http1(&[]);
    backend.configure_endpoints(endpoints);
    backend
}

fn stats(backend: &Backend, name: &str) -> Arc<ReleaseStats> {
    let endpoints = backend.endpoints();
    let mut releases = endpoints.releases().expect("releases").iter();
    let release = releases.find(|release| &*release.stats.name == name);
    release.expect("the release").stats.clone()
}

/// Returns a request of a client of this release.
fn of(release: &str, method: Method) -> TestRequest {
    let mut request = TestRequest::new(method, "");
    let cookie = format!("rel={release}").parse().expect("a value");
    request.parts.headers.insert("cookie", cookie);
    request
}

/// Returns an endpoint that closes each connection without a response.
async fn closing() -> Endpoint {
    Endpoint::start(|mut socket, _| async move {
        head(&mut socket).await;
    })
    .await
}

#[test]
fn unreachable_release_fails_its_requests_only() {
    block_on(async {
        let alive = Endpoint::answering(OK).await;
        let broken: &[SocketAddr] = &[closed_address(), closed_address()];
        let backend = backend(&releases(&[("v1", 1, &[alive.address]), ("v2", 1, broken)]));
        let worker = Worker::new();
        for _ in 0..20 {
            let error = worker.send(&backend, &of("v2", Method::GET)).await;
            let error = error.expect_err("no connection");
            assert!(matches!(
                error,
                SendError::Backend(UpstreamFault::Connect, _)
            ));
            let outcome = worker.send(&backend, &of("v1", Method::GET)).await;
            assert_eq!(outcome.expect("a response").endpoint, alive.address);
        }
        assert!(stats(&backend, "v2").faults(UpstreamFault::Connect) >= 20);
        assert_eq!(stats(&backend, "v1").faults(UpstreamFault::Connect), 0);
        assert_eq!(alive.connections(), 1);
    });
}

#[test]
fn retries_within_the_release() {
    block_on(async {
        let (alive, other) = (Endpoint::answering(OK).await, Endpoint::answering(OK).await);
        let closing = closing().await;
        let mixed: &[SocketAddr] = &[closed_address(), alive.address, closing.address];
        let backend = backend(&releases(&[("v1", 1, mixed), ("v2", 1, &[other.address])]));
        let worker = Worker::new();
        for _ in 0..20 {
            let outcome = worker.send(&backend, &of("v1", Method::GET)).await;
            assert_eq!(outcome.expect("a response").endpoint, alive.address);
        }
        assert_eq!(other.connections(), 0);
    });
}

#[test]
fn failing_only_endpoint_of_a_release_stays_in_use() {
    block_on(async {
        let (closing, other) = (closing().await, Endpoint::answering(OK).await);
        let backend = backend(&releases(&[
            ("v1", 1, &[closing.address]),
            ("v2", 1, &[other.address]),
        ]));
        let worker = Worker::new();
        for _ in 0..10 {
            let outcome = worker.send(&backend, &of("v1", Method::GET)).await;
            assert!(matches!(
                outcome.expect_err("no response"),
                SendError::Backend(UpstreamFault::Reset, _)
            ));
        }
        assert_eq!(closing.connections(), 10);
        assert_eq!(stats(&backend, "v1").faults(UpstreamFault::Reset), 10);
        assert_eq!(backend.stats.ejections(), 0);
        assert_eq!(other.connections(), 0);
    });
}

#[test]
fn hedges_within_the_release() {
    block_on(async {
        let (silent, alive) = (Silent::new(), Endpoint::answering(OK).await);
        let mut others = Vec::new();
        for _ in 0..8 {
            others.push(Endpoint::answering(OK).await);
        }
        let v1 = [silent.address, alive.address];
        let v2: Vec<_> = others.iter().map(|other| other.address).collect();
        let mut hedged = 0;
        while hedged < 6 {
            // A new worker has no idle connection, and a new backend avoids no endpoint.
            let backend = backend(&releases(&[("v1", 1, &v1), ("v2", 1, &v2)]));
            let outcome = Worker::new().send(&backend, &of("v1", Method::POST)).await;
            assert_eq!(outcome.expect("a response").endpoint, alive.address);
            hedged += backend.stats.hedged_connects();
        }
        assert!(others.iter().all(|other| other.connections() == 0));
    });
}

#[test]
fn release_without_endpoints_fails_its_share() {
    block_on(async {
        let backend = backend(&releases(&[("v1", 1, &[]), ("v2", 0, &[closed_address()])]));
        let outcome = Worker::new().send(&backend, &TestRequest::get()).await;
        let error = outcome.expect_err("no endpoint");
        assert!(matches!(
            error,
            SendError::Backend(UpstreamFault::NoEndpoint, message) if message.contains("release")
        ));
        assert_eq!(stats(&backend, "v1").faults(UpstreamFault::NoEndpoint), 1);
        backend.configure_endpoints(&releases(&[("v1", 0, &[])]));
        let outcome = Worker::new().send(&backend, &TestRequest::get()).await;
        outcome.expect_err("no release with a weight");
        assert_eq!(stats(&backend, "v1").faults(UpstreamFault::NoEndpoint), 1);
        assert_eq!(backend.stats.faults(UpstreamFault::NoEndpoint), 2);
    });
}

/// Sends a request to `v1`, whose two endpoints close the connection, but only after a change to
/// `endpoints_of(v1, other)`.
async fn change_between_attempts(
    change: impl Fn(&[SocketAddr], SocketAddr) -> ir::Endpoints + 'static,
) -> (Result<StatusCode, SendError>, usize) {
    let other = Endpoint::answering(OK).await;
    let backend = Rc::new(OnceCell::<(Backend, ir::Endpoints)>::new());
    let changing = |backend: Rc<OnceCell<(Backend, ir::Endpoints)>>| {
        Endpoint::start(move |mut socket, _| {
            let backend = backend.clone();
            async move {
                head(&mut socket).await;
                let (backend, changed) = backend.get().expect("set");
                backend.configure_endpoints(changed);
            }
        })
    };
    let (one, two) = (
        changing(backend.clone()).await,
        changing(backend.clone()).await,
    );
    let v1 = [one.address, two.address];
    let first = releases(&[("v1", 1, &v1), ("v2", 0, &[other.address])]);
    let cell = (self::backend(&first), change(&v1, other.address));
    assert!(backend.set(cell).is_ok());
    let (backend, _) = backend.get().expect("set");
    let outcome = Worker::new().send(backend, &TestRequest::get()).await;
    (outcome.map(|outcome| outcome.status), other.connections())
}

#[test]
fn changed_weights_do_not_move_a_request() {
    block_on(async {
        let (outcome, others) = change_between_attempts(|v1, other| {
            releases(&[("v1", 1, v1), ("v2", 1 << 40, &[other])])
        })
        .await;
        outcome.expect_err("both endpoints of the release close");
        assert_eq!(others, 0);
    });
}

#[test]
fn request_of_a_removed_release_is_drawn_again() {
    block_on(async {
        for is_gone in [true, false] {
            let (outcome, others) = change_between_attempts(move |v1, other| {
                let v2: (&str, u64, &[SocketAddr]) = ("v2", 1, &[other]);
                if is_gone {
                    releases(&[v2])
                } else {
                    releases(&[("v1", 0, v1), v2])
                }
            })
            .await;
            assert_eq!(outcome.expect("a response"), StatusCode::OK, "{is_gone}");
            assert_eq!(others, 1, "{is_gone}");
        }
        let (outcome, others) =
            change_between_attempts(|_, other| ir::Endpoints::from(vec![other])).await;
        assert_eq!(outcome.expect("a response"), StatusCode::OK);
        assert_eq!(others, 1);
    });
}

#[test]
fn only_drawn_requests_get_the_cookie() {
    use portcullis::upstream::{Attempts, Outgoing, Semantics};

    block_on(async {
        let one = Endpoint::answering(OK).await;
        let backend = backend(&releases(&[("v1", 1, &[one.address])]));
        let worker = Worker::new();
        for (request, is_set) in [
            (TestRequest::get(), true),
            (of("v1", Method::GET), false),
            (of("v2", Method::GET), true),
        ] {
            let mut attempts = Attempts::default();
            let outgoing = Outgoing {
                parts: &request.parts,
                semantics: Semantics::Safe,
                added: &[],
                upgrade: None,
                expect_continue: false,
                informational: None,
                try_timeout: None,
                keeps_body: false,
            };
            let body = crate::scene::TestBody::default();
            let attempt = worker
                .upstream
                .attempt(&backend, None, &mut attempts, &outgoing, body);
            assert!(attempt.await.is_ok());
            assert_eq!(attempts.set_cookie(false).is_some(), is_set);
            assert_eq!(attempts.release().map(|it| &*it.name), Some("v1"));
        }
    });
}
