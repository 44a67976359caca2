//! Fetches the key sets that AccessPolicies name, and puts them beside the objects of a source: a change of keys is a change of
//! objects. Fetches each again before its time ends, and when a token names a key that it lacks. The last valid keys stay in use
//! while their issuer cannot be reached. Must not know how keys are used.

mod fetch;
mod schedule;

#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use self::fetch::{Failure, Fetched, fetch};
use self::schedule::{Schedule, Started};
use crate::api::key_set::KeySet;
use crate::api::{Key, ObjectMeta};
use crate::dns::{AllowedAddresses, Lookup};
use crate::https::HttpsClient;
use crate::key_requests::KeyRequests;
use crate::provider::Load;
use crate::runtime::optional::or_pending;
use crate::snapshot::{Objects, Snapshot};
use crate::telemetry::metrics::{KeySetStats, KeySetTotals};
use crate::translate::{
    KeyServer, KeySetSource, Options, WantedKeySet, WantedKeySets, key_backends_may_differ,
    wanted_key_sets,
};

/// A key set, the number of the fetch, and its result.
type Finished = (Key, u64, Result<Fetched, Failure>);

/// The key sets of all policies.
pub struct KeySets<L> {
    client: HttpsClient<L>,
    /// Options of the translation that uses the keys.
    options: Options,
    stats: Arc<KeySetStats>,
    requests: Arc<KeyRequests>,
    /// The last objects of the source.
    load: Arc<Load>,
    wanted: WantedKeySets,
    schedule: Schedule,
    /// What is put beside the objects.
    objects: Objects<KeySet>,
    fetches: FuturesUnordered<BoxFuture<'static, Finished>>,
}

