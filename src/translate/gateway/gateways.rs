//! All Gateways with their ListenerSets: each is translated when one of its sources changes, and assembled with its routes
//! when these change. Must not know Services or endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;

use super::assembly::{Assembly, OnListener};
use super::attachment::{GatewayParents, ListenerIndex, Parents};
use super::certificate::Certificates;
use super::draft::draft;
use super::frontend::ClientAuthorities;
use super::port_claims::PortClaims;
use super::set_parents::SetParents;
use super::translated::Translated;
use super::{gateway, overlap, quic, released};
use crate::api::gateway::{Gateway, GatewayClass};
use crate::ir::{ObjectRef, Port};
use crate::provision::data_plane::DataPlane;
use crate::status::{Condition, GatewayStatus, Note};
use crate::translate::affecting::Affecting;
use crate::translate::changes::Changes;
use crate::translate::input::{Input, Mode};
use crate::translate::memo::Memo;
use crate::translate::report::{Report, put};
use crate::translate::source::Source;

/// All Gateways.
#[derive(Default)]
pub(in crate::translate) struct Gateways {
    classes: Memo<Arc<[Condition]>>,
    pub(super) sets: SetParents,
    pub(super) claims: PortClaims,
    pub(super) certificates: Certificates,
    authorities: ClientAuthorities,
    pub(super) gateways: Memo<Output>,
    /// What routes attach to.
    pub(in crate::translate) parents: Parents,
    /// Gateways that are translated, but not assembled since.
    translated: BTreeSet<ObjectRef>,
    /// Gateways with ListenerSets that are added, but not assembled since.
    extended: BTreeMap<ObjectRef, Vec<ObjectRef>>,
    /// Listeners with renewed certificates that are not assembled since.
    renewed: Vec<ListenerIndex>,
    assembly: Assembly,
    /// The data planes that Gateways need in a cluster.
    pub(in crate::translate) data_planes: OrdMap<ObjectRef, Arc<DataPlane>>,
}

/// A translated Gateway.
#[derive(Default)]
pub(super) struct Output {
    /// `None` if it belongs to another controller.
    pub(super) translated: Option<Translated>,
    /// Its status if it belongs to another controller.
    released: Option<Arc<GatewayStatus>>,
    notes: Vec<Note>,
}

