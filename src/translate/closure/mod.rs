//! The closure of each Gateway: the objects that its translation in [`Mode::Dedicated`] uses, without the routes that it
//! refuses. Updated from one snapshot to the next. Must not know who receives the objects.

mod acceptance;
mod contents;
mod credentials;
mod graph;
mod links;

use std::collections::{BTreeMap, BTreeSet};

use crate::api::gateway::{Gateway, GatewayClass};
use crate::api::reference::Purpose;
use crate::api::{Object, Resource};
use crate::ir::ObjectRef;
use crate::snapshot::Snapshot;

use self::acceptance::Acceptance;
use self::contents::Use;
use self::graph::{Dirty, Graph, Root};

use super::changes::Changes;
use super::input::{Input, Mode, Options};
use crate::translate::registry::Registry;

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

impl ObjectChange {
    /// Returns the name of the object.
    pub fn object(&self) -> ObjectRef {
        match self {
            Self::Put(object) => {
                let meta = object.meta();
                object.kind().object_ref(&meta.namespace, &meta.name)
            }
            Self::Delete(name) => name.clone(),
        }
    }
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
        let previous = std::mem::replace(&mut self.seen, snapshot.clone());
        let mut changes = Changes::between(previous, snapshot);
        let mut dirty = Dirty::new();
        let input = Input::new(&self.seen, None, &self.options, &Registry);
        self.acceptance.step(&input, &mut changes);
        self.link(&mut changes, &mut dirty);
        let gone = self.follow_gateways(&changes, &mut dirty);
        for name in changes.objects() {
            for root in self.graph.holders(name) {
                dirty.entry(root).or_default().push(name.clone());
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
            let gateway = closure.gateway.clone();
            let credentials = &self.acceptance.credentials;
            let changes = closure.follow(names, |name| {
                let object = snapshot.object(name);
                let object = object.filter(|_| self.graph.has(root, name))?;
                let is_for = |it: &Purpose| self.graph.has_for(root, name, *it);
                let how = || Use {
                    purposes: Purpose::ALL.into_iter().filter(is_for).collect(),
                    credentials: credentials.read_from(name, &gateway),
                    withheld: credentials.withheld(name, &gateway),
                };
                Some(contents::used(object, how))
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
    fn link(&mut self, changes: &mut Changes, dirty: &mut Dirty) {
        let mut names: BTreeSet<ObjectRef> = changes.objects().iter().cloned().collect();
        names.extend(self.acceptance.credentials.touched().iter().cloned());
        let sources = changes.sources().iter();
        let dependents = sources.flat_map(|source| self.graph.dependents(source));
        names.extend(dependents.cloned());
        self.link_each(&names, dirty);
        // Budgets first: a route that exceeds one conflicts with no other.
        let decided = self.acceptance.decide_budgets();
        self.link_each(&decided, dirty);
        let decided = self.acceptance.decide_conflicts();
        self.link_each(&decided, dirty);
        // At last: where a policy has an effect depends on which routes are attached.
        let input = Input::new(&self.seen, None, &self.options, &Registry);
        for name in self.acceptance.decide_credentials(&input, changes) {
            for root in self.graph.holders(&name) {
                dirty.entry(root).or_default().push(name.clone());
            }
        }
    }

    fn link_each(&mut self, names: &BTreeSet<ObjectRef>, dirty: &mut Dirty) {
        let input = Input::new(&self.seen, None, &self.options, &Registry);
        for name in names {
            let object = self.seen.object(name);
            let links = object.map(|it| links::links(&input, &self.acceptance, name, &it));
            let (links, taken) = links.unwrap_or_default();
            self.acceptance.replace(name, taken);
            self.graph.link(name, links, dirty);
        }
    }

    /// Updates the set of Gateways that this controller manages. Returns those that it no longer manages.
    fn follow_gateways(&mut self, changes: &Changes, dirty: &mut Dirty) -> Vec<ObjectRef> {
        let mut gateways: BTreeSet<ObjectRef> = changes.of::<Gateway>().into_iter().collect();
        let classes = changes.of::<GatewayClass>();
        let classes: BTreeSet<&str> = classes.iter().map(|class| &*class.name).collect();
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
    /// Updates the objects with these names, some of which may be repeated. `current` returns an object if it is part of
    /// the closure. Returns the changes in the order of the names.
    fn follow(
        &mut self,
        names: Vec<ObjectRef>,
        current: impl Fn(&ObjectRef) -> Option<Object>,
    ) -> Vec<ObjectChange> {
        let mut changes = Vec::new();
        for name in names {
            match current(&name) {
                Some(object) if self.objects.insert(object.clone()) => {
                    changes.push((name, Some(object)));
                }
                None if self.objects.remove(&name) => changes.push((name, None)),
                Some(_) | None => {}
            }
        }
        // A repeated name does not change its object again.
        changes.sort_unstable_by(|one, two| one.0.cmp(&two.0));
        let change = |(name, object): (ObjectRef, Option<Object>)| {
            object.map_or(ObjectChange::Delete(name), ObjectChange::Put)
        };
        changes.into_iter().map(change).collect()
    }
}
