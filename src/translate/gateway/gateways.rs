//! All Gateways with their ListenerSets: each is translated when one of its sources changes, and assembled with its routes
//! when these change. Must not know Services or endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;

use super::attachment::{GatewayParents, ListenerIndex, Parents};
use super::certificate::Certificates;
use super::draft::draft;
use super::frontend::ClientAuthorities;
use super::port_claims::PortClaims;
use super::set_parents::SetParents;
use super::translated::{Translated, TranslatedSet};
use super::{gateway, overlap, released};
use crate::api::gateway::{Gateway, GatewayClass};
use crate::ir::{AttachedRoutes, Bind, Listener, ObjectRef, Port};
use crate::provision::data_plane::DataPlane;
use crate::status::{Condition, GatewayStatus, ListenerStatus, Note};
use crate::translate::changes::Changes;
use crate::translate::input::{Input, Mode};
use crate::translate::memo::Memo;
use crate::translate::report::{Report, put};

/// All Gateways.
#[derive(Default)]
pub(in crate::translate) struct Gateways {
    classes: Memo<Arc<[Condition]>>,
    sets: SetParents,
    claims: PortClaims,
    certificates: Certificates,
    authorities: ClientAuthorities,
    gateways: Memo<Output>,
    /// What routes attach to.
    pub(in crate::translate) parents: Parents,
    /// Gateways that are translated, but not assembled since.
    translated: BTreeSet<ObjectRef>,
    assembled: BTreeMap<ObjectRef, Assembled>,
    /// The served listeners of [`Self::parents`], at the same places.
    listeners: Vec<Option<Arc<Listener>>>,
    ports: BTreeMap<(Bind, ObjectRef), Arc<Port>>,
    /// All ports, in order; `None` after one of them changed.
    listed: Option<Vec<Arc<Port>>>,
    /// The data planes that Gateways need in a cluster.
    pub(in crate::translate) data_planes: OrdMap<ObjectRef, Arc<DataPlane>>,
}

/// A translated Gateway.
#[derive(Default)]
struct Output {
    /// `None` if it belongs to another controller.
    translated: Option<Translated>,
    /// Its status if it belongs to another controller.
    released: Option<Arc<GatewayStatus>>,
    notes: Vec<Note>,
}

/// What was assembled of a Gateway.
#[derive(Default)]
struct Assembled {
    binds: BTreeSet<Bind>,
    sets: BTreeSet<ObjectRef>,
}

/// Totals over the routes of one listener.
#[derive(Clone, Default)]
pub(in crate::translate) struct OnListener {
    pub(in crate::translate) routes: AttachedRoutes,
    /// Number of accepted routes.
    pub(in crate::translate) accepted: usize,
}

impl Gateways {
    /// Translates what has changed. Announces Gateways and ListenerSets with other listeners.
    pub(in crate::translate) fn step(
        &mut self,
        input: &Input<'_>,
        changes: &mut Changes,
        report: &mut Report,
    ) {
        self.parents.begin();
        self.step_classes(input, changes, report);
        for set in self.sets.step(input, changes) {
            let (status, of_set) = self.sets.unattached(&set);
            put(&mut report.statuses.released.listener_sets, &set, status);
            report.notes.replace(&set, of_set);
        }
        self.certificates.step(input, changes);
        if input.options.mode != Mode::Dedicated {
            let sets = &self.sets;
            self.claims.step(input, changes, |name| {
                let gateway = input.find::<Gateway>(name)?;
                draft(input, gateway, sets.of_gateway(input, name))
            });
        }
        let mut names = self.gateways.outdated(changes);
        names.extend(changes.of::<Gateway>());
        for name in names {
            self.translate(input, &name, changes, report);
            self.translated.insert(name);
        }
    }

    fn step_classes(&mut self, input: &Input<'_>, changes: &Changes, report: &mut Report) {
        let mut names = self.classes.outdated(changes);
        names.extend(changes.of::<GatewayClass>());
        for name in names {
            let conditions = || gateway::class_conditions(input, &name).map(Arc::from);
            self.classes.replace(&name, input.reading(conditions));
            let conditions = self.classes.get(&name).cloned();
            put(&mut report.statuses.gateway_classes, &name, conditions);
        }
    }

