//! What differs between two versions of a route for those who ask for its requests. Must not know other routes.

use super::translated_route::TranslatedRoute;
use crate::ir::ObjectRef;
use crate::translate::changes::Changes;
use crate::translate::gateway::attachment::ListenerIndex;
use crate::translate::source::Source;

impl TranslatedRoute {
    /// Returns the listeners that the route is attached to.
    fn places(&self) -> impl Iterator<Item = ListenerIndex> {
        self.attached.iter().map(|(index, _)| *index)
    }

    /// Reports whether both send the same requests, whatever they are like.
    fn sends_like(&self, other: &Self) -> bool {
        (self.is_usable, self.is_served) == (other.is_usable, other.is_served)
            && self.places().eq(other.places())
            && self.claims().eq(other.claims())
            && self.targets_like(other)
    }

    /// Reports whether both refer to the same targets of policies, and the same backends with a status.
    fn targets_like(&self, other: &Self) -> bool {
        match (self.any_variant(), other.any_variant()) {
            (Some(built), Some(other)) => {
                built.targetable == other.targetable && built.with_status() == other.with_status()
            }
            (built, other) => built.is_none() && other.is_none(),
        }
    }
}

/// Announces what differs between two versions of a route for those who ask for its requests.
pub(super) fn announce_changes(
    name: &ObjectRef,
    previous: Option<&TranslatedRoute>,
    entry: Option<&TranslatedRoute>,
    changes: &mut Changes,
) {
    let same = previous.zip(entry);
    let listeners = |name: &TranslatedRoute| name.places().collect::<Vec<_>>();
    if previous.map(listeners) != entry.map(listeners) {
        changes.announce(Source::AttachmentOf(name.clone()));
    }
    if same.is_some_and(|(previous, entry)| previous.sends_like(entry)) {
        return;
    }
    let built = previous
        .into_iter()
        .chain(entry)
        .filter_map(TranslatedRoute::any_variant);
    for built in built {
        let targets = built.targetable.iter().map(|(target, _)| target);
        for target in targets.chain(built.with_status()) {
            changes.announce(Source::RequestsTo(target.clone()));
        }
    }
}
