//! Attachment of routes: the listeners that a parentRef selects, and the hostnames that are served there. Must not know
//! rules.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;
use std::sync::Arc;

use crate::api::gateway::Gateway;
use crate::api::reference::ParentRef;
use crate::ir::Time;
use crate::ir::sharing::Text;
use crate::ir::{Hostname, Hostnames, ListenerKey, ObjectRef, Transport};

use super::gateway::{GatewayDraft, SetDraft};
use super::listener::ListenerDraft;
use super::parent::Parent;
use crate::translate::changes::Changes;
use crate::translate::input::Input;
use crate::translate::reason::{Fault, Reason};
use crate::translate::source::Source;

/// The value of `defaultScope` that makes a Gateway a default one, and of `useDefaultGateways` (GEP-3793).
pub(in crate::translate) const DEFAULT_SCOPE: &str = "All";

/// Reports whether a Gateway is a default Gateway.
pub(super) fn is_default(gateway: &Gateway) -> bool {
    gateway.spec.default_scope.as_deref() == Some(DEFAULT_SCOPE)
}

/// Place of a listener among those of all Gateways. It stays the same while the listener has the same name at the same
/// place of its object.
pub(in crate::translate) type ListenerIndex = usize;

/// The parts of Gateways and ListenerSets that decide where a route attaches.
#[derive(Default)]
pub(in crate::translate) struct Parents {
    listeners: Vec<Parent>,
    /// Places without a listener.
    free: Vec<ListenerIndex>,
    /// Places that are free from the next change on: routes may still be attached there.
    retired: Vec<ListenerIndex>,
    /// The objects that declare listeners.
    objects: BTreeMap<ObjectRef, Declared>,
    /// The objects that declare listeners of a Gateway, with its age if it is a default Gateway.
    gateways: BTreeMap<ObjectRef, (Vec<ObjectRef>, Option<Age>)>,
    /// The default Gateways, oldest first.
    defaults: BTreeSet<Age>,
}

/// The age of a Gateway: oldest first, then by namespace and name.
type Age = (Option<Time>, ObjectRef);

/// The listeners of a Gateway or ListenerSet.
struct Declared {
    gateway: ObjectRef,
    listeners: Vec<ListenerIndex>,
    /// The same, by name.
    by_name: Box<[ListenerIndex]>,
}

/// A Gateway with its ListenerSets, as parents.
#[derive(PartialEq, Eq)]
pub(in crate::translate) struct GatewayParents {
    /// The Gateway and its ListenerSets, each with its listeners.
    pub(in crate::translate) objects: Vec<(ObjectRef, Vec<Parent>)>,
    /// Its age, if it is a default Gateway.
    default: Option<Age>,
}

impl GatewayParents {
    pub(in crate::translate) fn new(gateway: &GatewayDraft<'_>) -> Self {
        let parents = |listeners: &[ListenerDraft<'_>]| -> Vec<_> {
            let listeners = listeners.iter();
            listeners.map(|it| Parent::new(gateway, it)).collect()
        };
        let own = (gateway.name.clone(), parents(gateway.own_listeners()));
        let of_set = |set: &SetDraft| {
            let listeners = &gateway.listeners[set.listeners.clone()];
            (set.name.clone(), parents(listeners))
        };
        let created = gateway.object.metadata.creation_timestamp;
        Self {
            objects: [own]
                .into_iter()
                .chain(gateway.sets.iter().map(of_set))
                .collect(),
            default: is_default(gateway.object).then(|| (created, gateway.name.clone())),
        }
    }
}

/// The parts of a route that decide where it attaches.
pub(in crate::translate) struct Candidate<'a> {
    pub(in crate::translate) name: &'a ObjectRef,
    pub(in crate::translate) hostnames: &'a [Hostname],
}

/// The listeners that a parentRef selects, each with the hostnames that are served there.
pub(in crate::translate) type Attachment = Result<Vec<(ListenerIndex, Hostnames)>, Fault>;

