//! HTTP/2: retries of unprocessed requests, and new connections according to the peers' stream
//! limits.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use portcullis::table::UpstreamFault;
use portcullis::upstream::SendError;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_local};

use crate::harness::ports::closed_address;
use crate::scene::{BROKEN_BODY, Endpoint, Outcome, TestRequest, Worker, block_on, h2c};

const DATA: u8 = 0;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const END_STREAM_AND_HEADERS: u8 = 5;

/// A peer that writes raw frames.
struct Raw(TcpStream);

impl Raw {
    /// Reads the client's preface and sends empty SETTINGS.
    async fn accept(mut socket: TcpStream) -> Self {
        let mut preface = [0; 24];
        socket.read_exact(&mut preface).await.expect("a preface");
        let mut raw = Self(socket);
        raw.send(SETTINGS, 0, 0, &[]).await;
        raw
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = (payload.len() as u32).to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags];
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(payload);
        // Ignored: the client may have disconnected.
        let _ = self.0.write_all(&frame).await;
    }

    /// Reads a frame; returns its type and stream id.
    async fn frame(&mut self) -> Option<(u8, u32)> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        self.0.read_exact(&mut payload).await.ok()?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Some((head[3], stream))
    }

    /// Reads up to the next HEADERS frame; returns its stream id.
    async fn request(&mut self) -> Option<u32> {
        loop {
            if let (HEADERS, stream) = self.frame().await? {
                return Some(stream);
            }
        }
    }

    /// Responds with 200 and no body.
    async fn answer(&mut self, stream: u32) {
        self.send(HEADERS, END_STREAM_AND_HEADERS, stream, &[0x88])
            .await;
    }

    async fn go_away(&mut self, last: u32) {
        let payload = [last.to_be_bytes(), [0; 4]].concat();
        self.send(GOAWAY, 0, 0, &payload).await;
    }

    async fn reset(&mut self, stream: u32, reason: Reason) {
        let reason = u32::from(reason).to_be_bytes();
        self.send(RST_STREAM, 0, stream, &reason).await;
    }
}

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
fn rejects_a_content_length_that_is_not_a_number() {
    // Literal fields without indexing: `content-length` is entry 28 of the static table.
    let empty: &[u8] = &[0x88, 0x0f, 0x0d, 0x00];
    for (method, flags) in [(Method::GET, 4), (Method::GET, 5), (Method::HEAD, 5)] {
        let outcome = response_to(method, flags, empty, &[]);
        assert!(matches!(
            outcome,
            Err(SendError::Backend(UpstreamFault::Protocol, _))
        ));
    }
}

/// Type, flags and payload of a frame.
type Frame = (u8, u8, &'static [u8]);

#[test]
fn rejects_pseudo_headers_in_wrong_places() {
    // Entries of the static table: 8 is `:status: 200`, 4 is `:path: /`, 2 is `:method: GET`.
    const OK: &[u8] = &[0x88];
    const HEADS: [&[u8]; 3] = [&[0x88, 0x84], &[0x88, 0x82], b"\x88\x00\x07:scheme\x01a"];
    const BODY: Frame = (DATA, 0, b"ok");
    const END: &[Frame] = &[(DATA, 1, b"ok")];
    const WITH_PATH: &[Frame] = &[BODY, (HEADERS, 5, &[0x84])];
    const WITH_STATUS: &[Frame] = &[BODY, (HEADERS, 5, OK)];
    const WITH_FIELD: &[Frame] = &[BODY, (HEADERS, 5, b"\x00\x01a\x01b")];
    for head in HEADS {
        for flags in [4, 5] {
            let outcome = response_to(Method::GET, flags, head, END);
            assert!(matches!(
                outcome,
                Err(SendError::Backend(UpstreamFault::Protocol, _))
            ));
        }
    }
    for trailers in [WITH_PATH, WITH_STATUS] {
        let outcome = response_to(Method::GET, 4, OK, trailers);
        // If the trailers have arrived with the head, that fails already.
        assert!(matches!(
            outcome,
            Err(BROKEN_BODY | SendError::Backend(UpstreamFault::Protocol, _))
        ));
    }
    let outcome = response_to(Method::GET, 4, OK, WITH_FIELD);
    assert_eq!(outcome.expect("a response").body, "ok");
}

/// Sends a request to a backend whose response is this block of headers with these flags, and
/// these frames.
fn response_to(
    method: Method,
    flags: u8,
    headers: &'static [u8],
    frames: &'static [Frame],
) -> Result<Outcome, SendError> {
    block_on(async {
        let origin = Endpoint::start(move |socket, _| async move {
            let mut raw = Raw::accept(socket).await;
            while let Some(stream) = raw.request().await {
                raw.send(HEADERS, flags, stream, headers).await;
                for (kind, flags, payload) in frames {
                    raw.send(*kind, *flags, stream, payload).await;
                }
            }
        })
        .await;
        let (worker, backend) = (Worker::new(), h2c(&[origin.address]));
        worker.send(&backend, &TestRequest::new(method, "")).await
    })
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
