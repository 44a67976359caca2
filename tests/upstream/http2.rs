//! HTTP/2: retries of unprocessed requests, and new connections according to the peers' stream
//! limits.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, Response, StatusCode};
use portcullis::table::UpstreamFault;
use portcullis::upstream::SendError;
use tokio::io::AsyncReadExt;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_local};

use crate::harness::ports::closed_address;
use crate::raw::{HEADERS, PING, Raw};
use crate::scene::{Endpoint, TestRequest, Worker, block_on, h2c};

#[test]
fn waits_for_settings_before_sending_requests() {
    block_on(async {
        let first = Rc::new(Cell::new(0));
        let seen = first.clone();
        let endpoint = Endpoint::start(move |mut socket, _| {
            let seen = seen.clone();
            async move {
                let mut preface = [0; 24];
                socket.read_exact(&mut preface).await.expect("a preface");
                let mut raw = Raw(socket);
                // The SETTINGS are delayed.
                while let Some((kind, _)) = raw.frame().await {
                    if [HEADERS, PING].contains(&kind) {
                        return seen.set(kind);
                    }
                }
            }
        })
        .await;
        let (worker, backend) = (Worker::new(), h2c(&[endpoint.address]));
        let outcome = worker.send(&backend, &TestRequest::post()).await;
        assert!(outcome.is_err());
        assert_eq!(first.get(), PING);
    });
}

#[test]
fn retries_stream_above_goaway_on_another_connection() {
    block_on(async {
        let origin = Endpoint::start(|socket, connection| async move {
            let mut raw = Raw::accept(socket).await;
            while let Some(stream) = raw.request().await {
                if connection == 1 {
                    return raw.go_away(0).await;
                }
                raw.answer(stream).await;
            }
        })
        .await;
        let (worker, backend) = (Worker::new(), h2c(&[origin.address]));
        let outcome = worker.send(&backend, &TestRequest::post()).await;
        assert_eq!(outcome.expect("a response").status, 200);
        assert_eq!(origin.connections(), 2);
    });
}

#[test]
fn short_lived_connections_do_not_exhaust_the_attempts() {
    block_on(async {
        let origin = Endpoint::start(|socket, connection| async move {
            let mut raw = Raw::accept(socket).await;
            while let Some(stream) = raw.request().await {
                if connection <= 10 {
                    return raw.go_away(0).await;
                }
                raw.answer(stream).await;
            }
        })
        .await;
        let (worker, backend) = (Worker::new(), h2c(&[origin.address]));
        let outcome = worker.send(&backend, &TestRequest::post()).await;
        assert_eq!(outcome.expect("a response").status, 200);
        assert_eq!(origin.connections(), 11);
    });
}

#[test]
fn unprocessed_attempts_have_one_limit_over_all_retries() {
    block_on(async {
        for (retries, connections) in [(0, 13), (2, 15), (3, 16), (50, 16)] {
            let origin = Endpoint::start(|socket, _| async move {
                let mut raw = Raw::accept(socket).await;
                if raw.request().await.is_some() {
                    raw.go_away(0).await;
                }
            })
            .await;
            let (worker, backend) = (Worker::new(), h2c(&[origin.address]));
            let outcome = worker
                .send_with_retries(&backend, &TestRequest::get(), retries)
                .await;
            assert!(matches!(
                outcome,
                Err(SendError::Backend(UpstreamFault::Refused, _))
            ));
            assert_eq!(origin.connections(), connections);
        }
    });
}

#[test]
fn retries_refused_stream_at_the_only_endpoint() {
    block_on(async {
        let origin = Endpoint::start(|socket, connection| async move {
            let mut raw = Raw::accept(socket).await;
            while let Some(stream) = raw.request().await {
                if connection == 1 {
                    raw.reset(stream, Reason::REFUSED_STREAM).await;
                } else {
                    raw.answer(stream).await;
                }
            }
        })
        .await;
        let (worker, backend) = (Worker::new(), h2c(&[origin.address]));
        for _ in 0..3 {
            let outcome = worker.send(&backend, &TestRequest::post()).await;
            assert_eq!(outcome.expect("a response").status, 200);
        }
        assert_eq!(origin.connections(), 2);
    });
}

#[test]
fn gives_up_after_four_refusals() {
    block_on(async {
        let origin = Endpoint::start(|socket, _| async move {
            let mut raw = Raw::accept(socket).await;
            while let Some(stream) = raw.request().await {
                raw.reset(stream, Reason::REFUSED_STREAM).await;
            }
        })
        .await;
        let backend = h2c(&[origin.address]);
        let outcome = Worker::new().send(&backend, &TestRequest::post()).await;
        assert!(matches!(
            outcome,
            Err(SendError::Backend(UpstreamFault::Refused, _))
        ));
        assert_eq!(backend.stats.faults(UpstreamFault::Refused), 4);
    });
}