    fn translate(
        &mut self,
        input: &Input<'_>,
        name: &ObjectRef,
        changes: &mut Changes,
        report: &mut Report,
    ) {
        let mut parents = None;
        let computed = input.reading(|| {
            let object = input.find::<Gateway>(name)?;
            let Some(mut draft) = draft(input, object, self.sets.of_gateway(input, name)) else {
                let is_standalone = input.options.mode == Mode::Standalone;
                let note = is_standalone.then(|| gateway::unserved(input, object));
                return Some(Output {
                    translated: None,
                    released: released::of_gateway(input, object).map(Arc::new),
                    notes: note.into_iter().collect(),
                });
            };
            self.claims.apply(input, &mut draft);
            self.authorities.load(input, &mut draft);
            self.certificates.load(input, &mut draft);
            overlap::mark(&mut draft);
            parents = Some(GatewayParents::new(&draft));
            Some(Output {
                translated: Some(Translated::new(&draft, input.options.mode)),
                ..Output::default()
            })
        });
        let replaced = self.gateways.replace(name, computed);
        for source in replaced.unread {
            self.certificates.remove(&source);
            self.authorities.remove(&source);
        }
        self.parents.replace(name, parents, changes);
        let now = self.gateways.get(name);
        report
            .notes
            .replace(name, now.map_or_else(Vec::new, |now| now.notes.clone()));
    }

    /// Assembles the Gateways that were translated, and those of these listeners, with the routes of each listener.
    pub(in crate::translate) fn assemble(
        &mut self,
        changed: BTreeSet<ListenerIndex>,
        totals: &[OnListener],
        report: &mut Report,
    ) {
        let mut names = std::mem::take(&mut self.translated);
        let gateway = |place| self.parents[place].consumer.gateway.clone();
        names.extend(changed.into_iter().map(gateway));
        for name in names {
            self.assemble_one(&name, totals, report);
        }
    }

    fn assemble_one(&mut self, name: &ObjectRef, totals: &[OnListener], report: &mut Report) {
        let output = self.gateways.get(name);
        let translated = output.and_then(|output| output.translated.as_ref());
        let released = output.and_then(|output| output.released.clone());
        put(&mut report.statuses.released.gateways, name, released);
        let data_plane = translated.and_then(|it| it.data_plane.clone());
        put(&mut self.data_planes, name, data_plane);
        let previous = self.assembled.remove(name).unwrap_or_default();
        let mut assembled = Assembled::default();
        let mut status = None;
        if let Some(translated) = translated {
            let places: Vec<_> = self.parents.of_gateway(name).collect();
            for (place, listener) in places.iter().zip(&translated.listeners) {
                let total = totals.get(*place);
                assemble_listener(&mut self.listeners, *place, listener.as_ref(), total);
            }
            let count = |listeners: &mut [ListenerStatus], places: &[ListenerIndex]| {
                for (listener, place) in listeners.iter_mut().zip(places) {
                    listener.attached_routes = totals.get(*place).map_or(0, |it| it.accepted);
                }
            };
            let mut own = translated.status.clone();
            count(&mut own.listeners, &places);
            status = Some(Arc::new(own));
            for TranslatedSet {
                name,
                listeners,
                status,
            } in &translated.sets
            {
                let mut status = status.clone();
                count(&mut status.listeners, &places[listeners.clone()]);
                put(
                    &mut report.statuses.listener_sets,
                    name,
                    Some(Arc::new(status)),
                );
                assembled.sets.insert(name.clone());
            }
            for draft in &translated.ports {
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
                assembled.binds.insert(draft.bind);
            }
        }
        put(&mut report.statuses.gateways, name, status);
        for bind in previous.binds.difference(&assembled.binds) {
            self.ports.remove(&(*bind, name.clone()));
            self.listed = None;
        }
        for set in previous.sets.difference(&assembled.sets) {
            // Another Gateway may have it by now.
            if self.sets.of_set(set).is_none_or(|owner| owner == name) {
                put(&mut report.statuses.listener_sets, set, None);
            }
        }
        if translated.is_some() {
            self.assembled.insert(name.clone(), assembled);
        }
    }

    /// Returns all ports, in order.
    pub(in crate::translate) fn ports(&mut self) -> Vec<Arc<Port>> {
        let all = || self.ports.values().cloned().collect();
        self.listed.get_or_insert_with(all).clone()
    }
}

/// Replaces a served listener. Keeps one that is equal.
fn assemble_listener(
    listeners: &mut Vec<Option<Arc<Listener>>>,
    place: ListenerIndex,
    listener: Option<&Listener>,
    total: Option<&OnListener>,
) {
    if listeners.len() <= place {
        listeners.resize(place + 1, None);
    }
    let listener = listener.map(|listener| Listener {
        routes: total.map(|total| total.routes.clone()).unwrap_or_default(),
        ..listener.clone()
    });
    let previous = listeners[place].as_deref();
    if previous != listener.as_ref() {
        listeners[place] = listener.map(Arc::new);
    }
}
