//! The closure of each Gateway: the objects that its translation in [`Mode::Dedicated`] uses, without the routes that it
//! refuses. Updated from one snapshot to the next. Must not know who receives the objects.

mod acceptance;
mod contents;
mod graph;
mod links;

use std::collections::{BTreeMap, BTreeSet};

use crate::api::core::{EndpointSlice, Service};
use crate::api::gateway::{Gateway, GatewayClass, ReferenceGrant};
use crate::api::pod::Pod;
use crate::api::{Object, Resource};
use crate::ir::ObjectRef;
use crate::snapshot::Snapshot;

use self::acceptance::{Acceptance, ParentChanges};
use self::graph::{Dirty, Graph, Root};
use self::links::Source;

pub(super) use self::links::Collector;
use super::{Input, Mode, Options};

/// The closures of all Gateways of this controller.
pub struct Closures {
    options: Options,
    /// The snapshot from which the fields below were computed.
    seen: Snapshot,
    acceptance: Acceptance,
    graph: Graph,
    /// The number of the next Gateway.
    next: Root,
    roots: BTreeMap<ObjectRef, Root>,
    closures: BTreeMap<Root, Closure>,
}

struct Closure {
    gateway: ObjectRef,
    objects: Snapshot,
}

/// The changes of a Gateway's closure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Changed objects. The order is the same for the same change.
    Changed(Vec<ObjectChange>),
    /// The Gateway is deleted, or another controller manages it.
    Gone,
}

/// A change of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectChange {
    /// It is new or changed.
    Put(Object),
    /// It is deleted.
    Delete(ObjectRef),
}

impl Closures {
    /// Creates closures for translations with these options, in [`Mode::Dedicated`].
    pub fn new(options: Options) -> Self {
        Self {
            options: Options {
                mode: Mode::Dedicated,
                ..options
            },
            seen: Snapshot::default(),
            acceptance: Acceptance::default(),
            graph: Graph::default(),
            next: 0,
            roots: BTreeMap::new(),
            closures: BTreeMap::new(),
        }
    }

    /// Applies a new snapshot. Returns the changes per Gateway; a new Gateway has all its objects among them.
    pub fn follow(&mut self, snapshot: &Snapshot) -> BTreeMap<ObjectRef, Difference> {
        let before = std::mem::replace(&mut self.seen, snapshot.clone());
        let changed = snapshot.names_changed_since(&before);
        let mut dirty = Dirty::new();
        let input = Input::new(&self.seen, None, &self.options);
        let parents = self.acceptance.follow(&input, &before);
        self.link(&changed, &parents, &mut dirty);
        let gone = self.follow_gateways(&changed, &mut dirty);
        for name in changed {
            for root in self.graph.holders(&name) {
                dirty.entry(root).or_default().insert(name.clone());
            }
        }
        let mut differences: BTreeMap<_, _> = gone
            .into_iter()
            .map(|gateway| (gateway, Difference::Gone))
            .collect();
        for (root, names) in dirty {
            let Some(closure) = self.closures.get_mut(&root) else {
                continue;
            };
            let names = names.into_iter().map(contents::object_of).collect();
            let has = |name: &ObjectRef| self.graph.has(root, name);
            let changes = closure.follow(names, |name| {
                let object = snapshot.object(name).filter(|_| has(name))?;
                Some(contents::used(object, name, has))
            });
            if !changes.is_empty() {
                differences.insert(closure.gateway.clone(), Difference::Changed(changes));
            }
        }
        differences
    }

    /// Returns the closure of a Gateway; `None` if it does not exist or another controller manages it. Do not keep a
    /// clone: the next change would have to copy the shared nodes of the map.
    pub fn get(&self, gateway: &ObjectRef) -> Option<&Snapshot> {
        let root = self.roots.get(gateway)?;
        self.closures.get(root).map(|closure| &closure.objects)
    }

