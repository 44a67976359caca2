//! A policy that protects requests and is not valid: what can be read of it, so that its requests are refused rather than
//! served without it. Must not know what sections mean, except that rules of mode Audit refuse nothing.

use std::collections::BTreeSet;
use std::slice;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::access_policy::{AccessPolicy, AccessSpec};
use super::backend_tls_policy::{
    BackendTlsOverride, BackendTlsPolicy, BackendTlsSpec, FromRef, PolicyTargetRef,
};
use super::client_policy::{ClientPolicy, ClientSpec};
use super::core::Service;
use super::inherited_policy::{SectionTargetRef, Strategy, Unreadable};
use super::meta::{ObjectMeta, Resource};
use super::object::{Kind, Object};
use super::rate_limit_policy::{RateLimitPolicy, RateLimitSpec};
use super::release_backend::ReleaseBackend;
use super::schema;
use super::service_import::ServiceImport;
use super::violation::Violation;
use crate::finding::Severity;
use crate::ir::ObjectRef;
use crate::ir::object_ref::{GATEWAY_GROUP, Key};
use crate::ir::sharing::Text;

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
/// Groups and kinds that policies on TLS to backends target.
const BACKENDS: [(&str, &str); 3] = [
    ("", Service::KIND),
    (ServiceImport::GROUP, ServiceImport::KIND),
    (ReleaseBackend::GROUP, ReleaseBackend::KIND),
];
/// Number of the kinds that have HTTP requests.
const HTTP_TARGETS: usize = 4;
/// Number of the kinds that have listeners.
const LISTENER_TARGETS: usize = 2;
/// Name of policies that nobody has written. Kubernetes permits no such name.
const REFUSING: &str = "Refusing";
/// Sections of a ClientPolicy that say nothing of the addresses of clients.
const WITHOUT_ADDRESSES: [&str; 6] = ["timeouts", "connections", "headers", "http2", "tls", "path"];

impl Object {
    /// Returns why this object is the stand-in of a policy that is not valid; `None` if it is valid.
    pub fn unreadable(&self) -> Option<&Unreadable> {
        let (unreadable, _) = self.protection()?;
        unreadable
    }

    /// Reports whether this object is a stand-in without a target, so that it refuses nothing.
    pub fn is_without_targets(&self) -> bool {
        self.protection().is_none_or(|(_, targets)| targets == 0)
    }

    /// Returns why a policy that protects requests is not valid, if it is not, and the number of its targets.
    fn protection(&self) -> Option<(Option<&Unreadable>, usize)> {
        let (unreadable, targets) = match self {
            Self::AccessPolicy(policy) => (&policy.unreadable, policy.spec.target_refs.len()),
            Self::ClientPolicy(policy) => (&policy.unreadable, policy.spec.target_refs.len()),
            Self::RateLimitPolicy(policy) => (&policy.unreadable, policy.spec.target_refs.len()),
            Self::BackendTlsPolicy(policy) => (&policy.unreadable, policy.spec.target_refs.len()),
            Self::BackendTlsOverride(policy) => (&policy.unreadable, policy.spec.target_refs.len()),
            _ => return None,
        };
        Some((unreadable.as_deref(), targets))
    }

    /// Returns which requests this object refuses if it is a stand-in.
    pub fn refused(&self) -> &'static str {
        match self {
            Self::ClientPolicy(_) => {
                "requests to its targets that IP rules, limits or authorization by address apply to get 500"
            }
            Self::RateLimitPolicy(policy) if !policy.spec.rules.is_empty() => {
                "its rules of mode Audit that are not valid are left out"
            }
            _ => "requests to its targets get 500",
        }
    }
}

/// What becomes of an object that protects requests and is not valid.
pub(super) enum Outcome {
    /// A policy takes its place that refuses the requests of its targets.
    Replaced(Box<Object>),
    /// Nothing says what it protects.
    Unknown,
    /// It would refuse nothing.
    Nothing,
}

