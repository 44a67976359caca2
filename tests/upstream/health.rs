//! Endpoints that are unresponsive, unreachable or failing: requests avoid them for a while.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::Method;
use portcullis::table::UpstreamFault;
use portcullis::upstream::SendError;
use tokio::net::TcpListener;
use tokio::task::spawn_local;

use crate::harness::TEST_TIMEOUT;
use crate::harness::ports::closed_address;
use crate::scene::{Endpoint, Silent, TestRequest, Worker, block_on, h2c, head, http1, write_text};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const CLOSE: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

/// Returns an endpoint that closes each connection after the first response, so that every request
/// connects.
async fn closing() -> Endpoint {
    Endpoint::start(|mut socket, _| async move {
        head(&mut socket).await;
        write_text(&mut socket, CLOSE).await;
    })
    .await
}

#[test]
fn unresponsive_endpoint_delays_only_the_first_request() {
    block_on(async {
        let (silent, alive) = (Silent::new(), closing().await);
        let (worker, backend) = (Worker::new(), http1(&[silent.address, alive.address]));
        for _ in 0..18 {
            // Without a second connect, the request would wait for the connect timeout of an hour.
            let outcome = worker.send(&backend, &TestRequest::post()).await;
            assert_eq!(outcome.expect("a response").endpoint, alive.address);
        }
        assert!((1..=3).contains(&backend.stats.hedged_connects()));
        assert_eq!(backend.stats.ejections(), 1);
    });
}

#[test]
fn unresponsive_http2_endpoint_delays_only_the_first_requests() {
    block_on(async {
        let silent = Silent::new();
        let alive = Endpoint::start(|socket, _| async move {
            let Ok(mut connection) = h2::server::handshake(socket).await else {
                return;
            };
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                let _ = respond.send_response(http::Response::new(()), true);
            }
        })
        .await;
        let (worker, backend) = (Worker::new(), h2c(&[silent.address, alive.address]));
        for _ in 0..18 {
            let outcome = worker.send(&backend, &TestRequest::post()).await;
            assert_eq!(outcome.expect("a response").endpoint, alive.address);
        }
        assert!((1..=3).contains(&backend.stats.hedged_connects()));
    });
}

#[test]
fn tries_unreachable_endpoint_once() {
    block_on(async {
        let (gone, alive) = (closed_address(), closing().await);
        let (worker, backend) = (Worker::new(), http1(&[gone, alive.address]));
        for _ in 0..50 {
            let outcome = worker.send(&backend, &TestRequest::post()).await;
            assert_eq!(outcome.expect("a response").endpoint, alive.address);
        }
        assert_eq!(backend.stats.faults(UpstreamFault::Connect), 1);
    });
}

#[test]
fn resetting_endpoint_fails_three_requests() {
    block_on(async {
        let broken = Endpoint::start(|mut socket, _| async move {
            head(&mut socket).await;
        })
        .await;
        let alive = closing().await;
        let (worker, backend) = (Worker::new(), http1(&[broken.address, alive.address]));
        let mut failed = 0;
        for _ in 0..100 {
            let outcome = worker.send(&backend, &TestRequest::post()).await;
            failed += usize::from(outcome.is_err());
        }
        assert_eq!(failed, 3);
    });
}

#[test]
fn retries_safe_request_elsewhere_after_a_reset() {
    block_on(async {
        let broken = Endpoint::start(|mut socket, _| async move {
            head(&mut socket).await;
        })
        .await;
        let alive = closing().await;
        let (worker, backend) = (Worker::new(), http1(&[broken.address, alive.address]));
        for _ in 0..100 {
            let outcome = worker.send(&backend, &TestRequest::get()).await;
            assert_eq!(outcome.expect("a response").endpoint, alive.address);
        }
    });
}

#[test]
fn server_errors_do_not_eject_an_endpoint() {
    block_on(async {
        let failing =
            Endpoint::answering("HTTP/1.1 503 Overloaded\r\nContent-Length: 0\r\n\r\n").await;
        let (worker, backend) = (
            Worker::new(),
            http1(&[failing.address, closing().await.address]),
        );
        let mut answers = HashMap::<u16, usize>::new();
        for _ in 0..100 {
            let outcome = worker.send(&backend, &TestRequest::get()).await;
            let status = outcome.expect("a response").status.as_u16();
            *answers.entry(status).or_default() += 1;
        }
        assert!(answers[&503] > 10, "{answers:?}");
        assert_eq!(backend.stats.ejections(), 0);
    });
}

