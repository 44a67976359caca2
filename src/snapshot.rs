//! The immutable set of objects that one translation sees, by kind and key. Knows neither where objects come from
//! nor what they mean.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::core::{ConfigMap, EndpointSlice, Namespace, Secret, Service};
use crate::api::gateway::{Gateway, GatewayClass, ListenerSet, ReferenceGrant};
use crate::api::http_route::HttpRoute;
use crate::api::parameters::GatewayParameters;
use crate::api::policy::{BackendTlsPolicy, UnservedRoute};
use crate::api::{Key, Kind, Object, Resource};

/// The objects of one kind, in key order. Copies share them until one of the copies changes.
#[derive(Debug, PartialEq, Eq)]
pub struct Objects<T>(Arc<BTreeMap<Key, Arc<T>>>);

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for Objects<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
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

    /// The objects of one namespace, by name.
    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<T>> {
        let objects = self.0.range(Key::new(namespace, "")..);
        let within = objects.take_while(move |(key, _)| key.namespace == namespace);
        within.map(|(_, object)| object)
    }

    /// The keys of all objects, in order.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.0.keys()
    }

    /// Takes an object out, and tells whether it was there.
    pub fn remove(&mut self, key: &Key) -> bool {
        self.0.contains_key(key) && Arc::make_mut(&mut self.0).remove(key).is_some()
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

impl<T: Eq> Objects<T> {
    /// What is different from `before`, in key order. Objects that both share are not looked into.
    pub fn changes_since<'a>(&'a self, before: &'a Self) -> Vec<Change<'a, T>> {
        let mut changes = Vec::new();
        if Arc::ptr_eq(&self.0, &before.0) {
            return changes;
        }
        let (mut old, mut new) = (before.0.iter().peekable(), self.0.iter().peekable());
        loop {
            let order = match (old.peek(), new.peek()) {
                // One object is under one key, which need not be read then.
                (Some((_, old)), Some((_, new))) if Arc::ptr_eq(old, new) => Ordering::Equal,
                (Some((old, _)), Some((new, _))) => old.cmp(new),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return changes,
            };
            let gone = old.next_if(|_| order.is_le());
            let here = new.next_if(|_| order.is_ge());
            let (before, after) = (gone.map(|(_, it)| it), here.map(|(_, it)| it));
            if let Some((key, _)) = here.or(gone).filter(|_| before != after) {
                changes.push(Change { key, before, after });
            }
        }
    }
}

/// What became of one object.
#[derive(Debug)]
pub struct Change<'a, T> {
    /// Its key.
    pub key: &'a Key,
    /// What it was, if it was there.
    pub before: Option<&'a Arc<T>>,
    /// What it is, if it is there.
    pub after: Option<&'a Arc<T>>,
}

impl<'a, T> Change<'a, T> {
    /// What it was and what it is.
    pub fn versions(&self) -> impl Iterator<Item = &'a Arc<T>> + use<'a, T> {
        self.before.into_iter().chain(self.after)
    }
}

impl<T: PartialEq> Objects<T> {
    /// Puts an object under a key, and tells whether that changes anything.
    pub fn insert_at(&mut self, key: Key, object: Arc<T>) -> bool {
        let changes = self.0.get(&key) != Some(&object);
        if changes {
            Arc::make_mut(&mut self.0).insert(key, object);
        }
        changes
    }
}

