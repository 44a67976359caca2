//! Ejection of endpoints: what the requests of one client do to those of others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::admin::{metric, service_labels};
use crate::client::{Client, read_until, write_text};
use crate::origin::Origin;
use crate::scene::{Objects, Scene, to};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Backends that close the connection instead of a response to `/bad`, and count other requests.
struct Backends {
    scene: Scene,
    served: Vec<Arc<AtomicUsize>>,
    _origins: Vec<Origin>,
}

impl Backends {
    async fn start(count: usize) -> Self {
        let served: Vec<Arc<AtomicUsize>> = (0..count).map(|_| Arc::default()).collect();
        let mut origins = Vec::new();
        for count in &served {
            let count = count.clone();
            let origin = Origin::raw(move |mut stream| {
                let count = count.clone();
                async move {
                    loop {
                        let head = read_until(&mut stream, "\r\n\r\n").await;
                        if head.contains(" /bad ") {
                            return;
                        }
                        count.fetch_add(1, SeqCst);
                        write_text(&mut stream, OK).await;
                    }
                }
            });
            origins.push(origin.await);
        }
        let addresses: Vec<_> = origins.iter().map(|origin| origin.address).collect();
        let objects = Objects::http()
            .service("app", &addresses)
            .route("route", &[to("app")]);
        Self {
            scene: Scene::start(&objects),
            served,
            _origins: origins,
        }
    }

    async fn ejections(&self) -> f64 {
        self.metric("upstream_ejections_total").await
    }

    /// Returns how many endpoints are ejected now.
    async fn ejected(&self) -> f64 {
        self.metric("upstream_endpoints_ejected").await
    }

    async fn metric(&self, name: &str) -> f64 {
        let series = format!("{name}{{{}}}", service_labels("app"));
        metric(&self.scene, &series).await
    }

    /// Returns the requests that each endpoint has served.
    fn served(&self) -> Vec<usize> {
        self.served.iter().map(|it| it.load(SeqCst)).collect()
    }
}

#[tokio::test]
async fn requests_that_fail_everywhere_eject_no_endpoint() {
    let backends = Backends::start(10).await;
    let mut hostile = Client::http1(backends.scene.at(80)).await;
    for _ in 0..16 {
        assert_eq!(hostile.get("a.com", "/bad").await.status, 502);
    }
    assert_eq!(backends.ejections().await, 0.0);
    let mut polite = Client::http1(backends.scene.at(80)).await;
    for _ in 0..300 {
        assert_eq!(polite.get("a.com", "/").await.status, 200);
    }
    let served = backends.served();
    assert!(served.iter().all(|it| (5..=80).contains(it)), "{served:?}");
}

#[tokio::test]
async fn steady_failures_of_one_client_eject_no_endpoint() {
    let backends = Backends::start(10).await;
    let mut hostile = Client::http1(backends.scene.at(80)).await;
    let mut polite = Client::http1(backends.scene.at(80)).await;
    for _ in 0..200 {
        assert_eq!(hostile.get("a.com", "/bad").await.status, 502);
        for _ in 0..3 {
            assert_eq!(polite.get("a.com", "/").await.status, 200);
        }
    }
    assert_eq!(backends.ejections().await, 0.0);
    let served = backends.served();
    assert!(
        served.iter().all(|it| (20..=120).contains(it)),
        "{served:?}"
    );
}

#[tokio::test]
async fn requests_that_are_not_repeated_eject_half_of_the_endpoints_at_most() {
    let backends = Backends::start(10).await;
    let mut hostile = Client::http1(backends.scene.at(80)).await;
    for _ in 0..100 {
        assert_eq!(hostile.post("a.com", "/bad", "b").await.status, 502);
        let ejected = backends.ejected().await;
        assert!(ejected <= 5.0, "{ejected}");
    }
    let mut polite = Client::http1(backends.scene.at(80)).await;
    for _ in 0..200 {
        assert_eq!(polite.get("a.com", "/").await.status, 200);
    }
    let served = backends.served();
    assert!(
        served.iter().filter(|it| **it > 0).count() >= 5,
        "{served:?}"
    );
}
