//! Tracks which Secrets and ConfigMaps to hold in memory: those that objects reference, whether permitted or not. Counts
//! references, so that a change costs only the references of the changed object. Owns the fetch state of each. Does no I/O.

use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};

use super::references::References;
use crate::api::{ObjectRef, Text};

/// Fetch state of a referenced object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FetchState {
    /// Not known: the watch reported it before it was referenced.
    Unknown,
    /// Known from the watch, whether it exists or not.
    Watched,
    /// Known from a fetch, at this version. The watch may still report older versions.
    Fetched(Option<u64>),
}

/// A referenced object.
#[derive(Debug)]
struct Entry {
    state: FetchState,
    /// Namespaces of the objects that refer to it, each with the number of references. Empty until the entry is dropped.
    referrers: Vec<(Text, u32)>,
}

/// A version of an object before the stored one, while that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Earlier {
    /// It is published.
    Published,
    /// It is published next.
    Next,
}

/// A version of an object with references.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Version {
    object: ObjectRef,
    /// `None` is the stored one.
    earlier: Option<Earlier>,
}

/// Objects for which the need of a fetch has changed, each with the namespaces of the objects that refer to it. Without
/// namespaces, a fetch is no longer wanted.
pub(super) type WantedChanges = Vec<(ObjectRef, Vec<Text>)>;

/// The referenced Secrets and ConfigMaps.
#[derive(Debug, Default)]
pub(super) struct Referenced {
    versions: FxHashMap<Version, References>,
    /// The versions of ListenerSets, by their parent.
    children: FxHashMap<ObjectRef, FxHashSet<Version>>,
    named: FxHashMap<ObjectRef, Entry>,
    /// Names that may have lost their last reference.
    unreferenced: Vec<ObjectRef>,
    /// Names for which the need of a fetch may have changed.
    changed: Vec<ObjectRef>,
    /// The only watched namespaces; empty means all.
    namespaces: BTreeSet<String>,
}

impl Referenced {
    /// Creates an empty set. Objects outside of `namespaces` are never held.
    pub(super) fn within(namespaces: BTreeSet<String>) -> Self {
        Self {
            namespaces,
            ..Self::default()
        }
    }

    /// Replaces the references of an object. Those of the version before count as those of an earlier one, if it is kept.
    pub(super) fn replace(
        &mut self,
        object: &ObjectRef,
        references: References,
        kept: Option<Earlier>,
    ) {
        let version = Version::stored(object);
        let former = self.versions.get(&version);
        if kept.is_none() && former == Some(&references) {
            return;
        }
        let former = self.take(&version);
        let is_new = former.is_none();
        // Add before removing, so that names of both versions do not seem unreferenced in between.
        self.add(version, references);
        if is_new {
            self.count_children(object, true);
        }
        match (former, kept) {
            (Some(former), Some(earlier)) => self.set_earlier(object, earlier, former),
            (Some(former), None) => self.count(object, &former, false),
            (None, _) => {}
        }
    }

    /// Counts the references of the stored version, which is deleted, as those of an earlier one, too: another version may take
    /// its place.
    pub(super) fn keep(&mut self, object: &ObjectRef, earlier: Earlier) {
        let stored = self.versions.get(&Version::stored(object));
        if let Some(references) = stored.cloned() {
            self.count(object, &references, true);
            self.set_earlier(object, earlier, references);
        }
    }

    /// Replaces the references of a version of an object before the stored one. `None` says that there is no such version.
    pub(super) fn replace_earlier(
        &mut self,
        object: &ObjectRef,
        earlier: Earlier,
        references: Option<References>,
    ) {
        match references {
            Some(references) => {
                self.count(object, &references, true);
                self.set_earlier(object, earlier, references);
            }
            None => self.forget_version(&Version::earlier(object, earlier)),
        }
    }

    /// Records that the next version of an object is published.
    pub(super) fn publish_next(&mut self, object: &ObjectRef) {
        if let Some(next) = self.take(&Version::earlier(object, Earlier::Next)) {
            self.set_earlier(object, Earlier::Published, next);
        }
    }

