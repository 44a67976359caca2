//! The exporter: a thread that sends the spans of sampled requests, and the access log, to their collectors, with the upstream client. While a
//! collector is away or slow, spans wait in the bounded queue of workers, and those for other collectors are sent.

use std::cell::Cell;
use std::fmt::Display;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, TE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, request};
use tokio::task::spawn_local;

use super::body::buffered::Buffered;
use super::request::subrequest::{self, Subrequest};
use crate::ir::telemetry::OtlpProtocol;
use crate::ir::{Endpoints, Tracing};
use crate::runtime::background::Background;
use crate::runtime::clock::{Clock, TICK};
use crate::runtime::descriptors::Descriptors;
use crate::runtime::per_worker::WorkerId;
use crate::settings::Limits;
use crate::table::Table;
use crate::telemetry::trace::{Batch, Sent, TraceQueue, records_message, spans_message};
use crate::upstream::{Semantics, Upstream};

/// Number of requests of a policy that are sent without waiting for more.
const FULL: usize = 256;
/// Maximum delay from the first request of a message until the message is sent.
const GATHER: Duration = Duration::from_millis(200);
/// Maximum time until the response of a collector.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for all that waits once the process ends.
const LAST_TIMEOUT: Duration = Duration::from_secs(2);
/// Delays before a message is sent again.
const BACKOFF: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(4)];
/// Minimum interval of warnings.
const WARNING: Duration = Duration::from_secs(60);
/// Interval of the sweep over idle connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// What the exporter shares with the workers.
pub(super) struct Shared {
    pub(super) queue: Arc<TraceQueue>,
    pub(super) table: Arc<ArcSwap<Table>>,
    pub(super) limits: Limits,
    pub(super) descriptors: Arc<Descriptors>,
    /// A number that no worker has.
    pub(super) id: WorkerId,
}

/// Starts the thread, which ends when the queue is closed.
pub(super) fn start(shared: Shared) -> Option<Background> {
    Background::start("exporter", "the exporter of traces", move || run(shared))
}

/// The exporter.
struct Exporter {
    shared: Shared,
    upstream: Rc<Upstream>,
    warned: Cell<Option<Instant>>,
}

async fn run(shared: Shared) {
    let clock = Clock::new();
    let upstream = Upstream::new(shared.id, &clock, &shared.limits, &shared.descriptors);
    let upstream = Rc::new(upstream);
    spawn_local(async move { clock.run().await });
    spawn_local({
        let upstream = upstream.clone();
        async move {
            loop {
                tokio::time::sleep(SWEEP_INTERVAL).await;
                upstream.sweep();
            }
        }
    });
    let exporter = Rc::new(Exporter {
        shared,
        upstream,
        warned: Cell::default(),
    });
    let queue = exporter.shared.queue.clone();
    let export = async {
        while let Some(batches) = exporter.next().await {
            for of_policy in batches {
                let exporter = exporter.clone();
                spawn_local(async move { exporter.export(of_policy).await });
            }
        }
    };
    tokio::select! {
        () = export => {}
        () = overdue(&queue) => tracing::warn!("spans and records are dropped: the process ends before their collector has them"),
    }
}

/// Returns some time after the queue was closed.
async fn overdue(queue: &TraceQueue) {
    while !queue.is_closed() {
        tokio::time::sleep(TICK).await;
    }
    tokio::time::sleep(LAST_TIMEOUT).await;
}

impl Exporter {
    /// Waits for requests and gathers more of them, apart for each policy. `None` at the end.
    async fn next(&self) -> Option<Vec<Vec<Batch>>> {
        let queue = &self.shared.queue;
        let ready = |count| poll_fn(move |cx| queue.poll_ready(cx, count));
        ready(1).await;
        // Over the time, what there is suffices.
        let _ = tokio::time::timeout(GATHER, ready(FULL)).await;
        queue.take()
    }

    /// Sends what waits for a policy in one message per signal: with its latest settings, if it has changed meanwhile.
    async fn export(&self, batches: Vec<Batch>) {
        let Some(tracing) = batches.last().map(|last| last.tracing.clone()) else {
            return;
        };
        let (spans, records) = tokio::join!(
            self.send_signal(&tracing, Signal::Traces, &batches),
            self.send_signal(&tracing, Signal::Logs, &batches),
        );
        self.shared.queue.release(&batches, Sent { spans, records });
    }

    /// Sends what batches have of a signal. Returns false if it is dropped.
    async fn send_signal(&self, tracing: &Tracing, signal: Signal, batches: &[Batch]) -> bool {
        let message = match signal {
            Signal::Traces => spans_message(tracing, batches),
            Signal::Logs => records_message(tracing, batches),
        };
        let Some(message) = message else {
            return true;
        };
        let sent = self.send_repeatedly(tracing, signal, message).await;
        if let Err(why) = &sent {
            self.warn(tracing, signal, why);
        }
        sent.is_ok()
    }

