//! Objects from watches of a Kubernetes API server. Owns when changes are published: not before
//! every kind has been listed, at once in idle times, debounced under load. Keeps the last state
//! while the API server is unreachable.

mod additions;
pub mod bundle;
mod deferral;
mod deferrals;
mod events;
mod fetch;
mod head;
mod lister;
mod loosening;
mod message;
mod moments;
mod newest;
pub mod observer;
mod once;
mod parsed;
mod pods;
mod problems;
mod referenced;
mod references;
mod requests;
mod retained;
mod retry;
mod rights;
mod scope;
mod store;
mod timing;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::sync::{Notify, mpsc, watch as watched};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use self::fetch::Fetches;
use self::message::Message;
use self::moments::{Moment, Moments};
use self::newest::Newest;
use self::observer::Observer;
pub use self::once::Listing;
use self::pods::ScopeChange;
use self::referenced::Referenced;
use self::references::is_held_by_reference;
pub use self::rights::verbs_to_follow;
use self::scope::Scope;
use self::store::Store;
pub use self::timing::Timing;
use self::watch::Watch;
use super::Load;
use crate::api::{Key, Kind};
use crate::cluster::client::ApiServer;

/// Debounce of changes: related changes often arrive together.
const DEBOUNCE: Duration = Duration::from_millis(2);
/// A change after this idle time is published at once: related changes have already arrived or are
/// too far off.
const IDLE: Duration = Duration::from_millis(10);
/// Maximum debounce of a change, also while others keep changing.
const MAX_DEBOUNCE: Duration = Duration::from_millis(10);
/// Capacity of the queue of watch events. A full queue blocks the watches.
const QUEUE: usize = 128;
/// Interval of log messages that say what is missing until the first configuration is complete.
const READINESS_LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Interval and timeout of health requests to the API server.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Interval of log messages while the API server does not respond.
const OUTAGE_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Watches a cluster.
#[derive(Clone)]
pub struct KubernetesProvider {
    client: Client,
    /// Address of the API server.
    url: String,
    kinds: Vec<&'static Kind>,
    gateway: Option<Key>,
    /// The only watched namespaces; empty means all.
    namespaces: BTreeSet<String>,
    observer: Option<Arc<dyn Observer>>,
    timing: Timing,
}

impl KubernetesProvider {
    /// Creates a provider for a cluster. Sends no request yet.
    ///
    /// # Errors
    /// When the address or the credentials are invalid.
    pub fn new(api_server: &ApiServer) -> anyhow::Result<Self> {
        Ok(Self {
            url: api_server.url(),
            client: api_server.client()?,
            kinds: Kind::all().iter().collect(),
            gateway: None,
            namespaces: BTreeSet::new(),
            observer: None,
            timing: Timing::default(),
        })
    }

    /// Returns the client of the cluster's API server.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Restricts the watches to these kinds.
    #[must_use]
    pub fn of_kinds(self, kinds: impl IntoIterator<Item = &'static Kind>) -> Self {
        Self {
            kinds: kinds.into_iter().collect(),
            ..self
        }
    }

    /// Restricts namespaced kinds to these namespaces and to the namespace of the only Gateway.
    #[must_use]
    pub fn within(self, namespaces: impl IntoIterator<Item = String>) -> Self {
        Self {
            namespaces: namespaces.into_iter().collect(),
            ..self
        }
    }

    /// Restricts Gateways to one.
    #[must_use]
    pub fn only(self, namespace: &str, name: &str) -> Self {
        Self {
            gateway: Some(Key::new(namespace, name)),
            ..self
        }
    }

    /// Sets an observer of the objects as the API server stores them.
    #[must_use]
    pub fn observed_by(self, observer: Arc<dyn Observer>) -> Self {
        Self {
            observer: Some(observer),
            ..self
        }
    }

    /// Overrides the timeouts.
    #[must_use]
    pub fn timed(self, timing: Timing) -> Self {
        Self { timing, ..self }
    }

    /// Publishes the first state when every kind has been listed, and then every change. Ends when
    /// the receiver is dropped. Calls `contacted` every few seconds while the API server responds, and `waits` when another
    /// number of objects waits for policies.
    pub async fn watch(
        self,
        loads: watched::Sender<Arc<Load>>,
        contacted: impl Fn(),
        waits: impl Fn(usize),
    ) {
        let client = self.client.clone();
        tokio::select! {
            () = self.publish(loads, waits) => {}
            () = poll_health(&client, contacted) => {}
        }
    }

