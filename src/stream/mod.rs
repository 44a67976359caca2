//! The configuration stream from the controller to the pods of Gateways: each pod gets the objects of its own Gateway, and
//! reports what it serves. Every replica of the controller serves it, whoever leads.
//!
//! A load of the cluster comes in, the closures of its Gateways follow, what changes is numbered and fed to the sessions
//! of their pods, and the load goes out with its revisions, to be translated and judged.

mod authentication;
mod authority;
mod encode;
pub mod hub;
mod log;
pub mod message;
mod server;
mod session;
mod token;
pub mod trust;

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::watch;

use self::authentication::Authenticator;
use self::hub::{Hub, Reports};
use self::server::Shared;
use self::trust::Trust;
use crate::ir::ObjectRef;
use crate::provider::Load;
use crate::status::lease::Leadership;
use crate::telemetry::metrics::SessionStats;
use crate::translate::Options;

/// A state of the cluster that has been fed to the stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// The state.
    pub load: Arc<Load>,
    /// The revision of each Gateway's objects that its pods must have reached. Gateways that are not ours have none.
    pub revisions: BTreeMap<ObjectRef, u64>,
}

/// What the stream takes from the rest of the controller.
pub struct Inputs {
    /// States of the cluster; the first one is not a state yet.
    pub loads: watch::Receiver<Arc<Load>>,
    /// Who leads.
    pub leadership: watch::Receiver<Leadership>,
    /// The namespace of the controller.
    pub namespace: String,
    /// The name in the serving certificate.
    pub host: String,
}

/// What the stream gives to the rest of the controller.
#[derive(Debug, Default)]
pub struct Outputs {
    /// What has been fed.
    pub published: watch::Sender<Arc<Published>>,
    /// The certificates that pods are to trust.
    pub trust: Trust,
}

/// The stream of this process.
pub struct Stream {
    hub: Arc<Hub>,
}

impl Stream {
    /// A stream that has fed nothing yet. Pods translate what they get with these options.
    pub fn new(options: Options) -> Self {
        let instance = format!("{:016x}", rand::random::<u64>());
        Self {
            hub: Arc::new(Hub::new(instance, options)),
        }
    }

    /// What pods report.
    pub fn reports(&self) -> watch::Receiver<Reports> {
        self.hub.reports()
    }

    /// Serves pods on `listener` for as long as it is polled.
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
            stats,
            refusals: server::Refusals::default(),
        });
        let tls = outputs.trust.tls.subscribe();
        tokio::select! {
            () = follow(&self.hub, inputs.loads, &outputs.published) => {}
            () = trust::follow(&client, &inputs.namespace, &inputs.host, &outputs.trust) => {}
            () = server::serve(listener, shared, tls) => {}
        }
    }
}

/// Feeds what changes, until there will be no more loads.
async fn follow(
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