#[test]
fn uses_ejected_endpoints_when_there_are_no_others() {
    block_on(async {
        let (worker, backend) = (Worker::new(), http1(&[closed_address(), closed_address()]));
        for round in 1..=5 {
            let outcome = worker.send(&backend, &TestRequest::get()).await;
            assert!(matches!(
                outcome,
                Err(SendError::Backend(UpstreamFault::Connect, _))
            ));
            assert_eq!(backend.stats.faults(UpstreamFault::Connect), 2 * round);
        }
    });
}

#[test]
fn endpoint_returns_after_its_ejection() {
    block_on(async {
        let (address, alive) = (closed_address(), closing().await);
        let (worker, backend) = (Worker::new(), http1(&[address, alive.address]));
        while backend.stats.ejections() == 0 {
            assert!(worker.send(&backend, &TestRequest::get()).await.is_ok());
        }
        let listener = TcpListener::bind(address).await.expect("still free");
        spawn_local(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                head(&mut socket).await;
                write_text(&mut socket, CLOSE).await;
            }
        });
        loop {
            let outcome = worker.send(&backend, &TestRequest::get()).await;
            if outcome.expect("a response").endpoint == address {
                break;
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(backend.stats.ejections(), 1);
    });
}

#[test]
fn slow_probe_does_not_keep_the_endpoint_out() {
    block_on(async {
        let (address, alive) = (closed_address(), closing().await);
        let worker = Worker::new();
        let backend = Rc::new(http1(&[address, alive.address]));
        while backend.stats.ejections() == 0 {
            assert!(worker.send(&backend, &TestRequest::get()).await.is_ok());
        }
        let listener = TcpListener::bind(address).await.expect("still free");
        let arrived = Rc::new(Cell::new(0));
        let seen = arrived.clone();
        spawn_local(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let seen = seen.clone();
                spawn_local(async move {
                    head(&mut socket).await;
                    seen.set(seen.get() + 1);
                    if seen.get() == 1 {
                        std::future::pending::<()>().await;
                    }
                    write_text(&mut socket, CLOSE).await;
                });
            }
        });
        let begin = Instant::now();
        // The first request to the endpoint never gets a response.
        while arrived.get() < 2 {
            assert!(begin.elapsed() < TEST_TIMEOUT, "no second probe");
            let (worker, backend) = (worker.clone(), backend.clone());
            let before = arrived.get();
            let sent = spawn_local(async move {
                let outcome = worker.send(&backend, &TestRequest::get()).await;
                assert!(outcome.is_ok());
            });
            while !sent.is_finished() && arrived.get() == before {
                tokio::task::yield_now().await;
            }
        }
    });
}

#[test]
fn request_that_fails_everywhere_ejects_no_endpoint() {
    block_on(async {
        let mut endpoints = Vec::new();
        for _ in 0..4 {
            let endpoint = Endpoint::start(|mut socket, _| async move {
                while let Some(head) = head(&mut socket).await {
                    if head.contains(" /bad ") {
                        return;
                    }
                    write_text(&mut socket, OK).await;
                }
            });
            endpoints.push(endpoint.await.address);
        }
        let (worker, backend) = (Worker::new(), http1(&endpoints));
        let mut bad = TestRequest::get();
        bad.parts.uri = "/bad".parse().expect("a target");
        for _ in 0..100 {
            assert!(worker.send(&backend, &bad).await.is_err());
            assert!(worker.send(&backend, &TestRequest::get()).await.is_ok());
        }
        assert_eq!(backend.stats.ejections(), 0);
        // Without a repeat, the request and the endpoint are equally likely causes.
        bad.parts.method = Method::POST;
        for _ in 0..100 {
            assert!(worker.send(&backend, &bad).await.is_err());
        }
        assert_eq!(backend.stats.ejections(), 2);
    });
}

#[test]
fn timeouts_eject_the_endpoint() {
    block_on(async {
        let slow = Endpoint::start(|mut socket, _| async move {
            head(&mut socket).await;
            std::future::pending().await
        })
        .await;
        let alive = closing().await;
        let (worker, backend) = (Worker::new(), http1(&[slow.address, alive.address]));
        let mut request = TestRequest::get();
        request.try_timeout = Some(Duration::from_secs(1));
        let mut failed = 0;
        for _ in 0..30 {
            failed += usize::from(worker.send(&backend, &request).await.is_err());
        }
        assert_eq!(failed, 3);
        assert_eq!(backend.stats.faults(UpstreamFault::Timeout), 3);
    });
}
