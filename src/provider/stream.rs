//! The objects of one Gateway, as its controller streams them. Knows neither what the objects mean nor how they are served.

mod lines;
mod objects;

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;

use super::Load;
use crate::api::Key;
use crate::stream::message::{Position, Serves};

/// What a pod needs to connect to its controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSettings {
    /// Where streams are served, and the name in the controller's certificate: a DNS name or an address.
    pub host: String,
    /// The port there.
    pub port: u16,
    /// The Gateway whose objects are asked for.
    pub gateway: Key,
    /// PEM of the certificates that the controller's certificate may be signed by; read for each connection.
    pub ca_file: PathBuf,
    /// The ServiceAccount token to present; read for each connection.
    pub token_file: PathBuf,
    /// A directory in memory for a copy of the objects, which is begun with.
    pub state_dir: Option<PathBuf>,
}

/// What happens to the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamEvent<'a> {
    /// A controller has begun to stream.
    Connected,
    /// No controller streams any more.
    Disconnected,
    /// These objects are complete and published.
    Committed(&'a Position),
    /// Nothing is published yet, for this reason.
    Waiting(String),
}

/// Gets objects from a controller.
#[derive(Clone, Debug)]
pub struct StreamProvider {
    settings: StreamSettings,
}

impl StreamProvider {
    /// A provider of a Gateway's objects. Nothing is asked yet.
    pub fn new(settings: StreamSettings) -> Self {
        Self { settings }
    }

    /// Publishes the Gateway's objects and then what changes, and tells the controller what is served; ends when no one
    /// listens.
    pub async fn watch(
        self,
        loads: watch::Sender<Arc<Load>>,
        _reports: watch::Receiver<Option<Serves>>,
        mut notify: impl FnMut(StreamEvent<'_>),
    ) {
        let Self { settings } = self;
        notify(StreamEvent::Waiting(format!(
            "waiting for the controller at {}",
            settings.host
        )));
        loads.closed().await;
    }
}
