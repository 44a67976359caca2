//! The objects of a cluster, from watches of its API server. Owns when changes are published: never before every kind is
//! known, at once when little happens, and not too often when much does. Keeps what it has while the API server is away.

pub mod bundle;
mod client;
mod fetch;
pub mod observer;
mod pause;
mod reading;
mod referenced;
mod scope;
mod store;
mod watch;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use kube::{Client, Config};
use tokio::sync::{mpsc, watch as watched};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use self::fetch::Fetches;
use self::observer::Observer;
use self::referenced::{Referenced, is_held_by_name};
use self::scope::Scope;
use self::store::{Message, Store};
use self::watch::Watch;
use super::Load;
use crate::api::{Key, Kind};

/// How long it must be quiet until a change is published: what belongs together often comes together.
const DEBOUNCE: Duration = Duration::from_millis(2);
/// A change that follows none for so long is published at once: what it belongs to has come already, or comes too late.
const QUIET: Duration = Duration::from_millis(50);
/// The longest that a change waits for quiet.
const LONGEST_DEBOUNCE: Duration = Duration::from_millis(100);
/// Changes that may wait to be stored. Watches that are ahead wait.
const QUEUE: usize = 128;
/// How often missing kinds are named while the first configuration is incomplete.
const REMINDER: Duration = Duration::from_secs(10);
/// How often the API server is asked for a sign of life, and how long that may take.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How often the log says that it gives none.
const COMPLAINT: Duration = Duration::from_secs(60);

/// How patient the provider is with the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Seconds after which a watch ends and is begun again. A connection that died without a word is noticed 5 s later.
    pub watch: u32,
    /// How long an answer, such as a page of a list, may take.
    pub answer: Duration,
    /// How long lists that are older than what is served are refused.
    pub doubt: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            watch: 45,
            // An API server gives up after 60 s itself.
            answer: Duration::from_secs(65),
            doubt: Duration::from_secs(60),
        }
    }
}

/// Watches a cluster.
#[derive(Clone)]
pub struct KubernetesProvider {
    client: Client,
    kinds: Vec<&'static Kind>,
    gateway: Option<Key>,
    /// The only namespaces that are seen; empty means all.
    namespaces: BTreeSet<String>,
    observer: Option<Arc<dyn Observer>>,
    timing: Timing,
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
            .context("neither a service account nor a kubeconfig names a cluster to watch")?;
        Self::new(config)
    }

    /// A provider for a cluster. Nothing is asked yet.
    ///
    /// # Errors
    /// When the address or the credentials make no sense.
    pub fn new(config: Config) -> anyhow::Result<Self> {
        Ok(Self {
            client: client::client(config).context("the cluster's address or credentials")?,
            kinds: Kind::all().iter().collect(),
            gateway: None,
            namespaces: BTreeSet::new(),
            observer: None,
            timing: Timing::default(),
        })
    }

    /// The client of the cluster's API server.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The same, but it sees only objects of these kinds.
    #[must_use]
    pub fn of_kinds(self, kinds: impl IntoIterator<Item = &'static Kind>) -> Self {
        Self {
            kinds: kinds.into_iter().collect(),
            ..self
        }
    }

    /// The same, but of namespaced kinds it sees only what is in these namespaces, and in that of the only Gateway.
    #[must_use]
    pub fn within(self, namespaces: impl IntoIterator<Item = String>) -> Self {
        Self {
            namespaces: namespaces.into_iter().collect(),
            ..self
        }
    }

    /// The same, but of all Gateways it sees only one.
    #[must_use]
    pub fn only(self, namespace: &str, name: &str) -> Self {
        Self {
            gateway: Some(Key::new(namespace, name)),
            ..self
        }
    }

    /// The same, but an observer gets what the API server holds of each object.
    #[must_use]
    pub fn observed_by(self, observer: Arc<dyn Observer>) -> Self {
        Self {
            observer: Some(observer),
            ..self
        }
    }

    /// The same, but with another patience.
    #[must_use]
    pub fn timed(self, timing: Timing) -> Self {
        Self { timing, ..self }
    }

    /// Publishes what the cluster has, first when every kind has been listed once, and then what changes; ends when
    /// no one listens. Calls `contacted` every few seconds while the API server answers.
    pub async fn watch(self, loads: watched::Sender<Arc<Load>>, contacted: impl Fn()) {
        let client = self.client.clone();
        tokio::select! {
            () = self.follow(loads) => {}
            () = stay_in_touch(&client, contacted) => {}
        }
    }

    async fn follow(self, loads: watched::Sender<Arc<Load>>) {
        let (sender, mut messages) = mpsc::channel(QUEUE);
        let namespaces = self.all_namespaces();
        let scopes = Scope::all(&self.kinds, self.gateway.as_ref(), &namespaces);
        let (mut later, now): (Vec<_>, Vec<_>) =
            (0..scopes.len()).partition(|number| is_held_by_name(scopes[*number].kind));
        let start = |number: usize| tokio::spawn(self.watch_of(number, &scopes, &sender).run());
        now.into_iter().for_each(|number| drop(start(number)));
        let referenced = Referenced::within(namespaces);
        let mut store = Store::new(scopes.clone(), referenced, self.observer.clone());
        let mut fetches = Fetches::new(self.client.clone(), sender.clone());
        let mut news = News::default();
        let mut last = Instant::now();
        while let Some(is_news) = collect(&mut store, &mut messages, &mut last).await {
            // What would be dropped before it is known who refers to it would have to be fetched then.
            if store.knows_referrers() {
                later.drain(..).for_each(|number| drop(start(number)));
            }
            fetches.follow(store.wanted());
            if let Some(load) = news.due(&store, is_news)
                && loads.send(Arc::new(load)).is_err()
            {
                return;
            }
        }
    }

    fn all_namespaces(&self) -> BTreeSet<String> {
        let mut namespaces = self.namespaces.clone();
        if let Some(Key { namespace, .. }) = &self.gateway
            && !namespaces.is_empty()
        {
            namespaces.insert(namespace.clone());
        }
        namespaces
    }

    fn watch_of(&self, number: usize, scopes: &[Scope], changes: &mpsc::Sender<Message>) -> Watch {
        Watch {
            client: self.client.clone(),
            scope: scopes[number].clone(),
            number,
            is_observed: self.observer.is_some(),
            timing: self.timing,
            changes: changes.clone(),
        }
    }
}

