//! The watch of one kind: from discovering that the cluster has it, through lists, time-outs and failures, for ever.
//! Tells what happens as [`Change`]s. Knows nothing of other kinds.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use rand::RngExt;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::observer::{Observed, is_observed};
use super::store::{Change, Reading};
use crate::api::{Key, Kind, Severity, admit};

/// How often a kind that the cluster does not have is looked for again.
const DISCOVERY: Duration = Duration::from_secs(5);
/// Seconds after which the API server ends a watch. A connection that died without a word is noticed 5 s later.
const WATCH_SECONDS: u32 = 45;
/// Objects in one page of a list.
const PAGE: u32 = 500;
/// The first wait after a failure; each further one doubles it.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest wait between two tries.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Annotation that holds a copy of the whole object, which nobody here reads.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Secrets that can hold nothing that a Gateway refers to, and that are often many or large.
const OTHER_SECRETS: &str = "type!=helm.sh/release.v1,type!=kubernetes.io/service-account-token";

/// Where changes of one kind go. Ends when nobody listens.
pub(super) struct KindWatch {
    pub(super) client: Client,
    /// The only Gateway that is watched; `None` watches all.
    pub(super) gateway: Option<Key>,
    /// The kind, as a place in [`Kind::all`].
    pub(super) index: usize,
    /// Whether an observer wants to know more than what is served.
    pub(super) is_observed: bool,
    pub(super) changes: mpsc::Sender<(usize, Change)>,
}

/// The other end is gone: there is nothing left to do.
struct Closed;

impl KindWatch {
    /// Watches until nobody listens.
    pub(super) async fn run(self) {
        let mut pause = Pause::new(self.kind());
        loop {
            let outcome = match self.discover().await {
                Ok(Some(resource)) => self.follow(&resource, &mut pause).await,
                Ok(None) => {
                    pause.reset();
                    let told = self.tell(Change::Absent).await;
                    sleep(DISCOVERY).await;
                    told
                }
                Err(error) => {
                    pause.after(&error).await;
                    Ok(())
                }
            };
            if outcome.is_err() {
                return;
            }
        }
    }

    fn kind(&self) -> &'static Kind {
        &Kind::all()[self.index]
    }

    async fn tell(&self, change: Change) -> Result<(), Closed> {
        let sent = self.changes.send((self.index, change)).await;
        sent.map_err(|_| Closed)
    }

    /// The kind as the cluster serves it, in the newest version that we read; `None` when it does not serve it.
    async fn discover(&self) -> Result<Option<ApiResource>, kube::Error> {
        let kind = self.kind();
        for version in kind.versions {
            let api_version = kind.group_version(version);
            let listed = if kind.group.is_empty() {
                self.client.list_core_api_resources(version).await
            } else {
                self.client.list_api_group_resources(&api_version).await
            };
            let resources = match listed {
                Ok(list) => list.resources,
                Err(kube::Error::Api(status)) if status.code == 404 => continue,
                Err(error) => return Err(error),
            };
            let served = resources
                .iter()
                .find(|resource| resource.kind == kind.kind && !resource.name.contains('/'));
            if let Some(resource) = served {
                return Ok(Some(ApiResource {
                    group: kind.group.to_owned(),
                    version: (*version).to_owned(),
                    api_version,
                    kind: kind.kind.to_owned(),
                    plural: resource.name.clone(),
                }));
            }
        }
        Ok(None)
    }

    /// Lists and watches until the cluster no longer serves the kind.
    async fn follow(&self, resource: &ApiResource, pause: &mut Pause) -> Result<(), Closed> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), resource);
        let mut config = watcher::Config::default()
            .timeout(WATCH_SECONDS)
            .page_size(PAGE);
        match (&*resource.kind, &self.gateway) {
            ("Secret", _) => config = config.fields(OTHER_SECRETS),
            ("Gateway", Some(Key { namespace, name })) => {
                let only = format!("metadata.namespace={namespace},metadata.name={name}");
                config = config.fields(&only);
            }
            _ => {}
        }
        let mut events = pin!(watcher::watcher(api, config));
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    pause.reset();
                    self.tell(self.change(event)).await?;
                }
                Err(error) if is_not_found(&error) => return Ok(()),
                Err(error) => pause.after(&error).await,
            }
        }
        Ok(())
    }

    fn change(&self, event: Event<DynamicObject>) -> Change {
        match event {
            Event::Init => Change::Listing,
            Event::InitApply(object) => Change::Listed(self.read(object)),
            Event::InitDone => Change::Complete,
            Event::Apply(object) => Change::Applied(self.read(object)),
            Event::Delete(object) => Change::Deleted(key(&object)),
        }
    }

    fn read(&self, object: DynamicObject) -> Reading {
        let observes = self.is_observed && is_observed(self.kind());
        let observed = observes.then(|| Observed::of(&object));
        Reading {
            observed,
            ..read(self.kind(), object)
        }
    }
}

