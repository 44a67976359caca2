//! The immutable set of objects that one translation sees, by kind and key. Knows neither where objects come from
//! nor what they mean.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::core::{ConfigMap, EndpointSlice, Namespace, SERVICE_NAME_LABEL, Secret, Service};
use crate::api::gateway::{Gateway, GatewayClass, ListenerSet, ReferenceGrant};
use crate::api::http_route::HttpRoute;
use crate::api::policy::{BackendTlsPolicy, UnservedRoute};
use crate::api::{Key, Object, Resource};

/// The objects of one kind, in key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objects<T>(BTreeMap<Key, Arc<T>>);

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Objects<T> {
    /// The object of this name. Cluster-scoped objects have an empty namespace.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Arc<T>> {
        self.0.get(&Key::new(namespace, name))
    }

    /// All objects, by namespace and name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.0.values()
    }

    /// Puts an object under a key, and returns the one that was there.
    pub fn insert_at(&mut self, key: Key, object: Arc<T>) -> Option<Arc<T>> {
        self.0.insert(key, object)
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T: Resource> Objects<T> {
    /// Puts an object under its own key, and returns the one that was there.
    pub fn insert(&mut self, object: Arc<T>) -> Option<Arc<T>> {
        self.0.insert(object.key(), object)
    }
}

/// Every object that a translation may look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// GatewayClasses.
    pub gateway_classes: Objects<GatewayClass>,
    /// Gateways.
    pub gateways: Objects<Gateway>,
    /// ListenerSets.
    pub listener_sets: Objects<ListenerSet>,
    /// HTTPRoutes.
    pub http_routes: Objects<HttpRoute>,
    /// Routes of kinds without a translator, keyed by `Kind/name` within their namespace.
    pub unserved_routes: Objects<UnservedRoute>,
    /// BackendTLSPolicies.
    pub backend_tls_policies: Objects<BackendTlsPolicy>,
    /// ReferenceGrants.
    pub reference_grants: Objects<ReferenceGrant>,
    /// Namespaces.
    pub namespaces: Objects<Namespace>,
    /// Services.
    pub services: Objects<Service>,
    /// EndpointSlices.
    pub endpoint_slices: Objects<EndpointSlice>,
    /// Secrets.
    pub secrets: Objects<Secret>,
    /// ConfigMaps.
    pub config_maps: Objects<ConfigMap>,
}

impl Snapshot {
    /// Puts an object in its place, replacing the one of the same kind and key.
    pub fn insert(&mut self, object: Object) {
        match object {
            Object::GatewayClass(object) => drop(self.gateway_classes.insert(object)),
            Object::Gateway(object) => drop(self.gateways.insert(object)),
            Object::ListenerSet(object) => drop(self.listener_sets.insert(object)),
            Object::HttpRoute(object) => drop(self.http_routes.insert(object)),
            Object::UnservedRoute(object) => {
                let name = format!("{}/{}", object.kind, object.metadata.name);
                self.unserved_routes
                    .insert_at(Key::new(&object.metadata.namespace, &name), object);
            }
            Object::BackendTlsPolicy(object) => drop(self.backend_tls_policies.insert(object)),
            Object::ReferenceGrant(object) => drop(self.reference_grants.insert(object)),
            Object::Namespace(object) => drop(self.namespaces.insert(object)),
            Object::Service(object) => drop(self.services.insert(object)),
            Object::EndpointSlice(object) => drop(self.endpoint_slices.insert(object)),
            Object::Secret(object) => drop(self.secrets.insert(object)),
            Object::ConfigMap(object) => drop(self.config_maps.insert(object)),
        }
    }

    /// The EndpointSlices of every Service, by the Service's key. Made once for a translation.
    pub fn slices_by_service(&self) -> BTreeMap<Key, Vec<&EndpointSlice>> {
        let mut slices: BTreeMap<Key, Vec<&EndpointSlice>> = BTreeMap::new();
        for slice in self.endpoint_slices.iter() {
            if let Some(service) = slice.metadata.labels.get(SERVICE_NAME_LABEL) {
                slices
                    .entry(Key::new(&slice.metadata.namespace, service))
                    .or_default()
                    .push(slice);
            }
        }
        slices
    }
}
