//! The graph of links between objects, and the closure of each Gateway: all objects that are reachable from it. Counts
//! references, so that a change costs only what it reaches. Must not know objects beyond their names and links.

use std::cmp::Ordering;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::api::reference::Purpose;
use crate::ir::ObjectRef;
use crate::translate::links::{Links, Reference, Source};

/// The number of a Gateway that is the root of a closure.
pub(super) type Root = u32;

/// The objects whose membership or content may have changed, by closure. May contain an object repeatedly.
pub(super) type Dirty = BTreeMap<Root, Vec<ObjectRef>>;

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
    /// `None` if there are none, as for most objects.
    edges: Option<Box<Edges>>,
    /// The closures that contain it, in order.
    holders: Vec<Holder>,
}

/// The edges from an object to others.
#[derive(Default)]
struct Edges {
    links: Links,
    /// Objects that belong to it, in order.
    members: Vec<ObjectRef>,
}

/// A closure that contains an object.
struct Holder {
    root: Root,
    /// Number of links from the closure to the object.
    links: u32,
    /// Number of those for each purpose.
    by_purpose: [u32; Purpose::ALL.len()],
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
        holders.iter().map(|holder| holder.root)
    }

    /// Reports whether an object is part of a closure. Namespaces are part of it only while an object selects them by
    /// label.
    pub(super) fn has(&self, root: Root, name: &ObjectRef) -> bool {
        let selects = || {
            let labels = self.roots.get(&root);
            labels.is_some_and(|labels| labels.selecting > 0)
        };
        let node = self.nodes.get(name);
        node.is_some_and(|node| node.holder(root).is_some()) && (!is_namespace(name) || selects())
    }

    /// Reports whether a closure uses an object for a purpose.
    pub(super) fn has_for(&self, root: Root, name: &ObjectRef, purpose: Purpose) -> bool {
        let holder = self.nodes.get(name).and_then(|node| node.holder(root));
        holder.is_some_and(|holder| holder.by_purpose[purpose as usize] > 0)
    }

    /// Creates the closure of a Gateway.
    pub(super) fn add_root(&mut self, root: Root, gateway: &ObjectRef, dirty: &mut Dirty) {
        self.roots.insert(root, Labels::default());
        self.hold(root, vec![whole(gateway)], dirty);
    }

    /// Removes the closure of a Gateway.
    pub(super) fn remove_root(&mut self, root: Root, gateway: &ObjectRef, dirty: &mut Dirty) {
        self.release(root, vec![whole(gateway)], dirty);
        self.roots.remove(&root);
    }

    /// Replaces the links of an object. A deleted object has none.
    pub(super) fn link(&mut self, name: &ObjectRef, links: Links, dirty: &mut Dirty) {
        let edges = self.nodes.get(name).and_then(|node| node.edges.as_ref());
        if edges.map_or(links == Links::default(), |edges| edges.links == links) {
            return;
        }
        let edges = self.edges(name);
        let previous = std::mem::replace(&mut edges.links, links);
        let now = &edges.links;
        let selected = (previous.selects_namespaces, now.selects_namespaces);
        let referred = added(&previous.refers_to, &now.refers_to);
        let unreferred = added(&now.refers_to, &previous.refers_to);
        let joined = added(&previous.belongs_to, &now.belongs_to);
        let left = added(&now.belongs_to, &previous.belongs_to);
        let depends_on = now.depends_on.clone();
        let holders: Vec<Root> = self.holders(name).collect();
        self.depend(name, &previous.depends_on, &depends_on);
        // Add before removing, so that objects that both versions reach are not dropped in between.
        for root in holders {
            self.select(root, selected.0, selected.1, dirty);
            self.hold(root, referred.clone(), dirty);
            self.release(root, unreferred.clone(), dirty);
        }
        for parent in joined {
            insert(&mut self.edges(&parent).members, name);
            let holders: Vec<Root> = self.holders(&parent).collect();
            for root in holders {
                self.hold(root, vec![whole(name)], dirty);
            }
        }
        for parent in left {
            remove(&mut self.edges(&parent).members, name);
            let holders: Vec<Root> = self.holders(&parent).collect();
            for root in holders {
                self.release(root, vec![whole(name)], dirty);
            }
            self.forget_idle(&parent);
        }
        self.forget_idle(name);
    }

    fn edges(&mut self, name: &ObjectRef) -> &mut Edges {
        let node = self.nodes.entry(name.clone()).or_default();
        node.edges.get_or_insert_default()
    }

    /// Counts one more link from a closure to each object. The first link adds an object, and counts its links in turn.
    fn hold(&mut self, root: Root, references: Vec<Reference>, dirty: &mut Dirty) {
        let mut rest = references;
        while let Some(Reference { name, purpose }) = rest.pop() {
            let node = self.nodes.entry(name.clone()).or_default();
            let Counted { links, for_purpose } = node.hold(root, purpose);
            if links == 1 {
                let selects = node.neighbours_into(&mut rest);
                self.select(root, false, selects, dirty);
                if is_namespace(&name)
                    && let Some(labels) = self.roots.get_mut(&root)
                {
                    labels.namespaces.insert(name.clone());
                }
            }
            if links == 1 || for_purpose == Some(1) {
                dirty.entry(root).or_default().push(name);
            }
        }
    }

    /// Undoes one link from a closure to each object. Removing the last link removes an object, and its links in turn.
    /// Relies on the absence of cycles: objects in a cycle would keep each other (see [`super::links`]).
    fn release(&mut self, root: Root, references: Vec<Reference>, dirty: &mut Dirty) {
        let mut rest = references;
        while let Some(Reference { name, purpose }) = rest.pop() {
            let Some(node) = self.nodes.get_mut(&name) else {
                continue;
            };
            let Some(Counted { links, for_purpose }) = node.release(root, purpose) else {
                continue;
            };
            if links == 0 {
                let selects = node.neighbours_into(&mut rest);
                self.select(root, selects, false, dirty);
                if is_namespace(&name)
                    && let Some(labels) = self.roots.get_mut(&root)
                {
                    labels.namespaces.remove(&name);
                }
                self.forget_idle(&name);
            }
            if links == 0 || for_purpose == Some(0) {
                dirty.entry(root).or_default().push(name);
            }
        }
    }

    /// Counts the objects of a closure that select namespaces. The first one adds the namespaces, and the last one
    /// removes them.
    fn select(&mut self, root: Root, previous: bool, now: bool, dirty: &mut Dirty) {
        let Some(labels) = self.roots.get_mut(&root).filter(|_| previous != now) else {
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

    fn depend(&mut self, name: &ObjectRef, previous: &[Source], now: &[Source]) {
        for source in now {
            let dependents = self.dependents.entry(source.clone()).or_default();
            insert(dependents, name);
        }
        for source in previous.iter().filter(|source| !now.contains(source)) {
            if let Some(dependents) = self.dependents.get_mut(source) {
                remove(dependents, name);
                if dependents.is_empty() {
                    self.dependents.remove(source);
                }
            }
        }
    }

    fn forget_idle(&mut self, name: &ObjectRef) {
        if let Entry::Occupied(mut entry) = self.nodes.entry(name.clone()) {
            let node = entry.get_mut();
            node.edges.take_if(|edges| edges.are_none());
            if node.edges.is_none() && node.holders.is_empty() {
                entry.remove();
            }
        }
    }
}

/// The number of links from a closure to an object after a change.
struct Counted {
    links: u32,
    /// The number of those for the purpose of the changed link.
    for_purpose: Option<u32>,
}

impl Node {
    fn find(&self, root: Root) -> Result<usize, usize> {
        self.holders.binary_search_by_key(&root, |one| one.root)
    }

    fn holder(&self, root: Root) -> Option<&Holder> {
        self.find(root).ok().map(|at| &self.holders[at])
    }

    /// Counts a link.
    fn hold(&mut self, root: Root, purpose: Option<Purpose>) -> Counted {
        let at = self.find(root).unwrap_or_else(|at| {
            let holder = Holder {
                root,
                links: 0,
                by_purpose: Default::default(),
            };
            // Most objects are in one closure.
            self.holders
                .reserve_exact(usize::from(self.holders.is_empty()));
            self.holders.insert(at, holder);
            at
        });
        self.holders[at].count(purpose, |count| *count += 1)
    }

    /// Undoes a link; `None` if the closure has none.
    fn release(&mut self, root: Root, purpose: Option<Purpose>) -> Option<Counted> {
        let at = self.find(root).ok()?;
        let counted = self.holders[at].count(purpose, |count| *count = count.saturating_sub(1));
        if counted.links == 0 {
            self.holders.remove(at);
        }
        Some(counted)
    }

    /// Appends the objects that are in every closure that contains this one. Returns whether it selects namespaces by
    /// label.
    fn neighbours_into(&self, references: &mut Vec<Reference>) -> bool {
        let Some(edges) = &self.edges else {
            return false;
        };
        references.extend_from_slice(&edges.links.refers_to);
        references.extend(edges.members.iter().map(whole));
        edges.links.selects_namespaces
    }
}

impl Holder {
    fn count(&mut self, purpose: Option<Purpose>, change: impl Fn(&mut u32)) -> Counted {
        change(&mut self.links);
        let for_purpose = purpose.map(|it| {
            let count = &mut self.by_purpose[it as usize];
            change(count);
            *count
        });
        Counted {
            links: self.links,
            for_purpose,
        }
    }
}

impl Edges {
    fn are_none(&self) -> bool {
        self.members.is_empty() && self.links == Links::default()
    }
}

/// Returns a reference to an object without a purpose.
fn whole(name: &ObjectRef) -> Reference {
    Reference {
        name: name.clone(),
        purpose: None,
    }
}

/// Returns what only the second of two sorted lists contains.
fn added<T: Ord + Clone>(previous: &[T], now: &[T]) -> Vec<T> {
    let mut previous = previous.iter().peekable();
    let mut added = Vec::new();
    for one in now {
        while previous.next_if(|it| *it < one).is_some() {}
        if previous
            .peek()
            .is_none_or(|it| it.cmp(&one) != Ordering::Equal)
        {
            added.push(one.clone());
        }
    }
    added
}

fn is_namespace(name: &ObjectRef) -> bool {
    name.is_core("Namespace")
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
