//! The configuration stream from the controller to the pods of Gateways. Each pod receives the
//! objects of its own Gateway and reports what it serves. Every replica of the controller serves
//! the stream, not only the leader.

mod authentication;
mod authority;
mod encode;
pub mod hub;
mod keys;
mod log;
mod pending;
mod ready;
mod reports;
mod reviews;
mod server;
mod session;
mod token;
pub mod trust;

use std::sync::Arc;

use imbl::OrdMap;
use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::watch;

use self::authentication::Authenticator;
use self::hub::{Hub, Reports};
use self::server::Shared;
use self::trust::Trust;
use crate::ir::ObjectRef;
use crate::key_requests::KeyRequests;
use crate::provider::Load;
use crate::status::lease::Leadership;
use crate::telemetry::metrics::SessionStats;
use crate::translate::Options;

/// A load that was fed to the stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// The load.
    pub load: Arc<Load>,
    /// Revision that the pods of each Gateway must reach. Contains only Gateways of this controller.
    pub revisions: OrdMap<ObjectRef, u64>,
}

/// Inputs of the stream.
pub struct Inputs {
    /// States of the cluster. The initial value is a placeholder.
    pub loads: watch::Receiver<Arc<Load>>,
    /// Current leader.
    pub leadership: watch::Receiver<Leadership>,
    /// Namespace of the controller.
    pub namespace: String,
    /// Name in the serving certificate.
    pub host: String,
}

/// Outputs of the stream.
#[derive(Debug, Default)]
pub struct Outputs {
    /// The last load that was fed to the stream.
    pub published: watch::Sender<Arc<Published>>,
    /// CA bundle and TLS configuration.
    pub trust: Trust,
}

/// The stream of this process.
///
/// Splits a new load into the closure of each Gateway. Gives changes a revision and sends them to the sessions of the
/// Gateway's pods. Then publishes the load with its revisions for translation.
pub struct Stream {
    hub: Arc<Hub>,
}

impl Stream {
    /// Creates a stream. Pods translate with these options.
    pub fn new(options: Options) -> Self {
        let instance = format!("{:016x}", rand::random::<u64>());
        Self {
            hub: Arc::new(Hub::new(instance, options)),
        }
    }

    /// Reports of connected pods.
    pub fn reports(&self) -> watch::Receiver<Reports> {
        self.hub.reports()
    }

    /// Key sets of their Gateways that pods ask for.
    pub fn key_requests(&self) -> Arc<KeyRequests> {
        self.hub.key_requests()
    }

    /// Serves pods on `listener` while polled.
    pub async fn run(
        &self,
        client: Client,
        listener: TcpListener,
        inputs: Inputs,
        outputs: &Outputs,
        stats: Arc<SessionStats>,
    ) {
        let shared = Arc::new(Shared {
            hub: self.hub.clone(),
            authenticator: Authenticator::new(client.clone()),
            leadership: inputs.leadership,
            session_secret: outputs.trust.session_secret.subscribe(),
            stats,
            refusals: server::Refusals::default(),
        });
        let tls = outputs.trust.tls.subscribe();
        tokio::select! {
            () = publish_loads(&self.hub, inputs.loads, &outputs.published) => {}
            () = trust::watch_secret(&client, &inputs.namespace, &inputs.host, &outputs.trust) => {}
            () = server::serve(listener, shared, tls) => {}
        }
    }
}

/// Feeds changes until the sender of loads is dropped.
async fn publish_loads(
    hub: &Hub,
    mut loads: watch::Receiver<Arc<Load>>,
    published: &watch::Sender<Arc<Published>>,
) {
    while loads.changed().await.is_ok() {
        let load = loads.borrow_and_update().clone();
        let revisions = hub.follow(&load.snapshot);
        published.send_replace(Arc::new(Published { load, revisions }));
    }
}

#[cfg(test)]
mod tests;
