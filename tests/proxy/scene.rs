//! A data plane for event-driven tests: files are changed one by one, and the outcome of each
//! change is awaited. Rules are given as JSON, which is valid YAML.

use std::fs;
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use portcullis::control::data_plane::ServedConfiguration;
use portcullis::process::data_plane::Server;
use portcullis::settings::Settings;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::harness::server::TestServer;
use crate::harness::tls::Certificate;
use crate::harness::{TEST_TIMEOUT, yaml};
use crate::origin::Origin;

pub(crate) use crate::harness::yaml::{http, https, secret, secret_of};

/// Waits until a condition holds. `what` names it if it does not.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let reached = async {
        while !condition().await {
            // No notification tells the change.
            sleep(Duration::from_millis(5)).await;
        }
    };
    let reached = timeout(TEST_TIMEOUT, reached).await;
    assert!(reached.is_ok(), "{what}: it did not come about in time");
}

/// The file with the objects of [`Scene::start`].
const FILE: &str = "objects.yaml";

/// A running data plane.
pub(crate) struct Scene {
    server: Option<TestServer>,
    served: watch::Receiver<Option<ServedConfiguration>>,
}

impl Scene {
    /// Serves these objects.
    pub(crate) fn start(objects: &Objects) -> Self {
        Self::with(objects, |_| {})
    }

    /// Sends all requests to this backend.
    pub(crate) fn before(origin: &Origin) -> Self {
        let objects = Objects::http().service("origin", &[origin.address]);
        Self::start(&objects.route("route", &[to("origin")]))
    }

    /// Serves these objects with changed settings.
    pub(crate) fn with(objects: &Objects, tune: impl FnOnce(&mut Settings)) -> Self {
        Self::prepared(|folder| write(folder, FILE, &objects.text()), tune)
    }

    /// Serves the content that `prepare` writes to the folder.
    pub(crate) fn prepared(prepare: impl FnOnce(&Path), tune: impl FnOnce(&mut Settings)) -> Self {
        let server = TestServer::start_from(prepare, |settings| {
            settings.admin = Some(([127, 0, 0, 1], 0).into());
            settings.metrics.per_rule = true;
            tune(settings);
        });
        let served = server.served();
        Self {
            server: Some(server),
            served,
        }
    }

    /// Returns the last outcome.
    pub(crate) fn last(&self) -> ServedConfiguration {
        self.served.borrow().clone().expect("an outcome")
    }

    /// Returns address of the admin server.
    pub(crate) fn admin_address(&self) -> SocketAddr {
        self.admin().expect("an admin address")
    }

    /// Replaces the objects and waits until the new ones are in service.
    pub(crate) async fn replace(&mut self, objects: &Objects) -> ServedConfiguration {
        let before = self.last().generation;
        write(self.folder(), FILE, &objects.text());
        self.outcome_with(|outcome| outcome.generation > before)
            .await
    }

    /// Changes the folder and waits for the outcome.
    pub(crate) async fn change(&mut self, change: impl FnOnce(&Path)) -> ServedConfiguration {
        self.served.mark_unchanged();
        change(self.folder());
        let changed = timeout(TEST_TIMEOUT, self.served.changed()).await;
        changed.expect("in time").expect("alive");
        self.last()
    }

    /// Waits for an outcome that matches.
    pub(crate) async fn outcome_with(
        &mut self,
        mut condition: impl FnMut(&ServedConfiguration) -> bool,
    ) -> ServedConfiguration {
        let found = self
            .served
            .wait_for(|outcome| outcome.as_ref().is_some_and(&mut condition));
        let found = timeout(TEST_TIMEOUT, found).await.expect("in time");
        found.expect("alive").clone().expect("an outcome")
    }

    /// Waits until the connection counters match.
    pub(crate) async fn until_stats(&self, what: &str, condition: impl Fn(&Numbers) -> bool) {
        let stats = &self.state().stats.connections;
        let counted = async {
            // Counters have no change notification.
            while !condition(&Numbers {
                accepted: stats.accepted.load(Relaxed),
                open: stats.open(),
                parked: stats.parked.load(Relaxed),
            }) {
                // No notification tells the change.
                sleep(Duration::from_millis(2)).await;
            }
        };
        let counted = timeout(TEST_TIMEOUT, counted).await;
        assert!(counted.is_ok(), "{what}: it did not come about in time");
    }

