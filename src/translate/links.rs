//! Collects the links of an object to others, as far as translations follow them. Must not know kinds of objects.

use crate::api::Resource;
use crate::api::gateway::NamespacesFrom;
use crate::api::parameters::{GROUP, GatewayParameters};
use crate::api::policy::BackendTlsValidation;
use crate::api::reference::{ObjectReference, SecretRef};
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

/// What a Secret or a ConfigMap is used for, apart from credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Purpose {
    /// A certificate with its key.
    Certificate,
    /// Certificates of authorities.
    Authority,
    /// Texts that responses are made of.
    Texts,
}

impl Purpose {
    pub(super) const ALL: [Self; 3] = [Self::Certificate, Self::Authority, Self::Texts];
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
        for authority in &validation.ca_certificate_refs {
            if authority.group.is_empty() && authority.kind == "ConfigMap" {
                let namespace = &self.name.namespace;
                let name = ObjectRef::core("ConfigMap", namespace, &authority.name);
                let purpose = Some(Purpose::Authority);
                self.links.refers_to.push(Reference { name, purpose });
            }
        }
    }

    /// Collects a ConfigMap of the own namespace with texts of responses.
    pub(super) fn texts(&mut self, name: &str) {
        let name = ObjectRef::core("ConfigMap", &self.name.namespace, name);
        let purpose = Some(Purpose::Texts);
        self.links.refers_to.push(Reference { name, purpose });
    }

    /// Collects a Secret with a certificate and its key. In another namespace it needs a ReferenceGrant.
    pub(super) fn certificate(&mut self, reference: &SecretRef) {
        let SecretRef {
            group,
            kind,
            name,
            namespace,
        } = reference;
        if group.is_empty() && kind == "Secret" {
            let purpose = Some(Purpose::Certificate);
            self.refers_to_granted(group, kind, namespace.as_deref(), name, purpose);
        }
    }

    /// Collects an object with certificate authorities for client certificates.
    pub(super) fn authority(&mut self, reference: &ObjectReference) {
        let ObjectReference {
            group,
            kind,
            name,
            namespace,
        } = reference;
        if let ("", "ConfigMap" | "Secret") = (group.as_str(), kind.as_str()) {
            let purpose = Some(Purpose::Authority);
            self.refers_to_granted(group, kind, namespace.as_deref(), name, purpose);
        }
    }

    pub(super) fn refers_to_parameters(
        &mut self,
        group: &str,
        kind: &str,
        namespace: &str,
        name: &str,
    ) {
        if (group, kind) == (GROUP, GatewayParameters::KIND) {
            self.refers_to(ObjectRef::new(group, kind, namespace, name));
        }
    }

    /// Collects an object. In another namespace it counts only with the ReferenceGrants that permit the reference.
    pub(super) fn refers_to_granted(
        &mut self,
        group: &str,
        kind: &str,
        namespace: Option<&str>,
        name: &str,
        purpose: Option<Purpose>,
    ) {
        let namespace = namespace.unwrap_or(&self.name.namespace);
        let name = ObjectRef::new(group, kind, namespace, name);
        if namespace != &*self.name.namespace {
            self.depends_on(Source::grants_of(namespace));
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
