//! A running data plane: the control thread with provider, controller and admin server, and the
//! proxy's workers. Owns the threads and the order of startup and shutdown.

mod announce;
pub mod controller;
mod election;
mod serves;
mod session_key;
mod stream;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use tokio::sync::{mpsc, watch};

use self::announce::Announced;
use self::serves::serves;
use crate::admin::{self, AdminState};
use crate::api::Key;
use crate::controller::{Outcome, Outputs};
use crate::dns::{AllowedAddresses, Names, SystemLookup};
use crate::ir::BindReport;
use crate::provider::{
    FileProvider, KubernetesProvider, Load, StreamEvent, StreamProvider, StreamSettings,
};
use crate::proxy::Proxy;
use crate::session_key::SessionKey;
use crate::settings::{Settings, Source, StreamSource};
use crate::shutdown::{self, Shutdown, Trigger};
use crate::stream::message::Serves;
use crate::table::{Table, set_stale};
use crate::telemetry::metrics::StreamStats;
use crate::telemetry::{AccessLog, ProcessStats};
use crate::translate::{Mode, Options, watched_kinds};

/// A data plane that serves its first configuration.
pub struct Server {
    outcome: watch::Receiver<Option<Outcome>>,
    state: Arc<AdminState>,
    admin: Option<SocketAddr>,
    trigger: Trigger,
    reload: mpsc::Sender<()>,
    control: thread::JoinHandle<()>,
}

/// Serves until a signal starts a shutdown, and returns when it is complete.
///
/// # Errors
/// When the configuration folder cannot be read, when threads, the admin address or signal handlers
/// cannot be set up, or when the control thread panics.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    Server::launch(settings, true)?.wait()
}

impl Server {
    /// Starts a data plane without signal handlers, for use within another program. Returns when
    /// the first configuration is in service.
    ///
    /// # Errors
    /// The same as for [`run`].
    pub fn start(settings: &Settings) -> anyhow::Result<Self> {
        let mut server = Self::launch(settings, false)?;
        // The control thread owns the sender. If that thread has ended, `start` fails.
        tokio::runtime::Builder::new_current_thread()
            .build()?
            .block_on(server.outcome.wait_for(Option::is_some))
            .context("the control thread ended")?;
        Ok(server)
    }

    /// Returns the address bound for a listener's port (the first of several); `None` if none is
    /// bound.
    pub fn address(&self, port: u16) -> Option<SocketAddr> {
        let outcome = self.outcome.borrow();
        let mut binds = outcome
            .as_ref()?
            .binds
            .iter()
            .filter(|(bind, _)| bind.port == port);
        binds.find_map(|(_, result)| result.as_ref().ok().copied())
    }

    /// Returns the outcome of the last configuration. The receiver observes changes.
    pub fn outcome(&self) -> watch::Receiver<Option<Outcome>> {
        self.outcome.clone()
    }

    /// Returns the address of the admin server.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// Returns the state that the admin server shows.
    pub fn state(&self) -> &Arc<AdminState> {
        &self.state
    }

    /// Requests a reload of the configuration folder.
    pub fn reload(&self) {
        // A full queue already holds a pending reload.
        let _ = self.reload.try_send(());
    }

    /// Shuts down gracefully, as after SIGTERM. Returns when shutdown is complete.
    pub fn shut_down(self) {
        let trigger = self.trigger.clone();
        let shutdown = thread::spawn(move || {
            if let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
            {
                runtime.block_on(trigger.shut_down());
            }
        });
        self.end();
        drop(shutdown);
    }

    /// Closes every connection by force and returns when shutdown is complete.
    pub fn stop(self) {
        self.trigger.force();
        self.end();
    }

    /// Waits until shutdown is complete.
    ///
    /// # Errors
    /// When the control thread has panicked: the process does not follow changes any more and must
    /// be restarted.
    pub fn wait(self) -> anyhow::Result<()> {
        ended(self.control.join())
    }

    fn end(self) {
        if let Err(error) = self.wait() {
            tracing::error!("{error}");
        }
    }

