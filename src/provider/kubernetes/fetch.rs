//! Fetches objects by name that their watch reported before they were referenced. Retries until
//! there is a response, while the object is referenced.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::parsed::ParsedObject;
use super::referenced::Wanted;
use super::retry::{Failure, Retry};
use super::scope::UNUSED_SECRET_TYPES;
use super::store::Message;
use crate::api::{Kind, ObjectRef};

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of concurrent requests, and of fetches for the objects of one namespace. Fetches of a namespace with
/// many references do not delay those of others.
const MAX_CONCURRENT: usize = 16;
const MAX_IN_NAMESPACE: usize = 4;

/// Fetches in progress, and those that wait.
pub(super) struct Fetches {
    client: Client,
    messages: mpsc::Sender<Message>,
    permits: Arc<Semaphore>,
    running: BTreeMap<ObjectRef, Running>,
    /// By the namespace of the objects that refer to them. May contain objects that were fetched for another namespace.
    waiting: BTreeMap<Arc<str>, VecDeque<ObjectRef>>,
    wanted: Wanted,
}

/// A fetch in progress.
struct Running {
    /// Namespace of the objects that refer to it.
    namespace: Arc<str>,
    task: AbortHandle,
}

impl Fetches {
    pub(super) fn new(client: Client, messages: mpsc::Sender<Message>) -> Self {
        Self {
            client,
            messages,
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT)),
            running: BTreeMap::new(),
            waiting: BTreeMap::new(),
            wanted: Wanted::new(),
        }
    }

    /// Fetches exactly these objects: cancels the others.
    pub(super) fn follow(&mut self, wanted: Wanted) {
        self.running.retain(|name, running| {
            let is_wanted = wanted.contains_key(name);
            if !is_wanted {
                running.task.abort();
            }
            is_wanted
        });
        self.waiting.clear();
        for (name, namespaces) in &wanted {
            if !self.running.contains_key(name) {
                for namespace in namespaces {
                    let waiting = self.waiting.entry(namespace.clone()).or_default();
                    waiting.push_back(name.clone());
                }
            }
        }
        self.wanted = wanted;
        self.start();
    }

    /// Forgets fetches that have ended, and starts the next ones.
    pub(super) fn finish(&mut self, fetched: &[ObjectRef]) {
        for name in fetched {
            self.running.remove(name);
            self.wanted.remove(name);
        }
        if !fetched.is_empty() {
            self.start();
        }
    }

    fn start(&mut self) {
        let mut in_namespace: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        for running in self.running.values() {
            *in_namespace.entry(running.namespace.clone()).or_default() += 1;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|namespace, names| {
            let count = in_namespace.entry(namespace.clone()).or_default();
            while *count < MAX_IN_NAMESPACE
                && let Some(name) = names.pop_front()
            {
                if self.wanted.contains_key(&name)
                    && !self.running.contains_key(&name)
                    && let Some(fetch) = self.fetch(&name)
                {
                    let (namespace, task) = (namespace.clone(), tokio::spawn(fetch.run()));
                    let task = task.abort_handle();
                    self.running.insert(name, Running { namespace, task });
                    *count += 1;
                }
            }
            !names.is_empty()
        });
        self.waiting = waiting;
    }

    fn fetch(&self, name: &ObjectRef) -> Option<Fetch> {
        let mut kinds = Kind::all().iter();
        let kind = kinds.find(|kind| (kind.group, kind.kind) == (&*name.group, &*name.kind))?;
        let (group, version) = (kind.group.to_owned(), kind.versions.first()?);
        let resource = ApiResource {
            group,
            version: (*version).to_owned(),
            api_version: kind.api_version(),
            kind: kind.kind.to_owned(),
            plural: format!("{}s", kind.kind.to_lowercase()),
        };
        Some(Fetch {
            api: Api::namespaced_with(self.client.clone(), &name.namespace, &resource),
            kind,
            name: name.clone(),
            messages: self.messages.clone(),
            permits: self.permits.clone(),
        })
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
    api: Api<DynamicObject>,
    kind: &'static Kind,
    name: ObjectRef,
    messages: mpsc::Sender<Message>,
    permits: Arc<Semaphore>,
}

impl Fetch {
    async fn run(self) {
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
                Ok(object) => {
                    let object = object.filter(|object| !is_unused_secret(object));
                    return object.map(|object| ParsedObject::of(self.kind, object, false));
                }
                Err(failure) => retry.wait_after(&failure).await,
            }
        }
    }

    async fn get(&self) -> Result<Option<DynamicObject>, Failure> {
        let _permit = self.permits.acquire().await;
        match timeout(REQUEST_TIMEOUT, self.api.get_opt(&self.name.name)).await {
            Ok(object) => Ok(object?),
            Err(_) => Err(Failure::Timeout(REQUEST_TIMEOUT)),
        }
    }
}

/// Reports whether the watch's field selector excludes the Secret, so that no watch would report
/// it.
fn is_unused_secret(object: &DynamicObject) -> bool {
    UNUSED_SECRET_TYPES
        .iter()
        .any(|other| object.data["type"] == *other)
}
