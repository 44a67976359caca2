//! The Secrets and ConfigMaps with credentials that a policy names, and which of their values it reads. Must not know which
//! policies get them.

use crate::api::Resource;
use crate::api::access_policy::AccessPolicy;
use crate::api::core::{BUNDLE, ConfigMap, Secret};
use crate::api::reference::{Credential, Role};
use crate::ir::ObjectRef;
use crate::translate::input::Input;

/// The key of a Secret with the lines of an htpasswd file.
pub(in crate::translate) const USERS: &str = "auth";
/// The key of a Secret with a key that the issuer of tokens has, too.
pub(in crate::translate) const SHARED_KEY: &str = "secret";
/// The key of a Secret with the secret of a client.
pub(in crate::translate) const CLIENT_SECRET: &str = "client-secret";
/// The key of a ConfigMap with a JSON Web Key Set.
pub(in crate::translate) const KEY_SET: &str = "jwks";
/// The only type of Secrets that credentials are read from. Those of other types are for others.
pub(super) const TYPE: &str = "Opaque";

/// A Secret or ConfigMap that a policy names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::translate) struct Named {
    /// The path of the reference.
    pub(in crate::translate) field: String,
    pub(in crate::translate) object: ObjectRef,
    pub(in crate::translate) credential: Credential,
}

/// Returns the Secrets and ConfigMaps that a policy names, in the order of its fields. Its sections cannot use objects of
/// other kinds.
pub(in crate::translate) fn named(policy: &AccessPolicy) -> Vec<Named> {
    let mut named = Vec::new();
    policy.spec.credentials(&mut |path, field| {
        if let Role::Credential(credential) = field.role
            && field.is_core(credential.kind())
        {
            named.push(Named {
                field: path.to_string(),
                object: field.object_ref(&policy.metadata.namespace),
                credential,
            });
        }
    });
    named
}

impl Credential {
    /// Returns the kind of the objects that have it.
    fn kind(self) -> &'static str {
        match self {
            Self::Users | Self::ApiKeys | Self::SharedKey | Self::ClientSecret => Secret::KIND,
            Self::KeySet | Self::Authorities => ConfigMap::KIND,
        }
    }

    /// Reports whether it needs the value of a key.
    pub(in crate::translate) fn needs(self, key: &str) -> bool {
        match self {
            Self::Users => key == USERS,
            Self::ApiKeys => true,
            Self::SharedKey => key == SHARED_KEY,
            Self::ClientSecret => key == CLIENT_SECRET,
            Self::KeySet => key == KEY_SET,
            Self::Authorities => key == BUNDLE,
        }
    }
}

impl Named {
    /// Returns the size of what is read from the object, in bytes: its keys and their values.
    pub(super) fn size(&self, input: &Input<'_>) -> usize {
        let size = |(key, size): (&str, usize)| match self.credential.needs(key) {
            true => key.len() + size,
            false => 0,
        };
        if self.object.is_core("Secret") {
            let secret = input.find::<Secret>(&self.object);
            let secret = secret.filter(|secret| is_for_credentials(secret));
            let sizes = secret.iter().flat_map(|secret| secret.sizes());
            return sizes.map(size).sum();
        }
        let map = input.find::<ConfigMap>(&self.object);
        let values = map.iter().flat_map(|map| &map.data);
        let sizes = values.map(|(key, value)| size((key.as_str(), value.len())));
        sizes.sum()
    }
}

/// Reports whether credentials may be read from a Secret.
pub(in crate::translate) fn is_for_credentials(secret: &Secret) -> bool {
    secret.kind.is_empty() || secret.kind == TYPE
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::Object;
    use crate::snapshot::Snapshot;
    use crate::translate::input::Options;
    use crate::translate::registry::Registry;

    #[test]
    fn size_is_that_of_what_is_read() {
        let secret = |name: &str, kind: &str| {
            let secret = json!({
                "metadata": {"namespace": "a", "name": name}, "type": kind,
                "data": {"auth": "MTIzNA==", "other": "MTI="}, "stringData": {"client-secret": "12345"},
            });
            Object::Secret(serde_json::from_value(secret).expect("a Secret"))
        };
        let map = json!({"metadata": {"namespace": "a", "name": "m"}, "data": {"jwks": "{}", "ca.crt": "1"}});
        let mut snapshot = Snapshot::default();
        snapshot.insert(secret("s", "Opaque"));
        snapshot.insert(secret("tls", "kubernetes.io/tls"));
        snapshot.insert(Object::ConfigMap(
            serde_json::from_value(map).expect("a ConfigMap"),
        ));
        let options = Options::default();
        let input = Input::new(&snapshot, None, &options, &Registry);
        for (kind, name, credential, size) in [
            ("Secret", "s", Credential::Users, 8),
            ("Secret", "s", Credential::ClientSecret, 18),
            ("Secret", "s", Credential::ApiKeys, 33),
            ("Secret", "s", Credential::SharedKey, 0),
            ("Secret", "tls", Credential::ApiKeys, 0),
            ("Secret", "none", Credential::ApiKeys, 0),
            ("ConfigMap", "m", Credential::KeySet, 6),
            ("ConfigMap", "m", Credential::Authorities, 7),
        ] {
            let named = Named {
                field: String::new(),
                object: ObjectRef::core(kind, "a", name),
                credential,
            };
            assert_eq!(named.size(&input), size, "{credential:?} of {name}");
        }
    }

    #[test]
    fn names_are_in_the_order_of_the_fields() {
        let policy: AccessPolicy = serde_json::from_value(json!({
            "metadata": {"namespace": "a", "name": "p"},
            "spec": {
                "basic": {"secretRef": {"name": "users"}},
                "apiKey": {
                    "secretRefs": [{"name": "keys", "namespace": "b"}, {"kind": "ConfigMap", "name": "none"}],
                    "from": [],
                },
                "jwt": {"providers": [
                    {"issuer": "a", "jwks": {"configMapRef": {"name": "set"}}},
                    {"issuer": "b", "jwks": {"secretRef": {"name": "shared"}}},
                    {"issuer": "c", "jwks": {"remote": {"uri": "u", "caConfigMapRef": {"name": "ca"}}}},
                    {"issuer": "d", "jwks": {"inline": "{}"}},
                ]},
                "oidc": {
                    "issuer": "d", "clientID": "c", "clientSecretRef": {"name": "client"},
                    "caConfigMapRef": {"name": "ca"},
                },
            },
        }))
        .expect("a policy");
        let named = named(&policy).into_iter();
        let named: Vec<_> = named
            .map(|it| format!("{}: {:?} of {}", it.field, it.credential, it.object))
            .collect();
        let expected = [
            "spec.basic.secretRef: Users of Secret a/users",
            "spec.apiKey.secretRefs[0]: ApiKeys of Secret b/keys",
            "spec.jwt.providers[0].jwks.configMapRef: KeySet of ConfigMap a/set",
            "spec.jwt.providers[1].jwks.secretRef: SharedKey of Secret a/shared",
            "spec.jwt.providers[2].jwks.remote.caConfigMapRef: Authorities of ConfigMap a/ca",
            "spec.oidc.clientSecretRef: ClientSecret of Secret a/client",
            "spec.oidc.caConfigMapRef: Authorities of ConfigMap a/ca",
        ];
        assert_eq!(named, expected);
    }
}
