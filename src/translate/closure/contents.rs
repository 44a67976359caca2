//! What a Gateway's pods are sent of an object: of Secrets and ConfigMaps only the keys that the Gateway uses. Secrets are
//! sent for a purpose; without one, only that they exist and of which type they are. Must not know who refers to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::core::{ConfigMap, Secret};
use crate::api::{Object, ObjectMeta};
use crate::ir::sharing::TextMap;
use crate::translate::links::Purpose;

/// The type of the Secrets that certificates are read from.
const TLS_TYPE: &str = "kubernetes.io/tls";

impl Purpose {
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Certificate => &["tls.crt", "tls.key"],
            Self::Authority => &["ca.crt"],
        }
    }

    fn is_served_by(self, secret: &Secret) -> bool {
        self == Self::Authority || secret.kind == TLS_TYPE
    }
}

/// Returns the parts of an object that are used. `is_for` reports whether a Secret is used for a purpose.
pub(super) fn used(object: Object, is_for: impl Fn(Purpose) -> bool) -> Object {
    match object {
        Object::Secret(secret) => {
            let purposes = Purpose::ALL.into_iter();
            let purposes = purposes.filter(|it| is_for(*it) && it.is_served_by(&secret));
            let keys: Vec<_> = purposes.flat_map(Purpose::keys).copied().collect();
            Object::Secret(Arc::new(Secret {
                metadata: identity(&secret.metadata),
                kind: secret.kind.clone(),
                data: only(&keys, &secret.data),
                string_data: only(&keys, &secret.string_data),
            }))
        }
        Object::ConfigMap(map) => Object::ConfigMap(Arc::new(ConfigMap {
            metadata: identity(&map.metadata),
            data: only(Purpose::Authority.keys(), &map.data),
        })),
        other => other,
    }
}

fn only(keys: &[&str], values: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let used = values
        .iter()
        .filter(|(key, _)| keys.contains(&key.as_str()));
    used.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Returns metadata without labels and annotations, which nothing reads and which tools copy values into.
fn identity(metadata: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        labels: TextMap::default(),
        annotations: TextMap::default(),
        ..metadata.clone()
    }
}
