//! Where a data plane's objects come from: a folder, an API server, or a controller. Runs the control
//! loop on them.

use std::collections::BTreeSet;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::{mpsc, watch};

use super::session_key;
use crate::admin::AdminState;
use crate::api::Key;
use crate::cluster::client::ApiServer;
use crate::control::data_plane::{Outputs, ServedConfiguration};
use crate::dns::{Names, SystemLookup};
use crate::ir::BindReport;
use crate::key_sets::KeySets;
use crate::peers::Peers;
use crate::provider::file::Locations;
use crate::provider::{
    FileProvider, KubernetesProvider, Load, Progress, StreamEvent, StreamProvider, StreamSettings,
};
use crate::settings::session_key::SessionKey;
use crate::settings::{Settings, Source, StreamSource};
use crate::table::{Table, set_stale};
use crate::translate::{Mode, Options, watched_kinds};
use crate::wire::Serves;

/// Source of objects.
pub(super) enum Objects {
    /// A folder.
    Folder(FileProvider),
    /// A Kubernetes API server.
    Cluster(KubernetesProvider),
    /// A controller, and the session key that it sets, unless a key file is configured.
    Stream(StreamProvider, Option<Arc<SessionKey>>),
}

impl Objects {
    /// Prepares the source. Reads no objects yet.
    pub(super) fn open(
        settings: &Settings,
        runtime: &tokio::runtime::Runtime,
        session_key: &Arc<SessionKey>,
        progress: &Arc<Progress>,
    ) -> anyhow::Result<Self> {
        match &settings.source {
            Source::Folder(folder) => Ok(Self::Folder(
                FileProvider::new(folder.clone()).reporting(progress.clone()),
            )),
            Source::Kubernetes {
                gateway,
                namespaces,
            } => {
                let api_server = runtime.block_on(ApiServer::from_environment())?;
                // A client must live on the runtime that created it.
                let _within = runtime.enter();
                let provider = KubernetesProvider::new(&api_server)?
                    .of_kinds(watched_kinds(&options(settings, Mode::Kubernetes)));
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

    /// Returns where objects are in files; nothing is there unless they come from a folder.
    pub(super) fn locations(&self) -> Arc<ArcSwap<Locations>> {
        match self {
            Self::Folder(provider) => provider.locations(),
            Self::Cluster(_) | Self::Stream(..) => Arc::default(),
        }
    }

    /// Returns the operating mode, which follows from the source of objects.
    pub(super) fn mode(&self) -> Mode {
        match self {
            Self::Folder(..) => Mode::Standalone,
            Self::Cluster(_) => Mode::Kubernetes,
            Self::Stream(..) => Mode::Dedicated,
        }
    }

    /// Runs the loop on the current objects and on every change.
    ///
    /// # Errors
    /// When the configuration folder cannot be read at first.
    pub(super) async fn drive<F, P>(
        self,
        options: Options,
        (names, mut key_sets): (Names<SystemLookup>, KeySets<SystemLookup>),
        reloads: mpsc::Receiver<()>,
        reports: watch::Receiver<Option<Serves>>,
        outputs: Outputs<F, P>,
        (state, progress, peers): (&AdminState, &Progress, Option<&Peers>),
    ) -> anyhow::Result<()>
    where
        F: FnMut(&Table) -> BindReport,
        P: FnMut(ServedConfiguration),
    {
        match self {
            Self::Folder(mut provider) => {
                let first = provider.load()?;
                progress.translating(routes(&first));
                let first = Arc::new(first);
                let (sender, loads) = watch::channel(first.clone());
                let (feed, fed) = watch::channel(key_sets.follow(first));
                // In this order: the first objects are served before the folder is scanned again to watch it.
                tokio::select! {
                    biased;
                    () = crate::control::data_plane::run(fed, options, names, outputs) => {}
                    () = key_sets.run(loads, &feed) => {}
                    () = provider.watch(sender, reloads) => {}
                }
            }
            Self::Cluster(provider) => {
                let config = &state.stats.config;
                let (sender, loads) = watch::channel(Arc::default());
                let (feed, fed) = watch::channel(Arc::default());
                tokio::select! {
                    () = run_from_first(fed, options, names, outputs, progress) => {}
                    () = key_sets.run(loads, &feed) => {}
                    () = provider.watch(sender, || config.contacted(), |count| config.waits(count)) => {}
                }
            }
            Self::Stream(provider, key) => {
                let (sender, loads) = watch::channel(Arc::default());
                let key_requests = state.table.load().key_requests();
                // Objects of a previous container are served while no controller confirms them.
                set_stale(true);
                let http3 = state.table.load().shared_http3().clone();
                // Until a controller knows what the other pods serve.
                http3.set(BTreeSet::new());
                let on_event = |event: StreamEvent<'_>| {
                    if let Some(peers) = peers {
                        update_pods(peers, &event);
                    }
                    if let StreamEvent::Pods(pods) = &event {
                        http3.set(pods.http3.clone());
                    }
                    match (event, &key) {
                        (StreamEvent::SessionSecret(secrets), Some(key)) => {
                            let accepted = secrets.accepted.as_deref();
                            session_key::set(key, &secrets.secret, accepted)
                        }
                        (event, _) => record_stream_event(event, state),
                    }
                };
                tokio::select! {
                    () = run_from_first(loads, options, names, outputs, progress) => {}
                    () = provider.watch(sender, (reports, key_requests), on_event) => {}
                }
            }
        }
        Ok(())
    }
}

/// Returns the translation options for objects of this source.
pub(super) fn options(settings: &Settings, mode: Mode) -> Options {
    Options {
        controller_name: settings.controller_name.as_arc().clone(),
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
    progress: &Progress,
) where
    F: FnMut(&Table) -> BindReport,
    P: FnMut(ServedConfiguration),
{
    if loads.changed().await.is_ok() {
        progress.translating(routes(&loads.borrow()));
        crate::control::data_plane::run(loads, options, names, outputs).await;
    }
}

/// Returns the number of routes.
fn routes(load: &Load) -> usize {
    load.snapshot.http_routes.len() + load.snapshot.grpc_routes.len()
}

/// Follows the pods that limits are shared with, and the secret of all of them.
fn update_pods(peers: &Peers, event: &StreamEvent<'_>) {
    match event {
        StreamEvent::SessionSecret(secrets) => peers.set_secret(&secrets.secret),
        StreamEvent::Pods(pods) => {
            let ready = pods.ready.iter();
            let ready = ready.map(|(name, address)| (name.as_str(), *address));
            peers.set_pods(&pods.own, ready);
        }
        _ => {}
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
        StreamEvent::SessionSecret(_) | StreamEvent::Pods(_) | StreamEvent::CaughtUp => {}
        StreamEvent::Waiting(reason) => {
            let reason = format!("not configured yet: {reason}");
            state.waiting.store(Some(Arc::new(reason)));
        }
    }
}