    async fn publish(self, loads: watched::Sender<Arc<Load>>, waits: impl Fn(usize)) {
        let (sender, mut messages) = mpsc::channel(QUEUE);
        let namespaces = self.all_namespaces();
        let scopes = Scope::all(&self.kinds, self.gateway.as_ref(), &namespaces);
        let served: Vec<Arc<Notify>> = scopes.iter().map(|_| Arc::default()).collect();
        let start = |(number, scope): (usize, Scope)| {
            let served = served.get(number).cloned().unwrap_or_default();
            let watch = self.watch_of(number, scope, served, &sender);
            tokio::spawn(watch.run()).abort_handle()
        };
        let numbered = scopes.iter().cloned().enumerate();
        let (mut later, now): (Vec<_>, Vec<_>) =
            numbered.partition(|(_, scope)| is_held_by_reference(scope.kind));
        now.into_iter().for_each(|scope| drop(start(scope)));
        let asked = Moments::of(&scopes);
        let moments = self.ask(asked.scopes(), &scopes, &served, &sender);
        let referenced = Referenced::within(namespaces);
        let fetch_wait = self.timing.fetch_wait;
        let mut store = Store::new(scopes, &self.kinds, referenced, self.observer.clone())
            .timed(self.timing)
            .after(asked);
        let mut added = BTreeMap::new();
        let mut fetches = Fetches::new(self.client.clone(), sender.clone());
        let mut pending = PendingChanges::default();
        let mut last = Instant::now();
        let mut is_published = false;
        let (mut wake_at, mut waiting) = (None, 0);
        loop {
            let collected = collect(&mut store, &mut messages, &mut last, wake_at).await;
            let Some(is_changed) = collected else {
                return;
            };
            // Secrets and ConfigMaps that arrive before their referrers are known would be dropped
            // and fetched again.
            if store.has_all_referrers() {
                later.drain(..).for_each(|scope| drop(start(scope)));
            }
            fetches.follow(&store.take_fetched(), store.take_wanted());
            for change in store.follow_pods(is_published) {
                match change {
                    ScopeChange::Added(number, scope) => {
                        added.insert(number, start((number, scope)));
                        tokio::spawn(report_late(number, fetch_wait, sender.clone()));
                    }
                    ScopeChange::Removed(number) => {
                        added.remove(&number).iter().for_each(AbortHandle::abort);
                    }
                }
            }
            let is_changed = is_changed | store.release(Instant::now());
            if std::mem::replace(&mut waiting, store.waiting()) != waiting {
                waits(waiting);
            }
            if let Some(moment) = store.take_moment() {
                moments.send_replace(moment);
            }
            if let Some(mut load) = pending.due(&store, fetch_wait, is_changed) {
                if !is_published {
                    store.pack();
                    load = store.load().unwrap_or(load);
                }
                is_published = true;
                store.published();
                if loads.send(Arc::new(load)).is_err() {
                    return;
                }
            }
            wake_at = [store.next_release(), pending.deadline(fetch_wait)]
                .into_iter()
                .flatten()
                .min();
        }
    }

    fn all_namespaces(&self) -> BTreeSet<String> {
        let mut namespaces = self.namespaces.clone();
        if let Some(Key { namespace, .. }) = &self.gateway
            && !namespaces.is_empty()
        {
            namespaces.insert(namespace.to_string());
        }
        namespaces
    }

    /// Starts to ask for the newest versions of these scopes, each time that a moment is sent.
    fn ask(
        &self,
        numbers: impl Iterator<Item = usize>,
        scopes: &[Scope],
        served: &[Arc<Notify>],
        versions: &mpsc::Sender<Message>,
    ) -> watched::Sender<Moment> {
        let (sender, moments) = watched::channel(0);
        for number in numbers {
            let newest = Newest {
                client: self.client.clone(),
                scope: scopes[number].clone(),
                number,
                timing: self.timing,
                served: served[number].clone(),
                moments: moments.clone(),
                versions: versions.clone(),
            };
            tokio::spawn(newest.run());
        }
        sender
    }

