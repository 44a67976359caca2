//! Routes with matches that get no request: which of them a change affects, and the condition `portcullis.dev/Shadowed`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::super::shadow::{Candidate, MatchIndex};
use super::translated_route::TranslatedRoute;
use crate::ir::{AttachedRoute, ObjectRef, RuleId};
use crate::status::{Condition, ParentStatus};
use crate::translate::gateway::attachment::{ListenerIndex, Parents};
use crate::translate::reason::{ConditionType, Reason};

/// Rules or matches that a message names at most.
const MAX_NAMED: usize = 8;
/// Winners that a message names at most for each of them.
const MAX_WINNERS: usize = 2;

/// The matches of all routes.
#[derive(Default)]
pub(super) struct Shadows {
    /// Those on each listener, by its place.
    listeners: Vec<MatchIndex>,
    /// Whether all routes have been attached once. Until then, all of them are in `changed` anyway.
    is_complete: bool,
    /// Routes whose status may be another one.
    changed: FxHashSet<ObjectRef>,
}

impl Shadows {
    /// Replaces a route, and marks those that it affects.
    pub(super) fn replace(
        &mut self,
        previous: Option<&TranslatedRoute>,
        entry: Option<&TranslatedRoute>,
    ) {
        let mut on_listeners: BTreeMap<ListenerIndex, [Option<&AttachedRoute>; 2]> =
            BTreeMap::new();
        for (version, entry) in [previous, entry].into_iter().enumerate() {
            for (index, attached) in entry.into_iter().flat_map(|entry| &entry.attached) {
                on_listeners.entry(*index).or_default()[version] = Some(attached);
            }
        }
        for (index, [previous, now]) in on_listeners {
            if self.listeners.len() <= index {
                self.listeners.resize_with(index + 1, MatchIndex::default);
            }
            let matches = &mut self.listeners[index];
            match now {
                Some(now) if !self.is_complete => matches.attach(now),
                now => matches.replace(previous, now, &mut self.changed),
            }
        }
    }

    /// Marks a route that may have another status.
    pub(super) fn mark_changed(&mut self, route: &ObjectRef) {
        self.changed.insert(route.clone());
    }

    /// Ends the first attachment of all routes: what is replaced from now on was there before.
    pub(super) fn end_first_attachment(&mut self) {
        self.is_complete = true;
    }

    /// The marked routes. None is marked afterwards.
    pub(super) fn take_changed(&mut self) -> FxHashSet<ObjectRef> {
        std::mem::take(&mut self.changed)
    }

    /// The conditions of a route: with [`ConditionType::Shadowed`] for each parent through which one of its matches gets
    /// no request.
    pub(super) fn status(
        &self,
        entry: &TranslatedRoute,
        parents: &Parents,
    ) -> Option<Arc<Vec<ParentStatus>>> {
        let status = entry.status.as_ref()?;
        let reached = entry.reached.iter();
        let messages: Vec<_> = reached.map(|it| self.message(entry, it, parents)).collect();
        if messages.iter().all(Option::is_none) {
            return Some(status.clone());
        }
        let mut status = status.to_vec();
        for (parent, message) in status.iter_mut().zip(messages) {
            let generation = parent.conditions.first();
            let generation = generation.map_or(0, |first| first.observed_generation);
            let (kind, reason) = (ConditionType::Shadowed, Reason::Precedence);
            parent.conditions.extend(
                message.map(|message| {
                    Condition::holds(kind, reason, generation).with_message(message)
                }),
            );
        }
        Some(status.into())
    }

    /// Names the matches that get no request through these listeners, which are in order, under any of the hostnames there.
    fn message(
        &self,
        entry: &TranslatedRoute,
        listeners: &[ListenerIndex],
        parents: &Parents,
    ) -> Option<String> {
        let places = entry.attached.iter();
        let places = places.filter(|(index, _)| {
            listeners.binary_search(index).is_ok() && parents[*index].is_served
        });
        let places = places.map(|(index, attached)| (&self.listeners[*index], &**attached));
        let places: Vec<IndexedRoute<'_>> = places.collect();
        // Its variants for the listeners have the same matches.
        let (_, AttachedRoute { route, .. }) = places.first()?;
        let mut found = Vec::new();
        for rule in &route.rules {
            let matches = (0..rule.matches.len()).filter_map(|index| {
                let winners = winners(&places, &Candidate::new(route, rule, index))?;
                Some((index, winners))
            });
            let matches: Vec<_> = matches.collect();
            let field = format!("spec.rules[{}]", rule.id.index);
            if !matches.is_empty() && matches.len() == rule.matches.len() {
                let winners = matches.into_iter().flat_map(|(_, winners)| winners);
                found.push((field, winners.collect()));
            } else {
                let matches = matches.into_iter();
                found.extend(matches.map(|(index, it)| (format!("{field}.matches[{index}]"), it)));
            }
        }
        let shown = found.iter().take(MAX_NAMED);
        let mut shown: Vec<_> = shown
            .map(|(field, winners)| shown_match(field, winners))
            .collect();
        if found.len() > MAX_NAMED {
            shown.push(format!("and {} more", found.len() - MAX_NAMED));
        }
        (!shown.is_empty()).then(|| shown.join("; "))
    }
}

/// The matches of a listener, and a route there.
type IndexedRoute<'a> = (&'a MatchIndex, &'a AttachedRoute);

/// The rules that get the requests of a match, if it gets none at all.
fn winners<'a>(
    places: &[IndexedRoute<'a>],
    candidate: &Candidate<'_>,
) -> Option<BTreeSet<&'a RuleId>> {
    let mut winners = BTreeSet::new();
    for (matches, attached) in places {
        for hostname in attached.hostnames.iter() {
            winners.insert(matches.winner(hostname, candidate)?);
        }
    }
    Some(winners)
}

fn shown_match(field: &str, winners: &BTreeSet<&RuleId>) -> String {
    let shown = winners.iter().take(MAX_WINNERS);
    let shown = shown.map(|winner| format!("spec.rules[{}] of {}", winner.index, winner.route));
    let mut shown = shown.collect::<Vec<_>>();
    if winners.len() > MAX_WINNERS {
        shown.push("others".to_owned());
    }
    format!(
        "{field} gets no request: the same match or a wider one comes first in {}",
        shown.join(" and ")
    )
}
