//! HTTP/1.1: informational responses, expectations, head limits and retries.

use std::cell::RefCell;

use http::{HeaderMap, Method, StatusCode};
use portcullis::table::UpstreamFault;
use portcullis::upstream::SendError;
use tokio::io::AsyncReadExt;

use crate::scene::{
    Endpoint, TestRequest, Worker, block_on, hashed, head, http1, read_until, without_timers,
    write_text,
};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

#[test]
fn forwards_informational_responses_without_hop_by_hop_headers() {
    block_on(async {
        let origin = Endpoint::answering(
            "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 199 Odd\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        )
        .await;
        let seen = RefCell::new(Vec::new());
        let see = |status: StatusCode, headers: &HeaderMap| {
            seen.borrow_mut().push((status.as_u16(), headers.len()));
        };
        let backend = http1(&[origin.address]);
        let outcome = Worker::new()
            .send_watched(&backend, &TestRequest::get(), Some(&see))
            .await
            .expect("a response");
        assert_eq!(outcome.status, 200);
        assert_eq!(*seen.borrow(), [(102, 0), (103, 1), (199, 0)]);
    });
}

#[test]
fn fails_on_too_many_informational_responses() {
    block_on(async {
        let origin = Endpoint::start(|mut socket, _| async move {
            head(&mut socket).await;
            loop {
                write_text(&mut socket, "HTTP/1.1 102 Processing\r\n\r\n").await;
                tokio::task::yield_now().await;
                if socket.peer_addr().is_err() {
                    return;
                }
            }
        })
        .await;
        let error = Worker::new()
            .send(&http1(&[origin.address]), &TestRequest::get())
            .await
            .expect_err("no response");
        assert!(matches!(
            error,
            SendError::Backend(UpstreamFault::Protocol, _)
        ));
    });
}

fn expecting() -> TestRequest {
    let mut request = TestRequest::post();
    request.expect_continue = true;
    request
}

#[test]
fn sends_body_after_100() {
    block_on(async {
        let origin = Endpoint::start(|mut socket, _| async move {
            while let Some(request) = head(&mut socket).await {
                assert!(
                    request.contains("\r\nexpect: 100-continue\r\n"),
                    "{request}"
                );
                write_text(&mut socket, "HTTP/1.1 100 Continue\r\n\r\n").await;
                read_until(&mut socket, "hello").await.expect("the body");
                write_text(&mut socket, OK).await;
            }
        })
        .await;
        let (worker, backend) = (Worker::new(), http1(&[origin.address]));
        for _ in 0..3 {
            let outcome = without_timers(worker.send(&backend, &expecting())).await;
            assert_eq!(outcome.expect("a response").body, "hello");
        }
        assert_eq!(origin.connections(), 1);
    });
}

#[test]
fn never_reads_body_after_a_final_response_to_an_expectation() {
    block_on(async {
        let origin = Endpoint::start(|mut socket, _| async move {
            head(&mut socket).await;
            write_text(
                &mut socket,
                "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n",
            )
            .await;
            let mut rest = Vec::new();
            // The connection is not reused.
            let _ = socket.read_to_end(&mut rest).await;
            assert!(rest.is_empty(), "{rest:?}");
        })
        .await;
        let (worker, backend) = (Worker::new(), http1(&[origin.address]));
        for round in 1..=2 {
            let request = expecting();
            let outcome = worker.send(&backend, &request).await.expect("a response");
            assert_eq!(outcome.status, 413);
            assert_eq!((request.polls(), origin.connections()), (0, round));
        }
    });
}

#[test]
fn sends_body_after_a_second_without_100() {
    block_on(async {
        let origin = Endpoint::start(|mut socket, _| async move {
            head(&mut socket).await;
            read_until(&mut socket, "hello").await.expect("the body");
            write_text(&mut socket, OK).await;
        })
        .await;
        let outcome = Worker::new()
            .send(&http1(&[origin.address]), &expecting())
            .await;
        assert_eq!(outcome.expect("a response").status, 200);
    });
}

#[test]
fn sends_no_expectation_without_a_body() {
    block_on(async {
        let origin = Endpoint::start(|mut socket, _| async move {
            let request = head(&mut socket).await.expect("a request");
            assert!(!request.contains("expect"), "{request}");
            write_text(&mut socket, OK).await;
        })
        .await;
        let mut request = TestRequest::get();
        request.expect_continue = true;
        let outcome = Worker::new()
            .send(&http1(&[origin.address]), &request)
            .await;
        assert_eq!(outcome.expect("a response").status, 200);
    });
}

#[test]
fn keeps_content_length_of_304_and_upgrade_of_426() {
    block_on(async {
        let origin =
            Endpoint::answering("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n").await;
        let worker = Worker::new();
        let backend = http1(&[origin.address]);
        for _ in 0..2 {
            let outcome = worker.send(&backend, &TestRequest::get()).await;
            assert_eq!(outcome.expect("a response").headers["content-length"], "5");
        }
        assert_eq!(origin.connections(), 1);
        let origin = Endpoint::answering(
            "HTTP/1.1 426 Upgrade Required\r\nConnection: upgrade\r\nUpgrade: TLS/1.2\r\nContent-Length: 0\r\n\r\n",
        )
        .await;
        let outcome = worker
            .send(&http1(&[origin.address]), &TestRequest::get())
            .await
            .expect("a response");
        assert_eq!(outcome.headers["upgrade"], "TLS/1.2");
        assert!(!outcome.headers.contains_key("connection"));
    });
}

#[test]
fn late_content_of_a_204_is_no_response_to_the_next_request() {
    for announced in ["Content-Length: 44", "Transfer-Encoding: chunked"] {
        block_on(async {
            let origin = Endpoint::start(move |mut socket, index| async move {
                head(&mut socket).await;
                if index > 1 {
                    return write_text(&mut socket, OK).await;
                }
                let response = format!("HTTP/1.1 204 No Content\r\n{announced}\r\n\r\n");
                write_text(&mut socket, &response).await;
                if head(&mut socket).await.is_some() {
                    let forged = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged";
                    write_text(&mut socket, forged).await;
                }
            })
            .await;
            let (worker, backend) = (Worker::new(), http1(&[origin.address]));
            for (status, body) in [(204_u16, ""), (200, "hello")] {
                let outcome = worker.send(&backend, &TestRequest::get()).await;
                let outcome = outcome.expect("a response");
                assert_eq!(outcome.status, status, "{announced}");
                assert_eq!(outcome.body, body, "{announced}");
            }
            assert_eq!(origin.connections(), 2, "{announced}");
        });
    }
}

#[test]
fn rejects_heads_beyond_the_limits() {
    block_on(async {
        for (response, is_fit) in [
            ("HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 0\r\n\r\n", true),
            (
                "HTTP/1.1 200 OK\r\nA: b\r\nC: d\r\nContent-Length: 0\r\n\r\n",
                false,
            ),
            (
                "HTTP/1.1 200 OK\r\nA: 0123456789012345678901234567890123456789\r\nContent-Length: 0\r\n\r\n",
                false,
            ),
        ] {
            let origin = Endpoint::answering(response).await;
            let worker = Worker::with(|limits| {
                limits.max_headers = 2;
                limits.max_header_bytes = 64;
            });
            let outcome = worker
                .send(&http1(&[origin.address]), &TestRequest::get())
                .await;
            assert_eq!(outcome.is_ok(), is_fit, "{response}: {outcome:?}");
            if let Err(error) = outcome {
                assert!(error.to_string().contains("--max-header"), "{error}");
            }
        }
    });
}

/// Returns an endpoint that responds once per connection and closes it on the second request.
async fn stale() -> Endpoint {
    Endpoint::start(|mut socket, _| async move {
        head(&mut socket).await;
        write_text(&mut socket, OK).await;
        head(&mut socket).await;
    })
    .await
}

#[test]
fn retries_idempotent_request_with_body_on_closed_keep_alive_connection() {
    block_on(async {
        let origin = stale().await;
        let (worker, backend) = (Worker::new(), http1(&[origin.address]));
        let put = TestRequest::new(Method::PUT, "hello");
        assert!(worker.send(&backend, &TestRequest::get()).await.is_ok());
        assert!(worker.send(&backend, &put).await.is_ok());
        assert_eq!(origin.connections(), 2);
        assert!(worker.send(&backend, &TestRequest::post()).await.is_err());
        assert_eq!(origin.connections(), 2);
    });
}

#[test]
fn affinity_selects_one_endpoint_of_many() {
    block_on(async {
        let mut origins = Vec::new();
        for _ in 0..5 {
            origins.push(Endpoint::answering(OK).await);
        }
        let addresses: Vec<_> = origins.iter().map(|origin| origin.address).collect();
        let (worker, backend) = (Worker::new(), hashed(&addresses));
        let mut used = std::collections::HashSet::new();
        for affinity in 0..20 {
            let mut request = TestRequest::get();
            request.affinity = Some(affinity);
            let first = worker.send(&backend, &request).await.expect("a response");
            for _ in 0..3 {
                let again = worker.send(&backend, &request).await.expect("a response");
                assert_eq!(again.endpoint, first.endpoint);
            }
            used.insert(first.endpoint);
        }
        assert!(used.len() > 2, "{used:?}");
    });
}
