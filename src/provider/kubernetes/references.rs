//! The Secrets and ConfigMaps that an object references, whether permitted or not. Must not know which of them are held.

use std::sync::Arc;

use crate::api::gateway::Gateway;
use crate::api::reference::Role;
use crate::api::{Kind, Object, ObjectRef, Resource};

/// Reports whether objects of a kind are held only while referenced.
pub(super) fn is_held_by_reference(kind: &Kind) -> bool {
    is_held(kind.group, kind.kind)
}

/// The same of an object with this name.
pub(super) fn is_held_name(name: &ObjectRef) -> bool {
    is_held(&name.group, &name.kind)
}

fn is_held(group: &str, kind: &str) -> bool {
    group.is_empty() && matches!(kind, "Secret" | "ConfigMap")
}

/// The references of one version of an object. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct References {
    /// In the order of the object, with duplicates.
    pub(super) names: Arc<[ObjectRef]>,
    /// The Gateway without which they do not count: the parent of a ListenerSet. A pod that serves one Gateway does not
    /// hold the keys of others.
    pub(super) parent: Option<ObjectRef>,
}

impl References {
    /// Returns the references of an object.
    pub(super) fn of(object: &Object) -> Self {
        let namespace = &object.meta().namespace;
        let is_set = matches!(object, Object::ListenerSet(_));
        let (mut names, mut parent) = (Vec::new(), None);
        object.references(&mut |field| match field.role {
            Role::Parent if is_set => {
                let namespace = field.namespace.unwrap_or(namespace);
                parent = Some(ObjectRef::gateway_api(Gateway::KIND, namespace, field.name));
            }
            role if role.uses_contents() && is_held(field.group, field.kind) => {
                names.push(field.object_ref(namespace));
            }
            _ => {}
        });
        Self {
            names: names.into(),
            parent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::sample_of;

    #[test]
    fn kinds_that_use_contents_are_those_with_such_fields() {
        for kind in Kind::all() {
            let mut uses_contents = false;
            if let Some((object, _)) = sample_of(kind) {
                object.references(&mut |field| {
                    // The sample names each object as the path of the field.
                    let last = field.name.rsplit('.').next().unwrap_or_default();
                    let last = last.to_ascii_lowercase();
                    let mut words = ["secretref", "certificateref", "configmapref"].into_iter();
                    let is_used = field.role.uses_contents();
                    assert_eq!(is_used, words.any(|it| last.contains(it)), "{}", field.name);
                    uses_contents |= is_used;
                });
            }
            assert_eq!(kind.uses_contents, uses_contents, "{}", kind.kind);
        }
    }
}
