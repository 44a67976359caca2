//! The objects of a cluster, from watches of its API server. Owns when what they tell is published: never before every
//! kind is known, at once when little happens, and not too often when much does. Keeps what it has while the API server
//! is away.

pub mod bundle;
pub mod observer;
mod store;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use kube::{Client, Config};
use tokio::sync::{mpsc, watch as watched};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use self::observer::Observer;
use self::store::{Change, Store};
use self::watch::KindWatch;
use super::Load;
use crate::api::{Key, Kind};

/// How long it must be quiet until a change is published: what belongs together often comes together.
const QUIET: Duration = Duration::from_millis(2);
/// The longest that a change waits for quiet.
const PATIENCE: Duration = Duration::from_millis(100);
/// Changes that may wait to be taken note of. Watches that are ahead wait.
const QUEUE: usize = 1024;
/// How often missing kinds are named while the first configuration is incomplete.
const REMINDER: Duration = Duration::from_secs(10);
/// How often the API server is asked for a sign of life, and how long that may take.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How often the log says that it gives none.
const COMPLAINT: Duration = Duration::from_secs(60);

/// Watches a cluster.
#[derive(Clone)]
pub struct KubernetesProvider {
    client: Client,
    gateway: Option<Key>,
    observer: Option<Arc<dyn Observer>>,
}

impl KubernetesProvider {
    /// A provider for the cluster that the environment names: the service account of a pod, else the kubeconfig.
    /// Nothing is asked yet.
    ///
    /// # Errors
    /// When neither is there, or it cannot be read.
    pub async fn from_environment() -> anyhow::Result<Self> {
        let config = Config::infer()
            .await
            .context("neither a service account nor a kubeconfig tells which cluster to watch")?;
        Ok(Self {
            client: Client::try_from(config).context("the cluster's address or credentials")?,
            gateway: None,
            observer: None,
        })
    }

    /// The client of the cluster's API server.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The same, but of all Gateways it sees only one.
    pub fn only(self, namespace: &str, name: &str) -> Self {
        Self {
            gateway: Some(Key::new(namespace, name)),
            ..self
        }
    }

    /// The same, but an observer is told what the API server holds of each object.
    #[must_use]
    pub fn observed_by(self, observer: Arc<dyn Observer>) -> Self {
        Self {
            observer: Some(observer),
            ..self
        }
    }

    /// Publishes what the cluster has, first when every kind has been listed once, and then what changes; ends when
    /// nobody listens. Calls `contacted` every few seconds while the API server answers.
    pub async fn watch(self, loads: watched::Sender<Arc<Load>>, contacted: impl Fn()) {
        let client = self.client.clone();
        tokio::select! {
            () = self.follow(loads) => {}
            () = stay_in_touch(&client, contacted) => {}
        }
    }

    async fn follow(self, loads: watched::Sender<Arc<Load>>) {
        let (sender, mut changes) = mpsc::channel(QUEUE);
        for index in 0..Kind::all().len() {
            let watch = KindWatch {
                client: self.client.clone(),
                gateway: self.gateway.clone(),
                index,
                is_observed: self.observer.is_some(),
                changes: sender.clone(),
            };
            tokio::spawn(watch.run());
        }
        drop(sender);
        let mut store = Store::new(self.observer);
        while let Some(is_news) = collect(&mut store, &mut changes).await {
            let Some(load) = store.load().filter(|_| is_news) else {
                continue;
            };
            if loads.send(Arc::new(load)).is_err() {
                return;
            }
        }
    }
}

/// Asks the API server for a sign of life, for ever. Watches cannot tell: a quiet one looks like a dead one.
async fn stay_in_touch(client: &Client, contacted: impl Fn()) {
    let mut last = Instant::now();
    let mut told = last;
    loop {
        if let Ok(Ok(_)) = timeout(HEARTBEAT, client.apiserver_version()).await {
            contacted();
            (last, told) = (Instant::now(), Instant::now());
        } else if told.elapsed() >= COMPLAINT {
            told = Instant::now();
            tracing::warn!(
                "the API server has not answered for {} s; what is served may be out of date",
                last.elapsed().as_secs()
            );
        }
        sleep(HEARTBEAT).await;
    }
}

/// Takes note of changes until it is quiet, and tells whether any was news. `None` when there will be no more.
async fn collect(store: &mut Store, changes: &mut mpsc::Receiver<(usize, Change)>) -> Option<bool> {
    let (index, change) = first(store, changes).await?;
    let until = Instant::now() + PATIENCE;
    let mut is_news = store.apply(index, change);
    loop {
        let quiet = (Instant::now() + QUIET).min(until);
        let Ok(Some((index, change))) = timeout_at(quiet, changes.recv()).await else {
            return Some(is_news);
        };
        is_news |= store.apply(index, change);
    }
}

/// The next change. Who waits for the first configuration is told now and then what is missing.
async fn first(
    store: &Store,
    changes: &mut mpsc::Receiver<(usize, Change)>,
) -> Option<(usize, Change)> {
    loop {
        let missing: Vec<_> = store.awaited().map(|kind| kind.kind).collect();
        if missing.is_empty() {
            return changes.recv().await;
        }
        match timeout_at(Instant::now() + REMINDER, changes.recv()).await {
            Ok(change) => return change,
            Err(_) => tracing::warn!("not ready: still waiting for {}", missing.join(", ")),
        }
    }
}
