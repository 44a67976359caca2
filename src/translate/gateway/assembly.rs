//! The listeners and ports of translated Gateways with the routes of each listener, and the numbers of routes in statuses.
//! A change of routes touches only their listeners. Must not know how a Gateway is translated.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::attachment::{ListenerIndex, Parents};
use super::translated::{Translated, TranslatedSet};
use crate::ir::client::{ClientPolicies, TlsSettings};
use crate::ir::policy::Policies;
use crate::ir::{AttachedRoutes, Bind, Listener, ObjectRef, Port, Protocol, TlsTermination};
use crate::status::{ListenerStatus, StatusMap};
use crate::translate::report::{Report, put};

/// Totals over the routes of one listener.
#[derive(Clone, Default)]
pub(in crate::translate) struct OnListener {
    pub(in crate::translate) routes: AttachedRoutes,
    /// Number of accepted routes.
    pub(in crate::translate) accepted: usize,
    /// What policies require of requests.
    pub(in crate::translate) policies: Option<Arc<Policies>>,
    /// How clients connect.
    pub(in crate::translate) clients: Option<Arc<ClientPolicies>>,
}

/// What was assembled of all Gateways.
#[derive(Default)]
pub(super) struct Assembly {
    gateways: BTreeMap<ObjectRef, Assembled>,
    /// The served listeners, at their places.
    listeners: Vec<Option<Arc<Listener>>>,
    ports: BTreeMap<(Bind, ObjectRef), Arc<Port>>,
    /// All ports, in order; `None` after one of them changed.
    listed: Option<Vec<Arc<Port>>>,
}

/// What was assembled of a Gateway.
#[derive(Default)]
struct Assembled {
    binds: BTreeSet<Bind>,
    sets: BTreeSet<ObjectRef>,
    /// Places of its listeners, in the order of [`Translated::listeners`], and the other way around.
    places: Vec<ListenerIndex>,
    indices: FxHashMap<ListenerIndex, usize>,
}

/// A Gateway and its translation.
type Named<'a, T> = (&'a ObjectRef, T);

impl Assembly {
    /// Assembles a Gateway, the listeners of which have these places. Returns the ListenerSets that it has no longer.
    pub(super) fn replace(
        &mut self,
        (name, translated): Named<'_, Option<&Translated>>,
        places: Vec<ListenerIndex>,
        totals: &[OnListener],
        report: &mut Report,
    ) -> Vec<ObjectRef> {
        let previous = self.gateways.remove(name).unwrap_or_default();
        let mut assembled = Assembled::default();
        let mut status = None;
        if let Some(translated) = translated {
            for (place, listener) in places.iter().zip(&translated.listeners) {
                self.update_listener(*place, listener.as_ref(), totals.get(*place));
            }
            let mut own = translated.status.clone();
            count(&mut own.listeners, &places, totals);
            status = Some(Arc::new(own));
            for set in &translated.sets {
                let mut status = set.status.clone();
                count(
                    &mut status.listeners,
                    &places[set.listeners.clone()],
                    totals,
                );
                let statuses = &mut report.statuses.listener_sets;
                put(statuses, &set.name, Some(Arc::new(status)));
                assembled.sets.insert(set.name.clone());
            }
            self.update_ports((name, translated), &places, |_| true);
            assembled.binds = translated.ports.iter().map(|port| port.bind).collect();
            let indices = places.iter().enumerate();
            assembled.indices = indices.map(|(index, place)| (*place, index)).collect();
            assembled.places = places;
        }
        put(&mut report.statuses.gateways, name, status);
        for bind in previous.binds.difference(&assembled.binds) {
            self.ports.remove(&(*bind, name.clone()));
            self.listed = None;
        }
        let gone = previous.sets.difference(&assembled.sets);
        let gone = gone.cloned().collect();
        if translated.is_some() {
            self.gateways.insert(name.clone(), assembled);
        }
        gone
    }

    /// Adds ListenerSets to an assembled Gateway.
    pub(super) fn add_sets(
        &mut self,
        (name, translated): Named<'_, &Translated>,
        sets: &[ObjectRef],
        parents: &Parents,
        totals: &[OnListener],
        report: &mut Report,
    ) {
        let Some(mut assembled) = self.gateways.remove(name) else {
            return;
        };
        let mut new = BTreeSet::new();
        // In order: the places of a set are inserted behind those of the sets before it.
        for set in translated.sets.iter().filter(|it| sets.contains(&it.name)) {
            let (range, places) = (set.listeners.clone(), parents.of_object(&set.name));
            drop(assembled.places.splice(range.start..range.start, places));
            new.extend(range.clone());
            for index in range.clone() {
                let place = assembled.places[index];
                let listener = translated.listeners[index].as_ref();
                self.update_listener(place, listener, totals.get(place));
            }
            let mut status = set.status.clone();
            count(&mut status.listeners, &assembled.places[range], totals);
            let statuses = &mut report.statuses.listener_sets;
            put(statuses, &set.name, Some(Arc::new(status)));
            assembled.sets.insert(set.name.clone());
        }
        let mut own = translated.status.clone();
        count(&mut own.listeners, &assembled.places, totals);
        put(&mut report.statuses.gateways, name, Some(Arc::new(own)));
        self.update_ports((name, translated), &assembled.places, |port| {
            port.iter().any(|index| new.contains(index))
        });
        let indices = assembled.places.iter().enumerate();
        assembled.indices = indices.map(|(index, place)| (*place, index)).collect();
        self.gateways.insert(name.clone(), assembled);
    }

    /// Returns the places of listeners of a Gateway, given by their indices.
    pub(super) fn places(
        &self,
        name: &ObjectRef,
        indices: Vec<usize>,
    ) -> impl Iterator<Item = ListenerIndex> {
        let places = self.gateways.get(name).map_or(&[][..], |it| &it.places);
        indices
            .into_iter()
            .filter_map(|index| places.get(index).copied())
    }

