//! The Gateway of each ListenerSet, and the ListenerSets of each Gateway. Must not know what Gateways allow.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::Resource;
use crate::api::gateway::{Gateway, ListenerSet};
use crate::ir::ObjectRef;
use crate::ir::Time;
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::status::{ListenerSetStatus, Note};
use crate::translate::changes::Changes;
use crate::translate::input::Input;
use crate::translate::memo::Memo;
use crate::translate::source::Source;

use super::{gateway, released, report};

/// The ListenerSets by Gateway.
#[derive(Default)]
pub(in crate::translate) struct SetParents {
    parents: Memo<SetParent>,
    by_gateway: BTreeMap<ObjectRef, BTreeSet<Age>>,
    /// How the ListenerSets of Gateways have changed since the previous translation.
    changed: BTreeMap<ObjectRef, SetChange>,
}

/// How the ListenerSets of a Gateway have changed.
enum SetChange {
    /// These were added, in order of precedence.
    Added(BTreeSet<Age>),
    /// In another way.
    Other,
}

/// The age of a ListenerSet. The order is that of precedence: oldest first, then by namespace and name.
type Age = (Option<Time>, ObjectRef);

/// Where a ListenerSet belongs.
struct SetParent {
    created: Option<Time>,
    /// The Gateway, if it belongs to this controller.
    gateway: Option<ObjectRef>,
    /// Its status, if it belongs to no Gateway of this controller.
    released: Option<Arc<ListenerSetStatus>>,
    notes: Vec<Note>,
}

impl SetParents {
    /// Updates what has changed, and returns these ListenerSets. Announces Gateways with other ListenerSets.
    pub(in crate::translate) fn step(
        &mut self,
        input: &Input<'_>,
        changes: &mut Changes,
    ) -> BTreeSet<ObjectRef> {
        self.changed.clear();
        let mut names = self.parents.outdated(changes);
        names.extend(changes.of::<ListenerSet>());
        for name in &names {
            let computed = input.reading(|| SetParent::new(input, name));
            let previous = self.parents.replace(name, computed).previous;
            let now = self.parents.get(name);
            if previous.as_ref().map(SetParent::attached) == now.map(SetParent::attached) {
                continue;
            }
            if let Some((previous, gateway)) = previous.as_ref().and_then(SetParent::attached) {
                if let Some(sets) = self.by_gateway.get_mut(gateway) {
                    sets.remove(&(previous, name.clone()));
                    if sets.is_empty() {
                        self.by_gateway.remove(gateway);
                    }
                }
                self.changed.insert(gateway.clone(), SetChange::Other);
                changes.announce(Source::ListenerSetsOf(gateway.clone()));
            }
            if let Some((created, gateway)) = now.and_then(SetParent::attached) {
                let sets = self.by_gateway.entry(gateway.clone()).or_default();
                sets.insert((created, name.clone()));
                let added = self.changed.entry(gateway.clone());
                let added = added.or_insert_with(|| SetChange::Added(BTreeSet::new()));
                if let SetChange::Added(added) = added {
                    added.insert((created, name.clone()));
                }
                changes.announce(Source::ListenerSetsOf(gateway.clone()));
            }
        }
        names
    }

    /// Returns the status and the notes of a ListenerSet that belongs to no Gateway of this controller.
    pub(super) fn unattached(
        &self,
        set: &ObjectRef,
    ) -> (Option<Arc<ListenerSetStatus>>, Vec<Note>) {
        let parent = self.parents.get(set);
        let unattached = parent.map(|it| (it.released.clone(), it.notes.clone()));
        unattached.unwrap_or_default()
    }

    /// Returns the ListenerSets of a Gateway, in order of precedence.
    pub(in crate::translate) fn of_gateway<'a>(
        &self,
        input: &Input<'a>,
        gateway: &ObjectRef,
    ) -> impl Iterator<Item = &'a Arc<ListenerSet>> {
        input.read(|| Source::ListenerSetsOf(gateway.clone()));
        let sets = self.by_gateway.get(gateway).into_iter().flatten();
        sets.filter_map(move |(_, name)| input.find::<ListenerSet>(name))
    }

    /// Returns the Gateways to which ListenerSets were added that the previous translation did not have, and that have
    /// not changed otherwise.
    pub(in crate::translate) fn extended(&self) -> Vec<ObjectRef> {
        let added = self.changed.iter();
        let added = added.filter(|(_, change)| matches!(change, SetChange::Added(_)));
        added.map(|(gateway, _)| gateway.clone()).collect()
    }

    /// Returns the ListenerSets that were added to such a Gateway, in order of precedence, each with its place among all
    /// of the Gateway.
    pub(in crate::translate) fn added(&self, gateway: &ObjectRef) -> Vec<(usize, &ObjectRef)> {
        let (Some(SetChange::Added(added)), Some(all)) =
            (self.changed.get(gateway), self.by_gateway.get(gateway))
        else {
            return Vec::new();
        };
        let mut added = added.iter().peekable();
        let places = all.iter().enumerate();
        let is_added = |(_, age): &(usize, &Age)| added.next_if_eq(age).is_some();
        let places = places.filter(is_added);
        places.map(|(place, (_, name))| (place, name)).collect()
    }

    /// Returns the Gateway of a ListenerSet, if it belongs to this controller.
    pub(in crate::translate) fn of_set(&self, set: &ObjectRef) -> Option<&ObjectRef> {
        self.parents.get(set)?.gateway.as_ref()
    }
}

impl SetParent {
    fn new(input: &Input<'_>, name: &ObjectRef) -> Option<Self> {
        let set = input.find::<ListenerSet>(name)?;
        let gateway = gateway_of(input, set);
        let released = gateway
            .is_none()
            .then(|| released::of_set(input, set))
            .flatten();
        Some(Self {
            created: set.metadata.creation_timestamp,
            gateway,
            released: released.map(Arc::new),
            notes: report::orphan_set(input, set),
        })
    }

    fn attached(&self) -> Option<(Option<Time>, &ObjectRef)> {
        let gateway = self.gateway.as_ref()?;
        Some((self.created, gateway))
    }
}

/// Returns the Gateway of this controller that a set refers to, also through other sets: then nothing is attached, but
/// its controller has to say so.
fn gateway_of(input: &Input<'_>, set: &ListenerSet) -> Option<ObjectRef> {
    let mut set = set;
    let mut seen = BTreeSet::new();
    loop {
        let parent = set.spec.parent_ref.object_ref(&set.metadata.namespace);
        if *parent.kind == *Gateway::KIND && *parent.group == *GATEWAY_GROUP {
            let object = input.find::<Gateway>(&parent)?;
            let is_ours = gateway::is_our_class(input, &object.spec.gateway_class_name);
            return is_ours.then_some(parent);
        }
        let is_set = *parent.kind == *ListenerSet::KIND && *parent.group == *GATEWAY_GROUP;
        if !is_set || !seen.insert(parent.clone()) {
            return None;
        }
        set = input.find::<ListenerSet>(&parent)?;
    }
}
