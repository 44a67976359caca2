//! Collects the links of an object to others, as far as translations follow them. Must not know kinds of objects.

use crate::api::Resource;
use crate::api::backend_tls_policy::BackendTlsValidation;
use crate::api::gateway::NamespacesFrom;
use crate::api::reference::{Purpose, ReferenceField, Role, SecretRef};
use crate::ir::ObjectRef;
use crate::translate::input::Input;
use crate::translate::reference_grant;
pub(super) use crate::translate::source::Source;

/// The links of an object. Every list is sorted, without duplicates.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Links {
    /// Objects that it refers to with permission. They are in every closure that contains it.
    pub(super) refers_to: Vec<Reference>,
    /// Objects that it belongs to. It is in every closure that contains one of them.
    pub(super) belongs_to: Vec<ObjectRef>,
    /// What else these links depend on.
    pub(super) depends_on: Vec<Source>,
    /// Whether it selects objects by the labels of their namespaces.
    pub(super) selects_namespaces: bool,
}

/// A reference of an object to another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Reference {
    pub(super) name: ObjectRef,
    /// What it is used for, if it is a Secret or a ConfigMap that is not used for credentials.
    pub(super) purpose: Option<Purpose>,
}

/// Collects the links of one object.
pub(super) struct Collector<'a> {
    pub(super) input: &'a Input<'a>,
    pub(super) name: &'a ObjectRef,
    pub(super) links: Links,
}

impl<'a> Collector<'a> {
    /// Creates a collector of the links of an object, without any.
    pub(super) fn new(input: &'a Input<'a>, name: &'a ObjectRef) -> Self {
        Self {
            input,
            name,
            links: Links::default(),
        }
    }

    /// Collects the ConfigMaps with the authorities of a validation.
    pub(super) fn config_maps(&mut self, validation: &BackendTlsValidation) {
        validation.references(&mut |field| self.contents(field, &["ConfigMap"]));
    }

    /// Collects a Secret with a certificate and its key.
    pub(super) fn certificate(&mut self, reference: &SecretRef) {
        let role = Role::Contents(Purpose::Certificate);
        self.contents(reference.in_role(role), &["Secret"]);
    }

    /// Collects a Secret or a ConfigMap with contents that are used, if it is of one of these kinds.
    pub(super) fn contents(&mut self, field: ReferenceField<'_>, kinds: &[&str]) {
        if let Role::Contents(purpose) = field.role
            && kinds.iter().any(|kind| field.is_core(kind))
        {
            self.refers_to_granted(field.object_ref(&self.name.namespace), Some(purpose));
        }
    }

    /// Collects an object. In another namespace it counts only with the ReferenceGrants that permit the reference.
    pub(super) fn refers_to_granted(&mut self, name: ObjectRef, purpose: Option<Purpose>) {
        if name.namespace != self.name.namespace {
            self.depends_on(Source::grants_of(&name.namespace));
            let grants = reference_grant::permitting(self.input, self.name, &name);
            let grants: Vec<_> = grants.map(Resource::object_ref).collect();
            if grants.is_empty() {
                return;
            }
            self.refers_to_all(grants);
        }
        self.links.refers_to.push(Reference { name, purpose });
    }

    /// Returns the inputs of the translation.
    pub(super) fn input(&self) -> &'a Input<'a> {
        self.input
    }

    /// Collects objects of the own namespace.
    pub(super) fn refers_to_all(&mut self, targets: impl IntoIterator<Item = ObjectRef>) {
        targets.into_iter().for_each(|it| self.refers_to(it));
    }

    /// Declares that the links depend on an object.
    pub(super) fn depends_on_object(&mut self, name: &ObjectRef) {
        self.depends_on(Source::Object(name.clone()));
    }

    /// Declares that the links depend on all Services, EndpointSlices or Pods of the own namespace.
    pub(super) fn depends_on_all(&mut self, kind: &'static str) {
        self.depends_on(Source::all_of(kind, &self.name.namespace));
    }

    pub(super) fn refers_to_own_namespace(&mut self) {
        self.refers_to(ObjectRef::core("Namespace", "", &self.name.namespace));
    }

    pub(super) fn refers_to(&mut self, name: ObjectRef) {
        let purpose = None;
        self.links.refers_to.push(Reference { name, purpose });
    }

    pub(super) fn depends_on(&mut self, source: Source) {
        if self.links.depends_on.last() != Some(&source) {
            self.links.depends_on.push(source);
        }
    }

    pub(super) fn selects(&mut self, from: Option<&NamespacesFrom>) {
        let kind = from.and_then(|from| from.from.as_deref());
        self.links.selects_namespaces |= kind == Some("Selector");
    }
}
