//! The settings of the connection to the controller, and its events.

use std::path::PathBuf;

use crate::api::Key;
use crate::wire::{Position, ReadyPods, SessionSecrets};

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
    /// In-memory directory for a copy of the objects. A restarted container serves this copy if no controller responds.
    pub state_dir: Option<PathBuf>,
}

impl StreamSettings {
    /// Host and port as in a URL.
    pub(super) fn authority(&self) -> String {
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
    /// The secrets for session tokens that belong to the next published state.
    SessionSecret(&'a SessionSecrets),
    /// The ready pods of the Gateway.
    Pods(&'a ReadyPods),
    /// A state is complete and published.
    Committed(&'a Position),
    /// The state is that of the controller, after a connect.
    CaughtUp,
    /// No state is published yet. Contains the reason.
    Waiting(String),
}