    fn launch(settings: &Settings, signals: bool) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let session_key = session_key::open(settings)?;
        let objects = Objects::open(settings, &runtime, &session_key)?;
        let stream = matches!(objects, Objects::Stream(..)).then(Arc::<StreamStats>::default);
        let access_log =
            AccessLog::start(&settings.access_log).context("cannot start the access log")?;
        let (trigger, shutdown) = shutdown::new(settings.drain);
        let (reload, reloads) = mpsc::channel(1);
        let table = Arc::new(ArcSwap::from_pointee(Table::empty()));
        let stats = ProcessStats {
            stream,
            ..ProcessStats::default()
        };
        let proxy = Proxy::start(
            settings,
            table.clone(),
            &access_log,
            session_key,
            stats.connections.clone(),
            shutdown.clone(),
        )
        .context("cannot start a worker")?;
        let state = Arc::new(AdminState::new(table, stats, access_log));
        let admin = settings.admin.map(admin::bind).transpose();
        let admin =
            admin.with_context(|| format!("cannot bind the admin address {:?}", settings.admin))?;
        let admin_address = admin
            .as_ref()
            .map(std::net::TcpListener::local_addr)
            .transpose()?;
        if signals {
            // tokio registers signal handlers with the runtime of the current context.
            let _within = runtime.enter();
            let logs = state.clone();
            shutdown::on_signals(trigger.clone(), reload.clone())
                .and_then(|()| shutdown::on_user_signal(move || logs.access_log.reopen()))
                .context("cannot install signal handlers")?;
        }
        let (publish, outcome) = watch::channel(None);
        let names = Names::new(
            SystemLookup::new(settings.dns_servers.clone()),
            AllowedAddresses::new(settings.allowed_external_addresses.clone()),
            state.stats.dns.clone(),
        );
        let control = Control {
            options: options(settings, objects.mode()),
            objects,
            names,
            reloads,
            proxy,
            state: state.clone(),
            shutdown,
            publish,
        };
        let control = thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || {
                control.run(&runtime, admin);
                // A pending DNS lookup must not delay the exit.
                runtime.shutdown_timeout(Duration::from_secs(1));
            })?;
        Ok(Self {
            outcome,
            state,
            admin: admin_address,
            trigger,
            reload,
            control,
        })
    }
}

/// Converts a panic of the control thread into an error.
fn ended(control: thread::Result<()>) -> anyhow::Result<()> {
    control.map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        anyhow::anyhow!(
            "the control thread panicked and no longer follows changes: {}",
            text.unwrap_or("see the log")
        )
    })
}

/// Source of objects.
enum Objects {
    /// A folder and its initial content.
    Folder(FileProvider, Load),
    /// A Kubernetes API server.
    Cluster(KubernetesProvider),
    /// A controller, and the session key that it sets, unless a key file is configured.
    Stream(StreamProvider, Option<Arc<SessionKey>>),
}

impl Objects {
    fn open(
        settings: &Settings,
        runtime: &tokio::runtime::Runtime,
        session_key: &Arc<SessionKey>,
    ) -> anyhow::Result<Self> {
        match &settings.source {
            Source::Folder(folder) => {
                let mut provider = FileProvider::new(folder.clone());
                let first = provider.load()?;
                Ok(Self::Folder(provider, first))
            }
            Source::Kubernetes {
                gateway,
                namespaces,
            } => {
                let provider = runtime.block_on(KubernetesProvider::from_environment())?;
                let provider =
                    provider.of_kinds(watched_kinds(&options(settings, Mode::Kubernetes)));
                let provider = provider.within(namespaces.iter().cloned());
                Ok(Self::Cluster(match gateway {
                    Some(only) => provider.only(&only.namespace, &only.name),
                    None => provider,
                }))
            }
            Source::Stream(source) => {
                let follows = settings.session_key_file.is_none();
                let key = follows.then(|| session_key.clone());
                Ok(Self::Stream(stream_provider(source), key))
            }
        }
    }

    /// Returns the operating mode, which follows from the source of objects.
    fn mode(&self) -> Mode {
        match self {
            Self::Folder(..) => Mode::Standalone,
            Self::Cluster(_) => Mode::Kubernetes,
            Self::Stream(..) => Mode::Dedicated,
        }
    }

    /// Runs the loop on the current objects and on every change.
    async fn drive<F, P>(
        self,
        options: Options,
        names: Names<SystemLookup>,
        reloads: mpsc::Receiver<()>,
        reports: watch::Receiver<Option<Serves>>,
        outputs: Outputs<F, P>,
        state: &AdminState,
    ) where
        F: FnMut(&Table) -> BindReport,
        P: FnMut(Outcome),
    {
        match self {
            Self::Folder(provider, first) => {
                let (sender, loads) = watch::channel(Arc::new(first));
                tokio::select! {
                    () = crate::controller::run(loads, options, names, outputs) => {}
                    () = provider.watch(sender, reloads) => {}
                }
            }
            Self::Cluster(provider) => {
                let (sender, loads) = watch::channel(Arc::default());
                tokio::select! {
                    () = run_from_first(loads, options, names, outputs) => {}
                    () = provider.watch(sender, || state.stats.config.contacted()) => {}
                }
            }
            Self::Stream(provider, key) => {
                let (sender, loads) = watch::channel(Arc::default());
                // Objects of a previous container are served before the controller confirms them.
                set_stale(true);
                let on_event = |event: StreamEvent<'_>| match (event, &key) {
                    (StreamEvent::SessionSecret(secret), Some(key)) => {
                        session_key::follow(key, secret)
                    }
                    (event, _) => record_stream_event(event, state),
                };
                tokio::select! {
                    () = run_from_first(loads, options, names, outputs) => {}
                    () = provider.watch(sender, reports, on_event) => {}
                }
            }
        }
    }
}

/// Returns the translation options for objects of this source.
fn options(settings: &Settings, mode: Mode) -> Options {
    Options {
        mode,
        permissions: settings.permissions.clone(),
        location: settings.location.clone(),
        ..Options::default()
    }
}

