//! Fetches objects by name that their watch reported before they were referenced. Retries until
//! there is a response, while the object is referenced. Owns how many requests a namespace causes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::core::Request;
use kube::core::params::GetParams;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::message::Message;
use super::parsed::{Content, ParsedObject};
use super::referenced::WantedChanges;
use super::requests::requests_by_name;
use super::retry::{Failure, Retry};
use super::scope::UNUSED_SECRET_TYPES;
use crate::api::{Kind, Object, ObjectRef, Text};

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of concurrent requests, and of fetches for the objects of one namespace. Fetches of a namespace with
/// many references do not delay those of others.
const MAX_CONCURRENT: usize = 16;
const MAX_IN_NAMESPACE: usize = 4;
/// Mean interval of requests for the objects of one namespace, once it has used up its burst. Names that do not exist and
/// change all the time would otherwise keep the API server busy.
const INTERVAL: Duration = Duration::from_millis(10);
/// Number of requests for the objects of one namespace that need not wait so.
const BURST: u32 = 1024;

/// Number of waiting fetches below which those that are not wanted any more may stay among them.
const MIN_CLEANUP: usize = 1024;

/// Fetches in progress, and those that wait.
pub(super) struct Fetches {
    client: Client,
    messages: mpsc::Sender<Message>,
    permits: Arc<Semaphore>,
    running: FxHashMap<ObjectRef, Running>,
    /// By the namespace of the objects that refer to them. May contain objects that need no fetch any more.
    waiting: BTreeMap<Text, VecDeque<ObjectRef>>,
    /// Length of `waiting` above which it is cleaned up.
    max_waiting: usize,
    /// Objects to fetch, with the namespaces of the objects that refer to them.
    wanted: FxHashMap<ObjectRef, Vec<Text>>,
    pace: Pace,
}

/// When the requests of each namespace may start.
#[derive(Default)]
struct Pace {
    /// By namespace, when its burst would be complete again.
    complete: BTreeMap<Text, Instant>,
}

/// A fetch in progress.
struct Running {
    /// Namespace of the objects that refer to it.
    namespace: Text,
    task: AbortHandle,
}

impl Fetches {
    pub(super) fn new(client: Client, messages: mpsc::Sender<Message>) -> Self {
        Self {
            client,
            messages,
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT)),
            running: FxHashMap::default(),
            waiting: BTreeMap::new(),
            max_waiting: MIN_CLEANUP,
            wanted: FxHashMap::default(),
            pace: Pace::default(),
        }
    }

    /// Forgets the fetches of `fetched`, which have ended. Then fetches the objects that are wanted from now on, one of
    /// which may have been fetched before, and cancels the fetches of those that are not.
    pub(super) fn follow(&mut self, fetched: &[ObjectRef], changes: WantedChanges) {
        if fetched.is_empty() && changes.is_empty() {
            return;
        }
        for name in fetched {
            self.running.remove(name);
            self.wanted.remove(name);
        }
        for (name, namespaces) in changes {
            if namespaces.is_empty() {
                self.wanted.remove(&name);
                let running = self.running.remove(&name);
                running.iter().for_each(|running| running.task.abort());
                continue;
            }
            let previous = self.wanted.get(&name).map_or(&[][..], Vec::as_slice);
            for namespace in namespaces.iter().filter(|it| !previous.contains(it)) {
                let waiting = self.waiting.entry(namespace.clone()).or_default();
                waiting.push_back(name.clone());
            }
            self.wanted.insert(name, namespaces);
        }
        self.clean_up();
        self.start();
    }

    /// Removes objects that need no fetch any more, once they may be half of all that wait.
    fn clean_up(&mut self) {
        let length = |waiting: &BTreeMap<_, VecDeque<_>>| waiting.values().map(VecDeque::len).sum();
        if length(&self.waiting) <= self.max_waiting {
            return;
        }
        for (namespace, names) in &mut self.waiting {
            let mut seen = FxHashSet::default();
            names.retain(|name| {
                is_wanted(&self.wanted, name, namespace) && seen.insert(name.clone())
            });
        }
        let rest: usize = length(&self.waiting);
        self.max_waiting = MIN_CLEANUP.max(rest * 2);
    }

    fn start(&mut self) {
        let mut in_namespace: BTreeMap<Text, usize> = BTreeMap::new();
        for running in self.running.values() {
            *in_namespace.entry(running.namespace.clone()).or_default() += 1;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|namespace, names| {
            let count = in_namespace.entry(namespace.clone()).or_default();
            while *count < MAX_IN_NAMESPACE
                && let Some(name) = names.pop_front()
            {
                if is_wanted(&self.wanted, &name, namespace)
                    && !self.running.contains_key(&name)
                    && let Some(fetch) = self.fetch(&name)
                {
                    let start = self.pace.next(namespace, Instant::now());
                    let task = tokio::spawn(fetch.run(start)).abort_handle();
                    let namespace = namespace.clone();
                    self.running.insert(name, Running { namespace, task });
                    *count += 1;
                }
            }
            !names.is_empty()
        });
        self.waiting = waiting;
    }

    fn fetch(&self, name: &ObjectRef) -> Option<Fetch> {
        let (kind, requests) = requests_by_name(name)?;
        Some(Fetch {
            client: self.client.clone(),
            requests,
            kind,
            name: name.clone(),
            messages: self.messages.clone(),
            permits: self.permits.clone(),
        })
    }
}

