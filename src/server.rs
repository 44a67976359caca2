//! A running data plane, wired together: the control thread with provider, controller and admin server, and the
//! proxy's workers. Owns which thread does what, and the order of starting and leaving.

mod announce;
pub mod controller;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;
use std::thread;

use anyhow::Context;
use arc_swap::ArcSwap;
use tokio::sync::{mpsc, watch};

use self::announce::Announced;
use crate::admin::{self, AdminState};
use crate::controller::{Outcome, Outputs};
use crate::ir::BindReport;
use crate::provider::{FileProvider, KubernetesProvider, Load};
use crate::proxy::Proxy;
use crate::settings::{Settings, Source};
use crate::shutdown::{self, Shutdown, Trigger};
use crate::status::Served;
use crate::table::Table;
use crate::telemetry::metrics::ConfigStats;
use crate::telemetry::{AccessLog, ProcessStats};
use crate::translate::{Mode, Options};

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
/// When the configuration folder cannot be read, or threads, the admin address or signals cannot be had.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    let server = Server::launch(settings, true)?;
    server.wait();
    Ok(())
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
        self.wait();
        drop(leaving);
    }

    /// Cuts every connection, and returns when it has left.
    pub fn stop(self) {
        self.trigger.force();
        self.wait();
    }

    /// Waits until it has left.
    pub fn wait(self) {
        if self.control.join().is_err() {
            tracing::error!("the control thread ended by a panic");
        }
    }

    fn launch(settings: &Settings, signals: bool) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let objects = Objects::open(&settings.source, &runtime)?;
        let access_log = if settings.access_log {
            AccessLog::start().context("the access log cannot be started")?
        } else {
            AccessLog::disabled()
        };
        let (trigger, shutdown) = shutdown::new(settings.drain);
        let (reload, reloads) = mpsc::channel(1);
        let table = Arc::new(ArcSwap::from_pointee(Table::empty()));
        let stats = ProcessStats::default();
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
        let control = Control {
            objects,
            reloads,
            proxy,
            state: state.clone(),
            shutdown,
            publish,
        };
        let control = thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || control.run(&runtime, admin))?;
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

/// Where objects come from.
enum Objects {
    /// A folder, and what it held at first.
    Folder(FileProvider, Load),
    /// A cluster.
    Cluster(KubernetesProvider, Mode),
}

impl Objects {
    fn open(source: &Source, runtime: &tokio::runtime::Runtime) -> anyhow::Result<Self> {
        match source {
            Source::Folder(folder) => {
                let mut provider = FileProvider::new(folder.clone());
                let first = provider.load()?;
                Ok(Self::Folder(provider, first))
            }
            Source::Kubernetes {
                gateway,
                namespaces,
                is_provisioned,
            } => {
                let provider = runtime.block_on(KubernetesProvider::from_environment())?;
                let provider = provider.within(namespaces.iter().cloned());
                let provider = match gateway {
                    Some(only) => provider.only(&only.namespace, &only.name),
                    None => provider,
                };
                let mode = if *is_provisioned {
                    Mode::Dedicated
                } else {
                    Mode::Kubernetes
                };
                Ok(Self::Cluster(provider, mode))
            }
        }
    }

    /// Drives the loop with what is there now and whenever that changes.
    async fn drive<F, P>(
        self,
        reloads: mpsc::Receiver<()>,
        outputs: Outputs<F, P>,
        stats: &ConfigStats,
    ) where
        F: FnMut(&Table) -> BindReport,
        P: FnMut(Outcome),
    {
        let options = |mode| Options {
            mode,
            ..Options::default()
        };
        match self {
            Self::Folder(provider, first) => {
                let (sender, loads) = watch::channel(Arc::new(first));
                tokio::select! {
                    () = crate::controller::run(loads, options(Mode::Standalone), outputs) => {}
                    () = provider.watch(sender, reloads) => {}
                }
            }
            Self::Cluster(provider, mode) => {
                let (sender, mut loads) = watch::channel(Arc::default());
                let run = async {
                    // Nothing is served before the cluster is known.
                    if loads.changed().await.is_ok() {
                        crate::controller::run(loads, options(mode), outputs).await;
                    }
                };
                tokio::select! {
                    () = run => {}
                    () = provider.watch(sender, || stats.contacted()) => {}
                }
            }
        }
    }
}

/// What the control thread owns.
struct Control {
    objects: Objects,
    reloads: mpsc::Receiver<()>,
    proxy: Proxy,
    state: Arc<AdminState>,
    shutdown: Shutdown,
    publish: watch::Sender<Option<Outcome>>,
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
            reloads,
            mut proxy,
            state,
            mut shutdown,
            publish,
        } = self;
        let mut leaving = shutdown.clone();
        let mut announced = Announced::default();
        let outputs = Outputs {
            table: state.table.clone(),
            follow: |table: &Table| proxy.follow(table),
            publish: |outcome: Outcome| {
                announced.announce(&outcome.load, &outcome.report);
                announce_binds(&outcome, publish.borrow().as_ref());
                state.report.store(outcome.report.clone());
                let served = Served::new(&state.table.load().ir, &outcome.binds);
                state.served.send_replace(Arc::new(served));
                let problems = outcome.load.problems.len() + outcome.report.problems().count();
                state.stats.config.loaded(outcome.generation, problems);
                state.ready.store(true, Release);
                publish.send_replace(Some(outcome));
            },
        };
        let not_ready = async {
            leaving.leaving().await;
            state.ready.store(false, Release);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = objects.drive(reloads, outputs, &state.stats.config) => {}
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
