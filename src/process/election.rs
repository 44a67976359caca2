//! The controller's thread for the leader election. It is a separate thread, so that no work of the controller, however
//! long, keeps the Lease from being renewed. Owns the thread's runtime and its end.

use tokio::sync::{oneshot, watch};

use super::controller_settings::ControllerSettings;
use crate::cluster::client::ApiServer;
use crate::status::lease::{Candidate, Leadership};

/// Name of the Lease.
const LEASE: &str = "portcullis-controller";

/// The running thread.
pub(super) struct ElectionThread {
    /// Dropped to end the thread.
    alive: Option<oneshot::Sender<()>>,
    ended: oneshot::Receiver<()>,
    has_ended: bool,
}

impl ElectionThread {
    /// Starts the thread, which publishes who leads.
    pub(super) fn start(
        settings: &ControllerSettings,
        api_server: ApiServer,
        leadership: watch::Sender<Leadership>,
    ) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (namespace, identity) = (settings.namespace.clone(), settings.identity.clone());
        let address = settings.stream.advertised.clone();
        let (alive, stopped) = oneshot::channel::<()>();
        let (running, ended) = oneshot::channel();
        std::thread::Builder::new()
            .name("election".to_owned())
            .spawn(move || {
                // Dropped when the thread ends, even by a panic.
                let _running: oneshot::Sender<()> = running;
                let campaign = async {
                    // A client must live on the runtime that created it.
                    let client = api_server.client()?;
                    let mut candidate =
                        Candidate::new(client, &namespace, LEASE, &identity, address);
                    tokio::select! {
                        () = candidate.campaign(&leadership) => {}
                        _ = stopped => {}
                    }
                    candidate.resign().await;
                    anyhow::Ok(())
                };
                if let Err(error) = runtime.block_on(campaign) {
                    tracing::error!("the leader election has ended: {error:#}");
                }
            })?;
        Ok(Self {
            alive: Some(alive),
            ended,
            has_ended: false,
        })
    }

    /// Returns when the thread has ended.
    pub(super) async fn ended(&mut self) {
        if !self.has_ended {
            // The sender never sends a value: it is dropped when the thread ends, which closes the channel.
            let _ = (&mut self.ended).await;
            self.has_ended = true;
        }
    }

    /// Ends the thread. Gives the Lease back, so that another replica can lead at once.
    pub(super) async fn resign(mut self) {
        self.alive = None;
        self.ended().await;
    }
}
