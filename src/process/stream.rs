//! The controller's thread that watches the cluster and serves the configuration stream. It is a
//! separate thread, so that pods do not wait for translation and status writes. Owns the thread's
//! runtime and its end.

use std::sync::Arc;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};

use super::controller_settings::ControllerSettings;
use crate::admin::{self, AdminState};
use crate::cluster::client::ApiServer;
use crate::dns::{AllowedAddresses, SystemLookup};
use crate::key_sets::KeySets;
use crate::provider::{KubernetesProvider, Load, Observer};
use crate::runtime::shutdown::Shutdown;
use crate::status::lease::Leadership;
use crate::stream::hub::Reports;
use crate::stream::{Inputs, Outputs, Stream};
use crate::telemetry::metrics::SessionStats;
use crate::translate;

/// The running thread.
pub(super) struct StreamThread {
    /// Outputs for the rest of the controller.
    pub(super) outputs: Arc<Outputs>,
    /// Reports of the connected pods.
    pub(super) reports: watch::Receiver<Reports>,
    ended: oneshot::Receiver<()>,
}

impl StreamThread {
    /// Binds the address and starts the thread.
    pub(super) fn start(
        settings: &ControllerSettings,
        api_server: ApiServer,
        observer: Arc<dyn Observer>,
        state: Arc<AdminState>,
        leadership: watch::Receiver<Leadership>,
        stats: Arc<SessionStats>,
        mut shutdown: Shutdown,
    ) -> anyhow::Result<Self> {
        let address = settings.stream.address;
        let listener = admin::bind(address).with_context(|| {
            format!("cannot bind the address {address} of the configuration stream")
        })?;
        let (sender, loads) = watch::channel(Arc::<Load>::default());
        let (feed, fed) = watch::channel(Arc::<Load>::default());
        let inputs = Inputs {
            loads: fed,
            leadership,
            namespace: settings.namespace.clone(),
            host: settings.stream.url.host.clone(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let options = settings.options();
        let kinds: Vec<_> = translate::watched_kinds(&options).collect();
        let stream = Stream::new(options.clone());
        // Every replica fetches the keys, since every replica serves the stream.
        let key_sets = KeySets::new(
            (
                SystemLookup::default(),
                AllowedAddresses::new(settings.allowed_jwks_addresses.clone()),
            ),
            options,
            state.stats.key_sets.clone(),
            stream.key_requests(),
        );
        let reports = stream.reports();
        let outputs = Arc::<Outputs>::default();
        let (alive, ended) = oneshot::channel();
        let of_thread = outputs.clone();
        std::thread::Builder::new()
            .name("stream".to_owned())
            .spawn(move || {
                // Dropped when the thread ends, even by a panic.
                let _alive: oneshot::Sender<()> = alive;
                let serving = async {
                    // A client must live on the runtime that created it.
                    let provider = KubernetesProvider::new(&api_server)?;
                    let provider = provider.of_kinds(kinds).observed_by(observer);
                    let client = provider.client();
                    let listener = TcpListener::from_std(listener)?;
                    let config = &state.stats.config;
                    tokio::select! {
                        () = shutdown.terminating() => {}
                        () = key_sets.run(loads, &feed) => {}
                        () = provider.watch(sender, || config.contacted(), |count| config.waits(count)) => {}
                        () = stream.run(client, listener, inputs, &of_thread, stats) => {}
                    }
                    anyhow::Ok(())
                };
                if let Err(error) = runtime.block_on(serving) {
                    tracing::error!("the configuration stream has ended: {error:#}");
                }
            })?;
        Ok(Self {
            outputs,
            reports,
            ended,
        })
    }

    /// Returns when the thread has ended.
    pub(super) async fn ended(&mut self) {
        // The sender never sends a value: it is dropped when the thread ends, which closes the
        // channel.
        let _ = (&mut self.ended).await;
    }
}