/// An informational response shows that the request was processed, whatever follows.
#[test]
fn refusal_after_an_informational_response_is_a_failure_like_any_other() {
    block_on(async {
        for goes_away in [false, true] {
            let origin = Endpoint::start(move |socket, _| async move {
                let mut raw = Raw::accept(socket).await;
                while let Some(stream) = raw.request().await {
                    raw.hint(stream).await;
                    match goes_away {
                        true => raw.go_away(0).await,
                        false => raw.reset(stream, Reason::REFUSED_STREAM).await,
                    }
                }
            })
            .await;
            let backend = h2c(&[origin.address]);
            let outcome = Worker::new().send(&backend, &TestRequest::post()).await;
            assert!(
                matches!(outcome, Err(SendError::Backend(UpstreamFault::Reset, _))),
                "{outcome:?}"
            );
            assert_eq!(origin.connections(), 1);
        }
    });
}

#[test]
fn retries_only_idempotent_requests_on_closed_reused_connection() {
    block_on(async {
        for (request, is_replayed) in [(TestRequest::get(), true), (TestRequest::post(), false)] {
            let origin = Endpoint::start(|socket, connection| async move {
                let mut raw = Raw::accept(socket).await;
                while let Some(stream) = raw.request().await {
                    if connection == 1 && stream > 1 {
                        return;
                    }
                    raw.answer(stream).await;
                }
            })
            .await;
            let (worker, backend) = (Worker::new(), h2c(&[origin.address]));
            assert!(worker.send(&backend, &TestRequest::get()).await.is_ok());
            let outcome = worker.send(&backend, &request).await;
            assert_eq!(outcome.is_ok(), is_replayed, "{outcome:?}");
        }
    });
}

#[test]
fn connection_with_goaway_completes_its_streams() {
    block_on(async {
        let held = Rc::new(Semaphore::new(0));
        let gate = held.clone();
        let origin = Endpoint::start(move |socket, connection| {
            let gate = gate.clone();
            async move {
                let mut raw = Raw::accept(socket).await;
                while let Some(stream) = raw.request().await {
                    if connection == 1 {
                        raw.go_away(stream).await;
                        gate.acquire().await.expect("open").forget();
                    }
                    raw.answer(stream).await;
                }
            }
        })
        .await;
        let (worker, backend) = (Worker::new(), Rc::new(h2c(&[origin.address])));
        let first = {
            let (worker, backend) = (worker.clone(), backend.clone());
            spawn_local(async move { worker.send(&backend, &TestRequest::get()).await })
        };
        // Requests that cross the GOAWAY are retried; none fails.
        while origin.connections() < 2 {
            assert!(worker.send(&backend, &TestRequest::post()).await.is_ok());
        }
        held.add_permits(1);
        assert!(first.await.expect("no panic").is_ok());
        assert_eq!(origin.connections(), 2);
    });
}

/// Returns an endpoint with a stream limit that runs `serve` for every request.
async fn limited<F, W>(max_streams: u32, serve: F) -> Endpoint
where
    F: Fn(Request<RecvStream>, SendResponse<Bytes>) -> W + Clone + 'static,
    W: Future<Output = ()> + 'static,
{
    Endpoint::start(move |socket, _| {
        let serve = serve.clone();
        async move {
            let mut builder = h2::server::Builder::new();
            builder.max_concurrent_streams(max_streams);
            let Ok(mut connection) = builder.handshake(socket).await else {
                return;
            };
            while let Some(Ok((request, respond))) = connection.accept().await {
                spawn_local(serve(request, respond));
            }
        }
    })
    .await
}

fn respond(mut respond: SendResponse<Bytes>) {
    // Ignored: the stream may have been reset.
    let _ = respond.send_response(Response::new(()), true);
}

#[test]
fn opens_another_connection_at_the_peers_stream_limit() {
    block_on(async {
        let gate = Rc::new(Semaphore::new(0));
        let arrived = Rc::new(Cell::new(0));
        let origin = limited(10, {
            let (gate, arrived) = (gate.clone(), arrived.clone());
            move |_, stream| {
                let (gate, arrived) = (gate.clone(), arrived.clone());
                async move {
                    arrived.set(arrived.get() + 1);
                    if arrived.get() <= 10 {
                        gate.acquire().await.expect("open").forget();
                    }
                    respond(stream);
                }
            }
        })
        .await;
        let (worker, backend) = (Worker::new(), Rc::new(h2c(&[origin.address])));
        let mut long = JoinSet::new();
        for _ in 0..10 {
            let (worker, backend) = (worker.clone(), backend.clone());
            long.spawn_local(async move { worker.send(&backend, &TestRequest::get()).await });
        }
        while arrived.get() < 10 {
            tokio::task::yield_now().await;
        }
        let outcome = worker.send(&backend, &TestRequest::get()).await;
        assert_eq!(outcome.expect("a response").status, 200);
        assert_eq!(origin.connections(), 2);
        gate.add_permits(10);
        while let Some(outcome) = long.join_next().await {
            assert!(outcome.expect("no panic").is_ok());
        }
    });
}

