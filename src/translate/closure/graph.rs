//! The graph of links between objects, and the closure of each Gateway: all objects that are reachable from it. Counts
//! references, so that a change costs only what it reaches. Must not know objects beyond their names and links.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::ir::ObjectRef;

use super::links::{Links, Source};

/// The number of a Gateway that is the root of a closure.
pub(super) type Root = u32;

/// The objects whose membership or content may have changed, by closure.
pub(super) type Dirty = BTreeMap<Root, BTreeSet<ObjectRef>>;

/// Objects and their links. Contains only objects with links from or to them.
#[derive(Default)]
pub(super) struct Graph {
    nodes: FxHashMap<ObjectRef, Node>,
    /// Objects whose links depend on a source, in order.
    dependents: FxHashMap<Source, Vec<ObjectRef>>,
    roots: BTreeMap<Root, Labels>,
}

/// An object, or a name that others refer to and that does not exist.
#[derive(Default)]
struct Node {
    links: Links,
    /// Objects that belong to it, in order.
    members: Vec<ObjectRef>,
    /// The closures that contain it, in order, each with the number of links from that closure to it.
    holders: Vec<(Root, u32)>,
}

/// Whether the labels of namespaces affect a Gateway.
#[derive(Default)]
struct Labels {
    /// Number of objects in its closure that select namespaces by label.
    selecting: usize,
    /// The namespaces in its closure.
    namespaces: BTreeSet<ObjectRef>,
}

impl Graph {
    /// Returns the objects whose links depend on `source`.
    pub(super) fn dependents(&self, source: &Source) -> &[ObjectRef] {
        self.dependents.get(source).map_or(&[], Vec::as_slice)
    }

    /// Returns the closures that contain an object.
    pub(super) fn holders(&self, name: &ObjectRef) -> impl Iterator<Item = Root> {
        let holders = self.nodes.get(name).map_or(&[][..], |node| &node.holders);
        holders.iter().map(|(root, _)| *root)
    }

    /// Reports whether an object is part of a closure. Namespaces are part of it only while an object selects them by
    /// label.
    pub(super) fn has(&self, root: Root, name: &ObjectRef) -> bool {
        let selects = || {
            let labels = self.roots.get(&root);
            labels.is_some_and(|labels| labels.selecting > 0)
        };
        let node = self.nodes.get(name);
        node.is_some_and(|node| node.is_held_by(root)) && (!is_namespace(name) || selects())
    }

    /// Creates the closure of a Gateway.
    pub(super) fn add_root(&mut self, root: Root, gateway: &ObjectRef, dirty: &mut Dirty) {
        self.roots.insert(root, Labels::default());
        self.hold(root, gateway, dirty);
    }

    /// Removes the closure of a Gateway.
    pub(super) fn remove_root(&mut self, root: Root, gateway: &ObjectRef, dirty: &mut Dirty) {
        self.release(root, gateway, dirty);
        self.roots.remove(&root);
    }

    /// Replaces the links of an object. A deleted object has none.
    pub(super) fn link(&mut self, name: &ObjectRef, links: Links, dirty: &mut Dirty) {
        let known = self.nodes.get(name).map(|node| &node.links);
        if known.map_or(links == Links::default(), |known| *known == links) {
            return;
        }
        let added = |before: &[ObjectRef], now: &[ObjectRef]| {
            let is_new = |name: &&ObjectRef| before.binary_search(name).is_err();
            now.iter().filter(is_new).cloned().collect::<Vec<_>>()
        };
        let node = self.nodes.entry(name.clone()).or_default();
        let former = std::mem::replace(&mut node.links, links);
        let now = &node.links;
        let selected = (former.selects_namespaces, now.selects_namespaces);
        let referred = added(&former.refers_to, &now.refers_to);
        let unreferred = added(&now.refers_to, &former.refers_to);
        let joined = added(&former.belongs_to, &now.belongs_to);
        let left = added(&now.belongs_to, &former.belongs_to);
        let depends_on = now.depends_on.clone();
        let holders: Vec<Root> = self.holders(name).collect();
        self.depend(name, &former.depends_on, &depends_on);
        // Add before removing, so that objects that both versions reach are not dropped in between.
        for root in holders {
            self.select(root, selected.0, selected.1, dirty);
            for target in &referred {
                self.hold(root, target, dirty);
            }
            for target in &unreferred {
                self.release(root, target, dirty);
            }
        }
        for parent in joined {
            insert(
                &mut self.nodes.entry(parent.clone()).or_default().members,
                name,
            );
            let holders: Vec<Root> = self.holders(&parent).collect();
            holders
                .into_iter()
                .for_each(|root| self.hold(root, name, dirty));
        }
        for parent in left {
            if let Some(node) = self.nodes.get_mut(&parent) {
                remove(&mut node.members, name);
            }
            let holders: Vec<Root> = self.holders(&parent).collect();
            holders
                .into_iter()
                .for_each(|root| self.release(root, name, dirty));
            self.forget_idle(&parent);
        }
        self.forget_idle(name);
    }