    /// Stores the references of an earlier version, which are already counted.
    fn set_earlier(&mut self, object: &ObjectRef, earlier: Earlier, references: References) {
        let version = Version::earlier(object, earlier);
        self.forget_version(&version);
        self.insert(version, references);
    }

    /// Forgets the references of the versions of an object before the stored one.
    pub(super) fn forget_earlier(&mut self, object: &ObjectRef) {
        for earlier in [Earlier::Published, Earlier::Next] {
            self.forget_version(&Version::earlier(object, earlier));
        }
    }

    fn forget_version(&mut self, version: &Version) {
        if let Some(former) = self.take(version) {
            self.count(&version.object, &former, false);
        }
    }

    /// Forgets the references of a deleted object.
    pub(super) fn forget(&mut self, object: &ObjectRef) {
        self.forget_earlier(object);
        if let Some(former) = self.take(&Version::stored(object)) {
            self.count(object, &former, false);
            self.count_children(object, false);
        }
    }

    /// Returns the references of the stored ListenerSets of a Gateway, whether the Gateway exists or not.
    pub(super) fn of_children(&self, gateway: &ObjectRef) -> impl Iterator<Item = &References> {
        let children = self.children.get(gateway).into_iter().flatten();
        let stored = children.filter(|child| child.earlier.is_none());
        stored.filter_map(|child| self.versions.get(child))
    }

    /// Drops the names that are no longer referenced, and returns them.
    pub(super) fn drop_unreferenced(&mut self) -> Vec<ObjectRef> {
        let mut names = std::mem::take(&mut self.unreferenced);
        names.retain(|name| {
            let entry = self.named.get(name);
            let Some(entry) = entry.filter(|entry| entry.referrers.is_empty()) else {
                return false;
            };
            if entry.state == FetchState::Unknown {
                self.changed.push(name.clone());
            }
            self.named.remove(name);
            true
        });
        names
    }

    fn add(&mut self, version: Version, references: References) {
        self.count(&version.object, &references, true);
        self.insert(version, references);
    }

    /// Stores a version that is already counted.
    fn insert(&mut self, version: Version, references: References) {
        if let Some(parent) = &references.parent {
            let children = self.children.entry(parent.clone()).or_default();
            children.insert(version.clone());
        }
        self.versions.insert(version, references);
    }

    /// Removes a version that stays counted.
    fn take(&mut self, version: &Version) -> Option<References> {
        let references = self.versions.remove(version)?;
        if let Some(parent) = &references.parent
            && let Some(children) = self.children.get_mut(parent)
        {
            children.remove(version);
            if children.is_empty() {
                self.children.remove(parent);
            }
        }
        Some(references)
    }

    /// Counts the ListenerSets of a Gateway that appears or disappears.
    fn count_children(&mut self, gateway: &ObjectRef, is_added: bool) {
        let children = self.children.get(gateway).into_iter().flatten();
        let versions = children.filter_map(|child| {
            let references = self.versions.get(child)?;
            Some((child.object.namespace.clone(), references.names.clone()))
        });
        for (namespace, names) in versions.collect::<Vec<_>>() {
            self.count_names(&namespace, &names, is_added);
        }
    }

    fn count(&mut self, object: &ObjectRef, references: &References, is_added: bool) {
        let parent = references.parent.as_ref();
        if parent.is_none_or(|parent| self.versions.contains_key(&Version::stored(parent))) {
            self.count_names(&object.namespace, &references.names, is_added);
        }
    }

    fn count_names(&mut self, namespace: &Text, names: &[ObjectRef], is_added: bool) {
        for name in names {
            match is_added {
                true if self.is_watched(name) => self.count_one(namespace, name),
                true => {}
                false => self.discount_one(namespace, name),
            }
        }
    }

    fn count_one(&mut self, namespace: &Text, name: &ObjectRef) {
        let entry = self.named.entry(name.clone()).or_insert(Entry {
            state: FetchState::Unknown,
            referrers: Vec::new(),
        });
        let mut referrers = entry.referrers.iter_mut();
        if let Some((_, count)) = referrers.find(|(of, _)| of == namespace) {
            *count += 1;
            return;
        }
        entry.referrers.push((namespace.clone(), 1));
        if entry.state == FetchState::Unknown {
            self.changed.push(name.clone());
        }
    }

