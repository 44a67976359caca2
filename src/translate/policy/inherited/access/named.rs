//! The Secrets and ConfigMaps with credentials that an AccessPolicy names. Must not know whether they exist.

use crate::api::access_policy::{AccessPolicy, AccessSpec, Jwks};
use crate::api::reference::{ConfigMapRef, SecretRef};
use crate::ir::ObjectRef;

use super::super::credential::{Credential, Named};

/// Returns the Secrets and ConfigMaps that a policy names, in the order of its fields. Its sections cannot use objects of
/// other kinds.
pub(in crate::translate) fn named(policy: &AccessPolicy) -> Vec<Named> {
    // Destructured, so that a new field fails to compile until it is handled here.
    let AccessSpec {
        target_refs: _,
        strategy: _,
        ip_rules: _,
        basic,
        api_key,
        jwt,
        oidc,
        external: _,
        require: _,
        authorization: _,
    } = &policy.spec;
    let mut list = List {
        namespace: &policy.metadata.namespace,
        named: Vec::new(),
    };
    if let Some(basic) = basic {
        let field = "spec.basic.secretRef".to_owned();
        list.secret(field, &basic.secret_ref, Credential::Users);
    }
    let of_clients = api_key.iter().flat_map(|it| &it.secret_refs);
    for (index, secret) in of_clients.enumerate() {
        let field = format!("spec.apiKey.secretRefs[{index}]");
        list.secret(field, secret, Credential::ApiKeys);
    }
    let providers = jwt.iter().flat_map(|jwt| &jwt.providers);
    for (index, provider) in providers.enumerate() {
        list.jwks(&provider.jwks, &format!("spec.jwt.providers[{index}].jwks"));
    }
    if let Some(oidc) = oidc {
        if let Some(secret) = &oidc.client_secret_ref {
            let field = "spec.oidc.clientSecretRef".to_owned();
            list.secret(field, secret, Credential::ClientSecret);
        }
        if let Some(map) = &oidc.ca_config_map_ref {
            let field = "spec.oidc.caConfigMapRef".to_owned();
            list.config_map(field, map, Credential::Authorities);
        }
    }
    list.named
}

struct List<'a> {
    /// That of the policy.
    namespace: &'a str,
    named: Vec<Named>,
}

impl List<'_> {
    fn jwks(&mut self, jwks: &Jwks, field: &str) {
        let Jwks {
            inline: _,
            config_map_ref,
            secret_ref,
            remote,
        } = jwks;
        if let Some(map) = config_map_ref {
            self.config_map(format!("{field}.configMapRef"), map, Credential::KeySet);
        }
        if let Some(secret) = secret_ref {
            self.secret(format!("{field}.secretRef"), secret, Credential::SharedKey);
        }
        let authorities = remote.as_ref().and_then(|it| it.ca_config_map_ref.as_ref());
        if let Some(map) = authorities {
            let field = format!("{field}.remote.caConfigMapRef");
            self.config_map(field, map, Credential::Authorities);
        }
    }

    fn secret(&mut self, field: String, reference: &SecretRef, credential: Credential) {
        let SecretRef {
            group,
            kind,
            name,
            namespace,
        } = reference;
        let namespace = namespace.as_deref().unwrap_or(self.namespace);
        let object = ObjectRef::new(group, kind, namespace, name);
        if object.is_core("Secret") {
            self.named.push(Named {
                field,
                object,
                credential,
            });
        }
    }

    fn config_map(&mut self, field: String, map: &ConfigMapRef, credential: Credential) {
        self.named.push(Named {
            field,
            object: ObjectRef::core("ConfigMap", self.namespace, &map.name),
            credential,
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
