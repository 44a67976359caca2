//! What every step of a translation reads: objects, the options, and what was served before. Must not know the steps.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::Resource;
use crate::api::core::ServicePort;
use crate::api::gateway::ReferenceGrant;
use crate::api::pod::Pod;
use crate::ir::{Ir, ObjectRef};
pub use crate::settings::controller_name::CONTROLLER_NAME;
use crate::settings::location::Location;
use crate::settings::permissions::{BackendKinds, InfrastructurePermissions, Permissions};
use crate::snapshot::{Listed, Snapshot};
use crate::translate::protocol::Protocol;
use crate::translate::served::ServedCertificates;
use crate::translate::source::Source;

/// The inputs of a translation apart from objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// This controller manages GatewayClasses with this `spec.controllerName`.
    pub controller_name: Arc<str>,
    /// Where the objects come from.
    pub mode: Mode,
    /// Whether the objects are a folder that is judged as a cluster without others, whatever the mode.
    pub is_judged_alone: bool,
    /// Permissions that the operator gives to objects.
    pub permissions: Permissions,
    /// What the data planes of Gateways may ask of the cluster; `None` where none are created.
    pub infrastructure: Option<Arc<InfrastructurePermissions>>,
    /// The zone and node of the data plane that serves the result.
    pub location: Location,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            controller_name: CONTROLLER_NAME.into(),
            mode: Mode::Standalone,
            is_judged_alone: false,
            permissions: Permissions::default(),
            infrastructure: None,
            location: Location::default(),
        }
    }
}

impl Options {
    /// Reports whether no other controller can have what is missing, so that objects that are not served get notes.
    pub(super) fn are_of_a_folder(&self) -> bool {
        self.is_judged_alone || self.mode == Mode::Standalone
    }
}

/// The source of objects, as far as it changes how they are translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A folder without other controllers: the class `portcullis` exists implicitly, and objects that are not served
    /// get notes.
    Standalone,
    /// A cluster with other controllers. Objects that other controllers manage are ignored.
    Kubernetes,
    /// A cluster in which every Gateway has dedicated data planes and addresses: ports of different Gateways do not
    /// conflict, and `spec.addresses` are not bound.
    Dedicated,
}

/// What steps ask about the kinds of routes and backends, which are registered above them.
pub(super) trait KindQueries {
    /// Returns the kinds of routes that can attach to a listener of this protocol.
    fn of_routes(&self, protocol: Protocol) -> Vec<&'static str>;

    /// Reports whether a kind is an enabled kind of backend.
    fn is_backend(&self, enabled: &BackendKinds, group: &str, kind: &str) -> bool;

    /// Reports whether policies on TLS may target objects of an enabled kind.
    fn is_target(&self, enabled: &BackendKinds, group: &str, kind: &str) -> bool;

    /// Returns the ports of an object that policies on TLS may target; `None` if it does not exist.
    fn target_ports<'a>(
        &self,
        input: &Input<'a>,
        enabled: &BackendKinds,
        object: &ObjectRef,
    ) -> Option<&'a [ServicePort]>;
}

/// The inputs of every step. Notes what an output reads.
pub(super) struct Input<'a> {
    snapshot: &'a Snapshot,
    pub(super) served: ServedCertificates<'a>,
    pub(super) options: &'a Options,
    pub(super) kinds: &'a dyn KindQueries,
    /// What the present output has read; `None` outside of [`Self::reading`].
    reads: RefCell<Option<Vec<Source>>>,
}

impl<'a> Input<'a> {
    pub(super) fn new(
        snapshot: &'a Snapshot,
        previous: Option<&'a Ir>,
        options: &'a Options,
        kinds: &'a dyn KindQueries,
    ) -> Self {
        Self {
            snapshot,
            served: ServedCertificates::new(previous),
            options,
            kinds,
            reads: RefCell::new(None),
        }
    }

    /// Computes an output. Returns it with what it read, except for what an inner call noted.
    pub(super) fn reading<T>(&self, compute: impl FnOnce() -> T) -> (T, Vec<Source>) {
        let outer = self.reads.replace(Some(Vec::new()));
        let output = compute();
        let reads = self.reads.replace(outer);
        (output, reads.unwrap_or_default())
    }

    /// Notes that the present output depends on a source.
    pub(super) fn read(&self, source: impl FnOnce() -> Source) {
        if let Some(reads) = &mut *self.reads.borrow_mut() {
            reads.push(source());
        }
    }

    /// Returns an object of a kind.
    pub(super) fn get<T: Listed>(&self, namespace: &str, name: &str) -> Option<&'a Arc<T>> {
        self.read(|| Source::Object(ObjectRef::new(T::GROUP, T::KIND, namespace, name)));
        T::all(self.snapshot).get(namespace, name)
    }

    /// Returns an object of a kind by its name.
    pub(super) fn find<T: Listed>(&self, name: &ObjectRef) -> Option<&'a Arc<T>> {
        self.read(|| Source::Object(name.clone()));
        T::all(self.snapshot).get(&name.namespace, &name.name)
    }

    /// Reports whether an object exists.
    pub(super) fn exists(&self, name: &ObjectRef) -> bool {
        self.read(|| Source::Existence(name.clone()));
        self.snapshot.object(name).is_some()
    }

    /// Reports whether an object exists, but never had a valid version. Only folders know that.
    pub(super) fn is_invalid(&self, name: &ObjectRef) -> bool {
        self.read(|| Source::Existence(name.clone()));
        self.snapshot.invalid.contains(name)
    }

    /// Returns what messages say of an object that is not there.
    pub(super) fn absence(&self, name: &ObjectRef) -> &'static str {
        match self.is_invalid(name) {
            true => "is invalid",
            false => "does not exist",
        }
    }

    /// Returns the objects of a kind in a namespace, ordered by name. The kind is one of those that are read as a whole.
    pub(super) fn in_namespace<'n, T: Listed>(
        &self,
        namespace: &'n str,
    ) -> impl Iterator<Item = &'a Arc<T>> + use<'a, 'n, T> {
        self.read(|| Source::all_of(T::KIND, namespace));
        T::all(self.snapshot).in_namespace(namespace)
    }

    /// Returns the labels of a pod.
    pub(super) fn labels_of(&self, pod: &ObjectRef) -> Option<&'a BTreeMap<String, String>> {
        self.read(|| Source::LabelsOf(pod.clone()));
        let pod = self.snapshot.pods.get(&pod.namespace, &pod.name)?;
        Some(&pod.metadata.labels)
    }

    /// Returns the pods of a namespace with all of these labels.
    pub(super) fn pods_labelled<'n>(
        &self,
        namespace: &'n str,
        labels: &'n BTreeMap<String, String>,
    ) -> impl Iterator<Item = &'a Arc<Pod>> + use<'a, 'n> {
        // One label suffices: every pod that is selected has it.
        self.read(|| match labels.first_key_value() {
            Some((key, value)) => Source::pods_labelled(namespace, key, value),
            None => Source::all_of(Pod::KIND, namespace),
        });
        let pods = self.snapshot.pods.in_namespace(namespace);
        pods.filter(move |pod| {
            let own = &pod.metadata.labels;
            labels
                .iter()
                .all(|(key, value)| own.get(key) == Some(value))
        })
    }

    /// Returns the ReferenceGrants of a namespace.
    pub(super) fn grants_of<'n>(
        &self,
        namespace: &'n str,
    ) -> impl Iterator<Item = &'a Arc<ReferenceGrant>> + use<'a, 'n> {
        self.read(|| Source::grants_of(namespace));
        self.snapshot.reference_grants.in_namespace(namespace)
    }
}