    fn watch_of(
        &self,
        number: usize,
        scope: Scope,
        served: Arc<Notify>,
        changes: &mpsc::Sender<Message>,
    ) -> Watch {
        Watch {
            client: self.client.clone(),
            scope,
            number,
            is_observed: self.observer.is_some(),
            timing: self.timing,
            served,
            changes: changes.clone(),
        }
    }
}

/// Reports after `fetch_wait` that the first list of an added scope is late, so that
/// publication does not wait any longer.
async fn report_late(number: usize, fetch_wait: Duration, messages: mpsc::Sender<Message>) {
    sleep(fetch_wait).await;
    // Fails when the provider has ended.
    drop(messages.send(Message::ListLate(number)).await);
}

/// Unpublished changes, and the time of the first one.
#[derive(Default)]
struct PendingChanges {
    exist: bool,
    since: Option<Instant>,
}

impl PendingChanges {
    /// Returns the load to publish. `None` if there is no change, or while waiting for a fetch is
    /// worthwhile.
    fn due(&mut self, store: &Store, fetch_wait: Duration, is_changed: bool) -> Option<Load> {
        self.exist |= is_changed;
        if !self.exist {
            return None;
        }
        let load = store.load()?;
        let since = *self.since.get_or_insert_with(Instant::now);
        if store.is_waiting() && since.elapsed() < fetch_wait {
            return None;
        }
        *self = Self::default();
        Some(load)
    }

    /// Returns until when the changes may wait.
    fn deadline(&self, fetch_wait: Duration) -> Option<Instant> {
        self.since.map(|since| since + fetch_wait)
    }
}

/// Polls the health of the API server, since a quiet watch looks like a dead one.
async fn poll_health(client: &Client, contacted: impl Fn()) {
    let mut last = Instant::now();
    let mut logged = last;
    loop {
        if let Ok(Ok(_)) = timeout(HEARTBEAT, client.apiserver_version()).await {
            contacted();
            (last, logged) = (Instant::now(), Instant::now());
        } else if logged.elapsed() >= OUTAGE_LOG_INTERVAL {
            logged = Instant::now();
            tracing::warn!(
                "the API server has not responded for {} s; the served configuration may be out of date",
                last.elapsed().as_secs()
            );
        }
        sleep(HEARTBEAT).await;
    }
}

/// Applies messages until the debounce ends, or until `wake_at` if there is none. Returns whether anything has changed;
/// `None` when the channel is closed. Returns at once after the first change that follows an idle time. Only changes
/// extend the debounce. `last` is the time of the last change.
async fn collect(
    store: &mut Store,
    messages: &mut mpsc::Receiver<Message>,
    last: &mut Instant,
    wake_at: Option<Instant>,
) -> Option<bool> {
    let Some(wake_at) = wake_at else {
        let message = first(store, messages).await?;
        return Some(apply(store, messages, last, message).await);
    };
    match timeout_at(wake_at, first(store, messages)).await {
        Ok(message) => Some(apply(store, messages, last, message?).await),
        Err(_) => Some(false),
    }
}

async fn apply(
    store: &mut Store,
    messages: &mut mpsc::Receiver<Message>,
    last: &mut Instant,
    message: Message,
) -> bool {
    let now = Instant::now();
    let until = now + MAX_DEBOUNCE;
    let was_quiet = now.duration_since(*last) >= IDLE;
    let mut is_changed = store.apply_message(message);
    if is_changed {
        *last = now;
    }
    if messages.is_empty() && (was_quiet || !is_changed) {
        return is_changed;
    }
    let mut quiet = (now + DEBOUNCE).min(until);
    while let Ok(Some(message)) = timeout_at(quiet, messages.recv()).await {
        if store.apply_message(message) {
            is_changed = true;
            *last = Instant::now();
            quiet = (*last + DEBOUNCE).min(until);
        }
        if Instant::now() >= quiet {
            break;
        }
    }
    is_changed
}

/// Returns the next message. Logs what is missing until the first configuration is complete.
async fn first(store: &Store, messages: &mut mpsc::Receiver<Message>) -> Option<Message> {
    loop {
        if store.missing().is_none() {
            return messages.recv().await;
        }
        if let Ok(message) = timeout(READINESS_LOG_INTERVAL, messages.recv()).await {
            return message;
        }
        if let Some(missing) = store.missing() {
            tracing::warn!("not ready: {missing}");
        }
    }
}
