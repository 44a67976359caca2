//! Kubernetes Events about problems that a person must act on. Owns deduplication and rate limiting
//! of events. Publishing never blocks and never fails.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event as KubeEvent, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::cluster::api_server::{FIELD_MANAGER, describe, request};
use crate::ir::ObjectRef;
use crate::ir::object_ref::api_version;

/// Capacity of the queue. Further events are dropped, since conditions and the log have the same
/// facts.
const QUEUE: usize = 256;
/// Minimum interval between two events of one object and reason.
const INTERVAL: Duration = Duration::from_secs(60);
/// Maximum length in bytes of an event's note that the API server accepts.
const MAX_NOTE: usize = 1024;
/// Maximum number of remembered (object, reason) pairs. Beyond it, the publisher forgets all of
/// them and may publish again.
const REMEMBERED: usize = 10_000;

/// A warning event about something that a person must act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The object that the event is about.
    pub object: ObjectRef,
    /// Version of the object's API group, such as `v1`.
    pub version: &'static str,
    /// UID of the object, without which `kubectl describe` does not show the event.
    pub uid: String,
    /// Which problem it is.
    pub reason: EventReason,
    /// Action in CamelCase, such as `Provision`.
    pub action: &'static str,
    /// What happened and what to do.
    pub message: String,
}

/// The problems that have an event, spelled as the reason of the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventReason {
    /// An object with a required name is not owned by the Gateway.
    NameTaken,
    /// The API server refuses an object.
    ProvisioningRefused,
    /// New pods of an upgrade do not serve.
    RolloutStalled,
    /// A replica does not serve the current configuration.
    ReplicaBehind,
    /// A certificate of a listener expires soon.
    CertificateExpiring,
}

impl fmt::Display for EventReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

type Key = (ObjectRef, EventReason);

enum Change {
    Raise(Warning),
    Clear(Key),
}

/// Handle for publishing events. Clones share one queue.
#[derive(Clone, Debug)]
pub struct Events(mpsc::Sender<Change>);

/// Writes queued events to the API server.
pub struct Publisher {
    changes: mpsc::Receiver<Change>,
    instance: String,
    raised: HashMap<Key, Raised>,
}

/// State of one object and reason.
struct Raised {
    /// Message and time of the last published event.
    published: Option<(String, Instant)>,
    /// The event to publish next.
    pending: Option<Warning>,
}

impl Raised {
    /// Returns when to publish the pending event: `now` if none has been published yet; `None`
    /// without a pending event.
    fn due(&self, now: Instant) -> Option<Instant> {
        self.pending.as_ref()?;
        let published = self.published.as_ref();
        Some(published.map_or(now, |(_, at)| *at + INTERVAL))
    }
}

/// Creates the handle and the publisher. `instance` is the `reportingInstance` of the events.
pub fn channel(instance: &str) -> (Events, Publisher) {
    let (sender, changes) = mpsc::channel(QUEUE);
    let publisher = Publisher {
        changes,
        instance: instance.to_owned(),
        raised: HashMap::new(),
    };
    (Events(sender), publisher)
}

impl Events {
    /// Queues a warning. The publisher drops it if the last event of the same object and reason has
    /// the same message.
    pub fn warn(&self, warning: Warning) {
        // A full queue drops the event.
        let _ = self.0.try_send(Change::Raise(warning));
    }

    /// Clears a warning whose cause has ended: the next one is published even with the same
    /// message.
    pub fn clear(&self, object: &ObjectRef, reason: EventReason) {
        let _ = self.0.try_send(Change::Clear((object.clone(), reason)));
    }
}

impl Publisher {
    /// Publishes events until every [`Events`] handle is dropped.
    pub async fn run(&mut self, client: &Client) {
        loop {
            let now = Instant::now();
            let raised = self.raised.values();
            let due = raised.filter_map(|raised| raised.due(now)).min();
            tokio::select! {
                change = self.changes.recv() => match change {
                    Some(change) => self.take(change),
                    None => return,
                },
                () = until(due) => self.publish_due(client).await,
            }
        }
    }

    fn take(&mut self, change: Change) {
        match change {
            Change::Raise(warning) => {
                if self.raised.len() >= REMEMBERED {
                    self.raised.clear();
                }
                let key = (warning.object.clone(), warning.reason);
                let raised = self.raised.entry(key).or_insert(Raised {
                    published: None,
                    pending: None,
                });
                let published = raised.published.as_ref();
                let is_known = published.is_some_and(|(message, _)| *message == warning.message);
                raised.pending = (!is_known).then_some(warning);
            }
            Change::Clear(key) => {
                self.raised.remove(&key);
            }
        }
    }

