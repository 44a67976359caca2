//! What a Gateway's pods are sent of an object: of Secrets and ConfigMaps only the keys that the Gateway uses. Secrets are
//! sent for a purpose; without one, only that they exist and of which type they are. ConfigMaps with texts of responses are
//! sent as a whole. Must not know who refers to them.

use std::sync::Arc;

use crate::api::core::{ConfigMap, Secret};
use crate::api::{Object, ObjectMeta};
use crate::ir::sharing::TextMap;
use crate::translate::links::Purpose;
use crate::translate::policy::inherited::access::secret::is_for_credentials;
use crate::translate::policy::inherited::access::{basic, jwt, oidc};

/// The type of the Secrets that certificates are read from.
const TLS_TYPE: &str = "kubernetes.io/tls";
/// The key of certificates of authorities.
const AUTHORITY: &str = "ca.crt";

impl Purpose {
    /// Reports whether it needs the value of a key of a Secret.
    fn needs(self, key: &str) -> bool {
        match self {
            Self::Certificate => matches!(key, "tls.crt" | "tls.key"),
            Self::Authority => key == AUTHORITY,
            Self::Users => key == basic::KEY,
            Self::ApiKeys => true,
            Self::TokenKey => key == jwt::SHARED_KEY,
            Self::ClientSecret => key == oidc::SECRET,
            Self::Texts => false,
        }
    }

    fn is_served_by(self, secret: &Secret) -> bool {
        match self {
            Self::Certificate => secret.kind == TLS_TYPE,
            Self::Authority => true,
            Self::Users | Self::ApiKeys | Self::TokenKey | Self::ClientSecret => {
                is_for_credentials(secret)
            }
            Self::Texts => false,
        }
    }
}

/// Returns the parts of an object that are used. `is_for` reports whether it is used for a purpose.
pub(super) fn used(object: Object, is_for: impl Fn(Purpose) -> bool) -> Object {
    match object {
        Object::Secret(secret) => {
            let purposes = Purpose::ALL.into_iter();
            let purposes = purposes.filter(|it| is_for(*it) && it.is_served_by(&secret));
            let purposes: Vec<_> = purposes.collect();
            let is_used = |key: &str| purposes.iter().any(|purpose| purpose.needs(key));
            Object::Secret(Arc::new(Secret {
                metadata: identity(&secret.metadata),
                kind: secret.kind.clone(),
                data: secret.data.only(is_used),
                string_data: secret.string_data.only(is_used),
            }))
        }
        Object::ConfigMap(map) => Object::ConfigMap(Arc::new(ConfigMap {
            metadata: identity(&map.metadata),
            data: {
                let has_texts = is_for(Purpose::Texts);
                let is_used = |key: &str| has_texts || matches!(key, AUTHORITY | jwt::KEY_SET);
                let used = map.data.iter().filter(|(key, _)| is_used(key));
                used.map(|(key, value)| (key.clone(), value.clone()))
                    .collect()
            },
        })),
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