/// Returns what becomes of an object of a kind that protects requests and is not valid. `written` is the object as its author
/// wrote it.
pub(super) fn outcome(
    kind: &Kind,
    id: Option<&ObjectRef>,
    written: &Value,
    findings: &[Violation],
) -> Outcome {
    let Some(id) = id.filter(|id| is_key(&id.namespace) && is_key(&id.name)) else {
        return Outcome::Unknown;
    };
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
    let object = match kind.kind {
        AccessPolicy::KIND => Object::AccessPolicy(Arc::new(AccessPolicy {
            metadata,
            spec: AccessSpec {
                target_refs: targets(spec, &TARGETS),
                strategy,
                ..AccessSpec::default()
            },
            unreadable,
            withheld: None,
            pending: None,
        })),
        ClientPolicy::KIND if needs_no_address => return Outcome::Nothing,
        ClientPolicy::KIND => Object::ClientPolicy(Arc::new(ClientPolicy {
            metadata,
            spec: ClientSpec {
                target_refs: targets(spec, &TARGETS[..LISTENER_TARGETS]),
                strategy,
                ..ClientSpec::default()
            },
            unreadable,
            pending: None,
        })),
        BackendTlsPolicy::KIND => Object::BackendTlsPolicy(Arc::new(BackendTlsPolicy {
            metadata,
            spec: backend_tls(spec),
            unreadable,
            pending: None,
        })),
        BackendTlsOverride::KIND => Object::BackendTlsOverride(Arc::new(BackendTlsOverride {
            metadata,
            spec: backend_tls(spec),
            unreadable,
            pending: None,
        })),
        _ if is_audit(spec) => return Outcome::Nothing,
        _ => {
            let broken = || RateLimitSpec {
                target_refs: targets(spec, &TARGETS[..HTTP_TARGETS]),
                strategy,
                ..RateLimitSpec::default()
            };
            Object::RateLimitPolicy(Arc::new(RateLimitPolicy {
                metadata,
                spec: without_audit(kind, written, findings).unwrap_or_else(broken),
                unreadable,
                pending: None,
            }))
        }
    };
    Outcome::Replaced(Box::new(object))
}

/// Returns policies that refuse, for this reason, the requests to all Gateways, ListenerSets and routes of a namespace, and those
/// to its backends and from it to others. One of each kind of policies for the former: what locks the sections of one kind leaves
/// those of another. `keys` returns the keys of the objects of a kind.
pub fn refusing(namespace: &Text, reason: &str, keys: impl Fn(&Kind) -> Vec<Key>) -> [Object; 4] {
    let metadata = ObjectMeta {
        name: REFUSING.into(),
        namespace: namespace.clone(),
        ..ObjectMeta::default()
    };
    let unreadable = Some(Box::new(Unreadable {
        reason: reason.to_owned(),
        sections: Vec::new(),
    }));
    let own = |kinds: &[&str]| own_targets(namespace, kinds, &keys);
    let access = AccessPolicy {
        metadata: metadata.clone(),
        spec: AccessSpec {
            target_refs: own(&TARGETS),
            strategy: Strategy::Overrides,
            ..AccessSpec::default()
        },
        unreadable: unreadable.clone(),
        withheld: None,
        pending: None,
    };
    let clients = ClientPolicy {
        metadata: metadata.clone(),
        spec: ClientSpec {
            target_refs: own(&TARGETS[..LISTENER_TARGETS]),
            strategy: Strategy::Overrides,
            ..ClientSpec::default()
        },
        unreadable: unreadable.clone(),
        pending: None,
    };
    let limits = RateLimitPolicy {
        metadata: metadata.clone(),
        spec: RateLimitSpec {
            target_refs: own(&TARGETS[..HTTP_TARGETS]),
            strategy: Strategy::Overrides,
            ..RateLimitSpec::default()
        },
        unreadable: unreadable.clone(),
        pending: None,
    };
    let tls = BackendTlsOverride {
        metadata,
        spec: BackendTlsSpec {
            target_refs: all_backends(&keys),
            ..BackendTlsSpec::default()
        },
        unreadable,
        pending: None,
    };
    [
        Object::AccessPolicy(access.into()),
        Object::ClientPolicy(clients.into()),
        Object::RateLimitPolicy(limits.into()),
        Object::BackendTlsOverride(tls.into()),
    ]
}

/// Returns the objects of a namespace of these kinds of the Gateway API.
fn own_targets(
    namespace: &Text,
    kinds: &[&str],
    keys: impl Fn(&Kind) -> Vec<Key>,
) -> Vec<SectionTargetRef> {
    let is_target = |kind: &&Kind| kind.group == GATEWAY_GROUP && kinds.contains(&kind.kind);
    let mut targets = Vec::new();
    for kind in Kind::all().iter().filter(is_target) {
        let found = keys(kind).into_iter();
        let own = found.filter(|key| key.namespace == *namespace);
        targets.extend(own.map(|key| SectionTargetRef {
            group: kind.group.to_owned(),
            kind: kind.kind.to_owned(),
            name: key.name.to_string(),
            section_name: None,
        }));
    }
    targets
}

/// Returns the backends of all namespaces that policies on TLS may target.
fn all_backends(keys: impl Fn(&Kind) -> Vec<Key>) -> Vec<PolicyTargetRef> {
    let is_backend = |kind: &&Kind| BACKENDS.contains(&(kind.group, kind.kind));
    let mut targets = Vec::new();
    for kind in Kind::all().iter().filter(is_backend) {
        targets.extend(keys(kind).into_iter().map(|key| PolicyTargetRef {
            group: kind.group.to_owned(),
            kind: kind.kind.to_owned(),
            namespace: Some(key.namespace.to_string()),
            name: key.name.to_string(),
            section_name: None,
            from: None,
        }));
    }
    targets
}

