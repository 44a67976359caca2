//! Objects of one Gateway, streamed by its controller. Stays connected, prefers the leader,
//! publishes complete states, and keeps the last state while no controller is reachable.

mod connect;
mod copy;
#[cfg(test)]
pub(crate) mod fixtures;
mod follower;
mod lines;
mod objects;
mod session;
mod settings;

use std::sync::Arc;

use tokio::sync::watch;

use self::follower::{Follower, Outgoing};
use self::objects::GatewayObjects;
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
    /// is in service, and which key sets lack keys of tokens. Ends when the receiver is dropped.
    pub async fn watch(
        self,
        loads: watch::Sender<Arc<Load>>,
        (reports, key_requests): (watch::Receiver<Option<Serves>>, Arc<KeyRequests>),
        notify: impl FnMut(StreamEvent<'_>),
    ) {
        let Self { settings } = self;
        let outgoing = Outgoing {
            reports,
            key_requests,
        };
        let dir = settings.state_dir.clone();
        let initial = dir.as_ref().and_then(|dir| {
            copy::warn_unless_in_memory(dir);
            copy::read(dir, &settings.gateway)
        });
        let (states, copied) = watch::channel(GatewayObjects::default());
        let follower = Follower::new(settings, loads, outgoing, states, notify);
        let copies = async {
            match dir {
                Some(dir) => copy::write_all(dir, copied).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = follower.run(initial) => {}
            () = copies => {}
        }
    }
}
