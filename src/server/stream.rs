//! The thread that watches the cluster and serves the configuration stream of a controller: on one of its own, so that
//! pods need not wait while the cluster is translated and conditions are written. Owns its runtime and its end.

use std::sync::Arc;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};

use super::controller::ControllerSettings;
use crate::admin::{self, AdminState};
use crate::provider::{KubernetesProvider, Load, Observer};
use crate::shutdown::Shutdown;
use crate::status::lease::Leadership;
use crate::stream::hub::Reports;
use crate::stream::{Inputs, Outputs, Stream};
use crate::telemetry::metrics::SessionStats;
use crate::translate;

/// The thread, while it runs.
pub(super) struct StreamThread {
    /// What it gives to the rest of the controller.
    pub(super) outputs: Arc<Outputs>,
    /// What pods report.
    pub(super) reports: watch::Receiver<Reports>,
    ended: oneshot::Receiver<()>,
}

impl StreamThread {
    /// Binds the address and starts the thread.
    pub(super) fn start(
        settings: &ControllerSettings,
        observer: Arc<dyn Observer>,
        state: Arc<AdminState>,
        leadership: watch::Receiver<Leadership>,
        stats: Arc<SessionStats>,
        mut shutdown: Shutdown,
    ) -> anyhow::Result<Self> {
        let address = settings.stream.address;
        let listener = admin::bind(address)
            .with_context(|| format!("the stream's address {address} cannot be bound"))?;
        let (loads, fed) = watch::channel(Arc::<Load>::default());
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
        let stream = Stream::new(options);
        let reports = stream.reports();
        let outputs = Arc::<Outputs>::default();
        let (alive, ended) = oneshot::channel();
        let of_thread = outputs.clone();
        std::thread::Builder::new()
            .name("stream".to_owned())
            .spawn(move || {
                // Dropped when the thread ends, also by a panic.
                let _alive: oneshot::Sender<()> = alive;
                let serving = async {
                    // A client lives on the runtime that it is made on.
                    let provider = KubernetesProvider::from_environment().await?;
                    let provider = provider.of_kinds(kinds).observed_by(observer);
                    let client = provider.client();
                    let listener = TcpListener::from_std(listener)?;
                    tokio::select! {
                        () = shutdown.leaving() => {}
                        () = provider.watch(loads, || state.stats.config.contacted()) => {}
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
        // The sender never sends.
        let _ = (&mut self.ended).await;
    }
}