fn key(object: &DynamicObject) -> Key {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    Key::new(
        object.metadata.namespace.as_deref().unwrap_or_default(),
        name,
    )
}

/// Reads what we know of an object, which leaves the rest behind.
fn read(kind: &'static Kind, mut object: DynamicObject) -> Reading {
    object.metadata.managed_fields = None;
    if let Some(annotations) = &mut object.metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
    let key = key(&object);
    let object = serde_json::to_value(object)
        .map_err(|error| error.to_string())
        .and_then(|mut value| {
            // Objects of a list do not say what they are.
            value["apiVersion"] = kind.api_version().into();
            value["kind"] = kind.kind.into();
            kind.decode(&value).map_err(|error| reason(value, &error))
        });
    Reading {
        key,
        object,
        observed: None,
    }
}

/// Why an object cannot be read, with the field: its schema knows that better than the error does.
fn reason(value: Value, error: &serde_json::Error) -> String {
    let findings = admit(value).findings;
    let fault = findings
        .iter()
        .find(|finding| finding.severity == Severity::Error);
    fault.map_or_else(
        || error.to_string(),
        |fault| format!("{}: {}", fault.field, fault.message),
    )
}

/// Whether the cluster has lost the kind.
fn is_not_found(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
    matches!(
        error,
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status)) if status.code == 404
    )
}

/// Waits between failures: longer each time, never the same for all, and with one line of log for each kind of failure.
struct Pause {
    kind: &'static Kind,
    failures: u32,
    told: String,
}

impl Pause {
    fn new(kind: &'static Kind) -> Self {
        Self {
            kind,
            failures: 0,
            told: String::new(),
        }
    }

    fn reset(&mut self) {
        if self.failures > 0 {
            tracing::info!("{} is watched again", self.kind.kind);
        }
        self.failures = 0;
        self.told.clear();
    }

    async fn after(&mut self, error: &(impl std::error::Error + Sync)) {
        let text = chain(error);
        if self.told != text {
            tracing::warn!(
                "{} cannot be watched: {text}; what was known of it is served until it can",
                self.kind.kind
            );
            self.told = text;
        }
        let longest = FIRST_WAIT
            .saturating_mul(1 << self.failures.min(16))
            .min(LONGEST_WAIT);
        self.failures += 1;
        let part = rand::rng().random_range(0.5..1.0);
        sleep(longest.mul_f64(part)).await;
    }
}

/// An error with its causes, each told once.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kind(name: &str) -> &'static Kind {
        let mut kinds = Kind::all().iter();
        kinds.find(|kind| kind.kind == name).unwrap()
    }

    fn object(spec: &Value) -> DynamicObject {
        serde_json::from_value(json!({
            "metadata": {
                "name": "a", "namespace": "default",
                "annotations": {LAST_APPLIED: "{}", "other": "stays"},
                "managedFields": [{"manager": "kubectl"}],
            },
            "spec": spec,
        }))
        .unwrap()
    }

    #[test]
    fn what_nobody_reads_is_left_behind() {
        let reading = read(
            kind("HTTPRoute"),
            object(&json!({"hostnames": ["a.example"]})),
        );
        assert_eq!(reading.key, Key::new("default", "a"));
        let object = reading.object.unwrap();
        let annotations: Vec<_> = object.meta().annotations.keys().collect();
        assert_eq!(annotations, ["other"]);
    }

    #[test]
    fn the_field_that_cannot_be_read_is_named() {
        let reading = read(kind("HTTPRoute"), object(&json!({"hostnames": 7})));
        let reason = reading.object.unwrap_err();
        assert!(reason.starts_with("spec.hostnames: "), "{reason}");
    }

    #[test]
    fn routes_of_every_kind_know_their_kind() {
        let reading = read(kind("GRPCRoute"), object(&json!({})));
        let crate::api::Object::UnservedRoute(route) = reading.object.unwrap() else {
            panic!("not a route");
        };
        assert_eq!(route.kind, "GRPCRoute");
    }
}
