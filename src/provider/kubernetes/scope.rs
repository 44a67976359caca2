//! The scope of a watch: a kind, in all namespaces or one, with a field selector.

use std::collections::BTreeSet;

use crate::api::pod::Pod;
use crate::api::{Key, Kind, Resource};

/// Types of Secrets that no Gateway can reference and that are often many or large.
pub(super) const UNUSED_SECRET_TYPES: [&str; 2] =
    ["helm.sh/release.v1", "kubernetes.io/service-account-token"];

/// The scope of a watch.
#[derive(Clone, Debug)]
pub(super) struct Scope {
    pub(super) kind: &'static Kind,
    /// The only namespace; `None` for all namespaces and for cluster-scoped kinds.
    pub(super) namespace: Option<String>,
    /// Field selector.
    pub(super) fields: Option<String>,
}

impl Scope {
    /// Returns the scopes of these kinds, except those that are added on demand. Empty `namespaces` means all. The
    /// namespace of the only `gateway` is always included.
    pub(super) fn all(
        kinds: &[&'static Kind],
        gateway: Option<&Key>,
        namespaces: &BTreeSet<String>,
    ) -> Vec<Self> {
        let always = kinds.iter().filter(|kind| !is_watched_where_needed(kind));
        always
            .flat_map(|kind| Self::of(kind, gateway, namespaces))
            .collect()
    }

    fn of(kind: &'static Kind, gateway: Option<&Key>, namespaces: &BTreeSet<String>) -> Vec<Self> {
        let scope = |namespace: Option<&str>, fields| Self {
            kind,
            namespace: namespace.map(str::to_owned),
            fields,
        };
        let fields = (kind.kind == "Secret").then(|| {
            UNUSED_SECRET_TYPES
                .map(|other| format!("type!={other}"))
                .join(",")
        });
        match gateway {
            Some(Key { namespace, name }) if kind.kind == "Gateway" => {
                vec![scope(
                    Some(namespace.as_str()),
                    Some(format!("metadata.name={name}")),
                )]
            }
            _ if namespaces.is_empty() || !kind.namespaced => vec![scope(None, fields)],
            _ => namespaces
                .iter()
                .map(|namespace| scope(Some(namespace), fields.clone()))
                .collect(),
        }
    }

    /// Reports whether an object of the kind is in the scope.
    pub(super) fn has(&self, key: &Key) -> bool {
        let namespace = self.namespace.as_ref();
        namespace.is_none_or(|only| key.namespace == *only)
    }
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.kind.kind)?;
        match &self.namespace {
            Some(namespace) => write!(f, " in {namespace}"),
            None => Ok(()),
        }
    }
}

/// Reports whether objects of a kind are watched only in the namespaces that need them.
pub(super) fn is_watched_where_needed(kind: &Kind) -> bool {
    (kind.group, kind.kind) == (Pod::GROUP, Pod::KIND)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(gateway: Option<&Key>, namespaces: &[&str]) -> Vec<String> {
        let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
        let kinds: Vec<_> = Kind::all().iter().collect();
        let scopes = Scope::all(&kinds, gateway, &namespaces);
        let wanted = ["GatewayClass", "Gateway", "Service"];
        scopes
            .iter()
            .filter(|scope| wanted.contains(&scope.kind.kind))
            .map(|scope| match &scope.fields {
                Some(fields) => format!("{scope} ({fields})"),
                None => scope.to_string(),
            })
            .collect()
    }

    #[test]
    fn restricts_only_namespaced_kinds_to_namespaces() {
        assert_eq!(shown(None, &[]), ["GatewayClass", "Gateway", "Service"]);
        let expected = [
            "GatewayClass",
            "Gateway in a",
            "Gateway in b",
            "Service in a",
            "Service in b",
        ];
        assert_eq!(shown(None, &["a", "b"]), expected);
    }

    #[test]
    fn watches_only_the_single_gateway() {
        let edge = Key::new("infra", "edge");
        let expected = [
            "GatewayClass",
            "Gateway in infra (metadata.name=edge)",
            "Service",
        ];
        assert_eq!(shown(Some(&edge), &[]), expected);
    }
}
