//! The mechanism of incremental translation. A step keeps each output with the sources that it was computed from, and
//! computes again only those of which a source has changed. Must not know the steps.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::ir::ObjectRef;
use crate::ir::sharing::Shared;
use crate::translate::changes::Changes;
use crate::translate::keys::Keys;
use crate::translate::source::Source;

/// Which outputs are computed from which sources, also from absent ones. What an output is computed from, its owner keeps.
pub(super) struct Readers<K>(FxHashMap<Source, Keys<K>>);

/// What an output is computed from: each source once. Outputs that are computed from the same few sources share their
/// list, such as the routes of a team. As small as a pointer.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Reads(Arc<Vec<Source>>);

/// The short lists of all outputs.
static LISTS: LazyLock<Shared<Arc<Vec<Source>>>> = LazyLock::new(Shared::default);

impl From<Vec<Source>> for Reads {
    fn from(sources: Vec<Source>) -> Self {
        let mut sources = once(sources);
        if sources.len() > SHORT {
            return Self(Arc::new(sources));
        }
        sources.shrink_to_fit();
        Self(LISTS.list(sources))
    }
}

impl Default for Reads {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl Deref for Reads {
    type Target = [Source];

    fn deref(&self) -> &[Source] {
        &self.0
    }
}

impl<K> Default for Readers<K> {
    fn default() -> Self {
        Self(FxHashMap::default())
    }
}

impl<K: Ord + Clone> Readers<K> {
    /// Returns the outputs that are computed from a source, in order.
    pub(super) fn of<'a>(&'a self, source: &Source) -> impl Iterator<Item = &'a K> + use<'a, K> {
        self.0.get(source).into_iter().flat_map(Keys::iter)
    }

    /// Returns the outputs of which a source has changed, in order.
    pub(super) fn outdated(&self, changes: &Changes) -> BTreeSet<K> {
        if self.0.is_empty() {
            return BTreeSet::new();
        }
        let changed = changes.sources().iter();
        changed
            .flat_map(|source| self.of(source))
            .cloned()
            .collect()
    }

    /// Replaces the sources of an output. Returns those that no output is computed from any more.
    pub(super) fn replace(&mut self, key: &K, reads: &mut Reads, now: Vec<Source>) -> Vec<Source> {
        let previous = std::mem::replace(reads, now.into());
        let mut unread = Vec::new();
        for source in absent(&previous, reads) {
            if let Some(readers) = self.0.get_mut(source)
                && readers.remove(key)
                && readers.is_empty()
            {
                self.0.remove(source);
                unread.push(source.clone());
            }
        }
        for source in absent(reads, &previous) {
            self.add(source, key);
        }
        unread
    }

    /// Adds sources of an output.
    pub(super) fn extend(&mut self, key: &K, reads: &mut Reads, more: Vec<Source>) {
        let is_new = |source: &Source| {
            let readers = self.0.get(source);
            readers.is_none_or(|readers| !readers.contains(key))
        };
        let mut new = once(more);
        new.retain(is_new);
        if new.is_empty() {
            return;
        }
        new.iter().for_each(|source| self.add(source, key));
        new.extend_from_slice(reads);
        *reads = new.into();
    }

    fn add(&mut self, source: &Source, key: &K) {
        match self.0.entry(source.clone()) {
            Entry::Occupied(mut readers) => drop(readers.get_mut().insert(key)),
            Entry::Vacant(place) => drop(place.insert(Keys::from(key.clone()))),
        }
    }
}

/// Number of sources up to which a list is searched from its beginning.
const SHORT: usize = 8;

/// Returns each source once.
fn once(mut sources: Vec<Source>) -> Vec<Source> {
    if sources.len() <= SHORT {
        sources.sort_unstable();
        sources.dedup();
    } else {
        let mut known = FxHashSet::default();
        sources.retain(|source| known.insert(source.clone()));
    }
    sources
}

/// Returns the sources that are not among others.
fn absent<'a>(sources: &'a [Source], others: &'a [Source]) -> impl Iterator<Item = &'a Source> {
    let are_same = sources == others;
    let is_long = !are_same && others.len() > SHORT;
    let known: FxHashSet<&Source> = match is_long {
        true => others.iter().collect(),
        false => FxHashSet::default(),
    };
    let is_known = move |source: &&Source| match is_long {
        true => known.contains(source),
        false => are_same || others.contains(source),
    };
    sources.iter().filter(move |source| !is_known(source))
}