    fn discount_one(&mut self, namespace: &Text, name: &ObjectRef) {
        let Some(Entry { state, referrers }) = self.named.get_mut(name) else {
            return;
        };
        let Some(at) = referrers.iter().position(|(of, _)| of == namespace) else {
            return;
        };
        referrers[at].1 -= 1;
        if referrers[at].1 > 0 {
            return;
        }
        referrers.swap_remove(at);
        if referrers.is_empty() {
            self.unreferenced.push(name.clone());
        } else if *state == FetchState::Unknown {
            self.changed.push(name.clone());
        }
    }

    fn is_watched(&self, name: &ObjectRef) -> bool {
        self.namespaces.is_empty() || self.namespaces.contains(&*name.namespace)
    }

    /// Reports whether an object is referenced.
    pub(super) fn has(&self, name: &ObjectRef) -> bool {
        self.named.contains_key(name)
    }

    /// Reports whether an object is known, whether it exists or not, or never will be.
    pub(super) fn is_known(&self, name: &ObjectRef) -> bool {
        match self.named.get(name) {
            Some(entry) => entry.state != FetchState::Unknown,
            None => !self.is_watched(name),
        }
    }

    /// Records a watch event. Returns whether to apply it: the object is referenced and no newer
    /// version is known.
    pub(super) fn accept_watched(&mut self, name: &ObjectRef, version: Option<u64>) -> bool {
        let Some(Entry { state, .. }) = self.named.get_mut(name) else {
            return false;
        };
        match *state {
            FetchState::Fetched(fetched) if version.is_some() && version <= fetched => {
                return false;
            }
            FetchState::Unknown => self.changed.push(name.clone()),
            FetchState::Watched | FetchState::Fetched(_) => {}
        }
        *state = FetchState::Watched;
        true
    }

    /// Records that a list does not contain an object. The object may be newer than the list.
    /// Returns whether it is referenced, so that a fetch decides.
    pub(super) fn record_unlisted(&mut self, name: &ObjectRef) -> bool {
        let Some(entry) = self.named.get_mut(name) else {
            return false;
        };
        entry.state = FetchState::Unknown;
        self.changed.push(name.clone());
        true
    }

    /// Records a fetched object. Returns whether to apply it: the object is referenced and the
    /// watch has not reported it since.
    pub(super) fn accept_fetched(&mut self, name: &ObjectRef, version: Option<u64>) -> bool {
        let entry = self.named.get_mut(name);
        let Some(entry) = entry.filter(|entry| entry.state == FetchState::Unknown) else {
            return false;
        };
        entry.state = FetchState::Fetched(version);
        true
    }

    /// Declares that the need of every fetch may have changed.
    pub(super) fn recheck(&mut self) {
        let named = self.named.iter();
        let unknown = named.filter(|(_, entry)| entry.state == FetchState::Unknown);
        self.changed.extend(unknown.map(|(name, _)| name.clone()));
    }

    /// Returns for which objects the need of a fetch has changed since the last call. Objects that `is_listed` does not
    /// accept need none.
    pub(super) fn take_wanted(&mut self, is_listed: impl Fn(&ObjectRef) -> bool) -> WantedChanges {
        let changed = std::mem::take(&mut self.changed).into_iter();
        let changes = changed.map(|name| {
            let entry = self.named.get(&name);
            let entry = entry.filter(|it| it.state == FetchState::Unknown && is_listed(&name));
            let referrers = entry.map_or(&[][..], |entry| &entry.referrers);
            let namespaces = referrers.iter().map(|(namespace, _)| namespace.clone());
            let namespaces = namespaces.collect();
            (name, namespaces)
        });
        changes.collect()
    }

    /// Reports whether any object has to be fetched.
    pub(super) fn is_waiting(&self) -> bool {
        let mut entries = self.named.values();
        entries.any(|entry| entry.state == FetchState::Unknown)
    }
}

impl Version {
    fn stored(object: &ObjectRef) -> Self {
        Self {
            object: object.clone(),
            earlier: None,
        }
    }

    fn earlier(object: &ObjectRef, earlier: Earlier) -> Self {
        Self {
            earlier: Some(earlier),
            ..Self::stored(object)
        }
    }
}

#[cfg(test)]
mod tests;