impl Index<ListenerIndex> for Parents {
    type Output = Parent;

    fn index(&self, index: ListenerIndex) -> &Parent {
        &self.listeners[index]
    }
}

impl Parents {
    /// Begins a change: places without listeners become free.
    pub(in crate::translate) fn begin(&mut self) {
        self.free.append(&mut self.retired);
    }

    /// Replaces a Gateway; `None` if it does not belong to this controller. Announces the objects with other listeners.
    pub(in crate::translate) fn replace(
        &mut self,
        gateway: &ObjectRef,
        parents: Option<GatewayParents>,
        changes: &mut Changes,
    ) {
        let (objects, default) =
            parents.map_or_else(Default::default, |it| (it.objects, it.default));
        let udp = self.udp_listeners(gateway);
        let names = objects.iter().map(|(name, _)| name.clone()).collect();
        let previous = match objects.is_empty() {
            true => self.gateways.remove(gateway),
            false => self
                .gateways
                .insert(gateway.clone(), (names, default.clone())),
        };
        let (names, previous_default) = previous.unwrap_or_default();
        let present: BTreeSet<_> = objects.iter().map(|(name, _)| name.clone()).collect();
        for name in names.into_iter().filter(|name| !present.contains(name)) {
            // Another Gateway may have the ListenerSet by now.
            let is_own = |known: &Declared| known.gateway == *gateway;
            if self.objects.get(&name).is_some_and(is_own) {
                let declared = self.objects.remove(&name);
                let listeners = declared.into_iter().flat_map(|it| it.listeners);
                self.retired.extend(listeners);
                changes.announce(Source::ListenersOf(name));
            }
        }
        for (name, parents) in objects {
            if self.replace_object(gateway, &name, parents) {
                changes.announce(Source::ListenersOf(name));
            }
        }
        if previous_default != default {
            if let Some(previous) = previous_default {
                self.defaults.remove(&previous);
            }
            self.defaults.extend(default);
            changes.announce(Source::DefaultGateways);
        }
        if self.udp_listeners(gateway) != udp {
            // No listener has HTTP/3 on their ports.
            changes.announce(Source::ListenersOf(gateway.clone()));
        }
    }

    /// Returns the UDP listeners of a Gateway and its ListenerSets, in order, with their ports.
    fn udp_listeners(&self, gateway: &ObjectRef) -> Vec<(u16, Arc<ListenerKey>)> {
        let listeners = self.of_gateway(gateway).map(|place| &self[place]);
        let listeners = listeners.filter(|listener| listener.port.1 == Transport::Udp);
        let key = |listener: &Parent| (listener.port.0, listener.key.clone());
        listeners.map(key).collect()
    }

    /// Inserts a new ListenerSet of a Gateway. `place` is its place among all of the Gateway.
    pub(in crate::translate) fn insert_set(
        &mut self,
        gateway: &ObjectRef,
        place: usize,
        set: &ObjectRef,
        parents: Vec<Parent>,
        changes: &mut Changes,
    ) {
        if let Some((objects, _)) = self.gateways.get_mut(gateway) {
            // The first one is the Gateway.
            objects.insert(place + 1, set.clone());
        }
        if self.replace_object(gateway, set, parents) {
            changes.announce(Source::ListenersOf(set.clone()));
        }
    }

