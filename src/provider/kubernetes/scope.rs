//! What one watch sees: a kind, everywhere or in one namespace, and which of its objects.

use std::collections::BTreeSet;

use crate::api::{Key, Kind};

/// Secrets that can hold nothing that a Gateway refers to, and that are often many or large.
pub(super) const OTHER_SECRETS: [&str; 2] =
    ["helm.sh/release.v1", "kubernetes.io/service-account-token"];

/// What one watch sees.
#[derive(Clone, Debug)]
pub(super) struct Scope {
    pub(super) kind: &'static Kind,
    /// The only namespace; `None` means all, or a cluster-scoped kind.
    pub(super) namespace: Option<String>,
    /// A field selector.
    pub(super) fields: Option<String>,
}

impl Scope {
    /// The scopes of these kinds. Without `namespaces` it is all of them; that of the only `gateway` is always in it.
    pub(super) fn all(
        kinds: &[&'static Kind],
        gateway: Option<&Key>,
        namespaces: &BTreeSet<String>,
    ) -> Vec<Self> {
        let scopes = kinds.iter();
        scopes
            .flat_map(|kind| Self::of(kind, gateway, namespaces))
            .collect()
    }

    fn of(kind: &'static Kind, gateway: Option<&Key>, namespaces: &BTreeSet<String>) -> Vec<Self> {
        let scope = |namespace: Option<&String>, fields| Self {
            kind,
            namespace: namespace.cloned(),
            fields,
        };
        let fields = (kind.kind == "Secret").then(|| {
            OTHER_SECRETS
                .map(|other| format!("type!={other}"))
                .join(",")
        });
        match gateway {
            Some(Key { namespace, name }) if kind.kind == "Gateway" => {
                vec![scope(
                    Some(namespace),
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

    /// Whether an object of the kind is within.
    pub(super) fn has(&self, key: &Key) -> bool {
        let namespace = self.namespace.as_ref();
        namespace.is_none_or(|only| *only == key.namespace)
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
    fn namespaced_kinds_are_seen_where_they_should_be_and_others_everywhere() {
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
    fn of_the_only_gateway_nothing_else_is_seen() {
        let edge = Key::new("infra", "edge");
        let expected = [
            "GatewayClass",
            "Gateway in infra (metadata.name=edge)",
            "Service",
        ];
        assert_eq!(shown(Some(&edge), &[]), expected);
    }
}
