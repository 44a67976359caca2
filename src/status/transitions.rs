//! What a written status changes for a person: conditions that turn bad, and those that turn good again. Pure.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::condition::{Condition, ConditionStatus, ConditionType, Reason};
use super::effect::Bearer;
use super::problems::of_condition;
use crate::cluster::events::EventReason;
use crate::ir::ObjectRef;

/// Conditions whose changes matter: the event when it is no longer True, and the one when it is again.
const WATCHED: [(&str, EventReason, EventReason); 3] = [
    ("Accepted", EventReason::NotAccepted, EventReason::Accepted),
    (
        "ResolvedRefs",
        EventReason::ReferencesNotResolved,
        EventReason::ReferencesResolved,
    ),
    (
        "Programmed",
        EventReason::NotProgrammed,
        EventReason::Programmed,
    ),
];

/// A condition that is there only while it is True.
const LOOSENED: &str = "portcullis.dev/LoosensInherited";

/// Conditions by place and type. A place is an entry of a list, or the object itself.
type Conditions<'a> = BTreeMap<(String, &'a str), &'a Value>;

/// Returns what has changed from one status of an object to the next, with a message for each reason: that of the finding, if a
/// condition turns bad.
pub(super) fn transitions(
    object: &ObjectRef,
    old: &Value,
    new: &Value,
) -> Vec<(EventReason, String)> {
    let (old, new) = (conditions(old), conditions(new));
    let mut found: BTreeMap<EventReason, Vec<String>> = BTreeMap::new();
    for (key, condition) in &new {
        let before = old.get(key).copied().unwrap_or(&Value::Null);
        if let Some(reason) = transition(&object.kind, key.1, before, condition) {
            let messages = found.entry(reason).or_default();
            let problem = problem(object, &key.0, (condition, &new));
            messages.push(problem.unwrap_or_else(|| message(&key.0, condition)));
        }
    }
    let restored = old.keys().filter(|key| {
        let is_gone = key.1 == LOOSENED && !new.contains_key(key);
        // The policy itself still affects this place.
        is_gone && new.keys().any(|(place, _)| *place == key.0)
    });
    for (place, _) in restored {
        let messages = found.entry(EventReason::AccessRestored).or_default();
        messages.push(at(place, "permits no more than the policies above it"));
    }
    let joined = found.into_iter();
    joined
        .map(|(reason, messages)| (reason, messages.join("; ")))
        .collect()
}

fn transition(kind: &str, name: &str, old: &Value, new: &Value) -> Option<EventReason> {
    let status = |condition: &Value| condition["status"].as_str().unwrap_or_default().to_owned();
    let (before, now) = (status(old), status(new));
    if name == LOOSENED {
        return (now == "True" && before != "True").then_some(EventReason::AccessLoosened);
    }
    let (_, bad, good) = WATCHED.into_iter().find(|(watched, ..)| *watched == name)?;
    // It repeats other conditions, or says only that nothing refers to the object.
    if kind == "ReleaseBackend" && name == "Programmed" {
        return None;
    }
    match (&*before, &*now) {
        ("False", "True") => Some(good),
        // A new object waits for its data plane.
        ("" | "Unknown", "False") if new["reason"] == "Pending" => None,
        // Has an event of its own, by the same name.
        (_, "False") if new["reason"] == "NameTaken" => None,
        ("True" | "" | "Unknown", "False") => Some(bad),
        _ => None,
    }
}

