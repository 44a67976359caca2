//! The Secrets that a closure may contain, and which keys of them.

use std::collections::BTreeSet;

use portcullis::api::access_policy::AccessPolicy;
use portcullis::api::gateway::{Gateway, Listener};
use portcullis::api::reference::{ObjectReference, SecretRef};
use portcullis::api::{Object, ObjectRef, Resource};
use portcullis::snapshot::Snapshot;
use portcullis::status::{
    Condition, ConditionStatus, ConditionType, ListenerStatus, Reason, StatusReport,
};

use crate::objects::UNUSED;
use crate::properties::{is_overridden, sets_of};
use crate::xbackends;

/// Checks that every Secret of the closure is one that an accepted HTTPS listener, the Gateway, an XBackend of an accepted
/// route or an AccessPolicy uses with permission, and that it has only the keys that are used there. AccessPolicies without
/// effect use none.
pub(crate) fn check_secrets(
    cluster: &Snapshot,
    closure: &Snapshot,
    report: &StatusReport,
    gateway: &Gateway,
) {
    let name = gateway.object_ref();
    let tls = gateway.spec.tls.iter();
    let client = tls
        .clone()
        .filter_map(|tls| tls.backend.as_ref()?.client_certificate_ref.clone());
    let ports = tls
        .filter_map(|tls| tls.frontend.as_ref())
        .flat_map(|frontend| &frontend.per_port);
    let authorities = ports
        .filter_map(|port| port.tls.validation.as_ref())
        .flat_map(|validation| validation.ca_certificate_refs.iter().map(secret_ref));
    let authorities = authorities.map(|secret| (name.clone(), secret));
    let statuses = &report.gateways[&name].listeners;
    let own = certificates(&gateway.spec.listeners, statuses);
    let own = own.chain(client).map(|secret| (name.clone(), secret));
    let of_sets = sets_of(cluster, &name).flat_map(|set| {
        let set_name = set.object_ref();
        let statuses = &report.listener_sets[&set_name].listeners;
        let secrets: Vec<_> = certificates(&set.spec.listeners, statuses).collect();
        secrets
            .into_iter()
            .map(move |secret| (set_name.clone(), secret))
    });
    let of_backends = xbackends::client_certificates(cluster, report, gateway);
    let certificates = permitted(cluster, own.chain(of_sets).chain(of_backends));
    let authorities = permitted(cluster, authorities);
    let policies = closure.access_policies.iter().map(AsRef::as_ref);
    let mut policies: Vec<&AccessPolicy> = policies.collect();
    let named = of_policies(cluster, &policies);
    policies.retain(|policy| !has_no_effect(policy, report, &name));
    let [users, of_clients, shared_keys, client_secrets] = of_policies(cluster, &policies);
    let mut with_all_keys = BTreeSet::new();
    for secret in closure.secrets.iter() {
        let secret_name = secret.object_ref();
        let mut keys = BTreeSet::new();
        if certificates.contains(&secret_name) && secret.kind == "kubernetes.io/tls" {
            keys.extend(["tls.crt", "tls.key"]);
        }
        if authorities.contains(&secret_name) {
            keys.insert("ca.crt");
        }
        let is_opaque = secret.kind == "Opaque";
        if users.contains(&secret_name) && is_opaque {
            keys.insert("auth");
        }
        if shared_keys.contains(&secret_name) && is_opaque {
            keys.insert("secret");
        }
        if client_secrets.contains(&secret_name) && is_opaque {
            keys.insert("client-secret");
        }
        let has_all_keys = of_clients.contains(&secret_name) && is_opaque;
        if has_all_keys {
            with_all_keys.insert(secret_name.clone());
        }
        let mut all = named.iter().chain([&certificates, &authorities]);
        let is_used = all.any(|all| all.contains(&secret_name));
        assert!(is_used, "{secret_name} in the closure of {name}");
        for key in secret.data.keys().chain(secret.string_data.keys()) {
            let is_due = has_all_keys || keys.contains(key);
            assert!(is_due, "{key} of {secret_name} in the closure of {name}");
        }
    }
    let objects = closure.objects();
    let name_of = |object: &Object| {
        let meta = object.meta();
        object.kind().object_ref(&meta.namespace, &meta.name)
    };
    for object in objects.filter(|it| !with_all_keys.contains(&name_of(it))) {
        let text = object.to_value().unwrap().to_string();
        assert!(!text.contains(UNUSED), "{text}");
    }
}