    /// Updates listeners of a Gateway, the routes or certificates of which have
    /// changed since it was assembled.
    pub(super) fn update_listeners(
        &mut self,
        (name, translated): Named<'_, &Translated>,
        changed: &[ListenerIndex],
        totals: &[OnListener],
        report: &mut Report,
    ) {
        let Some(assembled) = self.gateways.remove(name) else {
            return;
        };
        let mut updated = BTreeSet::new();
        for place in changed {
            let Some(index) = assembled.indices.get(place).copied() else {
                continue;
            };
            let total = totals.get(*place);
            let listener = translated.listeners.get(index);
            if self.update_listener(*place, listener.and_then(Option::as_ref), total) {
                updated.insert(index);
            }
            let accepted = total.map_or(0, |it| it.accepted);
            update_count((name, translated), index, accepted, report);
        }
        self.update_ports((name, translated), &assembled.places, |port| {
            port.iter().any(|index| updated.contains(index))
        });
        self.gateways.insert(name.clone(), assembled);
    }

    /// Replaces a served listener. Keeps one that is equal. Returns whether it is another one.
    fn update_listener(
        &mut self,
        place: ListenerIndex,
        listener: Option<&Listener>,
        total: Option<&OnListener>,
    ) -> bool {
        if self.listeners.len() <= place {
            self.listeners.resize(place + 1, None);
        }
        let known = self.listeners[place].as_deref();
        let listener = listener.map(|listener| {
            let clients = total.and_then(|total| total.clients.clone());
            let tls = clients.as_ref().and_then(|clients| clients.tls.as_deref());
            Listener {
                protocol: match tls {
                    None => listener.protocol.clone(),
                    Some(tls) => protocol_with(tls, &listener.protocol, known),
                },
                policies: total.and_then(|total| total.policies.clone()),
                clients,
                routes: total.map(|total| total.routes.clone()).unwrap_or_default(),
                ..listener.clone()
            }
        });
        let is_changed = known != listener.as_ref();
        if is_changed {
            self.listeners[place] = listener.map(Arc::new);
        }
        is_changed
    }

    /// Replaces the ports of a Gateway that `is_changed` selects by the indices of their listeners.
    fn update_ports(
        &mut self,
        (name, translated): Named<'_, &Translated>,
        places: &[ListenerIndex],
        is_changed: impl Fn(&[usize]) -> bool,
    ) {
        let ports = translated.ports.iter();
        for draft in ports.filter(|draft| is_changed(&draft.listeners)) {
            let listeners = draft.listeners.iter();
            let served = listeners.filter_map(|at| self.listeners[places[*at]].clone());
            let port = Port {
                bind: draft.bind,
                gateway: name.clone(),
                listeners: served.collect(),
            };
            let key = (draft.bind, name.clone());
            if self.ports.get(&key).is_none_or(|known| **known != port) {
                self.ports.insert(key, Arc::new(port));
                self.listed = None;
            }
        }
    }

    /// Returns all ports, in order.
    pub(super) fn ports(&mut self) -> Vec<Arc<Port>> {
        let all = || self.ports.values().cloned().collect();
        self.listed.get_or_insert_with(all).clone()
    }
}

/// Returns the protocol of a listener with what policies say of its TLS. Keeps that of the known listener if it is equal:
/// new TLS settings, by their address, make the table look at all others.
fn protocol_with(tls: &TlsSettings, own: &Protocol, known: Option<&Listener>) -> Protocol {
    let applied = |own: &TlsTermination| TlsTermination {
        tls: Arc::new(tls.applied_to(&own.tls)),
        held_over: own.held_over.clone(),
    };
    let protocol = match own {
        Protocol::Https(own) => Protocol::Https(applied(own)),
        Protocol::TlsTerminate(own) => Protocol::TlsTerminate(applied(own)),
        other => return other.clone(),
    };
    let known = known.map(|known| &known.protocol);
    known
        .filter(|known| **known == protocol)
        .unwrap_or(&protocol)
        .clone()
}

fn count(listeners: &mut [ListenerStatus], places: &[ListenerIndex], totals: &[OnListener]) {
    for (listener, place) in listeners.iter_mut().zip(places) {
        listener.attached_routes = totals.get(*place).map_or(0, |it| it.accepted);
    }
}

/// Sets the number of routes of the listener with this index among those of a Gateway.
fn update_count(
    (name, translated): Named<'_, &Translated>,
    index: usize,
    accepted: usize,
    report: &mut Report,
) {
    let statuses = &mut report.statuses;
    if index < translated.status.listeners.len() {
        replace_count(&mut statuses.gateways, name, accepted, |status| {
            status.listeners.get_mut(index)
        });
        return;
    }
    let sets = &translated.sets;
    let at = sets.partition_point(|set| set.listeners.end <= index);
    if let Some(TranslatedSet {
        name, listeners, ..
    }) = sets.get(at)
    {
        replace_count(&mut statuses.listener_sets, name, accepted, |status| {
            status
                .listeners
                .get_mut(index.checked_sub(listeners.start)?)
        });
    }
}

fn replace_count<T: Clone>(
    statuses: &mut StatusMap<T>,
    object: &ObjectRef,
    accepted: usize,
    listener: impl Fn(&mut T) -> Option<&mut ListenerStatus>,
) {
    let Some(status) = statuses.get(object) else {
        return;
    };
    let mut status = T::clone(status);
    let Some(listener) = listener(&mut status) else {
        return;
    };
    if listener.attached_routes != accepted {
        listener.attached_routes = accepted;
        statuses.insert(object.clone(), Arc::new(status));
    }
}