/// Reports whether an object is to be fetched for a namespace.
fn is_wanted(wanted: &FxHashMap<ObjectRef, Vec<Text>>, name: &ObjectRef, namespace: &Text) -> bool {
    wanted.get(name).is_some_and(|of| of.contains(namespace))
}

impl Pace {
    /// Returns when the next request of a namespace may start.
    fn next(&mut self, namespace: &Text, now: Instant) -> Instant {
        self.complete.retain(|_, complete| *complete > now);
        let complete = self.complete.entry(namespace.clone()).or_insert(now);
        *complete += INTERVAL;
        (*complete).max(now + INTERVAL * BURST) - INTERVAL * BURST
    }
}

impl Drop for Fetches {
    fn drop(&mut self) {
        for running in self.running.values() {
            running.task.abort();
        }
    }
}

/// One fetch.
struct Fetch {
    client: Client,
    requests: Request,
    kind: &'static Kind,
    name: ObjectRef,
    messages: mpsc::Sender<Message>,
    permits: Arc<Semaphore>,
}

impl Fetch {
    async fn run(self, start: Instant) {
        sleep_until(start).await;
        let object = self.get_with_retries().await;
        // Fails when the provider has ended.
        let fetched = Message::Fetched(self.name.clone(), object);
        drop(self.messages.send(fetched).await);
    }

    /// Fetches the object; `None` if it does not exist. Retries failures.
    async fn get_with_retries(&self) -> Option<ParsedObject> {
        let mut retry = Retry::new(self.name.to_string(), "read");
        loop {
            match self.get().await {
                Ok(object) => return object.filter(|object| !is_unused_secret(object)),
                Err(failure) => retry.wait_after(&failure).await,
            }
        }
    }

    async fn get(&self) -> Result<Option<ParsedObject>, Failure> {
        let _permit = self.permits.acquire().await;
        let request = self.requests.get(&self.name.name, &GetParams::default());
        let request = request.map_err(kube::Error::BuildRequest)?;
        match timeout(REQUEST_TIMEOUT, self.client.request_text(request)).await {
            Ok(Ok(text)) => {
                let object = serde_json::from_str(&text);
                let object = object.and_then(|it| ParsedObject::of(self.kind, it, false));
                Ok(Some(object.map_err(kube::Error::SerdeError)?))
            }
            Ok(Err(kube::Error::Api(status))) if status.is_not_found() => Ok(None),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(Failure::Timeout(REQUEST_TIMEOUT)),
        }
    }
}

/// Reports whether the watch's field selector excludes the Secret, so that no watch would report
/// it.
pub(super) fn is_unused_secret(object: &ParsedObject) -> bool {
    let Content::Parsed(Ok(Object::Secret(secret))) = &object.content else {
        return false;
    };
    UNUSED_SECRET_TYPES.contains(&secret.kind.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_a_burst_of_requests_and_then_a_rate() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        let (one, other) = (Text::from("one"), Text::from("other"));
        let starts: Vec<_> = (0..BURST + 2).map(|_| pace.next(&one, now)).collect();
        assert!(starts[..BURST as usize].iter().all(|start| *start == now));
        assert_eq!(
            starts[BURST as usize..],
            [now + INTERVAL, now + INTERVAL * 2]
        );
        assert_eq!(pace.next(&other, now), now);
        // Once the burst is complete again, nothing of the namespace is kept.
        let later = now + INTERVAL * (BURST + 2);
        assert_eq!(pace.next(&other, later), later);
        assert_eq!(pace.complete.len(), 1);
    }
}
