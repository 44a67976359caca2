//! A policy that protects requests and is not valid: what can be read of it, so that its requests are refused rather than
//! served without it. Must not know what sections mean.

use std::slice;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::access_policy::{AccessPolicy, AccessSpec};
use super::client_policy::{ClientPolicy, ClientSpec};
use super::finding::{Finding, Severity};
use super::inherited_policy::{SectionTargetRef, Strategy, Unreadable};
use super::meta::{ObjectMeta, Resource};
use super::object::{Kind, Object};
use super::parameters::GROUP;
use super::rate_limit_policy::{RateLimitPolicy, RateLimitSpec};
use crate::ir::ObjectRef;
use crate::ir::object_ref::GATEWAY_GROUP;

/// The kinds of policies that protect requests, or say what others decide by.
const PROTECTING: [&str; 3] = [
    AccessPolicy::KIND,
    RateLimitPolicy::KIND,
    ClientPolicy::KIND,
];
/// Maximum number of targets that are read. A valid policy has 16.
const MAX_TARGETS: usize = 256;
/// Maximum number of sections that are read, more than a policy can have.
const MAX_SECTIONS: usize = 16;
/// Maximum length of the name of an object.
const MAX_NAME: usize = 253;
/// Maximum number of characters of a reason.
const MAX_REASON: usize = 500;
/// Kinds that an AccessPolicy targets. A RateLimitPolicy targets those of HTTP, and a ClientPolicy those with listeners, which
/// are the first ones.
const TARGETS: [&str; 7] = [
    "Gateway",
    "ListenerSet",
    "HTTPRoute",
    "GRPCRoute",
    "TLSRoute",
    "TCPRoute",
    "UDPRoute",
];
/// Number of the kinds that have HTTP requests.
const HTTP_TARGETS: usize = 4;
/// Number of the kinds that have listeners.
const LISTENER_TARGETS: usize = 2;
/// Sections of a ClientPolicy that say nothing of the addresses of clients.
const WITHOUT_ADDRESSES: [&str; 6] = ["timeouts", "connections", "headers", "http2", "tls", "path"];

impl Object {
    /// Returns why this object is the stand-in of a policy that is not valid; `None` if it is valid.
    pub fn unreadable(&self) -> Option<&Unreadable> {
        match self {
            Self::AccessPolicy(policy) => policy.unreadable.as_deref(),
            Self::ClientPolicy(policy) => policy.unreadable.as_deref(),
            Self::RateLimitPolicy(policy) => policy.unreadable.as_deref(),
            _ => None,
        }
    }

    /// Reports whether this object is a stand-in without a target, so that it refuses nothing.
    pub fn is_without_targets(&self) -> bool {
        match self {
            Self::AccessPolicy(policy) => policy.spec.target_refs.is_empty(),
            Self::ClientPolicy(policy) => policy.spec.target_refs.is_empty(),
            Self::RateLimitPolicy(policy) => policy.spec.target_refs.is_empty(),
            _ => true,
        }
    }

    /// Returns which requests this object refuses if it is a stand-in.
    pub fn refused(&self) -> &'static str {
        match self {
            Self::ClientPolicy(_) => {
                "requests to its targets that IP rules, limits or authorization by address apply to get 500"
            }
            _ => "requests to its targets get 500",
        }
    }
}

/// Reports whether objects of a kind protect requests, or say what others decide by.
pub(super) fn protects(kind: &Kind) -> bool {
    kind.group == GROUP && PROTECTING.contains(&kind.kind)
}

/// Returns a kind of policies that protect requests and that a text names.
pub fn protecting_kind(text: &str) -> Option<&'static str> {
    PROTECTING.into_iter().find(|kind| text.contains(kind))
}