    /// Counts one more link to an object in a closure. The first link adds the object, and counts its links in turn.
    fn hold(&mut self, root: Root, name: &ObjectRef, dirty: &mut Dirty) {
        let mut rest = vec![name.clone()];
        while let Some(name) = rest.pop() {
            let node = self.nodes.entry(name.clone()).or_default();
            if !node.hold(root) {
                continue;
            }
            node.neighbours_into(&mut rest);
            let selects = node.links.selects_namespaces;
            self.select(root, false, selects, dirty);
            if is_namespace(&name)
                && let Some(labels) = self.roots.get_mut(&root)
            {
                labels.namespaces.insert(name.clone());
            }
            dirty.entry(root).or_default().insert(name);
        }
    }

    /// Undoes one link to an object in a closure. Removing the last link removes the object, and its links in turn.
    /// Relies on the absence of cycles: objects in a cycle would keep each other (see [`super::links`]).
    fn release(&mut self, root: Root, name: &ObjectRef, dirty: &mut Dirty) {
        let mut rest = vec![name.clone()];
        while let Some(name) = rest.pop() {
            let Some(node) = self.nodes.get_mut(&name) else {
                continue;
            };
            if !node.release(root) {
                continue;
            }
            node.neighbours_into(&mut rest);
            let selects = node.links.selects_namespaces;
            self.select(root, selects, false, dirty);
            if let Some(labels) = self.roots.get_mut(&root) {
                labels.namespaces.remove(&name);
            }
            self.forget_idle(&name);
            dirty.entry(root).or_default().insert(name);
        }
    }

    /// Counts the objects of a closure that select namespaces. The first one adds the namespaces, and the last one
    /// removes them.
    fn select(&mut self, root: Root, before: bool, now: bool, dirty: &mut Dirty) {
        let Some(labels) = self.roots.get_mut(&root).filter(|_| before != now) else {
            return;
        };
        let mattered = labels.selecting > 0;
        labels.selecting = match now {
            true => labels.selecting + 1,
            false => labels.selecting.saturating_sub(1),
        };
        if mattered != (labels.selecting > 0) {
            let namespaces = labels.namespaces.iter().cloned();
            dirty.entry(root).or_default().extend(namespaces);
        }
    }

    fn depend(&mut self, name: &ObjectRef, before: &[Source], now: &[Source]) {
        for source in now {
            let dependents = self.dependents.entry(source.clone()).or_default();
            insert(dependents, name);
        }
        for source in before.iter().filter(|source| !now.contains(source)) {
            if let Some(dependents) = self.dependents.get_mut(source) {
                remove(dependents, name);
                if dependents.is_empty() {
                    self.dependents.remove(source);
                }
            }
        }
    }

    fn forget_idle(&mut self, name: &ObjectRef) {
        if self.nodes.get(name).is_some_and(Node::is_idle) {
            self.nodes.remove(name);
        }
    }
}

impl Node {
    fn is_held_by(&self, root: Root) -> bool {
        self.holders
            .binary_search_by_key(&root, |one| one.0)
            .is_ok()
    }

    /// Counts a link. Returns whether it is the first one from this closure.
    fn hold(&mut self, root: Root) -> bool {
        match self.holders.binary_search_by_key(&root, |one| one.0) {
            Ok(at) => self.holders[at].1 += 1,
            Err(at) => {
                self.holders.insert(at, (root, 1));
                return true;
            }
        }
        false
    }

    /// Undoes a link. Returns whether it was the last one from this closure.
    fn release(&mut self, root: Root) -> bool {
        let Ok(at) = self.holders.binary_search_by_key(&root, |one| one.0) else {
            return false;
        };
        self.holders[at].1 -= 1;
        let is_last = self.holders[at].1 == 0;
        if is_last {
            self.holders.remove(at);
        }
        is_last
    }

    /// Appends the objects that are in every closure that contains this one.
    fn neighbours_into(&self, names: &mut Vec<ObjectRef>) {
        names.extend_from_slice(&self.links.refers_to);
        names.extend_from_slice(&self.members);
    }

    fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.members.is_empty() && self.links == Links::default()
    }
}

fn is_namespace(name: &ObjectRef) -> bool {
    name.group.is_empty() && &*name.kind == "Namespace"
}

fn insert(names: &mut Vec<ObjectRef>, name: &ObjectRef) {
    if let Err(at) = names.binary_search(name) {
        names.insert(at, name.clone());
    }
}

fn remove(names: &mut Vec<ObjectRef>, name: &ObjectRef) {
    if let Ok(at) = names.binary_search(name) {
        names.remove(at);
    }
}
