//! The objects of one Gateway, as its controller streams them: keeps connected, prefers the leader, publishes complete
//! states, and keeps what it has while no controller is there. Knows neither what the objects mean nor how they are served.

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

impl StreamSettings {
    /// Host and port, as a URL has them.
    fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
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
    settings: Arc<StreamSettings>,
}

impl StreamProvider {
    /// A provider of a Gateway's objects. Nothing is asked yet.
    pub fn new(settings: StreamSettings) -> Self {
        Self {
            settings: Arc::new(settings),
        }
    }

    /// Publishes the Gateway's objects and then what changes, and tells the controller what is served; ends when no one
    /// listens.
    pub async fn watch(
        self,
        loads: watch::Sender<Arc<Load>>,
        reports: watch::Receiver<Option<Serves>>,
        notify: impl FnMut(StreamEvent<'_>),
    ) {
        let Self { settings } = self;
        let dir = settings.state_dir.clone();
        let begun_with = dir.as_ref().and_then(|dir| {
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
            () = follower.run(begun_with) => {}
            () = copies => {}
        }
    }
}