fn stream_provider(source: &StreamSource) -> StreamProvider {
    StreamProvider::new(StreamSettings {
        host: source.controller.host.clone(),
        port: source.controller.port,
        gateway: Key::new(&source.gateway.namespace, &source.gateway.name),
        ca_file: source.ca_file.clone(),
        token_file: source.token_file.clone(),
        state_dir: source.state_dir.clone(),
    })
}

/// Runs the loop once the first objects are known. Serves nothing before.
async fn run_from_first<F, P>(
    mut loads: watch::Receiver<Arc<Load>>,
    options: Options,
    names: Names<SystemLookup>,
    outputs: Outputs<F, P>,
) where
    F: FnMut(&Table) -> BindReport,
    P: FnMut(Outcome),
{
    if loads.changed().await.is_ok() {
        crate::controller::run(loads, options, names, outputs).await;
    }
}

/// Records the state of the connection to the controller for metrics and readiness.
fn record_stream_event(event: StreamEvent<'_>, state: &AdminState) {
    match event {
        StreamEvent::CaughtUp => set_stale(false),
        StreamEvent::Disconnected => set_stale(true),
        _ => {}
    }
    let Some(stats) = &state.stats.stream else {
        return;
    };
    match event {
        StreamEvent::Connected => stats.connected(),
        StreamEvent::Disconnected => stats.disconnected(),
        StreamEvent::Committed(position) => stats.committed(position.revision),
        StreamEvent::SessionSecret(_) | StreamEvent::CaughtUp => {}
        StreamEvent::Waiting(reason) => state.waiting.store(Some(Arc::new(reason))),
    }
}

/// State of the control thread.
struct Control {
    objects: Objects,
    names: Names<SystemLookup>,
    reloads: mpsc::Receiver<()>,
    proxy: Proxy,
    state: Arc<AdminState>,
    shutdown: Shutdown,
    publish: watch::Sender<Option<Outcome>>,
    options: Options,
}

impl Control {
    fn run(self, runtime: &tokio::runtime::Runtime, admin: Option<std::net::TcpListener>) {
        let proxy = runtime.block_on(async {
            if let Some(listener) = admin {
                match tokio::net::TcpListener::from_std(listener) {
                    Ok(listener) => drop(tokio::spawn(admin::serve(
                        listener,
                        self.state.clone(),
                        self.shutdown.clone(),
                    ))),
                    Err(error) => {
                        tracing::error!(%error, "cannot accept connections on the admin address")
                    }
                }
            }
            let proxy = self.configure().await;
            tokio::task::spawn_blocking(move || proxy.join()).await
        });
        if proxy.is_err() {
            tracing::error!("cannot wait for the workers");
        }
    }

    /// Follows configuration changes until draining begins.
    async fn configure(self) -> Proxy {
        let Self {
            objects,
            names,
            reloads,
            mut proxy,
            state,
            mut shutdown,
            publish,
            options,
        } = self;
        let mut terminating = shutdown.clone();
        let mut announced = Announced::default();
        let (report, reports) = watch::channel(None);
        let outputs = Outputs {
            table: state.table.clone(),
            bind: |table: &Table| proxy.follow(table),
            publish: |outcome: Outcome| {
                let problems = announced.announce(&outcome.load, &outcome.report);
                announce_binds(&outcome, publish.borrow().as_ref());
                state.report.store(outcome.report.clone());
                state.stats.config.loaded(outcome.generation, problems);
                state.ready.store(true, Release);
                report.send_replace(serves(&outcome));
                publish.send_replace(Some(outcome));
            },
        };
        let not_ready = async {
            terminating.terminating().await;
            state.ready.store(false, Release);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = objects.drive(options, names, reloads, reports, outputs, &state) => {}
            () = not_ready => {}
            () = shutdown.draining() => {}
        }
        state.ready.store(false, Release);
        proxy
    }
}

/// Logs binds that differ from `last`, and a new generation.
fn announce_binds(outcome: &Outcome, last: Option<&Outcome>) {
    for (bind, result) in &outcome.binds {
        let is_new = last.and_then(|last| last.binds.get(bind)) != Some(result);
        match result {
            Ok(address) if is_new => {
                tracing::info!("listening on {address} for port {}", bind.port)
            }
            Err(error) if is_new => {
                tracing::error!("cannot bind port {bind}: {error}; retrying every second")
            }
            _ => {}
        }
    }
    let closed = last.into_iter().flat_map(|last| &last.binds);
    for (bind, result) in closed.filter(|(bind, _)| !outcome.binds.contains_key(bind)) {
        if let Ok(address) = result {
            tracing::info!("no longer listening on {address} for port {}", bind.port);
        }
    }
    if last.is_none_or(|last| last.generation != outcome.generation) {
        tracing::info!("configuration {} is served", outcome.generation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_panic_of_the_control_thread() {
        assert!(ended(thread::spawn(|| {}).join()).is_ok());
        let panicked = |message: &'static str| ended(Err(Box::new(message)));
        let error = panicked("index out of bounds").unwrap_err().to_string();
        assert!(error.contains("index out of bounds"), "{error}");
        let error = ended(Err(Box::new("made".to_owned()))).unwrap_err();
        assert!(error.to_string().ends_with(": made"), "{error}");
        assert!(ended(Err(Box::new(7))).is_err());
    }
}