    async fn send_repeatedly(
        &self,
        tracing: &Tracing,
        signal: Signal,
        message: Bytes,
    ) -> Result<(), String> {
        let mut delays = BACKOFF.into_iter();
        loop {
            let sent =
                tokio::time::timeout(TIMEOUT, self.send(tracing, signal, message.clone())).await;
            let failure = match sent {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(failure)) => failure,
                Err(_) => Failure::temporary("no response in time"),
            };
            match delays.next().filter(|_| failure.is_temporary) {
                Some(delay) if !self.shared.queue.is_closed() => tokio::time::sleep(delay).await,
                _ => return Err(failure.why),
            }
        }
    }

    async fn send(&self, tracing: &Tracing, signal: Signal, message: Bytes) -> Result<(), Failure> {
        let table = self.shared.table.load_full();
        let backend = table.backend(&tracing.collector);
        let backend = backend.ok_or_else(|| Failure::lasting("is no longer configured"))?;
        let head = head(&table, tracing, signal);
        let mut request = Subrequest::new(head, Semantics::Other);
        let response = subrequest::send_by(
            (&self.upstream, self.shared.id),
            backend,
            &mut request,
            Buffered::new(message),
        );
        let response = response.await.map_err(Failure::temporary)?;
        let (status, headers) = (response.status, response.headers);
        let read = subrequest::read(response.body, subrequest::MAX_RESPONSE).await;
        if status != StatusCode::OK {
            let is_temporary = [429, 502, 503, 504].contains(&status.as_u16());
            let why = format!("responds {status}");
            return Err(Failure { why, is_temporary });
        }
        if tracing.protocol == OtlpProtocol::Http {
            return Ok(());
        }
        let in_head = grpc_status(&headers);
        let in_trailers = || read.as_ref().and_then(|read| grpc_status(&read.trailers));
        match in_head.or_else(in_trailers) {
            Some(0) => Ok(()),
            status => {
                let status = status.unwrap_or(GRPC_UNKNOWN);
                let is_temporary = GRPC_TEMPORARY.contains(&status);
                let why = format!("responds with gRPC status {status}");
                Err(Failure { why, is_temporary })
            }
        }
    }

    fn warn(&self, tracing: &Tracing, signal: Signal, why: &str) {
        let now = Instant::now();
        let warned = self.warned.get();
        if warned.is_none_or(|warned| now.duration_since(warned) >= WARNING) {
            self.warned.set(Some(now));
            tracing::warn!(
                "{} are dropped: the collector {} of {} {why}",
                signal.content(),
                tracing.collector,
                tracing.policy
            );
        }
    }
}

const GRPC_UNKNOWN: u16 = 2;
/// Statuses after which a message may be sent again (OTLP/gRPC response): CANCELLED, DEADLINE_EXCEEDED, ABORTED,
/// OUT_OF_RANGE, UNAVAILABLE and DATA_LOSS.
const GRPC_TEMPORARY: [u16; 6] = [1, 4, 10, 11, 14, 15];

fn grpc_status(headers: &HeaderMap) -> Option<u16> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

/// Why a collector did not take a message.
struct Failure {
    why: String,
    /// Whether the message may be sent again.
    is_temporary: bool,
}

impl Failure {
    fn temporary(why: impl Display) -> Self {
        Self {
            why: format!("is not reached: {why}"),
            is_temporary: true,
        }
    }

    fn lasting(why: &str) -> Self {
        Self {
            why: why.to_owned(),
            is_temporary: false,
        }
    }
}

/// A signal of OTLP.
#[derive(Clone, Copy)]
enum Signal {
    Traces,
    Logs,
}

impl Signal {
    const fn content(self) -> &'static str {
        match self {
            Self::Traces => "spans",
            Self::Logs => "records of the access log",
        }
    }

    const fn path(self, protocol: OtlpProtocol) -> &'static str {
        match (self, protocol) {
            (Self::Traces, OtlpProtocol::Http) => "/v1/traces",
            (Self::Logs, OtlpProtocol::Http) => "/v1/logs",
            (Self::Traces, OtlpProtocol::Grpc) => {
                "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
            }
            (Self::Logs, OtlpProtocol::Grpc) => {
                "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
            }
        }
    }
}

fn head(table: &Table, tracing: &Tracing, signal: Signal) -> request::Parts {
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.method = Method::POST;
    let content_type = match tracing.protocol {
        OtlpProtocol::Http => "application/x-protobuf",
        OtlpProtocol::Grpc => "application/grpc",
    };
    parts.uri = Uri::from_static(signal.path(tracing.protocol));
    let headers = &mut parts.headers;
    for header in &tracing.headers {
        headers.insert(header.name.clone(), header.value.clone());
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    const AGENT: &str = concat!("portcullis/", env!("CARGO_PKG_VERSION"));
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    if tracing.protocol == OtlpProtocol::Grpc {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    let collector = &tracing.collector;
    let host = match table.ir.backend(collector).map(|it| &it.endpoints) {
        Some(Endpoints::Hostname { hostname, port }) => format!("{hostname}:{port}"),
        _ => {
            let object = &collector.object;
            format!("{}.{}:{}", object.name, object.namespace, collector.port)
        }
    };
    let host = HeaderValue::try_from(host);
    headers.insert(HOST, host.unwrap_or(HeaderValue::from_static("collector")));
    parts
}