    /// Replaces the listeners of an object. Returns whether these are others.
    fn replace_object(
        &mut self,
        gateway: &ObjectRef,
        name: &ObjectRef,
        parents: Vec<Parent>,
    ) -> bool {
        let previous = self.objects.remove(name);
        let mut is_changed = previous.is_none();
        let previous = previous.map_or_else(Vec::new, |previous| previous.listeners);
        let mut previous = previous.into_iter();
        let mut places = Vec::with_capacity(parents.len());
        for parent in parents {
            let place = previous.next().filter(|place| {
                let is_same = self[*place].is_listener_of(&parent);
                if !is_same {
                    self.retired.push(*place);
                }
                is_same
            });
            match place.or_else(|| self.free.pop()) {
                Some(place) => {
                    is_changed |= self.listeners[place] != parent;
                    self.listeners[place] = parent;
                    places.push(place);
                }
                None => {
                    places.push(self.listeners.len());
                    if self.listeners.len() == self.listeners.capacity() {
                        // An eighth more: a Gateway may have thousands of listeners.
                        self.listeners.reserve_exact(self.listeners.len() / 8 + 4);
                    }
                    self.listeners.push(parent);
                }
            }
            is_changed |= place.is_none();
        }
        let gone = self.retired.len();
        self.retired.extend(previous);
        is_changed |= self.retired.len() > gone;
        let mut by_name: Box<[_]> = places.as_slice().into();
        by_name.sort_by(|one, other| self[*one].key.name.cmp(&self[*other].key.name));
        let declared = Declared {
            gateway: gateway.clone(),
            listeners: places,
            by_name,
        };
        self.objects.insert(name.clone(), declared);
        is_changed
    }

    /// Returns the places of the listeners of a Gateway and its ListenerSets, in order.
    pub(in crate::translate) fn of_gateway(
        &self,
        gateway: &ObjectRef,
    ) -> impl Iterator<Item = ListenerIndex> {
        let objects = self.gateways.get(gateway).into_iter().flat_map(|it| &it.0);
        objects.flat_map(|name| self.of_object(name))
    }

    /// Returns the places of the listeners of a Gateway or ListenerSet, in order.
    pub(in crate::translate) fn of_object(
        &self,
        name: &ObjectRef,
    ) -> impl Iterator<Item = ListenerIndex> {
        let declared = self.objects.get(name).into_iter();
        declared.flat_map(|declared| declared.listeners.iter().copied())
    }

    /// Reports whether a Gateway or ListenerSet has a listener of this name.
    pub(in crate::translate) fn has_listener(&self, object: &ObjectRef, name: &str) -> bool {
        let declared = self.objects.get(object);
        let compare = |place: &ListenerIndex| (*self[*place].key.name).cmp(name);
        declared.is_some_and(|it| it.by_name.binary_search_by(compare).is_ok())
    }

    /// Returns the names of a Gateway's own listeners on the port of a listener.
    pub(in crate::translate) fn on_port_of(
        &self,
        gateway: &ObjectRef,
        listener: &ListenerKey,
    ) -> Vec<Text> {
        let mut places = self.of_object(&listener.origin);
        let place = places.find(|place| *self[*place].key == *listener);
        let port = place.map(|place| self[place].port);
        let own = self.of_object(gateway);
        let own = own.filter(|own| Some(self[*own].port) == port);
        own.map(|own| self[own].key.name.clone()).collect()
    }

    /// Returns the Gateway that sends the requests of a Gateway or ListenerSet, if this has listeners.
    pub(in crate::translate) fn sender(&self, object: &ObjectRef) -> Option<&ObjectRef> {
        let place = self.of_gateway(object).chain(self.of_object(object)).next();
        place.map(|place| &self[place].consumer.gateway)
    }

    /// Reports whether a ListenerSet has listeners of a Gateway.
    pub(in crate::translate) fn has_set(
        &self,
        input: &Input<'_>,
        gateway: &ObjectRef,
        set: &ObjectRef,
    ) -> bool {
        input.read(|| Source::ListenersOf(set.clone()));
        let declared = self.objects.get(set);
        declared.is_some_and(|it| it.gateway == *gateway && !it.listeners.is_empty())
    }