#[test]
fn serves_cold_burst_beyond_the_peers_stream_limit() {
    block_on(async {
        for (burst, most) in [(30, 8), (100, 20)] {
            let origin = limited(10, |_, stream| async move {
                tokio::task::yield_now().await;
                respond(stream);
            })
            .await;
            let (worker, backend) = (Worker::new(), Rc::new(h2c(&[origin.address])));
            let mut requests = JoinSet::new();
            for _ in 0..burst {
                let (worker, backend) = (worker.clone(), backend.clone());
                requests
                    .spawn_local(async move { worker.send(&backend, &TestRequest::post()).await });
            }
            while let Some(outcome) = requests.join_next().await {
                assert_eq!(outcome.expect("no panic").expect("a response").status, 200);
            }
            let connections = origin.connections();
            assert!(connections <= most, "{connections} for {burst}");
        }
    });
}

#[test]
fn waiting_burst_ejects_no_endpoint() {
    block_on(async {
        let first = limited(2, |_, stream| async move { respond(stream) }).await;
        let second = limited(2, |_, stream| async move { respond(stream) }).await;
        let backend = Rc::new(h2c(&[first.address, second.address]));
        let worker = Worker::new();
        let mut requests = JoinSet::new();
        for _ in 0..300 {
            let (worker, backend) = (worker.clone(), backend.clone());
            requests.spawn_local(async move { worker.send(&backend, &TestRequest::post()).await });
        }
        while let Some(outcome) = requests.join_next().await {
            assert!(outcome.expect("no panic").is_ok());
        }
        assert_eq!(backend.stats.ejections(), 0);
    });
}

#[test]
fn burst_shares_a_connection_being_opened() {
    block_on(async {
        let origin = limited(100, |_, stream| async move { respond(stream) }).await;
        let (worker, backend) = (Worker::new(), Rc::new(h2c(&[origin.address])));
        let mut requests = JoinSet::new();
        for _ in 0..50 {
            let (worker, backend) = (worker.clone(), backend.clone());
            requests.spawn_local(async move { worker.send(&backend, &TestRequest::get()).await });
        }
        while let Some(outcome) = requests.join_next().await {
            assert!(outcome.expect("no panic").is_ok());
        }
        assert_eq!(origin.connections(), 1);
    });
}

#[test]
fn burst_at_a_dead_endpoint_fails_together() {
    block_on(async {
        let (worker, backend) = (Worker::new(), Rc::new(h2c(&[closed_address()])));
        let mut requests = JoinSet::new();
        for _ in 0..20 {
            let (worker, backend) = (worker.clone(), backend.clone());
            requests.spawn_local(async move { worker.send(&backend, &TestRequest::get()).await });
        }
        while let Some(outcome) = requests.join_next().await {
            assert!(matches!(
                outcome.expect("no panic"),
                Err(SendError::Backend(UpstreamFault::Connect, _))
            ));
        }
    });
}

#[test]
fn forwards_informational_responses() {
    block_on(async {
        let origin = limited(10, |_, mut stream| async move {
            let early = Response::builder().status(103).header("link", "</a.css>");
            let early = early.body(()).expect("a response");
            stream.send_informational(early).expect("sent");
            respond(stream);
        })
        .await;
        let seen = RefCell::new(Vec::new());
        let see = |status: StatusCode, headers: &HeaderMap| {
            seen.borrow_mut().push((status.as_u16(), headers.len()));
        };
        let backend = h2c(&[origin.address]);
        let outcome = Worker::new()
            .send_watched(&backend, &TestRequest::get(), Some(&see))
            .await;
        assert_eq!(outcome.expect("a response").status, 200);
        assert_eq!(*seen.borrow(), [(103, 1)]);
    });
}

#[test]
fn rejects_heads_beyond_the_limits() {
    block_on(async {
        for (name, length) in [("a", 5), ("b", 2000)] {
            let origin = limited(10, move |_, mut stream| async move {
                let mut response = Response::builder();
                for index in 0..if name == "a" { 4 } else { 1 } {
                    response = response.header(format!("x-{index}"), "y".repeat(length));
                }
                let response = response.body(()).expect("a response");
                let _ = stream.send_response(response, true);
            })
            .await;
            let worker = Worker::with(|limits| {
                limits.max_headers = 3;
                limits.max_header_bytes = 1000;
            });
            let outcome = worker
                .send(&h2c(&[origin.address]), &TestRequest::get())
                .await;
            let error = outcome.expect_err("no response");
            assert!(error.to_string().contains("--max-header"), "{error}");
        }
    });
}

#[test]
fn rejects_headers_that_http2_forbids() {
    block_on(async {
        let origin = limited(10, |_, stream| async move { respond(stream) }).await;
        let mut request = TestRequest::get();
        let value = "gzip".parse().expect("a value");
        request.parts.headers.insert("te", value);
        let (worker, backend) = (Worker::new(), h2c(&[origin.address]));
        let outcome = worker.send(&backend, &request).await;
        assert!(matches!(
            outcome,
            Err(SendError::Backend(UpstreamFault::Protocol, _))
        ));
        assert!(worker.send(&backend, &TestRequest::get()).await.is_ok());
        assert_eq!(origin.connections(), 1);
    });
}
