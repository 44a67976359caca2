//! Tests of the pages, and of who may have them.

use futures_util::FutureExt;
use http_body_util::BodyExt;

use super::*;
use crate::runtime::shutdown;
use crate::settings::Drain;
use crate::table::Table;
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::metrics::ProcessStats;
use arc_swap::ArcSwap;

fn state() -> Arc<AdminState> {
    let table = Arc::new(ArcSwap::from_pointee(Table::empty()));
    let state = AdminState::new(table, ProcessStats::default(), AccessLog::disabled());
    Arc::new(state)
}

async fn get(
    path: &str,
    access: Access,
    state: &Arc<AdminState>,
    shutdown: &Shutdown,
) -> (u16, String) {
    let request = Request::get(path).header("host", "localhost:19000");
    let (request, ()) = request.body(()).unwrap().into_parts();
    let response = handle(&request, access, state, shutdown).await;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn readiness_follows_configuration_and_shutdown() {
    let (trigger, shutdown) = shutdown::new(Drain::default());
    let state = state();
    let status = async |path| get(path, Access::Public, &state, &shutdown).await.0;
    assert_eq!(status("/healthz").await, 200);
    assert_eq!(status("/readyz").await, 503);
    state.ready.store(true, Ordering::Release);
    assert_eq!(status("/readyz").await, 200);
    trigger.drain();
    assert_eq!(status("/readyz").await, 503);
    assert_eq!(status("/healthz").await, 200);
}

#[tokio::test]
async fn loopback_clients_get_every_page() {
    let (_trigger, shutdown) = shutdown::new(Drain::default());
    let state = state();
    let page = async |path| get(path, Access::Local, &state, &shutdown).await;
    assert!(page("/").await.1.contains("page.js"));
    assert!(page("/metrics").await.1.ends_with("# EOF\n"));
    assert!(page("/config").await.1.contains("\"ports\""));
    let (status, text) = page("/explain?request=http://a/").await;
    assert_eq!(status, 200);
    assert!(text.contains("in service: no configuration"), "{text}");
    assert!(text.contains("the configuration opens no port"), "{text}");
    let (status, text) = page("/explain").await;
    assert_eq!(status, 400);
    assert!(
        text.contains("`request` is missing; write /explain?request="),
        "{text}"
    );
    let (_, text) = page("/api/v1/status").await;
    assert!(text.contains("\"loadedAt\":null"), "{text}");
    assert_eq!(page("/nothing").await.0, 404);
    for (path, allowed) in [("/config", "GET, HEAD"), (LOG_LEVEL, "GET, HEAD, PUT")] {
        let request = Request::post(path).body(()).unwrap();
        let (request, ()) = request.into_parts();
        let response = handle(&request, Access::Local, &state, &shutdown).await;
        assert_eq!(response.status(), 405);
        assert_eq!(response.headers()["allow"], allowed, "{path}");
    }
}

/// Documents are made one at a time by another thread, on which probes do not depend.
#[tokio::test]
async fn large_documents_delay_no_probe() {
    let (_trigger, shutdown) = shutdown::new(Drain::default());
    let state = state();
    state.ready.store(true, Ordering::Release);
    let turn = state.computing.clone().acquire_owned().await.unwrap();
    for path in ["/config", "/explain?request=http://a/", "/api/v1/routes"] {
        let document = get(path, Access::Local, &state, &shutdown);
        assert!(document.now_or_never().is_none(), "{path}");
        let (status, _) = get("/readyz", Access::Public, &state, &shutdown).await;
        assert_eq!(status, 200);
    }
    drop(turn);
    let (status, _) = get("/config", Access::Local, &state, &shutdown).await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn loopback_clients_must_name_this_machine() {
    let (_trigger, shutdown) = shutdown::new(Drain::default());
    let state = state();
    let explain = "/explain?request=http://a/";
    for (path, expected) in [
        ("/", 421),
        ("/config", 421),
        (explain, 421),
        ("/metrics", 200),
    ] {
        let request = Request::get(path).header("host", "rebound.example:19000");
        let (request, ()) = request.body(()).unwrap().into_parts();
        let response = handle(&request, Access::Local, &state, &shutdown).await;
        assert_eq!(response.status(), expected, "{path}");
        if expected == 421 {
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert!(str::from_utf8(&body).unwrap().contains("localhost"));
        }
    }
}

#[tokio::test]
async fn remote_clients_get_only_health_readiness_and_metrics() {
    let (_trigger, shutdown) = shutdown::new(Drain::default());
    let state = state();
    let page = async |path| get(path, Access::Public, &state, &shutdown).await;
    assert_eq!(page("/healthz").await.0, 200);
    assert!(page("/metrics").await.1.ends_with("# EOF\n"));
    let explain = "/explain?request=http://a/";
    for path in [
        "/",
        "/page.js",
        "/api/v1/events",
        "/config",
        "/config?values=true",
        explain,
    ] {
        let (status, body) = page(path).await;
        assert_eq!(
            (status, body.contains("port-forward")),
            (403, true),
            "{path}"
        );
    }
}

#[tokio::test]
async fn rejects_oversized_request_head() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (_trigger, shutdown) = shutdown::new(Drain::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, state(), shutdown));
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "GET / HTTP/1.1\r\nHost: x\r\nX: {}",
        "a".repeat(2 * MAX_HEAD)
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut response = String::new();
    let _ = stream.read_to_string(&mut response).await;
    assert!(response.starts_with("HTTP/1.1 431"), "{response}");
}
