//! Kubernetes Events for what a person must act on. Owns that nothing is published twice, and how often what changes is
//! published. Whoever publishes neither waits nor fails.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event as KubeEvent, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::api_server::{FIELD_MANAGER, describe, request};
use crate::ir::ObjectRef;

/// Events that may wait to be published; more are dropped, since the same facts are in conditions and in the log.
const QUEUE: usize = 256;
/// The shortest time between two events of one object and reason.
const INTERVAL: Duration = Duration::from_secs(60);
/// Bytes that the API server takes as the text of an event.
const MAX_NOTE: usize = 1024;
/// Objects and reasons that are remembered. When there are more, all are forgotten, and may be published again.
const REMEMBERED: usize = 10_000;

/// What a person must act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The object that it is about.
    pub object: ObjectRef,
    /// Version of the object's API group, such as `v1`.
    pub version: &'static str,
    /// UID of the object, without which `kubectl describe` does not show the event.
    pub uid: String,
    /// Why, in one word, such as `NameTaken`.
    pub reason: &'static str,
    /// What was being done, in one word, such as `Provision`.
    pub action: &'static str,
    /// What happened and what to do.
    pub message: String,
}

type Key = (ObjectRef, &'static str);

enum Change {
    Raise(Warning),
    Clear(Key),
}

/// Publishes events. Clones publish together.
#[derive(Clone, Debug)]
pub struct Events(mpsc::Sender<Change>);

/// Writes published events to the API server.
pub struct Publisher {
    changes: mpsc::Receiver<Change>,
    instance: String,
    raised: HashMap<Key, Raised>,
}

/// What was raised of one object and reason.
struct Raised {
    /// What was published last, and when.
    published: Option<(String, Instant)>,
    /// What is still to publish.
    pending: Option<Warning>,
}

impl Raised {
    /// When to publish what is pending; `now` where nothing was published yet.
    fn due(&self, now: Instant) -> Option<Instant> {
        self.pending.as_ref()?;
        let published = self.published.as_ref();
        Some(published.map_or(now, |(_, at)| *at + INTERVAL))
    }
}

/// A way to publish events in the name of `instance`, and what writes them.
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
    /// Publishes a warning, unless the last one of the same object and reason says the same.
    pub fn warn(&self, warning: Warning) {
        // A full queue drops it.
        let _ = self.0.try_send(Change::Raise(warning));
    }

    /// Says that what a warning was about is over: the next one is published even if it says the same.
    pub fn clear(&self, object: &ObjectRef, reason: &'static str) {
        let _ = self.0.try_send(Change::Clear((object.clone(), reason)));
    }
}

impl Publisher {
    /// Writes events for as long as it is polled.
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
                tracing::warn!("{object}: event {reason} cannot be written: {error}");
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
    // A recorder counts events of one object and reason as one, with the text of the first.
    let recorder = Recorder::new(client.clone(), reporter);
    let event = KubeEvent {
        type_: EventType::Warning,
        reason: warning.reason.to_owned(),
        note: Some(cut(&warning.message)),
        action: warning.action.to_owned(),
        secondary: None,
    };
    let published = request(recorder.publish(&event, &reference(warning))).await?;
    published.map_err(|error| describe(&error))
}

fn reference(warning: &Warning) -> ObjectReference {
    let object = &warning.object;
    let api_version = match &*object.group {
        "" => warning.version.to_owned(),
        group => format!("{group}/{}", warning.version),
    };
    ObjectReference {
        api_version: Some(api_version),
        kind: Some(object.kind.to_string()),
        namespace: (!object.namespace.is_empty()).then(|| object.namespace.to_string()),
        name: Some(object.name.to_string()),
        uid: Some(warning.uid.clone()),
        ..ObjectReference::default()
    }
}

/// The text as far as an event has room for it.
fn cut(text: &str) -> String {
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
            reason: "NameTaken",
            action: "Provision",
            message: message.to_owned(),
        }
    }

    /// What a publisher has to write, after it takes what was sent.
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
        // Back to what was published last: nothing is left to say.
        events.warn(warning("a"));
        assert!(pending(&mut publisher).is_empty());
        events.clear(&warning("a").object, "NameTaken");
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
    fn long_text_is_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        let long = cut(&"ü".repeat(2000));
        assert!(
            long.len() <= MAX_NOTE && long.ends_with('…'),
            "{}",
            long.len()
        );
    }
}
