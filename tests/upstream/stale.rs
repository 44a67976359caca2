//! Backends whose endpoints are out of date: requests go to the address of the Service when no endpoint answers.

use std::net::SocketAddr;

use portcullis::ir::Fallback;
use portcullis::table::{Backend, set_stale};

use crate::harness::ports::closed_address;
use crate::scene::{Endpoint, Silent, TestRequest, Worker, block_on, http1};

const RESPONSE: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

fn backend(endpoints: &[SocketAddr], service: SocketAddr) -> Backend {
    let backend = http1(endpoints);
    backend.set_fallback(Some(&Fallback::Addresses(vec![service])));
    backend
}

/// Whether endpoints are out of date holds for the process, so that this is one test.
#[test]
fn requests_fall_back_to_the_service_only_while_stale_endpoints_do_not_answer() {
    block_on(async {
        let service = Endpoint::answering(RESPONSE).await;
        let alive = Endpoint::answering(RESPONSE).await;
        let gone: Vec<_> = (0..4).map(|_| closed_address()).collect();
        let silent = [Silent::new(), Silent::new()];
        let hanging: Vec<_> = silent.iter().map(|one| one.address).collect();
        let worker = Worker::new();

        let backends = || [&gone[..], &gone[..1], &[]].map(|all| backend(all, service.address));
        for backend in backends() {
            let outcome = worker.send(&backend, &TestRequest::post()).await;
            assert!(outcome.is_err(), "the endpoints are up to date");
        }
        set_stale(true);
        for backend in backends() {
            for _ in 0..20 {
                let outcome = worker.send(&backend, &TestRequest::post()).await;
                assert_eq!(outcome.expect("a response").endpoint, service.address);
            }
            assert!(backend.stats.fallbacks() >= 20);
        }
        let slow = backend(&hanging, service.address);
        for _ in 0..5 {
            // Long before the connect timeout of an hour.
            let outcome = worker.send(&slow, &TestRequest::post()).await;
            assert_eq!(outcome.expect("a response").endpoint, service.address);
        }

        let healthy = backend(&[alive.address], service.address);
        for _ in 0..20 {
            let outcome = worker.send(&healthy, &TestRequest::post()).await;
            assert_eq!(outcome.expect("a response").endpoint, alive.address);
        }
        assert_eq!(healthy.stats.fallbacks(), 0);

        let named = http1(&gone[..1]);
        named.set_fallback(Some(&Fallback::Name {
            hostname: "localhost".into(),
            port: service.address.port(),
        }));
        let outcome = worker.send(&named, &TestRequest::post()).await;
        outcome.expect("a response of the name's address");

        set_stale(false);
        let current = backend(&gone, service.address);
        let outcome = worker.send(&current, &TestRequest::post()).await;
        assert!(outcome.is_err(), "the endpoints are up to date again");
    });
}