/// Returns the text of the finding about a condition at a place, if it is a problem that this controller writes.
fn problem(
    object: &ObjectRef,
    place: &str,
    (condition, all): (&Value, &Conditions<'_>),
) -> Option<String> {
    let condition = parsed(condition).filter(Condition::is_problem)?;
    let beside = all.iter().filter(|((other, _), _)| *other == place);
    let beside: Vec<_> = beside.filter_map(|(_, it)| parsed(it)).collect();
    let bearer = Bearer {
        kind: &object.kind,
        is_listener: place.starts_with(LISTENER),
        conditions: &beside,
    };
    Some(of_condition(object, (bearer, place), &condition).message())
}

/// Returns a condition; `None` if this controller does not write its type or its reason.
fn parsed(condition: &Value) -> Option<Condition> {
    let text = |name: &str| condition[name].as_str();
    Some(Condition {
        kind: ConditionType::parse(text("type")?)?,
        status: ConditionStatus::deserialize(&condition["status"]).ok()?,
        reason: Reason::deserialize(&condition["reason"]).ok()?,
        message: text("message").unwrap_or_default().to_owned(),
        observed_generation: condition["observedGeneration"].as_i64().unwrap_or_default(),
    })
}

fn message(place: &str, condition: &Value) -> String {
    let part = |name: &str| condition[name].as_str().unwrap_or_default();
    let mut text = format!(
        "{} is {} ({})",
        part("type"),
        part("status"),
        part("reason")
    );
    if !part("message").is_empty() {
        text = format!("{text}: {}", part("message"));
    }
    at(place, &text)
}

fn at(place: &str, text: &str) -> String {
    match place {
        "" => text.to_owned(),
        place => format!("{place}: {text}"),
    }
}

/// What the text of a listener begins with.
const LISTENER: &str = "listener ";

/// The lists of a status whose entries have conditions, and the field that names an entry.
const LISTS: [(&str, &str); 3] = [
    ("listeners", "name"),
    ("parents", "parentRef"),
    ("ancestors", "ancestorRef"),
];

fn conditions(status: &Value) -> Conditions<'_> {
    let mut places = vec![(String::new(), status)];
    for (list, name) in LISTS {
        let entries = status[list].as_array().into_iter().flatten();
        places.extend(entries.map(|it| (place(&it[name], &it["controllerName"]), it)));
    }
    let mut conditions = Conditions::new();
    for (place, holder) in places {
        let items = holder["conditions"].as_array().into_iter().flatten();
        let named = items.filter_map(|it| Some((it["type"].as_str()?, it)));
        conditions.extend(named.map(|(name, it)| ((place.clone(), name), it)));
    }
    conditions
}

