//! Fetches objects by name that their watch reported before they were referenced. Retries until
//! there is a response, while the object is referenced.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::parsed::ParsedObject;
use super::retry::{Failure, Retry};
use super::scope::UNUSED_SECRET_TYPES;
use super::store::Message;
use crate::api::{Kind, ObjectRef};

/// Maximum time that a publication waits for a fetch.
pub(super) const FETCH_WAIT: Duration = Duration::from_secs(2);
/// Maximum number of concurrent fetches.
const MAX_CONCURRENT: usize = 16;

/// Fetches in progress.
pub(super) struct Fetches {
    client: Client,
    messages: mpsc::Sender<Message>,
    permits: Arc<Semaphore>,
    running: BTreeMap<ObjectRef, AbortHandle>,
}

impl Fetches {
    pub(super) fn new(client: Client, messages: mpsc::Sender<Message>) -> Self {
        Self {
            client,
            messages,
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT)),
            running: BTreeMap::new(),
        }
    }

    /// Fetches exactly these objects: starts missing fetches and cancels the others.
    pub(super) fn follow(&mut self, wanted: BTreeSet<ObjectRef>) {
        self.running.retain(|name, running| {
            let is_wanted = wanted.contains(name);
            if !is_wanted {
                running.abort();
            }
            // Drops finished fetches, so that an object that is wanted again is fetched again.
            is_wanted && !running.is_finished()
        });
        for name in wanted {
            if !self.running.contains_key(&name)
                && let Some(fetch) = self.fetch(&name)
            {
                let running = tokio::spawn(fetch.run()).abort_handle();
                self.running.insert(name, running);
            }
        }
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
            running.abort();
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
        let mut fetched = pin!(self.get_with_retries());
        let object = match timeout(FETCH_WAIT, fetched.as_mut()).await {
            Ok(object) => object,
            Err(_) => {
                self.send(Message::Late(self.name.clone())).await;
                fetched.await
            }
        };
        self.send(Message::Fetched(self.name.clone(), object)).await;
    }

    /// Sends a message. Ignores a closed channel, since this task is then aborted too.
    async fn send(&self, message: Message) {
        let _ = self.messages.send(message).await;
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
        match timeout(FETCH_WAIT, self.api.get_opt(&self.name.name)).await {
            Ok(object) => Ok(object?),
            Err(_) => Err(Failure::Timeout(FETCH_WAIT)),
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