    async fn publish_due(&mut self, client: &Client) {
        let now = Instant::now();
        for raised in self.raised.values_mut() {
            if raised.due(now).is_none_or(|due| due > now) {
                continue;
            }
            let Some(warning) = raised.pending.take() else {
                continue;
            };
            if let Err(error) = publish(client, &self.instance, &warning).await {
                let Warning { object, reason, .. } = &warning;
                tracing::warn!("{object}: cannot write event {reason}: {error}");
            }
            raised.published = Some((warning.message, now));
        }
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

async fn publish(client: &Client, instance: &str, warning: &Warning) -> Result<(), String> {
    let reporter = Reporter {
        controller: FIELD_MANAGER.to_owned(),
        instance: Some(instance.to_owned()),
    };
    // A new recorder for each event: kube's recorder aggregates events of one object and reason,
    // and keeps the note of the first.
    let recorder = Recorder::new(client.clone(), reporter);
    let event = KubeEvent {
        type_: EventType::Warning,
        reason: warning.reason.to_string(),
        note: Some(truncate(&warning.message)),
        action: warning.action.to_owned(),
        secondary: None,
    };
    let published = request(recorder.publish(&event, &reference(warning))).await?;
    published.map_err(|error| describe(&error))
}

fn reference(warning: &Warning) -> ObjectReference {
    let object = &warning.object;
    ObjectReference {
        api_version: Some(api_version(&object.group, warning.version)),
        kind: Some(object.kind.to_string()),
        namespace: (!object.namespace.is_empty()).then(|| object.namespace.to_string()),
        name: Some(object.name.to_string()),
        uid: Some(warning.uid.clone()),
        ..ObjectReference::default()
    }
}

/// Truncates a note to [`MAX_NOTE`] bytes.
fn truncate(text: &str) -> String {
    if text.len() <= MAX_NOTE {
        return text.to_owned();
    }
    let room = 0..=MAX_NOTE - "…".len();
    let end = room.rev().find(|end| text.is_char_boundary(*end));
    format!("{}…", &text[..end.unwrap_or_default()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning(message: &str) -> Warning {
        Warning {
            object: ObjectRef::gateway_api("Gateway", "shop", "web"),
            version: "v1",
            uid: "1".to_owned(),
            reason: EventReason::NameTaken,
            action: "Provision",
            message: message.to_owned(),
        }
    }

    /// Messages of pending events, after all queued changes.
    fn pending(publisher: &mut Publisher) -> Vec<String> {
        while let Ok(change) = publisher.changes.try_recv() {
            publisher.take(change);
        }
        let pending = publisher
            .raised
            .values()
            .filter_map(|raised| raised.pending.as_ref());
        pending.map(|warning| warning.message.clone()).collect()
    }

    fn mark_published(publisher: &mut Publisher) {
        for raised in publisher.raised.values_mut() {
            let warning = raised.pending.take().unwrap();
            raised.published = Some((warning.message, Instant::now()));
        }
    }

    #[test]
    fn publishes_a_message_once_until_it_changes_or_is_cleared() {
        let (events, mut publisher) = channel("pod");
        events.warn(warning("a"));
        events.warn(warning("a"));
        assert_eq!(pending(&mut publisher), ["a"]);
        mark_published(&mut publisher);
        events.warn(warning("a"));
        assert!(pending(&mut publisher).is_empty());
        events.warn(warning("b"));
        assert_eq!(pending(&mut publisher), ["b"]);
        // Back to the published message: nothing is pending.
        events.warn(warning("a"));
        assert!(pending(&mut publisher).is_empty());
        events.clear(&warning("a").object, EventReason::NameTaken);
        events.warn(warning("a"));
        assert_eq!(pending(&mut publisher), ["a"]);
    }

    #[test]
    fn changed_message_waits_for_the_interval() {
        let (events, mut publisher) = channel("pod");
        events.warn(warning("a"));
        pending(&mut publisher);
        let start = Instant::now();
        mark_published(&mut publisher);
        events.warn(warning("b"));
        pending(&mut publisher);
        let mut raised = publisher.raised.values();
        let due = raised.find_map(|raised| raised.due(start)).unwrap();
        assert!(due >= start + INTERVAL);
    }

    #[test]
    fn full_queue_drops_events_instead_of_blocking() {
        let (events, mut publisher) = channel("pod");
        for count in 0..QUEUE + 10 {
            events.warn(warning(&count.to_string()));
        }
        assert_eq!(pending(&mut publisher), [(QUEUE - 1).to_string()]);
    }

    #[test]
    fn long_text_is_truncated_between_characters() {
        assert_eq!(truncate("short"), "short");
        let long = truncate(&"ü".repeat(2000));
        assert!(
            long.len() <= MAX_NOTE && long.ends_with('…'),
            "{}",
            long.len()
        );
    }
}