/// The outputs of a step by object.
pub(super) struct Memo<T> {
    outputs: BTreeMap<ObjectRef, T>,
    readers: Readers<ObjectRef>,
    /// Those of absent outputs too.
    reads: FxHashMap<ObjectRef, Reads>,
}

impl<T> Default for Memo<T> {
    fn default() -> Self {
        Self {
            outputs: BTreeMap::new(),
            readers: Readers::default(),
            reads: FxHashMap::default(),
        }
    }
}

impl<T> Memo<T> {
    /// Returns the objects of which a source has changed, in order.
    pub(super) fn outdated(&self, changes: &Changes) -> BTreeSet<ObjectRef> {
        self.readers.outdated(changes)
    }

    /// Returns the objects whose outputs are computed from a source, in order.
    pub(super) fn readers_of<'a>(
        &'a self,
        source: &Source,
    ) -> impl Iterator<Item = &'a ObjectRef> + use<'a, T> {
        self.readers.of(source)
    }

    /// Returns the changed sources that the output of an object was computed from.
    pub(super) fn changed_reads<'a>(
        &'a self,
        object: &'a ObjectRef,
        changes: &'a Changes,
    ) -> impl Iterator<Item = &'a Source> {
        let readers = &self.readers.0;
        let is_read = |source: &&Source| {
            let readers = readers.get(*source);
            readers.is_some_and(|readers| readers.contains(object))
        };
        changes.sources().iter().filter(is_read)
    }

    /// Adds sources of the output of an object.
    pub(super) fn extend(&mut self, object: &ObjectRef, reads: Vec<Source>) {
        let known = self.reads.entry(object.clone()).or_default();
        self.readers.extend(object, known, reads);
    }

    /// Returns the output of an object, for a change that its sources explain.
    pub(super) fn get_mut(&mut self, object: &ObjectRef) -> Option<&mut T> {
        self.outputs.get_mut(object)
    }

    /// Returns the output of an object.
    pub(super) fn get(&self, object: &ObjectRef) -> Option<&T> {
        self.outputs.get(object)
    }

    /// Reports whether there are no outputs.
    pub(super) fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    /// Replaces the output of an object, which was computed from these sources.
    pub(super) fn replace(
        &mut self,
        object: &ObjectRef,
        (output, reads): (Option<T>, Vec<Source>),
    ) -> Replaced<T> {
        let is_own = |source: &Source| matches!(source, Source::Object(read) if read == object);
        // Without the object, there is no output. When it is added, it is among the changes.
        let is_absent = output.is_none() && reads.iter().all(is_own);
        let reads = if is_absent { Vec::new() } else { reads };
        let mut known = self.reads.remove(object).unwrap_or_default();
        let unread = self.readers.replace(object, &mut known, reads);
        if !known.is_empty() {
            self.reads.insert(object.clone(), known);
        }
        let previous = match output {
            Some(output) => self.outputs.insert(object.clone(), output),
            None => self.outputs.remove(object),
        };
        Replaced { previous, unread }
    }
}

/// What an output replaced.
pub(super) struct Replaced<T> {
    /// The previous output.
    pub(super) previous: Option<T>,
    /// Sources that no output of the step is computed from any more.
    pub(super) unread: Vec<Source>,
}

/// What was parsed of objects: each version once, although many outputs may be computed from it.
pub(super) struct Parsed<O, T>(BTreeMap<ObjectRef, (Arc<O>, T)>);

impl<O, T> Default for Parsed<O, T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<O: Eq, T: Clone> Parsed<O, T> {
    /// Returns what was parsed of an object. Parses it if it is another version, with what was parsed of the previous
    /// one.
    pub(super) fn get(
        &mut self,
        name: &ObjectRef,
        object: &Arc<O>,
        parse: impl FnOnce(Option<&T>) -> T,
    ) -> T {
        match self.0.get_mut(name) {
            Some((known, parsed)) if *known == *object => parsed.clone(),
            Some(entry) => {
                *entry = (object.clone(), parse(Some(&entry.1)));
                entry.1.clone()
            }
            None => {
                let parsed = parse(None);
                self.0
                    .insert(name.clone(), (object.clone(), parsed.clone()));
                parsed
            }
        }
    }

    /// Removes an object that no output is computed from any more.
    pub(super) fn remove(&mut self, name: &ObjectRef) {
        self.0.remove(name);
    }
}
