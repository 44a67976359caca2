//! A running data plane: the control thread with provider, controller and admin server, and the
//! proxy's workers. Owns the threads and the order of startup and shutdown.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use tokio::sync::{mpsc, watch};

use crate::admin::{AdminState, AdminThread, TokenFile};
use crate::control::data_plane::{Outputs, ServedConfiguration};
use crate::dns::{AllowedAddresses, Names, SystemLookup};
use crate::finding::Finding;
use crate::key_sets::KeySets;
use crate::peers::Peers;
use crate::process::announce::Announced;
use crate::process::objects::{Objects, options};
use crate::process::readiness::Readiness;
use crate::process::report::serves;
use crate::process::supervised::{Supervised, Tasks};
use crate::process::warnings::Warnings;
use crate::provider::{Load, Problem, Progress};
use crate::proxy::Proxy;
use crate::runtime::shutdown;
use crate::runtime::shutdown::{Shutdown, Trigger};
use crate::settings::{Settings, Source};
use crate::table::Table;
use crate::telemetry::metrics::StreamStats;
use crate::telemetry::{AccessLog, ProcessStats};
use crate::token_endpoint::TokenClient;
use crate::translate::Options;

/// A data plane that serves its first configuration.
pub struct Server {
    served: watch::Receiver<Option<ServedConfiguration>>,
    state: Arc<AdminState>,
    admin: Option<SocketAddr>,
    trigger: Trigger,
    reload: mpsc::Sender<()>,
    progress: Arc<Progress>,
    control: Supervised,
}

/// Serves until a signal starts a shutdown, and returns when it is complete.
///
/// # Errors
/// When the configuration folder cannot be read, when threads, the admin address or signal handlers
/// cannot be set up, when the control thread panics, or when work does not end at the deadline of the
/// shutdown.
pub fn run(settings: &Settings) -> anyhow::Result<()> {
    let server = Server::launch(settings)?;
    let (served, state) = (server.served, server.state.clone());
    let (progress, logs) = (server.progress, state.clone());
    let starting = || {
        let waiting = state.waiting.load_full();
        let progress = || waiting.map_or_else(|| progress.to_string(), |it| it.to_string());
        served.borrow().is_none().then(progress)
    };
    let tasks = Tasks {
        reload: server.reload,
        on_user_signal: move || logs.access_log.reopen(),
        starting,
    };
    let result = server.control.supervise(&server.trigger, tasks);
    state.access_log.finish();
    result
}

impl Server {
    /// Starts a data plane without signal handlers, for use within another program. Returns when
    /// the first configuration is in service.
    ///
    /// # Errors
    /// The same as for [`run`].
    pub fn start(settings: &Settings) -> anyhow::Result<Self> {
        let mut server = Self::launch(settings)?;
        let started = tokio::runtime::Builder::new_current_thread()
            .build()?
            .block_on(server.served.wait_for(Option::is_some))
            .is_ok();
        if !started {
            // The control thread owns the sender, and has ended.
            server.trigger.force();
            server.control.join()?;
            anyhow::bail!("the control thread ended");
        }
        Ok(server)
    }

    /// Returns the address bound for a listener's port (the first of several); `None` if none is
    /// bound.
    pub fn address(&self, port: u16) -> Option<SocketAddr> {
        let served = self.served.borrow();
        let mut binds = served
            .as_ref()?
            .binds
            .iter()
            .filter(|(bind, _)| bind.port == port);
        binds.find_map(|(_, result)| result.as_ref().ok().copied())
    }

    /// Returns the configuration that is served. The receiver observes changes.
    pub fn served(&self) -> watch::Receiver<Option<ServedConfiguration>> {
        self.served.clone()
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

    fn end(self) {
        if let Err(error) = self.control.join() {
            tracing::error!("{error}");
        }
    }

    fn launch(settings: &Settings) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let session_key = crate::process::session_key::open(settings)?;
        let progress = Arc::<Progress>::default();
        let objects = Objects::open(settings, &runtime, &session_key, &progress)?;
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
            (session_key, token_client(settings)),
            &stats,
            shutdown.clone(),
        )
        .context("cannot start a worker")?;
        let mut state = AdminState::new(table, stats, access_log);
        state.detail = settings.metrics;
        state.locations = objects.locations();
        state.token = TokenFile::open(settings.admin_token_file.as_deref())?;
        let state = Arc::new(state);
        let admin = match settings.admin {
            Some(address) => Some(
                AdminThread::start(address, state.clone(), shutdown.clone())
                    .with_context(|| format!("cannot serve on the admin address {address}"))?,
            ),
            None => None,
        };
        let admin_address = admin.as_ref().map(AdminThread::address);
        let (publish, served) = watch::channel(None);
        let names = Names::new(
            SystemLookup::new(settings.dns_servers.clone()),
            AllowedAddresses::new(settings.allowed_external_addresses.clone()),
            state.stats.dns.clone(),
        );
        let options = options(settings, objects.mode());
        let control = Control {
            peers: peers(settings, &state),
            key_sets: key_sets(settings, options.clone(), &state),
            options,
            objects,
            names,
            reloads,
            proxy,
            state: state.clone(),
            shutdown,
            publish,
            progress: progress.clone(),
        };
        let control = Supervised::spawn("control", move || {
            let result = control.run(&runtime);
            // A pending DNS lookup must not delay the exit.
            runtime.shutdown_timeout(Duration::from_secs(1));
            drop(admin);
            result
        })?;
        Ok(Self {
            served,
            state,
            admin: admin_address,
            trigger,
            reload,
            progress,
            control,
        })
    }
}