    /// Returns the default Gateways as parentRefs. Omits those that `named`, the route's own parentRefs, select as a
    /// whole.
    pub(in crate::translate) fn defaults_beside(
        &self,
        route: &ObjectRef,
        named: &[ParentRef],
    ) -> Vec<ParentRef> {
        let is_named = |gateway: &ObjectRef| {
            let mut whole = named
                .iter()
                .filter(|reference| reference.section_name.is_none() && reference.port.is_none());
            whole.any(|reference| reference.object_ref(&route.namespace) == *gateway)
        };
        let defaults = self.defaults.iter().map(|(_, gateway)| gateway);
        let defaults = defaults.filter(|gateway| !is_named(gateway));
        defaults.map(ParentRef::to).collect()
    }

    /// Reports whether listeners of a Gateway or ListenerSet select routes by the labels of their namespaces.
    pub(in crate::translate) fn select_by_label(&self, object: &ObjectRef) -> bool {
        self.of_object(object)
            .any(|index| self[index].selects_by_label())
    }

    /// Reports whether there are default Gateways.
    pub(in crate::translate) fn have_defaults(&self) -> bool {
        !self.defaults.is_empty()
    }

    /// Attaches a route to one of its parents. Returns `None` if this controller does not manage the parent.
    pub(in crate::translate) fn attach(
        &self,
        input: &Input<'_>,
        route: &Candidate<'_>,
        reference: &ParentRef,
    ) -> Option<Attachment> {
        let parent = reference.object_ref(&route.name.namespace);
        input.read(|| Source::ListenersOf(parent.clone()));
        let declared = self.objects.get(&parent)?;
        let listener = |index: &ListenerIndex| &self[*index];
        let named: Vec<ListenerIndex> = declared
            .listeners
            .iter()
            .copied()
            .filter(|index| listener(index).is_selected_by(reference))
            .collect();
        if named.is_empty() {
            return Some(Err(no_parent(&parent, reference)));
        }
        let of_kind: Vec<ListenerIndex> = named
            .into_iter()
            .filter(|index| listener(index).admits_kind(route.name))
            .collect();
        if of_kind.is_empty() {
            let (what, field) = (
                &route.name.kind,
                "protocol and allowedRoutes.kinds of its listeners",
            );
            return Some(Err(not_allowed(&parent, &format!("{what}s"), field)));
        }
        let allowed: Vec<ListenerIndex> = of_kind
            .into_iter()
            .filter(|index| listener(index).admits_namespace(input, route.name))
            .collect();
        if allowed.is_empty() {
            let what = format!("routes of namespace {}", route.name.namespace);
            let field =
                "allowedRoutes.namespaces of its listeners (by default only their own namespace)";
            return Some(Err(not_allowed(&parent, &what, field)));
        }
        let hosts = allowed
            .iter()
            .map(|index| (*index, listener(index).hosts_of(route.hostnames)));
        let reached: Vec<_> = hosts.filter(|(_, hosts)| !hosts.is_empty()).collect();
        if reached.is_empty() {
            let shown: Vec<String> = allowed
                .iter()
                .map(|index| listener(index).hostname().to_string())
                .collect();
            let message = format!(
                "no hostname of spec.hostnames intersects those of the listeners of {parent} that the route may \
                 attach to: {}",
                shown.join(", ")
            );
            return Some(Err(Fault::new(Reason::NoMatchingListenerHostname, message)));
        }
        Some(Ok(reached))
    }
}

fn no_parent(parent: &ObjectRef, reference: &ParentRef) -> Fault {
    let mut wanted = String::new();
    if let Some(section) = &reference.section_name {
        wanted.push_str(&format!(" named {section} (sectionName)"));
    }
    if let Some(port) = reference.port {
        wanted.push_str(&format!(" on port {port}"));
    }
    let message = format!(
        "{parent} has no listener{wanted} that a route can attach to; see its spec.listeners"
    );
    Fault::new(Reason::NoMatchingParent, message)
}

fn not_allowed(parent: &ObjectRef, what: &str, field: &str) -> Fault {
    let message =
        format!("no listener of {parent} that the parentRef selects allows {what}; see {field}");
    Fault::new(Reason::NotAllowedByListeners, message)
}
