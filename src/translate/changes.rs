//! What has changed since the previous translation: objects at first, then what each step announces. Must not know the
//! steps.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::api::Resource;
use crate::api::access_policy::AccessPolicy;
use crate::api::backend_tls_policy::{BackendTlsOverride, BackendTlsPolicy};
use crate::api::core::{EndpointSlice, Service};
use crate::api::gateway::{Gateway, GatewayClass, ReferenceGrant};
use crate::api::inference_pool::InferencePool;
use crate::api::pod::Pod;
use crate::ir::ObjectRef;
use crate::snapshot::{ChangedName, Listed, Snapshot};
use crate::translate::source::Source;

/// Kinds that are read as a whole, each within a namespace.
const READ_AS_WHOLE: &[(&str, &str)] = &[
    (GatewayClass::GROUP, GatewayClass::KIND),
    (Gateway::GROUP, Gateway::KIND),
    (Service::GROUP, Service::KIND),
    (EndpointSlice::GROUP, EndpointSlice::KIND),
    (Pod::GROUP, Pod::KIND),
    (InferencePool::GROUP, InferencePool::KIND),
    (AccessPolicy::GROUP, AccessPolicy::KIND),
    (BackendTlsPolicy::GROUP, BackendTlsPolicy::KIND),
    (BackendTlsOverride::GROUP, BackendTlsOverride::KIND),
];

/// The changes since the previous translation.
pub(super) struct Changes {
    previous: Snapshot,
    objects: Vec<ObjectRef>,
    sources: FxHashSet<Source>,
}

impl Changes {
    /// Returns the changes of objects.
    pub(super) fn between(previous: Snapshot, now: &Snapshot) -> Self {
        let mut changes = Self {
            objects: Vec::new(),
            sources: FxHashSet::default(),
            previous,
        };
        for ChangedName {
            object,
            is_new_or_gone,
        } in now.changes_since(&changes.previous)
        {
            changes.add_object(&object, is_new_or_gone);
            changes.objects.push(object);
        }
        let previous = &changes.previous.invalid;
        if *previous != now.invalid {
            let differing = previous.symmetric_difference(&now.invalid).cloned();
            changes.sources.extend(differing.map(Source::Existence));
        }
        changes
    }

    /// Returns changes without objects.
    pub(super) fn of_sources(sources: FxHashSet<Source>) -> Self {
        Self {
            previous: Snapshot::default(),
            objects: Vec::new(),
            sources,
        }
    }

    /// Adds what others have announced.
    pub(super) fn extend(&mut self, others: Self) {
        self.sources.extend(others.sources);
    }

    fn add_object(&mut self, object: &ObjectRef, is_new_or_gone: bool) {
        let (group, kind) = (&*object.group, &*object.kind);
        if is_new_or_gone {
            self.announce(Source::Existence(object.clone()));
        }
        if (group, kind) == (ReferenceGrant::GROUP, ReferenceGrant::KIND) {
            self.announce(Source::grants_of(&object.namespace));
        }
        if let Some(&(_, kind)) = READ_AS_WHOLE.iter().find(|it| **it == (group, kind)) {
            self.announce(Source::all_of(kind, &object.namespace));
        }
        self.announce(Source::Object(object.clone()));
    }

    /// Adds what a step has changed.
    pub(super) fn announce(&mut self, source: Source) {
        self.sources.insert(source);
    }

    /// Returns the objects of a kind that have changed.
    pub(super) fn of<T: Resource>(&self) -> Vec<ObjectRef> {
        self.named((T::GROUP, T::KIND))
    }

    /// Returns the objects with this group and kind that have changed.
    pub(super) fn named(&self, (group, kind): (&str, &str)) -> Vec<ObjectRef> {
        let objects = self.objects.iter();
        let named = objects.filter(|it| &*it.kind == kind && &*it.group == group);
        named.cloned().collect()
    }

    /// Returns the previous version of an object.
    pub(super) fn previous<T: Listed>(&self, name: &ObjectRef) -> Option<Arc<T>> {
        let previous = T::all(&self.previous);
        previous.get(&name.namespace, &name.name).cloned()
    }

    /// Returns all objects that have changed, grouped by kind.
    pub(super) fn objects(&self) -> &[ObjectRef] {
        &self.objects
    }

    /// Returns everything that has changed.
    pub(super) fn sources(&self) -> &FxHashSet<Source> {
        &self.sources
    }
}