/// Creates what fetches the keys of token issuers.
fn key_sets(settings: &Settings, options: Options, state: &AdminState) -> KeySets<SystemLookup> {
    KeySets::new(
        (
            SystemLookup::new(settings.dns_servers.clone()),
            AllowedAddresses::new(settings.allowed_jwks_addresses.clone()),
        ),
        options,
        state.stats.key_sets.clone(),
        state.table.load().key_requests(),
    )
}

/// Returns what asks OpenID providers for tokens.
fn token_client(settings: &Settings) -> TokenClient {
    let lookup = SystemLookup::new(settings.dns_servers.clone());
    let allowed = AllowedAddresses::new(settings.allowed_jwks_addresses.clone());
    TokenClient::new(lookup, allowed)
}

/// State of the control thread.
struct Control {
    objects: Objects,
    names: Names<SystemLookup>,
    key_sets: KeySets<SystemLookup>,
    reloads: mpsc::Receiver<()>,
    proxy: Proxy,
    /// Other pods of the Gateway, if a controller names them.
    peers: Option<Peers>,
    state: Arc<AdminState>,
    shutdown: Shutdown,
    publish: watch::Sender<Option<ServedConfiguration>>,
    progress: Arc<Progress>,
    options: Options,
}

impl Control {
    fn run(self, runtime: &tokio::runtime::Runtime) -> anyhow::Result<()> {
        let (proxy, peers) = runtime.block_on(self.configure())?;
        proxy.join();
        if let Some(peers) = peers {
            peers.join();
        }
        Ok(())
    }

    /// Follows configuration changes until draining begins.
    async fn configure(self) -> anyhow::Result<(Proxy, Option<Peers>)> {
        let Self {
            objects,
            names,
            key_sets,
            reloads,
            mut proxy,
            peers,
            state,
            mut shutdown,
            publish,
            progress,
            options,
        } = self;
        let mut terminating = shutdown.clone();
        let (mut announced, mut warnings) = (Announced::default(), Warnings::new(options.mode));
        let mut readiness = Readiness::default();
        let (report, reports) = watch::channel(None);
        let outputs = Outputs {
            table: state.table.clone(),
            bind: |table: &Table| {
                if let Some(peers) = &peers {
                    peers.follow(table);
                }
                proxy.follow(table)
            },
            publish: |served: ServedConfiguration| {
                let ports = &state.table.load().ir.ports;
                let locations = state.locations.load();
                let warnings = warnings.follow(ports, &served.report, &locations);
                let problems = announced.announce(&served.load, &served.report, &locations);
                announce_binds(&served, publish.borrow().as_ref());
                state.report.store(served.report.clone());
                state.files.store(Arc::new(unread(&served.load)));
                state
                    .stats
                    .config
                    .loaded(served.generation, problems + warnings.len());
                state.warnings.store(warnings);
                let unready = readiness.follow(&served.binds, ports, &served.load.problems);
                state.ready.store(unready.is_none(), Release);
                state.waiting.store(unready.map(Arc::new));
                report.send_replace(serves(&served));
                publish.send_replace(Some(served));
            },
        };
        let not_ready = async {
            terminating.terminating().await;
            state.ready.store(false, Release);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = objects.drive(options, (names, key_sets), reloads, reports, outputs, (&state, &progress, peers.as_ref())) => ended?,
            () = not_ready => {}
            () = shutdown.draining() => {}
        }
        state.ready.store(false, Release);
        Ok((proxy, peers))
    }
}

/// Returns what knows the other pods of the Gateway, if a controller names them.
fn peers(settings: &Settings, state: &AdminState) -> Option<Peers> {
    match &settings.source {
        Source::Stream(source) => Some(Peers::new(source.peers, state.table.clone())),
        Source::Folder(_) | Source::Kubernetes { .. } => None,
    }
}

/// What is wrong with files and with objects that cannot be read, for the admin server.
fn unread(load: &Load) -> Vec<Finding> {
    let faults = load.problems.iter().filter(|problem| problem.is_fault());
    faults.map(Problem::finding).collect()
}

/// Logs binds that differ from `last`, and a new generation.
fn announce_binds(served: &ServedConfiguration, last: Option<&ServedConfiguration>) {
    for (bind, result) in &served.binds {
        let is_new = last.and_then(|last| last.binds.get(bind)) != Some(result);
        let (port, transport) = (bind.port, bind.transport.suffix());
        match result {
            Ok(address) if is_new => {
                tracing::info!("listening on {address} for port {port}{transport}")
            }
            Err(error) if is_new => {
                tracing::error!("cannot bind port {bind}: {error}; retrying every second")
            }
            _ => {}
        }
    }
    let closed = last.into_iter().flat_map(|last| &last.binds);
    for (bind, result) in closed.filter(|(bind, _)| !served.binds.contains_key(bind)) {
        if let Ok(address) = result {
            let (port, transport) = (bind.port, bind.transport.suffix());
            tracing::info!("no longer listening on {address} for port {port}{transport}");
        }
    }
    if last.is_none_or(|last| last.generation != served.generation) {
        tracing::info!("configuration generation {} is active", served.generation);
    }
}
