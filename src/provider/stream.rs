//! Objects of one Gateway, streamed by its controller. Stays connected, prefers the leader,
//! publishes complete states, and keeps the last state while no controller is reachable.

mod connect;
mod copy;
mod follower;
mod lines;
mod objects;
mod session;

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;

use self::follower::Follower;
use self::objects::State;
use super::Load;
use crate::api::Key;
use crate::stream::message::{Position, Serves};

/// Settings of the connection to the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSettings {
    /// Host of the stream and name in the controller's certificate: a DNS name or an IP address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// The Gateway whose objects are requested.
    pub gateway: Key,
    /// PEM file of trusted CA certificates; read for each connection.
    pub ca_file: PathBuf,
    /// ServiceAccount token; read for each connection.
    pub token_file: PathBuf,
    /// In-memory directory for a copy of the objects. A restarted container loads this copy first.
    pub state_dir: Option<PathBuf>,
}

impl StreamSettings {
    /// Host and port as in a URL.
    fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// Events of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamEvent<'a> {
    /// A controller has begun to stream.
    Connected,
    /// No controller is streaming.
    Disconnected,
    /// The secret for session tokens that belongs to the next published state.
    SessionSecret(&'a str),
    /// A state is complete and published.
    Committed(&'a Position),
    /// The state is that of the controller, after a connect.
    CaughtUp,
    /// No state is published yet. Contains the reason.
    Waiting(String),
}

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
    /// is in service. Ends when the receiver is dropped.
    pub async fn watch(
        self,
        loads: watch::Sender<Arc<Load>>,
        reports: watch::Receiver<Option<Serves>>,
        notify: impl FnMut(StreamEvent<'_>),
    ) {
        let Self { settings } = self;
        let dir = settings.state_dir.clone();
        let initial = dir.as_ref().and_then(|dir| {
            copy::warn_unless_in_memory(dir);
            copy::read(dir, &settings.gateway)
        });
        let (states, copied) = watch::channel(State::default());
        let follower = Follower::new(settings, loads, reports, states, notify);
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