/// Returns what takes the place of an object that protects requests and is not valid: a policy that refuses the requests of
/// its targets. `None` if there is nothing to refuse.
pub(super) fn stand_in(id: &ObjectRef, written: &Value, findings: &[Finding]) -> Option<Object> {
    if !is_key(&id.namespace) || !is_key(&id.name) {
        return None;
    }
    let none = Map::new();
    let spec = written["spec"].as_object().unwrap_or(&none);
    let sections = sections(spec);
    let needs_no_address =
        !sections.is_empty() && sections.iter().all(|it| WITHOUT_ADDRESSES.contains(&&**it));
    let unreadable = Some(Box::new(Unreadable {
        reason: reason(findings),
        sections,
    }));
    let (metadata, strategy) = (metadata(id, &written["metadata"]), strategy(spec));
    if id.kind == *AccessPolicy::KIND {
        let policy = AccessPolicy {
            metadata,
            spec: AccessSpec {
                target_refs: targets(spec, &TARGETS),
                strategy,
                ..AccessSpec::default()
            },
            unreadable,
        };
        return Some(Object::AccessPolicy(policy.into()));
    }
    if id.kind == *ClientPolicy::KIND {
        let policy = ClientPolicy {
            metadata,
            spec: ClientSpec {
                target_refs: targets(spec, &TARGETS[..LISTENER_TARGETS]),
                strategy,
                ..ClientSpec::default()
            },
            unreadable,
        };
        return (!needs_no_address).then(|| Object::ClientPolicy(policy.into()));
    }
    let policy = RateLimitPolicy {
        metadata,
        spec: RateLimitSpec {
            target_refs: targets(spec, &TARGETS[..HTTP_TARGETS]),
            strategy,
            ..RateLimitSpec::default()
        },
        unreadable,
    };
    (!is_audit(spec)).then(|| Object::RateLimitPolicy(policy.into()))
}

/// Reports whether text can be a part of the key of an object: with a slash, the keys of two namespaces could be equal.
fn is_key(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(is_plain)
}

/// Reads the metadata, or the name alone if the rest cannot be read.
fn metadata(id: &ObjectRef, metadata: &Value) -> ObjectMeta {
    ObjectMeta {
        name: id.name.clone(),
        namespace: id.namespace.clone(),
        ..ObjectMeta::deserialize(metadata).unwrap_or_default()
    }
}

fn reason(findings: &[Finding]) -> String {
    let mut errors = findings.iter();
    let error = errors.find(|finding| finding.severity == Severity::Error);
    let text = error.map_or_else(
        || "the object cannot be read".to_owned(),
        Finding::to_string,
    );
    text.chars().take(MAX_REASON).collect()
}

fn sections(spec: &Map<String, Value>) -> Vec<String> {
    let is_other = |name: &&String| !matches!(&***name, "targetRefs" | "targetRef" | "strategy");
    let set = spec.iter().filter(|(_, value)| !value.is_null());
    let names = set.map(|(name, _)| name).filter(is_other);
    let names = names.take(MAX_SECTIONS);
    names
        .map(|name| name.chars().take(MAX_NAME).collect())
        .collect()
}

/// One that is neither of both locks what is below, as the stricter one does.
fn strategy(spec: &Map<String, Value>) -> Strategy {
    match spec.get("strategy") {
        None | Some(Value::Null) => Strategy::Defaults,
        Some(value) if value == "Defaults" => Strategy::Defaults,
        Some(_) => Strategy::Overrides,
    }
}

/// Reports whether limits refuse nothing.
fn is_audit(spec: &Map<String, Value>) -> bool {
    let rules = spec.get("rules").and_then(Value::as_array);
    rules.is_some_and(|rules| !rules.is_empty() && rules.iter().all(|rule| rule["mode"] == "Audit"))
}

