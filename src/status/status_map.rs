//! Statuses of the objects of a kind, in maps whose versions share what is equal.

use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;

use crate::ir::ObjectRef;

/// Statuses of the objects of a kind, by name. Backed by a persistent map: clones share unchanged entries.
pub type StatusMap<T> = OrdMap<ObjectRef, Arc<T>>;

/// Returns the entries that are new or differ from those of `previous`. Skips what both maps share.
pub(super) fn changed_since<'a, T: Eq + ?Sized>(
    now: &'a StatusMap<T>,
    previous: &StatusMap<T>,
) -> Vec<(&'a ObjectRef, &'a Arc<T>)> {
    let changed = previous.diff(now).filter_map(|item| match item {
        DiffItem::Add(object, status) => Some((object, status)),
        DiffItem::Update { new, .. } => Some(new),
        DiffItem::Remove(..) => None,
    });
    changed.collect()
}

/// Returns the names of the entries that are new, removed or changed. Skips what both maps share.
pub fn names_changed_since<T: PartialEq>(
    now: &OrdMap<ObjectRef, T>,
    previous: &OrdMap<ObjectRef, T>,
) -> Vec<ObjectRef> {
    let name = |item: DiffItem<'_, '_, ObjectRef, T>| match item {
        DiffItem::Add(name, _) | DiffItem::Remove(name, _) => name.clone(),
        DiffItem::Update { new: (name, _), .. } => name.clone(),
    };
    previous.diff(now).map(name).collect()
}

/// Replaces the statuses that `change` changes. The others stay shared with clones of the map.
pub(super) fn update<T: Clone + PartialEq>(
    statuses: &mut StatusMap<T>,
    change: impl Fn(&ObjectRef, &mut T),
) {
    let changed = |(name, status): (&ObjectRef, &Arc<T>)| {
        let mut new = T::clone(status);
        change(name, &mut new);
        (new != **status).then(|| (name.clone(), Arc::new(new)))
    };
    let changed: Vec<_> = statuses.iter().filter_map(changed).collect();
    statuses.extend(changed);
}

/// Sets or removes the status of an object. An equal one stays shared with clones of the map.
pub(super) fn set_or_remove<T: PartialEq>(
    statuses: &mut StatusMap<T>,
    object: &ObjectRef,
    status: Option<T>,
) {
    // `imbl` copies the shared nodes on the path to a key, even if nothing changes.
    match (statuses.get(object), status) {
        (Some(known), Some(status)) if **known == status => {}
        (None, None) => {}
        (_, Some(status)) => drop(statuses.insert(object.clone(), Arc::new(status))),
        (Some(_), None) => drop(statuses.remove(object)),
    }
}
