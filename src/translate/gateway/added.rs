//! ListenerSets that are added to a Gateway and have nothing to do with its other listeners: nothing else is translated
//! again. Everything else is left to the translation of the whole Gateway, with the same result.

use super::draft::draft;
use super::gateway::{GatewayDraft, SetDraft};
use super::gateways::Gateways;
use super::listener::ListenerDraft;
use super::occupied::Occupied;
use super::parent::Parent;
use super::translated::{Translated, TranslatedSet};
use super::{overlap, report};
use crate::api::Resource;
use crate::api::gateway::{Gateway, ListenerSet};
use crate::ir::ObjectRef;
use crate::translate::affecting::Affecting;
use crate::translate::changes::Changes;
use crate::translate::input::Input;
use crate::translate::memo::Memo;
use crate::translate::source::Source;

/// Reports whether nothing that the output of a Gateway is computed from has changed, but that ListenerSets were added.
pub(in crate::translate) fn is_only_extended<T>(
    outputs: &Memo<T>,
    gateway: &Gateway,
    changes: &Changes,
) -> bool {
    let name = gateway.object_ref();
    let mut reads = outputs.changed_reads(&name, changes);
    // Settings of the Gateway apply to all of its listeners.
    reads.all(|source| matches!(source, Source::ListenerSetsOf(of) if *of == name))
        && gateway.spec.tls.is_none()
        && !changes.of::<Gateway>().contains(&name)
}

/// Returns the draft of a Gateway with only these ListenerSets, each with its place among all of the Gateway.
pub(in crate::translate) fn draft_of<'a>(
    input: &Input<'a>,
    gateway: &'a Gateway,
    added: &[(usize, &ObjectRef)],
) -> Option<GatewayDraft<'a>> {
    let sets = added.iter();
    draft(
        input,
        gateway,
        sets.filter_map(|(_, set)| input.find::<ListenerSet>(set)),
    )
}

/// Reports whether ListenerSets, those of a draft, can be served and have nothing to do with the listeners that their
/// Gateway has already.
pub(in crate::translate) fn are_apart(draft: &GatewayDraft<'_>, occupied: &Occupied) -> bool {
    let is_apart = |listener: &ListenerDraft<'_>| {
        listener.is_sound() && draft.serves(listener) && occupied.is_apart(listener)
    };
    let is_sound = |set: &SetDraft| {
        let listeners = &draft.listeners[set.listeners.clone()];
        set.fault.is_none()
            && occupied.has_room(&set.name.namespace, draft.listeners.len())
            && !listeners.is_empty()
            && listeners.iter().all(is_apart)
    };
    draft.fault.is_none() && draft.sets.iter().all(is_sound)
}

impl Gateways {
    /// Adds the new ListenerSets of a Gateway, and returns them. Returns `None` if the Gateway has to be translated.
    pub(super) fn add_sets(
        &mut self,
        input: &Input<'_>,
        name: &ObjectRef,
        policies: &dyn Affecting,
        changes: &mut Changes,
    ) -> Option<Vec<ObjectRef>> {
        let object = input.find::<Gateway>(name)?;
        let translated = self.gateways.get(name)?.translated.as_ref()?;
        if !is_only_extended(&self.gateways, object, changes) {
            return None;
        }
        let added = self.sets.added(name);
        let (draft, reads) = input.reading(|| {
            let mut draft = draft_of(input, object, &added)?;
            self.claims.apply(input, &mut draft);
            self.certificates.load(input, &mut draft);
            overlap::mark(&mut draft);
            Some(draft)
        });
        let draft = draft?;
        let of_sets = |set: &SetDraft| draft.listeners[set.listeners.clone()].iter();
        let mut listeners = draft.sets.iter().flat_map(of_sets);
        let have_ports = listeners.all(|listener| translated.has_port(listener.port()));
        if draft.sets.len() != added.len()
            || !have_ports
            || !are_apart(&draft, &translated.occupied)
        {
            return None;
        }
        let places: Vec<usize> = added.iter().map(|(place, _)| *place).collect();
        let translated = self.gateways.get_mut(name)?.translated.as_mut()?;
        let (_, names) = input.reading(|| {
            for (place, set) in places.iter().zip(&draft.sets) {
                translated.insert(*place, set, &draft);
                translated.sets[*place].name_policies(input, set.generation, policies);
            }
        });
        for (place, set) in places.into_iter().zip(&draft.sets) {
            let listeners = draft.listeners[set.listeners.clone()].iter();
            let parents = listeners.map(|it| Parent::new(&draft, it)).collect();
            self.parents
                .insert_set(name, place, &set.name, parents, changes);
        }
        self.gateways.extend(name, names);
        self.gateways.extend(name, reads.clone());
        self.claims.extend(name, reads);
        Some(draft.sets.into_iter().map(|set| set.name).collect())
    }
}

impl Translated {
    /// Inserts a ListenerSet that shares its ports with other listeners, and no host with any of them. `place` is its
    /// place among all ListenerSets.
    fn insert(&mut self, place: usize, set: &SetDraft, draft: &GatewayDraft<'_>) {
        let listeners = &draft.listeners[set.listeners.clone()];
        let following = self.sets.get(place);
        let first = following.map_or(self.listeners.len(), |set| set.listeners.start);
        let finished = listeners.iter().map(ListenerDraft::finish);
        drop(self.listeners.splice(first..first, finished));
        for set in &mut self.sets[place..] {
            set.listeners.start += listeners.len();
            set.listeners.end += listeners.len();
        }
        let of_set = TranslatedSet {
            name: set.name.clone(),
            listeners: first..first + listeners.len(),
            status: report::of_set(set, draft),
        };
        self.sets.insert(place, of_set);
        self.status.attached_listener_sets += 1;
        for port in &mut self.ports {
            let later = port.listeners.iter_mut().filter(|index| **index >= first);
            later.for_each(|index| *index += listeners.len());
            for (index, listener) in (first..).zip(listeners) {
                if listener.port() != (port.bind.port, port.bind.transport) {
                    continue;
                }
                let precedes = |other: &usize| {
                    let other = self.listeners[*other].as_ref();
                    other.is_some_and(|other| other.hostname < listener.hostname)
                };
                let at = port.listeners.partition_point(precedes);
                port.listeners.insert(at, index);
            }
        }
        listeners.iter().for_each(|it| self.occupied.add(it));
    }
}