    /// Computes the links of changed objects and of their dependents.
    fn link(&mut self, changed: &[ObjectRef], parents: &ParentChanges, dirty: &mut Dirty) {
        let mut names: BTreeSet<ObjectRef> = changed.iter().cloned().collect();
        for name in changed {
            let mut add = |source| names.extend(self.graph.dependents(&source).iter().cloned());
            if is_kind::<ReferenceGrant>(name) {
                add(Source::GrantsOf(name.namespace.to_string()));
            }
            if is_kind::<Gateway>(name) {
                add(Source::GatewaysOf(name.namespace.to_string()));
            }
            for kind in [Service::KIND, EndpointSlice::KIND, Pod::KIND] {
                if &*name.kind == kind {
                    add(Source::AllOf(kind, name.namespace.to_string()));
                }
            }
            add(Source::Object(name.clone()));
        }
        let objects = parents.objects.iter();
        let listeners = objects.map(|name| Source::ListenersOf(name.clone()));
        let defaults = parents.defaults.then_some(Source::DefaultGateways);
        for source in listeners.chain(defaults) {
            names.extend(self.graph.dependents(&source).iter().cloned());
        }
        self.link_each(&names, dirty);
        let decided = self.acceptance.budgets.decide();
        self.link_each(&decided, dirty);
    }

    fn link_each(&mut self, names: &BTreeSet<ObjectRef>, dirty: &mut Dirty) {
        let input = Input::new(&self.seen, None, &self.options);
        for name in names {
            let object = self.seen.object(name);
            let links = object.map(|it| links::links(&input, &self.acceptance, name, &it));
            let (links, demand) = links.unwrap_or_default();
            self.acceptance.budgets.replace(name, demand);
            self.graph.link(name, links, dirty);
        }
    }

    /// Updates the set of Gateways that this controller manages. Returns those that it no longer manages.
    fn follow_gateways(&mut self, changed: &[ObjectRef], dirty: &mut Dirty) -> Vec<ObjectRef> {
        let gateways = changed.iter().filter(|name| is_kind::<Gateway>(name));
        let mut gateways: BTreeSet<ObjectRef> = gateways.cloned().collect();
        let classes = changed.iter().filter(|name| is_kind::<GatewayClass>(name));
        let classes: BTreeSet<&str> = classes.map(|class| &*class.name).collect();
        if !classes.is_empty() {
            let all = self.seen.gateways.iter();
            let of_class = all.filter(|it| classes.contains(&*it.spec.gateway_class_name));
            gateways.extend(of_class.map(|gateway| gateway.object_ref()));
        }
        let mut gone = Vec::new();
        for gateway in gateways {
            match (self.is_ours(&gateway), self.roots.get(&gateway).copied()) {
                (true, None) => self.add(gateway, dirty),
                (false, Some(root)) => {
                    self.graph.remove_root(root, &gateway, dirty);
                    self.closures.remove(&root);
                    self.roots.remove(&gateway);
                    gone.push(gateway);
                }
                (true, Some(_)) | (false, None) => {}
            }
        }
        gone
    }

    fn add(&mut self, gateway: ObjectRef, dirty: &mut Dirty) {
        let root = self.next;
        self.next += 1;
        self.graph.add_root(root, &gateway, dirty);
        self.roots.insert(gateway.clone(), root);
        let objects = Snapshot::default();
        self.closures.insert(root, Closure { gateway, objects });
    }

    fn is_ours(&self, gateway: &ObjectRef) -> bool {
        let gateways = &self.seen.gateways;
        let Some(gateway) = gateways.get(&gateway.namespace, &gateway.name) else {
            return false;
        };
        let class = &gateway.spec.gateway_class_name;
        let class = self.seen.gateway_classes.get("", class);
        class.is_some_and(|class| class.spec.controller_name == *self.options.controller_name)
    }
}

impl Closure {
    /// Updates the objects with these names. `current` returns an object if it is part of the closure.
    fn follow(
        &mut self,
        names: BTreeSet<ObjectRef>,
        current: impl Fn(&ObjectRef) -> Option<Object>,
    ) -> Vec<ObjectChange> {
        let mut changes = Vec::new();
        for name in names {
            match current(&name) {
                Some(object) if self.objects.insert(object.clone()) => {
                    changes.push(ObjectChange::Put(object));
                }
                None if self.objects.remove(&name) => {
                    changes.push(ObjectChange::Delete(name));
                }
                Some(_) | None => {}
            }
        }
        changes
    }
}

fn is_kind<T: Resource>(name: &ObjectRef) -> bool {
    &*name.group == T::GROUP && &*name.kind == T::KIND
}