impl<T: Resource + PartialEq> Objects<T> {
    /// Puts an object under its own key, and tells whether that changes anything.
    pub fn insert(&mut self, object: Arc<T>) -> bool {
        self.insert_at(object.key(), object)
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
    /// GatewayParameters.
    pub gateway_parameters: Objects<GatewayParameters>,
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

/// Calls `$body` with the objects of the kind of this name as `$objects`, else with `$unserved`.
macro_rules! of_kind {
    ([$($borrow:tt)+] $snapshot:expr, $kind:expr, $objects:ident => $body:expr, $unserved:ident => $other:expr) => {
        match $kind {
            "GatewayClass" => of_kind!(@ [$($borrow)+] $snapshot.gateway_classes, $objects => $body),
            "Gateway" => of_kind!(@ [$($borrow)+] $snapshot.gateways, $objects => $body),
            "ListenerSet" => of_kind!(@ [$($borrow)+] $snapshot.listener_sets, $objects => $body),
            "HTTPRoute" => of_kind!(@ [$($borrow)+] $snapshot.http_routes, $objects => $body),
            "BackendTLSPolicy" => of_kind!(@ [$($borrow)+] $snapshot.backend_tls_policies, $objects => $body),
            "ReferenceGrant" => of_kind!(@ [$($borrow)+] $snapshot.reference_grants, $objects => $body),
            "GatewayParameters" => of_kind!(@ [$($borrow)+] $snapshot.gateway_parameters, $objects => $body),
            "Namespace" => of_kind!(@ [$($borrow)+] $snapshot.namespaces, $objects => $body),
            "Service" => of_kind!(@ [$($borrow)+] $snapshot.services, $objects => $body),
            "EndpointSlice" => of_kind!(@ [$($borrow)+] $snapshot.endpoint_slices, $objects => $body),
            "Secret" => of_kind!(@ [$($borrow)+] $snapshot.secrets, $objects => $body),
            "ConfigMap" => of_kind!(@ [$($borrow)+] $snapshot.config_maps, $objects => $body),
            _ => of_kind!(@ [$($borrow)+] $snapshot.unserved_routes, $unserved => $other),
        }
    };
    (@ [$($borrow:tt)+] $field:expr, $objects:ident => $body:expr) => {{
        let $objects = $($borrow)+ $field;
        $body
    }};
}

impl Snapshot {
    /// Puts an object in its place, replacing the one of the same kind and key, and tells whether that changes anything.
    pub fn insert(&mut self, object: Object) -> bool {
        match object {
            Object::GatewayClass(object) => self.gateway_classes.insert(object),
            Object::Gateway(object) => self.gateways.insert(object),
            Object::ListenerSet(object) => self.listener_sets.insert(object),
            Object::HttpRoute(object) => self.http_routes.insert(object),
            Object::UnservedRoute(object) => {
                let key = unserved(
                    &object.kind,
                    &object.metadata.namespace,
                    &object.metadata.name,
                );
                self.unserved_routes.insert_at(key, object)
            }
            Object::BackendTlsPolicy(object) => self.backend_tls_policies.insert(object),
            Object::ReferenceGrant(object) => self.reference_grants.insert(object),
            Object::GatewayParameters(object) => self.gateway_parameters.insert(object),
            Object::Namespace(object) => self.namespaces.insert(object),
            Object::Service(object) => self.services.insert(object),
            Object::EndpointSlice(object) => self.endpoint_slices.insert(object),
            Object::Secret(object) => self.secrets.insert(object),
            Object::ConfigMap(object) => self.config_maps.insert(object),
        }
    }

    /// Takes an object out, and tells whether it was there.
    pub fn remove(&mut self, kind: &Kind, key: &Key) -> bool {
        of_kind!(
            [&mut] self,
            kind.kind,
            objects => objects.remove(key),
            routes => routes.remove(&unserved(kind.kind, &key.namespace, &key.name))
        )
    }

    /// The keys of all objects of a kind.
    pub fn keys(&self, kind: &Kind) -> Vec<Key> {
        let own = format!("{}/", kind.kind);
        let route = |key: &Key| {
            let name = key.name.strip_prefix(&own)?;
            Some(Key::new(&key.namespace, name))
        };
        of_kind!(
            [&] self,
            kind.kind,
            objects => objects.keys().cloned().collect(),
            routes => routes.keys().filter_map(route).collect()
        )
    }
}

/// The key of a route of a kind without a translator: several kinds share one map.
fn unserved(kind: &str, namespace: &str, name: &str) -> Key {
    Key::new(namespace, &format!("{kind}/{name}"))
}
