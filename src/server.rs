//! A running data plane, wired together: the control thread with provider, controller and admin server, and the
//! proxy's workers. Owns which thread does what, and the order of starting and leaving.

mod announce;
pub mod controller;
mod serves;
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
use crate::permissions::Permissions;
use crate::provider::{
    FileProvider, KubernetesProvider, Load, StreamEvent, StreamProvider, StreamSettings,
};
use crate::proxy::Proxy;
use crate::settings::{Settings, Source, StreamSource};
use crate::shutdown::{self, Shutdown, Trigger};
use crate::stream::message::Serves;
use crate::table::Table;
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

/// Serves until the process is told to leave by a signal, and has left in order.
///
/// # Errors
/// When the configuration folder cannot be read, or threads, the admin address or signals cannot be had; when the control
/// thread panics.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    Server::launch(settings, true)?.wait()
}

impl Server {
    /// Starts a data plane that no signal reaches, for use within another program. Returns when the first configuration
    /// is served.
    ///
    /// # Errors
    /// As [`run`].
    pub fn start(settings: &Settings) -> anyhow::Result<Self> {
        let mut server = Self::launch(settings, false)?;
        // The sender lives in the control thread; without it there is nothing to wait for.
        tokio::runtime::Builder::new_current_thread()
            .build()?
            .block_on(server.outcome.wait_for(Option::is_some))
            .context("the control thread ended")?;
        Ok(server)
    }

    /// The address that a listener's port is bound to: the first of several. `None` when it is not.
    pub fn address(&self, port: u16) -> Option<SocketAddr> {
        let outcome = self.outcome.borrow();
        let mut binds = outcome
            .as_ref()?
            .binds
            .iter()
            .filter(|(bind, _)| bind.port == port);
        binds.find_map(|(_, result)| result.as_ref().ok().copied())
    }

    /// What the last configuration came to; changes are told.
    pub fn outcome(&self) -> watch::Receiver<Option<Outcome>> {
        self.outcome.clone()
    }

    /// Where the admin server listens.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// What the admin server shows.
    pub fn state(&self) -> &Arc<AdminState> {
        &self.state
    }

    /// Reads the configuration folder again.
    pub fn reload(&self) {
        // A reload that is asked for already is enough.
        let _ = self.reload.try_send(());
    }

    /// Leaves as a signal would make it leave, and returns when it has left.
    pub fn leave(self) {
        let trigger = self.trigger.clone();
        let leaving = thread::spawn(move || {
            if let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
            {
                runtime.block_on(trigger.leave());
            }
        });
        self.end();
        drop(leaving);
    }

    /// Cuts every connection, and returns when it has left.
    pub fn stop(self) {
        self.trigger.force();
        self.end();
    }

    /// Waits until it has left.
    ///
    /// # Errors
    /// When the control thread has panicked: nobody follows changes any more, so that the process must be started anew.
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
        let objects = Objects::open(settings, &runtime)?;
        let stream = matches!(objects, Objects::Stream(_)).then(Arc::<StreamStats>::default);
        let access_log = if settings.access_log {
            AccessLog::start().context("the access log cannot be started")?
        } else {
            AccessLog::disabled()
        };
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
            access_log.clone(),
            stats.connections.clone(),
            shutdown.clone(),
        )
        .context("a worker cannot be started")?;
        let state = Arc::new(AdminState::new(table, stats, access_log));
        let admin = settings.admin.map(admin::bind).transpose();
        let admin = admin
            .with_context(|| format!("the admin address {:?} cannot be bound", settings.admin))?;
        let admin_address = admin
            .as_ref()
            .map(std::net::TcpListener::local_addr)
            .transpose()?;
        if signals {
            let _within = runtime.enter();
            shutdown::on_signals(trigger.clone(), reload.clone())
                .context("signals cannot be watched")?;
        }
        let (publish, outcome) = watch::channel(None);
        let names = Names::new(
            SystemLookup::new(settings.dns_servers.clone()),
            AllowedAddresses::new(settings.allowed_external_addresses.clone()),
            state.stats.dns.clone(),
        );
        let control = Control {
            objects,
            names,
            reloads,
            proxy,
            state: state.clone(),
            shutdown,
            publish,
            permissions: settings.permissions.clone(),
        };
        let control = thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || {
                control.run(&runtime, admin);
                // An answer from DNS that does not come must not keep the process.
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

/// What became of the control thread.
fn ended(control: thread::Result<()>) -> anyhow::Result<()> {
    control.map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        anyhow::anyhow!(
            "the control thread panicked, so that changes are no longer followed: {}",
            text.unwrap_or("see the log")
        )
    })
}

/// Where objects come from.
enum Objects {
    /// A folder, and what it held at first.
    Folder(FileProvider, Load),
    /// A cluster.
    Cluster(KubernetesProvider),
    /// A controller.
    Stream(StreamProvider),
}