/// Reads the targets that have a name. A single one need not be in a list. One whose kind is not among `kinds` stands for the
/// objects of all of them with its name, and one whose section is not text for its whole object.
fn targets(spec: &Map<String, Value>, kinds: &[&str]) -> Vec<SectionTargetRef> {
    let lists = ["targetRefs", "targetRef"].into_iter();
    let targets = lists.filter_map(|field| spec.get(field));
    let targets = targets.flat_map(|value| match value {
        Value::Array(targets) => targets.as_slice(),
        other => slice::from_ref(other),
    });
    let mut read: Vec<SectionTargetRef> = Vec::new();
    for target in targets.take(MAX_TARGETS) {
        let text = |field: &str| target[field].as_str().filter(|text| text.len() <= MAX_NAME);
        let Some(name) = text("name").filter(|name| !name.is_empty()) else {
            continue;
        };
        let kind = text("kind").unwrap_or_default();
        let mut known = kinds.iter().filter(|it| it.eq_ignore_ascii_case(kind));
        let named = known.next().map_or(kinds, slice::from_ref);
        for kind in named {
            let target = SectionTargetRef {
                group: GATEWAY_GROUP.to_owned(),
                kind: (*kind).to_owned(),
                name: name.to_owned(),
                section_name: text("sectionName").map(str::to_owned),
            };
            if !read.contains(&target) {
                read.push(target);
            }
        }
    }
    read
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::admit;
    use super::*;

    fn stand_in(kind: &str, spec: &Value) -> Option<Object> {
        let admission = admit(json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": kind,
            "metadata": {"name": "a", "namespace": "team", "labels": {"b": "c"}}, "spec": spec,
        }));
        assert!(admission.object.is_none(), "{spec}");
        admission.stand_in.map(|object| *object)
    }

    fn access(spec: &Value) -> AccessPolicy {
        match stand_in("AccessPolicy", spec) {
            Some(Object::AccessPolicy(policy)) => AccessPolicy::clone(&policy),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the targets of a policy as text.
    fn targets_of(target_refs: &Value) -> Vec<String> {
        let policy = access(&json!({"targetRefs": target_refs, "ipRules": {"allow": [7]}}));
        let targets = policy.spec.target_refs.iter();
        let text = |it: &SectionTargetRef| {
            assert_eq!(it.group, GATEWAY_GROUP);
            let section = it.section_name.as_deref().unwrap_or("*");
            format!("{} {} {section}", it.kind, it.name)
        };
        targets.map(text).collect()
    }

    #[test]
    fn targets_are_read_as_far_as_they_have_a_name() {
        let group = GATEWAY_GROUP;
        let all: Vec<_> = TARGETS.iter().map(|kind| format!("{kind} b *")).collect();
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        for (targets, expected) in [
            (
                json!([{"group": group, "kind": "HTTPRoute", "name": "b", "sectionName": "c"}]),
                vec!["HTTPRoute b c"],
            ),
            (
                json!([{"kind": "HttpRoute", "name": "b"}]),
                vec!["HTTPRoute b *"],
            ),
            (
                json!([{"kind": "TCPRoute", "name": "b", "sectionName": 7}]),
                vec!["TCPRoute b *"],
            ),
            (json!({"kind": "Gateway", "name": "b"}), vec!["Gateway b *"]),
            (json!([{"group": group, "name": "b"}]), all.clone()),
            (
                json!([{"kind": "Service", "name": "b"}, {"name": "b"}]),
                all,
            ),
            (
                json!([{"kind": "Gateway"}, "b", null, {"kind": "Gateway", "name": 7}, {"kind": "Gateway", "name": "b"}]),
                vec!["Gateway b *"],
            ),
            (json!("b"), vec![]),
            (
                json!([{"kind": "Gateway", "name": "b".repeat(254)}]),
                vec![],
            ),
        ] {
            assert_eq!(targets_of(&targets), expected, "{targets}");
        }
        let many: Vec<_> = (0..10_000)
            .map(|at| json!({"name": at.to_string()}))
            .collect();
        let read = targets_of(&many.into());
        assert_eq!(read.len(), MAX_TARGETS * TARGETS.len());
    }

    #[test]
    fn sections_and_strategy_are_read_as_they_are_written() {
        let target = json!([{"group": GATEWAY_GROUP, "kind": "Gateway", "name": "b"}]);
        for (strategy, expected) in [
            (Value::Null, Strategy::Defaults),
            (json!("Defaults"), Strategy::Defaults),
            (json!("Overrides"), Strategy::Overrides),
            (json!("Override"), Strategy::Overrides),
            (json!(7), Strategy::Overrides),
        ] {
            let policy = access(&json!({
                "targetRefs": target, "strategy": strategy, "basic": {}, "jwks": 7, "oidc": null,
            }));
            assert_eq!(policy.spec.strategy, expected, "{strategy}");
            let unreadable = policy.unreadable.unwrap();
            assert_eq!(unreadable.sections, ["basic", "jwks"]);
            assert!(unreadable.reason.starts_with("spec."), "{unreadable:?}");
            assert_eq!(policy.metadata.labels.keys().collect::<Vec<_>>(), ["b"]);
        }
        assert!(access(&Value::Null).spec.target_refs.is_empty());
    }

    #[test]
    fn only_policies_that_refuse_requests_have_stand_ins() {
        let target = json!([{"group": GATEWAY_GROUP, "kind": "TCPRoute", "name": "b"}]);
        let limits = |modes: &[&str]| {
            let rules = modes.iter().map(|mode| json!({"name": "A", "mode": mode}));
            let spec = json!({"targetRefs": target, "rules": rules.collect::<Vec<_>>()});
            stand_in("RateLimitPolicy", &spec)
        };
        let Some(Object::RateLimitPolicy(policy)) = limits(&["Audit", "Enforce"]) else {
            panic!("no limits");
        };
        let kinds: Vec<_> = policy.spec.target_refs.iter().map(|it| &*it.kind).collect();
        assert_eq!(kinds, TARGETS[..HTTP_TARGETS]);
        assert!(limits(&[]).is_some());
        assert_eq!(limits(&["Audit", "Audit"]), None);
        for other in ["RoutePolicy", "TelemetryPolicy"] {
            assert_eq!(stand_in(other, &json!({"targetRefs": 7})), None, "{other}");
        }
    }

    #[test]
    fn client_policies_have_stand_ins_if_they_may_say_where_addresses_come_from() {
        let target = json!([{"group": GATEWAY_GROUP, "kind": "HTTPRoute", "name": "b"}]);
        for (sections, expected) in [
            (json!({"clientIP": 7}), true),
            (json!({"proxyProtocol": {}}), true),
            (json!({"timeouts": 7, "clientIP": {}}), true),
            (json!({"clientIp": {}}), true),
            (json!({}), true),
            (json!({"timeouts": 7}), false),
            (json!({"timeouts": 7, "tls": {}, "clientIP": null}), false),
        ] {
            let mut spec = sections.clone();
            spec["targetRefs"] = target.clone();
            let found = stand_in("ClientPolicy", &spec);
            assert_eq!(found.is_some(), expected, "{sections}");
            let Some(found) = found else { continue };
            assert!(found.refused().contains("IP rules") && found.unreadable().is_some());
            let Object::ClientPolicy(policy) = found else {
                panic!("{found:?}");
            };
            let kinds: Vec<_> = policy.spec.target_refs.iter().map(|it| &*it.kind).collect();
            assert_eq!(kinds, ["Gateway", "ListenerSet"]);
        }
    }

    #[test]
    fn names_that_could_be_those_of_another_namespace_have_no_stand_in() {
        for (namespace, name, expected) in [
            ("team", "Office_1", true),
            ("team", "a/b", false),
            ("team/a", "b", false),
            ("team", "a b", false),
        ] {
            let admission = admit(json!({
                "apiVersion": "portcullis.dev/v1alpha1", "kind": "AccessPolicy",
                "metadata": {"name": name, "namespace": namespace, "labels": 7},
            }));
            let stand_in = admission.stand_in.as_deref();
            assert_eq!(stand_in.is_some(), expected, "{namespace} {name}");
            let meta = stand_in.map(Object::meta);
            assert!(meta.is_none_or(|it| it.name == *name && it.namespace == *namespace));
        }
    }
}