/// Returns the limits without the rules of mode Audit that are not valid, if nothing else of the policy is not valid.
fn without_audit(kind: &Kind, written: &Value, findings: &[Violation]) -> Option<RateLimitSpec> {
    let errors = findings.iter();
    let errors = errors.filter(|finding| finding.severity == Severity::Error);
    let faulty: Option<BTreeSet<usize>> = errors.map(|error| rule_of(&error.field)).collect();
    let (faulty, mut rest) = (faulty?, written.as_object()?.clone());
    let rules = rest.get_mut("spec")?.get_mut("rules")?.as_array_mut()?;
    for index in faulty.into_iter().rev() {
        (rules.get(index)?["mode"] == "Audit").then(|| rules.remove(index))?;
    }
    let findings = schema::apply(kind, &mut rest);
    let mut severities = findings.iter().map(|finding| finding.severity);
    match kind.decode(&Value::Object(rest)) {
        Ok(Object::RateLimitPolicy(policy)) if !severities.any(|it| it == Severity::Error) => {
            Some(policy.spec.clone())
        }
        _ => None,
    }
}

/// Returns the index of the rule that a field is in.
fn rule_of(field: &str) -> Option<usize> {
    let (index, _) = field.strip_prefix("spec.rules[")?.split_once(']')?;
    index.parse().ok()
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

fn reason(findings: &[Violation]) -> String {
    let mut errors = findings.iter();
    let error = errors.find(|finding| finding.severity == Severity::Error);
    let text = error.map_or_else(
        || "the object cannot be read".to_owned(),
        Violation::to_string,
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

/// Returns the targets as they are written. A single one need not be in a list.
fn written_targets(spec: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let lists = ["targetRefs", "targetRef"].into_iter();
    let targets = lists.filter_map(|field| spec.get(field));
    let targets = targets.flat_map(|value| match value {
        Value::Array(targets) => targets.as_slice(),
        other => slice::from_ref(other),
    });
    targets.take(MAX_TARGETS)
}

/// Returns a field that is text, and not too long or empty.
fn text<'a>(value: &'a Value, field: &str) -> Option<&'a str> {
    let is_name = |text: &&str| (1..=MAX_NAME).contains(&text.len());
    value[field].as_str().filter(is_name)
}

/// Returns the kinds that a target names: the one of `kinds`, or else all of them.
fn named<'a, T>(target: &Value, kinds: &'a [T], name: impl Fn(&T) -> &str) -> &'a [T] {
    let kind = text(target, "kind").unwrap_or_default();
    let mut known = kinds.iter();
    let known = known.find(|it| name(it).eq_ignore_ascii_case(kind));
    known.map_or(kinds, slice::from_ref)
}

/// Reads the targets that have a name. One whose kind is not among `kinds` stands for the objects of all of them with its
/// name, and one whose section is not text for its whole object.
fn targets(spec: &Map<String, Value>, kinds: &[&str]) -> Vec<SectionTargetRef> {
    let mut read: Vec<SectionTargetRef> = Vec::new();
    for target in written_targets(spec) {
        let Some(name) = text(target, "name") else {
            continue;
        };
        for kind in named(target, kinds, |kind| kind) {
            let target = SectionTargetRef {
                group: GATEWAY_GROUP.to_owned(),
                kind: (*kind).to_owned(),
                name: name.to_owned(),
                section_name: text(target, "sectionName").map(str::to_owned),
            };
            if !read.contains(&target) {
                read.push(target);
            }
        }
    }
    read
}

/// Reads the targets of a policy on TLS to Services in the same way. One whose sender cannot be read is for all senders.
fn backend_tls(spec: &Map<String, Value>) -> BackendTlsSpec {
    let mut target_refs: Vec<PolicyTargetRef> = Vec::new();
    for target in written_targets(spec) {
        let Some(name) = text(target, "name") else {
            continue;
        };
        for (group, kind) in named(target, &BACKENDS, |(_, kind)| kind) {
            let target = PolicyTargetRef {
                group: (*group).to_owned(),
                kind: (*kind).to_owned(),
                namespace: text(target, "namespace").map(str::to_owned),
                name: name.to_owned(),
                section_name: text(target, "sectionName").map(str::to_owned),
                from: FromRef::deserialize(&target["from"]).ok(),
            };
            if !target_refs.contains(&target) {
                target_refs.push(target);
            }
        }
    }
    BackendTlsSpec {
        target_refs,
        ..BackendTlsSpec::default()
    }
}

#[cfg(test)]
mod tests;