/// Reports whether an AccessPolicy has no effect on a Gateway.
fn has_no_effect(policy: &AccessPolicy, report: &StatusReport, gateway: &ObjectRef) -> bool {
    let name = policy.object_ref();
    let statuses = report.policies.get(&name).into_iter();
    let mut statuses = statuses.flat_map(|statuses| statuses.iter());
    statuses.any(|status| {
        let ancestor = &status.ancestor_ref;
        let namespace = ancestor.namespace.as_deref();
        let is_own = namespace == Some(&*gateway.namespace) && ancestor.name == *gateway.name;
        is_own && is_overridden(status)
    })
}

/// The Secrets that AccessPolicies may use: with users, with keys of clients, with keys of issuers, and with secrets of
/// clients of OpenID providers.
fn of_policies(cluster: &Snapshot, policies: &[&AccessPolicy]) -> [BTreeSet<ObjectRef>; 4] {
    let policies = || policies.iter();
    let users = policies().filter_map(|policy| {
        let basic = policy.spec.basic.as_ref()?;
        Some((policy.object_ref(), basic.secret_ref.clone()))
    });
    let users = permitted(cluster, users);
    let keys = policies().flat_map(|policy| {
        let secrets = policy.spec.api_key.iter().flat_map(|it| &it.secret_refs);
        secrets.map(|secret| (policy.object_ref(), secret.clone()))
    });
    let of_clients = permitted(cluster, keys);
    let shared_keys = policies().flat_map(|policy| {
        let providers = policy.spec.jwt.iter().flat_map(|it| &it.providers);
        let secrets = providers.filter_map(|it| it.jwks.secret_ref.clone());
        secrets.map(|secret| (policy.object_ref(), secret))
    });
    let shared_keys = permitted(cluster, shared_keys);
    let client_secrets = policies().filter_map(|policy| {
        let secret = policy.spec.oidc.as_ref()?.client_secret_ref.clone()?;
        Some((policy.object_ref(), secret))
    });
    let client_secrets = permitted(cluster, client_secrets);
    [users, of_clients, shared_keys, client_secrets]
}

/// Returns the certificates of accepted listeners that terminate TLS.
fn certificates(
    listeners: &[Listener],
    statuses: &[ListenerStatus],
) -> impl Iterator<Item = SecretRef> {
    // The statuses are in the order of the spec; a ListenerSet that is refused has none.
    let listeners = listeners.iter().zip(statuses);
    let accepted = listeners.filter(|(listener, status)| {
        let conditions = &status.conditions;
        // Whether an authority is valid is only known from its content.
        let lacks_authority = conditions
            .iter()
            .any(|it| it.reason == Reason::NoValidCACertificate);
        let mode = listener.tls.as_ref().and_then(|tls| tls.mode.as_deref());
        let is_terminated = match &*listener.protocol {
            "HTTPS" => true,
            "TLS" => mode != Some("Passthrough"),
            _ => false,
        };
        is_terminated && (is_accepted(conditions) || lacks_authority)
    });
    accepted
        .filter_map(|(listener, _)| listener.tls.as_ref())
        .flat_map(|tls| tls.certificate_refs.clone())
}

pub(crate) fn is_accepted(conditions: &[Condition]) -> bool {
    let mut accepted = conditions
        .iter()
        .filter(|it| it.kind == ConditionType::Accepted);
    accepted.any(|it| it.status == ConditionStatus::True)
}

/// Returns the Secrets that objects may refer to.
fn permitted(
    cluster: &Snapshot,
    references: impl Iterator<Item = (ObjectRef, SecretRef)>,
) -> BTreeSet<ObjectRef> {
    let permitted = references.filter_map(|(from, secret)| {
        let namespace = secret
            .namespace
            .unwrap_or_else(|| from.namespace.as_ref().into());
        let to = ObjectRef::new(&secret.group, &secret.kind, &namespace, &secret.name);
        (from.namespace == to.namespace || is_granted(cluster, &from, &to)).then_some(to)
    });
    permitted.collect()
}

fn secret_ref(reference: &ObjectReference) -> SecretRef {
    let ObjectReference {
        group,
        kind,
        name,
        namespace,
    } = reference.clone();
    SecretRef {
        group,
        kind,
        name,
        namespace,
    }
}

fn is_granted(cluster: &Snapshot, from: &ObjectRef, to: &ObjectRef) -> bool {
    let mut grants = cluster.reference_grants.in_namespace(&to.namespace);
    grants.any(|grant| {
        let mut sources = grant.spec.from.iter();
        let mut targets = grant.spec.to.iter();
        sources.any(|it| (&*it.kind, &*it.namespace) == (&*from.kind, &*from.namespace))
            && targets.any(|it| {
                it.kind == *to.kind && it.name.as_ref().is_none_or(|name| *name == *to.name)
            })
    })
}
