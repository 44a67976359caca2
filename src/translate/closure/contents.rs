//! What a Gateway's pods are sent of an object: of Secrets and ConfigMaps only the keys that the Gateway uses. Secrets are
//! sent for a purpose or with credentials; without one, only that they exist and of which type they are. ConfigMaps with texts
//! of responses are sent as a whole. Must not know who refers to them.

use std::sync::Arc;

use crate::api::access_policy::AccessPolicy;
use crate::api::core::{BUNDLE, ConfigMap, Secret, TLS_TYPE};
use crate::api::reference::{Credential, Purpose};
use crate::api::{Object, ObjectMeta};
use crate::ir::sharing::TextMap;
use crate::translate::policy::inherited::credential::is_for_credentials;

/// How a Gateway uses an object.
pub(super) struct Use {
    /// What it is used for.
    pub(super) purposes: Vec<Purpose>,
    /// What policies read from it.
    pub(super) credentials: Vec<Credential>,
    /// If it is a policy: why the Gateway gets none of the credentials that it names.
    pub(super) withheld: Option<String>,
}

impl Use {
    /// Reports whether it needs the value of a key of a Secret.
    fn needs(&self, secret: &Secret, key: &str) -> bool {
        let needs = |purpose: &Purpose| match purpose {
            Purpose::Certificate => secret.kind == TLS_TYPE && matches!(key, "tls.crt" | "tls.key"),
            Purpose::Authority => key == BUNDLE,
            Purpose::Texts => false,
        };
        self.purposes.iter().any(needs) || is_for_credentials(secret) && self.reads(key)
    }

    /// Reports whether it needs the value of a key of a ConfigMap.
    fn needs_text(&self, key: &str) -> bool {
        let needs = |purpose: &Purpose| match purpose {
            Purpose::Certificate => false,
            Purpose::Authority => key == BUNDLE,
            Purpose::Texts => true,
        };
        self.purposes.iter().any(needs) || self.reads(key)
    }

    fn reads(&self, key: &str) -> bool {
        self.credentials.iter().any(|it| it.needs(key))
    }
}

/// Returns the parts of an object that are used.
pub(super) fn used(object: Object, how: impl FnOnce() -> Use) -> Object {
    match object {
        Object::Secret(secret) => {
            let how = how();
            let is_used = |key: &str| how.needs(&secret, key);
            Object::Secret(Arc::new(Secret {
                metadata: identity(&secret.metadata),
                kind: secret.kind.clone(),
                data: secret.data.only(is_used),
                string_data: secret.string_data.only(is_used),
            }))
        }
        Object::ConfigMap(map) => {
            let how = how();
            let used = map.data.iter().filter(|(key, _)| how.needs_text(key));
            Object::ConfigMap(Arc::new(ConfigMap {
                metadata: identity(&map.metadata),
                data: used
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect(),
            }))
        }
        Object::AccessPolicy(policy) => match how().withheld {
            Some(why) => Object::AccessPolicy(Arc::new(AccessPolicy {
                withheld: Some(why.into()),
                ..AccessPolicy::clone(&policy)
            })),
            None => Object::AccessPolicy(policy),
        },
        other => other,
    }
}

/// Returns metadata without labels and annotations, which nothing reads and which tools copy values into.
fn identity(metadata: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        labels: TextMap::default(),
        annotations: TextMap::default(),
        ..metadata.clone()
    }
}
