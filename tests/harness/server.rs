//! A data plane in this process, configured by YAML in a temporary folder. Fails the test if one of
//! its threads panics.

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::Path;
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, panic, thread};

use portcullis::process::data_plane::Server;
use portcullis::settings::{AccessLogTarget, Drain, Ports, Settings};
use tempfile::TempDir;

use super::{TEST_TIMEOUT, UNREACHED};

/// Panic messages of data plane threads in this process.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A running data plane, stopped when dropped.
pub(crate) struct TestServer {
    folder: TempDir,
    server: Option<Server>,
}

impl TestServer {
    /// Serves these documents with [`settings`].
    pub(crate) fn start(documents: &[String]) -> Self {
        Self::start_with(documents, |_| {})
    }

    /// Like [`Self::start`], with changed settings.
    pub(crate) fn start_with(documents: &[String], tune: impl FnOnce(&mut Settings)) -> Self {
        Self::start_from(|folder| write(folder, documents), tune)
    }

    /// Like [`Self::start_with`], from the content that `prepare` writes to the folder.
    pub(crate) fn start_from(
        prepare: impl FnOnce(&Path),
        tune: impl FnOnce(&mut Settings),
    ) -> Self {
        watch_panics();
        let folder = tempfile::tempdir().expect("a temporary folder");
        prepare(folder.path());
        let mut settings = settings(folder.path());
        tune(&mut settings);
        // On a separate thread, so that tests may call this within a runtime.
        let started = thread::spawn(move || Server::start(&settings)).join();
        let server = started.expect("no panic").expect("the server starts");
        Self {
            folder,
            server: Some(server),
        }
    }

    /// Returns the configuration folder.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Bound address of a listener's port.
    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        self.address(port).expect("the port is bound")
    }

    /// Replaces the documents and waits until the new ones are in service.
    pub(crate) fn replace(&self, documents: &[String]) {
        let mut served = self.served();
        let before = generation(&served.borrow_and_update());
        write(self.folder.path(), documents);
        self.reload();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        let newer = served.wait_for(|served| generation(served) > before);
        let newer = thread::scope(|scope| {
            let wait = || {
                runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, newer).await.is_ok() })
            };
            scope.spawn(wait).join().expect("no panic")
        });
        assert!(newer, "the new configuration is served in time");
    }

    /// Waits until a condition of its counters holds.
    pub(crate) fn until(&self, what: &str, condition: impl Fn(&Server) -> bool) {
        let end = Instant::now() + TEST_TIMEOUT;
        while !condition(self) {
            assert!(Instant::now() < end, "{what} did not come about in time");
            // Counters have no change notification.
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Takes the server, to shut it down gracefully.
    pub(crate) fn into_server(mut self) -> (Server, TempDir) {
        let server = self.server.take().expect("not taken yet");
        let folder = tempfile::tempdir().expect("a temporary folder");
        (server, std::mem::replace(&mut self.folder, folder))
    }
}

impl Deref for TestServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        self.server.as_ref().expect("not taken yet")
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
        if !thread::panicking() {
            assert_no_panics();
        }
    }
}

/// Settings for tests: free ports, two workers, no access log, no shutdown delay, and no timeout but those that a test sets.
pub(crate) fn settings(folder: &Path) -> Settings {
    let mut settings = Settings::new(folder);
    settings.admin = None;
    settings.workers = 2;
    settings.access_log.target = AccessLogTarget::Off;
    settings.ports = Ports::Ephemeral;
    settings.drain = Drain {
        delay: Duration::ZERO,
        deadline: Duration::from_secs(5),
    };
    let limits = &mut settings.limits;
    for timeout in [
        &mut limits.header_timeout,
        &mut limits.keep_alive_timeout,
        &mut limits.body_timeout,
        &mut limits.write_timeout,
        &mut limits.handshake_timeout,
        &mut limits.stream_idle_timeout,
        &mut limits.tunnel_idle_timeout,
        &mut limits.udp_idle_timeout,
        &mut limits.connect_timeout,
        &mut limits.upstream_idle_timeout,
    ] {
        *timeout = UNREACHED;
    }
    settings
}

/// Fails if a data plane thread has panicked.
pub(crate) fn assert_no_panics() {
    let panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(
        panics.is_empty(),
        "the data plane has panicked: {panics:#?}"
    );
}

fn generation(served: &Option<portcullis::control::data_plane::ServedConfiguration>) -> u64 {
    served.as_ref().map_or(0, |served| served.generation)
}

/// Writes one file and renames it into place.
fn write(folder: &Path, documents: &[String]) {
    let next = folder.join(".next");
    fs::write(&next, documents.join("\n---\n")).expect("written");
    fs::rename(next, folder.join("all.yaml")).expect("renamed");
}

/// Records panics of data plane threads, which their tasks would swallow.
fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let next = panic::take_hook();
        panic::set_hook(Box::new(move |news| {
            let current = thread::current();
            let name = current.name().unwrap_or_default();
            if name.starts_with("worker-") || name == "control" {
                let mut panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
                panics.push(format!("{name}: {news}"));
            }
            next(news);
        }));
    });
}