impl Objects {
    fn open(settings: &Settings, runtime: &tokio::runtime::Runtime) -> anyhow::Result<Self> {
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
                let options = Options {
                    mode: Mode::Kubernetes,
                    permissions: settings.permissions.clone(),
                    ..Options::default()
                };
                let provider = provider.of_kinds(watched_kinds(&options));
                let provider = provider.within(namespaces.iter().cloned());
                Ok(Self::Cluster(match gateway {
                    Some(only) => provider.only(&only.namespace, &only.name),
                    None => provider,
                }))
            }
            Source::Stream(source) => Ok(Self::Stream(stream_provider(source))),
        }
    }

    /// Where objects come from, as far as it changes their meaning.
    fn mode(&self) -> Mode {
        match self {
            Self::Folder(..) => Mode::Standalone,
            Self::Cluster(_) => Mode::Kubernetes,
            Self::Stream(_) => Mode::Dedicated,
        }
    }

    /// Drives the loop with what is there now and whenever that changes.
    async fn drive<F, P>(
        self,
        names: Names<SystemLookup>,
        reloads: mpsc::Receiver<()>,
        reports: watch::Receiver<Option<Serves>>,
        permissions: Permissions,
        outputs: Outputs<F, P>,
        state: &AdminState,
    ) where
        F: FnMut(&Table) -> BindReport,
        P: FnMut(Outcome),
    {
        let options = Options {
            mode: self.mode(),
            permissions,
            ..Options::default()
        };
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
            Self::Stream(provider) => {
                let (sender, loads) = watch::channel(Arc::default());
                tokio::select! {
                    () = run_from_first(loads, options, names, outputs) => {}
                    () = provider.watch(sender, reports, |event| note(event, state)) => {}
                }
            }
        }
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

/// Runs the loop once there is something: nothing is served before the objects are known.
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

/// Takes note of the connection to the controller, for metrics and readiness.
fn note(event: StreamEvent<'_>, state: &AdminState) {
    let Some(stats) = &state.stats.stream else {
        return;
    };
    match event {
        StreamEvent::Connected => stats.connected(),
        StreamEvent::Disconnected => stats.disconnected(),
        StreamEvent::Committed(position) => stats.committed(position.revision),
        StreamEvent::Waiting(reason) => state.waiting.store(Some(Arc::new(reason))),
    }
}

/// What the control thread owns.
struct Control {
    objects: Objects,
    names: Names<SystemLookup>,
    reloads: mpsc::Receiver<()>,
    proxy: Proxy,
    state: Arc<AdminState>,
    shutdown: Shutdown,
    publish: watch::Sender<Option<Outcome>>,
    permissions: Permissions,
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
                    Err(error) => tracing::error!(%error, "the admin address cannot be watched"),
                }
            }
            let proxy = self.configure().await;
            tokio::task::spawn_blocking(move || proxy.join()).await
        });
        if proxy.is_err() {
            tracing::error!("the workers could not be waited for");
        }
    }

    /// Keeps the configuration current until open connections are to end.
    async fn configure(self) -> Proxy {
        let Self {
            objects,
            names,
            reloads,
            mut proxy,
            state,
            mut shutdown,
            publish,
            permissions,
        } = self;
        let mut leaving = shutdown.clone();
        let mut announced = Announced::default();
        let (report, reports) = watch::channel(None);
        let outputs = Outputs {
            table: state.table.clone(),
            follow: |table: &Table| proxy.follow(table),
            publish: |outcome: Outcome| {
                announced.announce(&outcome.load, &outcome.report);
                announce_binds(&outcome, publish.borrow().as_ref());
                state.report.store(outcome.report.clone());
                let problems = outcome.load.problems.len() + outcome.report.problems().count();
                state.stats.config.loaded(outcome.generation, problems);
                state.ready.store(true, Release);
                report.send_replace(serves(&outcome));
                publish.send_replace(Some(outcome));
            },
        };
        let not_ready = async {
            leaving.leaving().await;
            state.ready.store(false, Release);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = objects.drive(names, reloads, reports, permissions, outputs, &state) => {}
            () = not_ready => {}
            () = shutdown.draining() => {}
        }
        state.ready.store(false, Release);
        proxy
    }
}

/// Logs what is served, as far as that is new.
fn announce_binds(outcome: &Outcome, last: Option<&Outcome>) {
    for (bind, result) in &outcome.binds {
        let news = last.and_then(|last| last.binds.get(bind)) != Some(result);
        match result {
            Ok(address) if news => tracing::info!("listening on {address} for port {}", bind.port),
            Err(error) if news => {
                tracing::error!("port {bind} cannot be bound: {error}; it is retried every second")
            }
            _ => {}
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
    fn panic_of_the_control_thread_is_an_error() {
        assert!(ended(thread::spawn(|| {}).join()).is_ok());
        let panicked = |message: &'static str| ended(Err(Box::new(message)));
        let error = panicked("index out of bounds").unwrap_err().to_string();
        assert!(error.contains("index out of bounds"), "{error}");
        let error = ended(Err(Box::new("made".to_owned()))).unwrap_err();
        assert!(error.to_string().ends_with(": made"), "{error}");
        assert!(ended(Err(Box::new(7))).is_err());
    }
}
