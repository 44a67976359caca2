//! Writes the events of one object to the API server. Their name follows from what they say, so that a new leader does not
//! repeat what its predecessor has said.

use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;

use super::notice::Notice;
use crate::cluster::api_server::{FIELD_MANAGER, describe, field_manager, request};
use crate::ir::object_ref::api_version;

/// Maximum length in bytes of an event's note that the API server accepts.
const MAX_NOTE: usize = 1024;
/// Maximum length in bytes of the part of a name that is the object's.
const MAX_NAME: usize = 200;
/// Namespace of events about objects that have none, as for kubectl.
const DEFAULT_NAMESPACE: &str = "default";

/// What it means if the API server has the event already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// An earlier leader has published it.
    Known,
    /// It has happened again, this number of times as far as is known.
    Counted(i32),
}

/// Returns the name of the event of these notices about one object. An event about a state has the name of that state, since
/// a new leader finds it again without what happened at the same time.
pub(super) fn name(notices: &[Notice]) -> String {
    let Some(first) = notices.first() else {
        return String::new();
    };
    let mut hasher = DefaultHasher::new();
    first.uid.hash(&mut hasher);
    let state = notices.iter().find(|it| it.reason.is_state());
    state
        .map_or(notices, std::slice::from_ref)
        .iter()
        .for_each(|it| (it.reason, &it.message).hash(&mut hasher));
    let object = &first.object.name;
    // Names are ASCII. A part of one must not end with a dot or a hyphen.
    let object = object[..object.len().min(MAX_NAME)].trim_end_matches(['.', '-']);
    format!("{object}.{:016x}", hasher.finish())
}

/// Writes an event of notices about one object.
pub(super) async fn publish(
    client: &Client,
    instance: &str,
    notices: &[Notice],
    name: &str,
    repeat: Repeat,
) -> Result<(), String> {
    let Some(first) = notices.first() else {
        return Ok(());
    };
    let namespace = match &*first.object.namespace {
        "" => DEFAULT_NAMESPACE,
        namespace => namespace,
    };
    let api = Api::<Event>::namespaced(client.clone(), namespace);
    let now = MicroTime(Timestamp::now());
    let event = event(first, notices, (namespace, name), instance, now.clone());
    let params = PostParams {
        field_manager: Some(field_manager().to_owned()),
        ..PostParams::default()
    };
    let Err(error) = request(api.create(&params, &event)).await? else {
        return Ok(());
    };
    match (&error, repeat) {
        (kube::Error::Api(status), Repeat::Known) if status.code == 409 => Ok(()),
        (kube::Error::Api(status), Repeat::Counted(count)) if status.code == 409 => {
            let series = json!({"series": {"count": count, "lastObservedTime": now}});
            let patch = Patch::Merge(&series);
            let patched = request(api.patch(name, &PatchParams::default(), &patch)).await?;
            patched.map(|_| ()).map_err(|error| describe(&error))
        }
        _ => Err(describe(&error)),
    }
}

fn event(
    first: &Notice,
    notices: &[Notice],
    (namespace, name): (&str, &str),
    instance: &str,
    now: MicroTime,
) -> Event {
    let messages: Vec<_> = notices.iter().map(|it| &*it.message).collect();
    let is_problem = notices.iter().any(|it| it.reason.is_problem());
    Event {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        action: Some(first.action.to_owned()),
        event_time: Some(now),
        note: Some(truncate(&messages.join("; "))),
        reason: Some(first.reason.to_string()),
        regarding: Some(reference(first)),
        reporting_controller: Some(FIELD_MANAGER.to_owned()),
        reporting_instance: Some(instance.to_owned()),
        type_: Some(if is_problem { "Warning" } else { "Normal" }.to_owned()),
        ..Event::default()
    }
}

fn reference(notice: &Notice) -> ObjectReference {
    let object = &notice.object;
    let own = || {
        let version = api_version(&object.group, notice.version);
        (version, object.kind.to_string())
    };
    let (version, kind) = notice.served_as.clone().unwrap_or_else(own);
    ObjectReference {
        api_version: Some(version),
        kind: Some(kind),
        namespace: (!object.namespace.is_empty()).then(|| object.namespace.to_string()),
        name: Some(object.name.to_string()),
        uid: Some(notice.uid.clone()),
        ..ObjectReference::default()
    }
}

/// Truncates a note to [`MAX_NOTE`] bytes.
pub(super) fn truncate(text: &str) -> String {
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
    use crate::cluster::events::EventReason;
    use crate::cluster::events::tests::notice;

    #[test]
    fn an_event_about_a_state_has_the_name_of_the_state() {
        let state = notice(EventReason::ReplicaBehind, "behind");
        let change = notice(EventReason::NotProgrammed, "not programmed");
        let alone = name(std::slice::from_ref(&state));
        assert_eq!(name(&[state, change.clone()]), alone);
        assert_ne!(name(std::slice::from_ref(&change)), alone);
        let other = notice(EventReason::NotAccepted, "not accepted");
        assert_ne!(name(&[other, change.clone()]), name(&[change]));
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