impl Gateways {
    /// Translates what has changed. Announces Gateways and ListenerSets with other listeners.
    pub(in crate::translate) fn step(
        &mut self,
        input: &Input<'_>,
        policies: &dyn Affecting,
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
        for name in self.sets.extended() {
            if let Some(sets) = self.add_sets(input, &name, policies, changes) {
                self.extended.insert(name, sets);
            }
        }
        let extended = &self.extended;
        if input.options.mode != Mode::Dedicated {
            let sets = &self.sets;
            let has_claimed = |name: &ObjectRef| extended.contains_key(name);
            self.claims.step(input, changes, has_claimed, |name| {
                let gateway = input.find::<Gateway>(name)?;
                draft(input, gateway, sets.of_gateway(input, name))
            });
        }
        let mut names = self.gateways.outdated(changes);
        names.extend(changes.of::<Gateway>());
        // Other Gateways may have got their ports, or lost them to others.
        let has_other_ports =
            |name: &ObjectRef| changes.sources().contains(&Source::PortsOf(name.clone()));
        names.retain(|name| !extended.contains_key(name) || has_other_ports(name));
        for name in names {
            if let Some(renewed) = self.renew_certificates(input, &name, changes) {
                self.renewed.extend(renewed);
                continue;
            }
            self.translate(input, &name, policies, changes, report);
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

    /// Updates a Gateway of which nothing but valid certificates of listeners has changed. Returns the places of these
    /// listeners, or `None` if the Gateway has to be translated.
    fn renew_certificates(
        &mut self,
        input: &Input<'_>,
        name: &ObjectRef,
        changes: &Changes,
    ) -> Option<Vec<ListenerIndex>> {
        // Settings of the Gateway may refer to the same Secrets.
        let object = input.find::<Gateway>(name)?;
        let is_plain = object.spec.tls.is_none() && !changes.of::<Gateway>().contains(name);
        let secret = |source: &Source| match source {
            Source::Object(object) if object.is_core("Secret") => Some(object.clone()),
            _ => None,
        };
        let reads = self.gateways.changed_reads(name, changes);
        let secrets: Vec<_> = reads.map(secret).collect::<Option<_>>()?;
        if !is_plain || secrets.is_empty() {
            return None;
        }
        let translated = self.gateways.get_mut(name)?.translated.as_mut()?;
        let mut changed = Vec::new();
        for secret in secrets {
            let certificates = &mut self.certificates;
            let renew = |known: &_| certificates.renew(input, &secret, known);
            changed.extend(translated.renew(&secret, renew)?);
        }
        Some(self.assembly.places(name, changed).collect())
    }

    fn translate(
        &mut self,
        input: &Input<'_>,
        name: &ObjectRef,
        policies: &dyn Affecting,
        changes: &mut Changes,
        report: &mut Report,
    ) {
        let mut parents = None;
        let computed = input.reading(|| {
            let object = input.find::<Gateway>(name)?;
            let Some(mut draft) = draft(input, object, self.sets.of_gateway(input, name)) else {
                let class = &object.spec.gateway_class_name;
                let has_class = input.get::<GatewayClass>("", class).is_some();
                let options = input.options;
                let is_reported =
                    options.mode == Mode::Standalone || options.is_judged_alone && !has_class;
                let note = is_reported.then(|| gateway::unserved(input, object));
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
            let mut translated = Translated::new(&draft, input.options.mode);
            translated.name_policies(input, &draft, policies);
            Some(Output {
                translated: Some(translated),
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

    /// Assembles the Gateways that were translated, and the listeners of others whose routes changed.
    pub(in crate::translate) fn assemble(
        &mut self,
        mut changed: BTreeSet<ListenerIndex>,
        totals: &[OnListener],
        report: &mut Report,
    ) {
        changed.extend(std::mem::take(&mut self.renewed));
        let names = std::mem::take(&mut self.translated);
        let mut listeners: BTreeMap<&ObjectRef, Vec<ListenerIndex>> = BTreeMap::new();
        for place in changed {
            let gateway = &self.parents[place].consumer.gateway;
            if !names.contains(gateway) {
                listeners.entry(gateway).or_default().push(place);
            }
        }
        for (name, sets) in std::mem::take(&mut self.extended) {
            let output = self.gateways.get(&name);
            let translated = output.and_then(|output| output.translated.as_ref());
            if let Some(translated) = translated.filter(|_| !names.contains(&name)) {
                let parents = &self.parents;
                (self.assembly).add_sets((&name, translated), &sets, parents, totals, report);
            }
        }
        let mut with_other_ports = Vec::new();
        for (name, places) in listeners {
            let output = self.gateways.get(name);
            if let Some(translated) = output.and_then(|output| output.translated.as_ref()) {
                (self.assembly).update_listeners((name, translated), &places, totals, report);
                let known = self.data_planes.get(name).map(|it| &it.udp_ports);
                let had_quic = known != translated.data_plane.as_ref().map(|it| &it.udp_ports);
                if had_quic || places.iter().any(|place| quic::is_on(totals, *place)) {
                    with_other_ports.push(name.clone());
                }
            }
        }
        for name in with_other_ports {
            self.put_data_plane(&name, totals);
        }
        for name in names {
            self.assemble_one(&name, totals, report);
        }
    }

    fn assemble_one(&mut self, name: &ObjectRef, totals: &[OnListener], report: &mut Report) {
        let output = self.gateways.get(name);
        let translated = output.and_then(|output| output.translated.as_ref());
        let released = output.and_then(|output| output.released.clone());
        put(&mut report.statuses.released.gateways, name, released);
        let places = self.parents.of_gateway(name).collect();
        let gone = self
            .assembly
            .replace((name, translated), places, totals, report);
        self.put_data_plane(name, totals);
        for set in gone {
            // Another Gateway may have it by now.
            if self.sets.of_set(&set).is_none_or(|owner| owner == name) {
                put(&mut report.statuses.listener_sets, &set, None);
            }
        }
    }

    fn put_data_plane(&mut self, name: &ObjectRef, totals: &[OnListener]) {
        let output = self.gateways.get(name);
        let translated = output.and_then(|output| output.translated.as_ref());
        let own = translated.and_then(|translated| translated.data_plane.as_ref());
        let parents = &self.parents;
        let data_plane = own.map(|own| quic::with_ports((name, own), parents, totals));
        put(&mut self.data_planes, name, data_plane);
    }

    /// Returns all ports, in order.
    pub(in crate::translate) fn ports(&mut self) -> Vec<Arc<Port>> {
        self.assembly.ports()
    }
}