/// Whether there is something to publish, and since when.
#[derive(Default)]
struct News {
    is_there: bool,
    since: Option<Instant>,
}

impl News {
    /// What is to be published now: everything, if any of it is new and nothing of it is about to be complete.
    fn due(&mut self, store: &Store, is_news: bool) -> Option<Load> {
        self.is_there |= is_news;
        if !self.is_there {
            return None;
        }
        let load = store.load()?;
        let since = *self.since.get_or_insert_with(Instant::now);
        if store.is_waiting() && since.elapsed() < fetch::WORTH {
            return None;
        }
        *self = Self::default();
        Some(load)
    }
}

/// Asks the API server again and again whether it is there. A quiet watch looks like a dead one.
async fn stay_in_touch(client: &Client, contacted: impl Fn()) {
    let mut last = Instant::now();
    let mut logged = last;
    loop {
        if let Ok(Ok(_)) = timeout(HEARTBEAT, client.apiserver_version()).await {
            contacted();
            (last, logged) = (Instant::now(), Instant::now());
        } else if logged.elapsed() >= COMPLAINT {
            logged = Instant::now();
            tracing::warn!(
                "the API server has not responded for {} s; what is served may be out of date",
                last.elapsed().as_secs()
            );
        }
        sleep(HEARTBEAT).await;
    }
}

/// Stores changes until it is quiet, and returns whether any was news. The first one after a long time is returned at
/// once; `last` is the time of the last change. `None` when there will be no more.
async fn collect(
    store: &mut Store,
    messages: &mut mpsc::Receiver<Message>,
    last: &mut Instant,
) -> Option<bool> {
    let message = first(store, messages).await?;
    let now = Instant::now();
    let until = now + LONGEST_DEBOUNCE;
    let was_quiet = now.duration_since(*last) >= QUIET;
    let mut is_news = store.take(message);
    *last = now;
    if was_quiet && messages.is_empty() {
        return Some(is_news);
    }
    loop {
        let quiet = (Instant::now() + DEBOUNCE).min(until);
        let Ok(Some(message)) = timeout_at(quiet, messages.recv()).await else {
            return Some(is_news);
        };
        is_news |= store.take(message);
        *last = Instant::now();
    }
}

/// The next change. While the first configuration is incomplete, the log names what is missing now and then.
async fn first(store: &Store, messages: &mut mpsc::Receiver<Message>) -> Option<Message> {
    loop {
        if store.awaited().next().is_none() {
            return messages.recv().await;
        }
        if let Ok(message) = timeout(REMINDER, messages.recv()).await {
            return message;
        }
        let missing: Vec<_> = store.awaited().map(ToString::to_string).collect();
        tracing::warn!("not ready: still waiting for {}", missing.join(", "));
    }
}