impl<L: Lookup + Send + 'static> KeySets<L> {
    /// Creates it without key sets. Fetches from public addresses and those that are `allowed`. `requests` are what workers
    /// or pods ask for, and `options` are those of the translation that uses the keys.
    pub fn new(
        (lookup, allowed): (L, AllowedAddresses),
        options: Options,
        stats: Arc<KeySetStats>,
        requests: Arc<KeyRequests>,
    ) -> Self {
        Self {
            client: HttpsClient::new(lookup, allowed),
            options,
            stats,
            requests,
            load: Arc::default(),
            wanted: WantedKeySets::new(),
            schedule: Schedule::default(),
            objects: Objects::default(),
            fetches: FuturesUnordered::new(),
        }
    }

    /// Takes objects of the source. Returns them with what was fetched.
    pub fn follow(&mut self, load: Arc<Load>) -> Arc<Load> {
        let previous = std::mem::replace(&mut self.load, load);
        let load = self.load.clone();
        if may_differ(&previous.snapshot, &load.snapshot) {
            let wanted = wanted_key_sets(&load.snapshot, &self.options);
            if wanted != self.wanted {
                self.want(wanted);
            }
        }
        self.with_keys()
    }

    /// Passes on the objects of a source with what was fetched, until the source ends.
    pub async fn run(
        mut self,
        mut loads: watch::Receiver<Arc<Load>>,
        fed: &watch::Sender<Arc<Load>>,
    ) {
        let requests = self.requests.clone();
        let mut next = self.start(Instant::now());
        loop {
            tokio::select! {
                changed = loads.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let load = loads.borrow_and_update().clone();
                    fed.send_replace(self.follow(load));
                }
                Some(finished) = self.fetches.next(), if !self.fetches.is_empty() => {
                    if self.finish(finished, Instant::now()) {
                        fed.send_replace(self.with_keys());
                    }
                }
                asked = poll_fn(|cx| requests.poll_take(cx)) => {
                    let keys = asked.iter().map(|name| Key::new(&name.namespace, &name.name));
                    let changed = keys.filter(|key| self.schedule.ask(key)).count();
                    // Clients and pods may ask all the time, for what is due anyway.
                    if changed == 0 {
                        continue;
                    }
                }
                () = or_pending(next.map(sleep_until)) => {}
            }
            next = self.start(Instant::now());
        }
    }

    fn with_keys(&self) -> Arc<Load> {
        if self.objects.is_empty() {
            return self.load.clone();
        }
        let snapshot = Snapshot {
            key_sets: self.objects.clone(),
            ..Snapshot::clone(&self.load.snapshot)
        };
        Arc::new(Load {
            snapshot: Arc::new(snapshot),
            ..Load::clone(&self.load)
        })
    }

    /// Replaces what policies need. What they still need keeps its keys.
    fn want(&mut self, wanted: WantedKeySets) {
        let now = Instant::now();
        for key in self.wanted.keys().filter(|key| !wanted.contains_key(key)) {
            self.objects.remove(key);
            self.schedule.remove(key);
        }
        for (key, set) in &wanted {
            if self.wanted.get(key) == Some(set) {
                continue;
            }
            match set {
                Ok(set) if has_moved(self.wanted.get(key), set) => {
                    self.schedule.set_endpoints(key, set, now);
                }
                Ok(set) => {
                    self.schedule.set(key, set, now);
                    self.put(key, |_| {});
                }
                Err(problem) => {
                    self.schedule.remove(key);
                    let problem = format!("is not fetched: {problem}");
                    self.put(key, |it| it.problem = Some(problem));
                }
            }
        }
        self.wanted = wanted;
        self.measure();
    }

    /// Changes an object, or creates it. Returns whether it differs.
    fn put(&mut self, key: &Key, change: impl FnOnce(&mut KeySet)) -> bool {
        let known = self.objects.get(&key.namespace, &key.name);
        let mut object = known.map_or_else(|| empty(key), |known| KeySet::clone(known));
        change(&mut object);
        self.objects.insert(Arc::new(object))
    }

    /// Starts the fetches that are due. Returns when the next one is.
    fn start(&mut self, now: Instant) -> Option<Instant> {
        let (due, next) = self.schedule.start(now);
        for Started {
            key,
            number,
            source,
        } in due
        {
            let fetch = fetch(source, self.client.clone());
            let fetch = async move { (key, number, fetch.await) };
            self.fetches.push(Box::pin(fetch));
        }
        next
    }

    /// Takes the result of a fetch. Returns whether objects have changed.
    fn finish(&mut self, (key, number, result): Finished, now: Instant) -> bool {
        let key = &key;
        self.stats
            .fetched(result.as_ref().err().map(|failure| failure.kind));
        if result.is_err() {
            self.client.on_failure();
        }
        let time = SystemTime::now().duration_since(UNIX_EPOCH);
        let time = time.map_or(0, |time| time.as_millis() as u64);
        let Some(was_failing) = self
            .schedule
            .finish((key, number), result.is_ok(), (now, time))
        else {
            return false;
        };
        let changed = match result {
            Ok(Fetched { keys, discovery }) => {
                if was_failing {
                    tracing::info!("{key} is fetched again");
                }
                self.put(key, |it| {
                    it.keys = Some(keys);
                    it.discovery = discovery;
                    it.problem = None;
                })
            }
            Err(Failure { problem, .. }) => {
                let problem = format!("cannot be fetched: {problem}");
                let changed = self.put(key, |it| it.problem = Some(problem.clone()));
                if changed {
                    tracing::warn!("the key set {key} {problem}; retrying");
                }
                changed
            }
        };
        self.measure();
        changed
    }

    /// Counts the key sets by state for metrics.
    fn measure(&self) {
        let mut totals = KeySetTotals::default();
        for object in self.objects.iter() {
            let count = match (&object.keys, &object.problem) {
                (None, _) => &mut totals.missing,
                (Some(_), Some(_)) => &mut totals.stale,
                (Some(_), None) => &mut totals.current,
            };
            *count += 1;
        }
        self.stats.measured(totals, self.schedule.oldest());
    }
}

/// Reports whether a key set differs from the previous one in its endpoints alone.
fn has_moved(previous: Option<&Result<WantedKeySet, String>>, now: &WantedKeySet) -> bool {
    let Some(Ok(previous)) = previous else {
        return false;
    };
    let without = |set: &WantedKeySet| {
        let server = set.source.server.as_ref();
        let server = server.map(|server| KeyServer {
            endpoints: Vec::new(),
            tls: server.tls.clone(),
        });
        WantedKeySet {
            source: KeySetSource {
                server,
                ..set.source.clone()
            },
            ..set.clone()
        }
    };
    without(previous) == without(now)
}

/// Reports whether policies or what they name may differ.
fn may_differ(previous: &Snapshot, now: &Snapshot) -> bool {
    let policies = &now.access_policies;
    if !policies.changes_since(&previous.access_policies).is_empty() {
        return true;
    }
    if policies.is_empty() {
        return false;
    }
    let maps = &now.config_maps;
    !maps.changes_since(&previous.config_maps).is_empty() || key_backends_may_differ(previous, now)
}

fn empty(key: &Key) -> KeySet {
    KeySet {
        metadata: ObjectMeta {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            ..ObjectMeta::default()
        },
        ..KeySet::default()
    }
}
