//! Objects that are read by name, since their watch reported them before they were wanted. Retries until there is a
//! response, for as long as the object is wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::pause::{Failure, Pause};
use super::reading::Reading;
use super::scope::OTHER_SECRETS;
use super::store::Message;
use crate::api::{Kind, ObjectRef};

/// How long an answer is worth waiting for.
pub(super) const WORTH: Duration = Duration::from_secs(2);
/// Objects that are asked for at one time.
const AT_ONCE: usize = 16;

/// The objects that are being asked for.
pub(super) struct Fetches {
    client: Client,
    answers: mpsc::Sender<Message>,
    turns: Arc<Semaphore>,
    running: BTreeMap<ObjectRef, AbortHandle>,
}

impl Fetches {
    pub(super) fn new(client: Client, answers: mpsc::Sender<Message>) -> Self {
        Self {
            client,
            answers,
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            running: BTreeMap::new(),
        }
    }

    /// Asks for these objects from now on, and for no others.
    pub(super) fn follow(&mut self, wanted: BTreeSet<ObjectRef>) {
        self.running.retain(|name, running| {
            let is_wanted = wanted.contains(name);
            if !is_wanted {
                running.abort();
            }
            // What was answered and is wanted again has to be asked for again.
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
            answers: self.answers.clone(),
            turns: self.turns.clone(),
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

/// One object that is asked for.
struct Fetch {
    api: Api<DynamicObject>,
    kind: &'static Kind,
    name: ObjectRef,
    answers: mpsc::Sender<Message>,
    turns: Arc<Semaphore>,
}

impl Fetch {
    async fn run(self) {
        let mut answer = pin!(self.answer());
        let reading = match timeout(WORTH, answer.as_mut()).await {
            Ok(reading) => reading,
            Err(_) => {
                self.tell(Message::Late(self.name.clone())).await;
                answer.await
            }
        };
        self.tell(Message::Fetched(self.name.clone(), reading))
            .await;
    }

    /// Whoever listened may be gone, and then so is this.
    async fn tell(&self, message: Message) {
        let _ = self.answers.send(message).await;
    }

    /// The object, or nothing when it does not exist, however often that has to be asked.
    async fn answer(&self) -> Option<Reading> {
        let mut pause = Pause::new(self.name.to_string(), "read");
        loop {
            match self.ask().await {
                Ok(object) => {
                    let object = object.filter(|object| !is_other_secret(object));
                    return object.map(|object| Reading::of(self.kind, object, false));
                }
                Err(failure) => pause.after(&failure).await,
            }
        }
    }

    async fn ask(&self) -> Result<Option<DynamicObject>, Failure> {
        let _turn = self.turns.acquire().await;
        match timeout(WORTH, self.api.get_opt(&self.name.name)).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(Failure::Silence(WORTH)),
        }
    }
}

/// Whether the object is one that the watch leaves out, and thus would never tell of again.
fn is_other_secret(object: &DynamicObject) -> bool {
    OTHER_SECRETS
        .iter()
        .any(|other| object.data["type"] == *other)
}
