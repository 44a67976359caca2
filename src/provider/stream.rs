//! Objects of one Gateway, streamed by its controller. Stays connected, prefers the leader,
//! publishes complete states, and keeps the last state while no controller is reachable.

mod connect;
mod copy;
#[cfg(test)]
pub(crate) mod fixtures;
mod follower;
mod lines;
mod objects;
mod reports;
mod session;
mod settings;

use std::sync::Arc;

use tokio::sync::watch;

use self::follower::{Follower, Outgoing};
use self::objects::GatewayObjects;
use self::reports::Stored;
pub use self::settings::{StreamEvent, StreamSettings};
use super::Load;
use crate::key_requests::KeyRequests;
use crate::wire::Serves;

/// Receives objects from a controller.
#[derive(Clone, Debug)]
pub struct StreamProvider {
    settings: Arc<StreamSettings>,
}

impl StreamProvider {
    /// Creates a provider. Sends no request yet.
    pub fn new(settings: StreamSettings) -> Self {
        Self {
            settings: Arc::new(settings),
        }
    }

    /// Publishes the Gateway's objects and their changes, and reports to the controller which state
    /// is in service and stays so after a restart, and which key sets lack keys of tokens. Ends when the receiver is dropped.
    pub async fn watch(
        self,
        loads: watch::Sender<Arc<Load>>,
        (reports, key_requests): (watch::Receiver<Option<Serves>>, Arc<KeyRequests>),
        notify: impl FnMut(StreamEvent<'_>),
    ) {
        let Self { settings } = self;
        let dir = settings.state_dir.clone();
        let initial = dir.as_ref().and_then(|dir| {
            copy::warn_unless_in_memory(dir);
            copy::read(dir, &settings.gateway)
        });
        let stored = dir
            .as_ref()
            .map_or(Stored::Nothing, |dir| copy::stored(dir, initial.as_ref()));
        let (store, stored) = watch::channel(stored);
        let (confirmed, confirmations) = watch::channel(None);
        let outgoing = Outgoing {
            reports: confirmations,
            key_requests,
        };
        let (states, copied) = watch::channel(GatewayObjects::default());
        let follower = Follower::new(settings, loads, outgoing, states, notify);
        let copies = async {
            match dir {
                Some(dir) => copy::write_all(dir, copied, store).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = follower.run(initial) => {}
            () = copies => {}
            never = reports::pass_on(reports, stored, confirmed) => match never {},
        }
    }
}