/// The text of a place. Entries of other controllers have one of their own, since several may have the same reference.
fn place(name: &Value, controller: &Value) -> String {
    let Some(reference) = name.as_object() else {
        return format!("{LISTENER}{}", name.as_str().unwrap_or_default());
    };
    let part = |name: &str| reference.get(name).and_then(Value::as_str);
    let mut text = format!("for {} ", part("kind").unwrap_or("Gateway"));
    if let Some(namespace) = part("namespace") {
        text = format!("{text}{namespace}/");
    }
    text.push_str(part("name").unwrap_or_default());
    if let Some(section) = part("sectionName") {
        text = format!("{text}, section {section}");
    }
    if let Some(port) = reference.get("port") {
        text = format!("{text}, port {port}");
    }
    match controller.as_str() {
        Some(controller) if !controller.starts_with("portcullis.dev/") => {
            format!("{text} of {controller}")
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn condition(name: &str, status: &str, reason: &str) -> Value {
        json!({"type": name, "status": status, "reason": reason, "message": "why"})
    }

    fn object(kind: &str) -> ObjectRef {
        ObjectRef::new("", kind, "default", "one")
    }

    fn of(old: &[Value], new: &[Value]) -> Vec<EventReason> {
        let status = |conditions: &[Value]| json!({"conditions": conditions});
        let found = transitions(&object("Gateway"), &status(old), &status(new));
        found.into_iter().map(|(reason, _)| reason).collect()
    }

    #[test]
    fn conditions_that_turn_are_transitions() {
        for (name, bad, good) in WATCHED {
            let [yes, no] = ["True", "False"].map(|status| condition(name, status, "Reason"));
            let yes = std::slice::from_ref(&yes);
            let no = std::slice::from_ref(&no);
            assert_eq!(of(yes, no), [bad]);
            assert_eq!(of(no, yes), [good]);
            assert_eq!(of(&[], no), [bad]);
            assert_eq!(of(&[], yes), []);
            assert_eq!(of(no, no), []);
            assert_eq!(of(yes, yes), []);
            assert_eq!(of(yes, &[]), []);
        }
    }

    #[test]
    fn a_new_object_may_wait() {
        let [unknown, waits, there] = [
            condition("Programmed", "Unknown", "Pending"),
            condition("Programmed", "False", "Pending"),
            condition("Programmed", "True", "Programmed"),
        ];
        let [unknown, waits, there] = [unknown, waits, there].map(|it| vec![it]);
        assert_eq!(of(&unknown, &waits), []);
        assert_eq!(of(&waits, &there), [EventReason::Programmed]);
        // Its data plane is gone.
        assert_eq!(of(&there, &waits), [EventReason::NotProgrammed]);
    }

    #[test]
    fn a_taken_name_has_an_event_of_its_own_and_its_end_is_a_transition() {
        let yes = [condition("Accepted", "True", "Accepted")];
        let taken = [condition("Accepted", "False", "NameTaken")];
        assert_eq!(of(&yes, &taken), []);
        assert_eq!(of(&taken, &yes), [EventReason::Accepted]);
    }

    #[test]
    fn a_policy_that_permits_more_is_a_transition_and_so_is_its_end() {
        let status = |is_loose: bool| {
            let mut conditions = vec![condition("Accepted", "True", "Accepted")];
            if is_loose {
                conditions.push(condition(LOOSENED, "True", "LoosensInherited"));
            }
            json!({"ancestors": [{
                "ancestorRef": {"kind": "Gateway", "namespace": "infra", "name": "edge"},
                "controllerName": "portcullis.dev/gateway-controller", "conditions": conditions,
            }]})
        };
        let policy = object("AccessPolicy");
        let begin = transitions(&policy, &status(false), &status(true));
        let expected = "for Gateway infra/edge: portcullis.dev/LoosensInherited is True (LoosensInherited): why";
        assert_eq!(begin, [(EventReason::AccessLoosened, expected.to_owned())]);
        let end = transitions(&policy, &status(true), &status(false));
        let expected = "for Gateway infra/edge: permits no more than the policies above it";
        assert_eq!(end, [(EventReason::AccessRestored, expected.to_owned())]);
        assert!(transitions(&policy, &status(true), &json!({"ancestors": []})).is_empty());
    }

    #[test]
    fn messages_have_the_effect_and_the_remedy_of_the_finding() {
        let status = |status: &str, message: &str| {
            let condition = json!({
                "type": "ResolvedRefs", "status": status, "reason": "BackendNotFound", "message": message,
            });
            let parent = json!({"kind": "Gateway", "namespace": "infra", "name": "edge"});
            json!({"parents": [{"parentRef": parent, "conditions": [condition]}]})
        };
        let missing = "spec.rules[0].backendRefs[0]: Service default/ap does not exist";
        let (before, now) = (status("True", ""), status("False", missing));
        let found = transitions(&object("HTTPRoute"), &before, &now);
        let expected = format!(
            "for Gateway infra/edge: ResolvedRefs is False (BackendNotFound): {missing}: requests that need it get status 500; \
             correct the reference, or create what it names"
        );
        assert_eq!(found, [(EventReason::ReferencesNotResolved, expected)]);
    }

    #[test]
    fn messages_of_one_reason_name_their_places() {
        let status = |status: &str| {
            let listener = |name: &str| json!({"name": name, "conditions": [condition("ResolvedRefs", status, "RefNotPermitted")]});
            json!({"listeners": [listener("a"), listener("b")]})
        };
        let found = transitions(&object("Gateway"), &status("True"), &status("False"));
        let expected = "listener a: ResolvedRefs is False (RefNotPermitted): why: the listener is served with its other references; \
                        listener b: ResolvedRefs is False (RefNotPermitted): why: the listener is served with its other references";
        let expected = (EventReason::ReferencesNotResolved, expected.to_owned());
        assert_eq!(found, [expected]);
    }
}
