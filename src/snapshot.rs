//! The immutable set of objects that one translation sees, by kind and key. Knows neither where objects come from
//! nor what they mean.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::backend_tls_override::BackendTlsOverride;
use crate::api::core::{ConfigMap, EndpointSlice, Namespace, Secret, Service};
use crate::api::gateway::{Gateway, GatewayClass, ListenerSet, ReferenceGrant};
use crate::api::http_route::HttpRoute;
use crate::api::parameters::GatewayParameters;
use crate::api::policy::{BackendTlsPolicy, UnservedRoute};
use crate::api::service_import::ServiceImport;
use crate::api::xbackend::XBackend;
use crate::api::{Key, Kind, Object, ObjectMeta, Resource};
use crate::ir::ObjectRef;
use crate::ir::object_ref::GATEWAY_GROUP;

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

    /// All objects, by namespace and name, as they are now.
    pub fn objects(&self) -> impl Iterator<Item = Arc<T>> + use<T> {
        let objects = self.clone();
        let mut next = Some(Key::new("", ""));
        std::iter::from_fn(move || {
            let mut rest = objects.0.range(next.take()?..);
            let (_, object) = rest.next()?;
            next = rest.next().map(|(key, _)| key.clone());
            Some(object.clone())
        })
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

    /// The keys of what is different from `before`, in order.
    pub fn keys_changed_since(&self, before: &Self) -> Vec<Key> {
        let changes = self.changes_since(before).into_iter();
        changes.map(|change| change.key.clone()).collect()
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

/// Declares [`Snapshot`] from the one list of its kinds, which have the names of their variants of [`Object`].
macro_rules! snapshot {
    ($($(#[$doc:meta])+ $objects:ident: $kind:ident,)+) => {
        /// Every object that a translation may look at.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Snapshot {
            $($(#[$doc])+ pub $objects: Objects<$kind>,)+
            /// Routes of kinds without a translator, keyed by `Kind/name` within their namespace.
            pub unserved_routes: Objects<UnservedRoute>,
        }

        impl Snapshot {
            /// Puts an object in its place, replacing the one of the same kind and key, and tells whether that changes
            /// anything.
            pub fn insert(&mut self, object: Object) -> bool {
                match object {
                    $(Object::$kind(object) => self.$objects.insert(object),)+
                    Object::UnservedRoute(object) => {
                        let ObjectMeta { namespace, name, .. } = &object.metadata;
                        let key = unserved(&object.kind, namespace, name);
                        self.unserved_routes.insert_at(key, object)
                    }
                }
            }

            /// All objects, kind by kind.
            pub fn objects(&self) -> impl Iterator<Item = Object> + use<> {
                let objects = std::iter::empty();
                $(let objects = objects.chain(self.$objects.objects().map(Object::$kind));)+
                objects.chain(self.unserved_routes.objects().map(Object::UnservedRoute))
            }

            /// The object of this name.
            pub fn object(&self, name: &ObjectRef) -> Option<Object> {
                match (&*name.group, &*name.kind) {
                    $(($kind::GROUP, $kind::KIND) => {
                        let object = self.$objects.get(&name.namespace, &name.name);
                        object.cloned().map(Object::$kind)
                    })+
                    (_, kind) => {
                        let key = unserved(kind, &name.namespace, &name.name);
                        let object = self.unserved_routes.get(&key.namespace, &key.name);
                        object.cloned().map(Object::UnservedRoute)
                    }
                }
            }

            /// Takes the object of this name out, and tells whether it was there.
            pub fn remove(&mut self, name: &ObjectRef) -> bool {
                let key = Key::new(&name.namespace, &name.name);
                match (&*name.group, &*name.kind) {
                    $(($kind::GROUP, $kind::KIND) => self.$objects.remove(&key),)+
                    (GATEWAY_GROUP, kind) => {
                        let key = unserved(kind, &name.namespace, &name.name);
                        self.unserved_routes.remove(&key)
                    }
                    _ => false,
                }
            }

            /// The names of all objects that are different from `before`, that are new or that are gone.
            pub fn names_changed_since(&self, before: &Self) -> Vec<ObjectRef> {
                let mut names = Vec::new();
                $(
                    let changes = self.$objects.changes_since(&before.$objects).into_iter();
                    names.extend(changes.map(|change| {
                        let Key { namespace, name } = change.key;
                        ObjectRef::new($kind::GROUP, $kind::KIND, namespace, name)
                    }));
                )+
                let changes = self.unserved_routes.changes_since(&before.unserved_routes);
                let versions = changes.iter().filter_map(|change| change.after.or(change.before));
                names.extend(versions.map(|route| {
                    let ObjectMeta { namespace, name, .. } = &route.metadata;
                    ObjectRef::gateway_api(&route.kind, namespace, name)
                }));
                names
            }

            /// The keys of all objects of a kind.
            pub fn keys(&self, kind: &Kind) -> Vec<Key> {
                match (kind.group, kind.kind) {
                    $(($kind::GROUP, $kind::KIND) => self.$objects.keys().cloned().collect(),)+
                    (_, kind) => self.unserved_keys(kind),
                }
            }
        }
    };
}

snapshot! {
    /// GatewayClasses.
    gateway_classes: GatewayClass,
    /// Gateways.
    gateways: Gateway,
    /// ListenerSets.
    listener_sets: ListenerSet,
    /// HTTPRoutes.
    http_routes: HttpRoute,
    /// BackendTLSPolicies.
    backend_tls_policies: BackendTlsPolicy,
    /// BackendTLSOverrides.
    backend_tls_overrides: BackendTlsOverride,
    /// XBackends.
    xbackends: XBackend,
    /// ServiceImports.
    service_imports: ServiceImport,
    /// ReferenceGrants.
    reference_grants: ReferenceGrant,
    /// GatewayParameters.
    gateway_parameters: GatewayParameters,
    /// Namespaces.
    namespaces: Namespace,
    /// Services.
    services: Service,
    /// EndpointSlices.
    endpoint_slices: EndpointSlice,
    /// Secrets.
    secrets: Secret,
    /// ConfigMaps.
    config_maps: ConfigMap,
}

impl Snapshot {
    fn unserved_keys(&self, kind: &str) -> Vec<Key> {
        let own = format!("{kind}/");
        let route = |key: &Key| {
            let name = key.name.strip_prefix(&own)?;
            Some(Key::new(&key.namespace, name))
        };
        self.unserved_routes.keys().filter_map(route).collect()
    }
}

/// The key of a route of a kind without a translator: several kinds share one map.
fn unserved(kind: &str, namespace: &str, name: &str) -> Key {
    Key::new(namespace, &format!("{kind}/{name}"))
}