    /// Starts a graceful shutdown. The handle resolves when it is complete.
    pub(crate) fn begin_shutdown(&mut self) -> JoinHandle<()> {
        let server = self.server.take().expect("running");
        let (server, folder) = server.into_server();
        let (tell, ended) = oneshot::channel();
        // Not a task of the runtime, which would wait for its end.
        thread::spawn(move || {
            Server::shut_down(server);
            // Ignored: the test may have ended.
            let _ = tell.send(());
        });
        tokio::spawn(async move {
            ended.await.expect("no panic");
            drop(folder);
        })
    }
}

/// Counters of client connections.
pub(crate) struct Numbers {
    pub(crate) accepted: u64,
    pub(crate) open: u64,
    pub(crate) parked: u64,
}

impl Deref for Scene {
    type Target = TestServer;

    fn deref(&self) -> &TestServer {
        self.server.as_ref().expect("running")
    }
}

/// Writes a file and renames it into place.
pub(crate) fn write(folder: &Path, file: &str, text: &str) {
    let draft = folder.join(".draft");
    fs::write(&draft, text).expect("written");
    fs::rename(draft, folder.join(file)).expect("renamed");
}

/// Publishes a file like a Kubernetes volume: in a directory per version, behind a symlink that is
/// swapped.
pub(crate) fn publish(folder: &Path, version: &str, text: &str) {
    let real = folder.join(format!("..{version}"));
    fs::create_dir(&real).expect("created");
    fs::write(real.join(FILE), text).expect("written");
    let link = folder.join(FILE);
    if fs::symlink_metadata(&link).is_err() {
        symlink(Path::new("..data").join(FILE), link).expect("linked");
    }
    symlink(format!("..{version}"), folder.join("..data_tmp")).expect("linked");
    fs::rename(folder.join("..data_tmp"), folder.join("..data")).expect("renamed");
}

/// Objects of a file.
#[derive(Clone, Default)]
pub(crate) struct Objects(Vec<String>);

impl Objects {
    /// Returns a Gateway with these listeners.
    pub(crate) fn gateway(listeners: &[String]) -> Self {
        Self::default().with(yaml::gateway("gateway", listeners))
    }

    /// Returns a Gateway with one HTTP listener, on port 80.
    pub(crate) fn http() -> Self {
        Self::gateway(&[http("http", 80, "")])
    }

    /// Returns a Gateway with HTTP on port 80, and with HTTPS on port 443 for `a.com`.
    pub(crate) fn http_and_https() -> Self {
        let listeners = [
            http("http", 80, ""),
            https("tls", 443, "", &["certificate"]),
        ];
        Self::gateway(&listeners).with(secret("certificate", &Certificate::new(&["a.com"])))
    }

    /// Adds a document.
    pub(crate) fn with(mut self, document: String) -> Self {
        self.0.push(document);
        self
    }

    /// Returns a Service on port 80 with these endpoints.
    pub(crate) fn service(self, name: &str, endpoints: &[SocketAddr]) -> Self {
        self.with(yaml::service(name, endpoints))
    }

    /// Returns a route of the Gateway for any host, with these rules.
    pub(crate) fn route(self, name: &str, rules: &[Value]) -> Self {
        self.with(route(name, &[], rules))
    }

    /// As YAML.
    pub(crate) fn text(&self) -> String {
        self.0.join("\n---\n")
    }
}

/// Returns a route for these hosts of the Gateway.
pub(crate) fn route(name: &str, hosts: &[&str], rules: &[Value]) -> String {
    yaml::route(name, "gateway", hosts, &Value::from(rules).to_string())
}

/// Returns a route for all hosts of one listener.
pub(crate) fn route_of(listener: &str, rules: &[Value]) -> String {
    let parent = format!("gateway/{listener}");
    yaml::route(
        &format!("of-{listener}"),
        &parent,
        &[],
        &Value::from(rules).to_string(),
    )
}

/// Returns a rule that sends everything to a Service.
pub(crate) fn to(service: &str) -> Value {
    json!({"backendRefs": [{"name": service, "port": 80}]})
}

/// Returns a rule that sends a path prefix to a Service.
pub(crate) fn prefix(path: &str, service: &str) -> Value {
    let mut rule = to(service);
    rule["matches"] = json!([{"path": {"type": "PathPrefix", "value": path}}]);
    rule
}
