//! Edits of policies that protect requests. Owns that what an edit permits beyond the published version waits for the policies
//! that were written before it, that what it refuses does not wait, and that a policy that is edited often has few versions.

use super::super::deferrals::Wait;
use super::super::loosening::meanwhile;
use super::super::referenced::Earlier;
use super::super::references::References;
use super::{Store, Versions};
use crate::api::{Object, ObjectRef};

impl Store {
    /// Stores a version of a policy that permits more than those in force: that waits, and what all permit is published
    /// meanwhile. Returns whether this is another version than the published one; `None` if nothing has to wait, so that nothing
    /// is stored.
    pub(super) fn hold_edit(
        &mut self,
        name: &ObjectRef,
        object: &Object,
        known: &Versions,
    ) -> Option<bool> {
        let published = self.protecting(known.published());
        // One that was deleted, or had targets that it gets back, is in force still.
        let in_force = self.retained.versions(name).chain(&published);
        let part = in_force.fold(None, |part: Option<Object>, version| {
            meanwhile(version, part.as_ref().unwrap_or(object)).or(part)
        })?;
        let present = published.as_ref();
        let present = present.and_then(|it| part.with_metadata_of(it));
        let part = present.unwrap_or(part);
        let after = match (&known.last, &known.held) {
            // It permits no more than the version that waits.
            (Some(last), Some((_, after))) if meanwhile(last, object).is_none() => *after,
            _ => self.moments.next(),
        };
        if self.moments.is_past(after) {
            return None;
        }
        // Edits without end do not delay what the first one of them permits.
        let waiting = known.waiting();
        let next = waiting.map(|it| meanwhile(it, object).unwrap_or_else(|| object.clone()));
        let is_changed = published.as_ref() != Some(&part);
        self.snapshot.insert(object.clone());
        self.hold_version(name, object, (part, next), Wait::new(Vec::new(), after));
        Some(is_changed)
    }

    /// Makes the stored version of a policy wait, of which a part is published meanwhile, and then perhaps another one.
    pub(super) fn hold_version(
        &mut self,
        name: &ObjectRef,
        stored: &Object,
        (part, next): (Object, Option<Object>),
        wait: Wait,
    ) {
        let of_part = References::of(&part);
        self.deferred.hold_part(name, Some(part), next, wait);
        if stored.kind().uses_contents {
            let of_next = self.deferred.next_version(name).map(References::of);
            let referenced = &mut self.referenced;
            referenced.replace_earlier(name, Earlier::Published, Some(of_part));
            referenced.replace_earlier(name, Earlier::Next, of_next);
            referenced.replace(name, References::of(stored), None);
        }
    }

    /// Publishes the stand-in of a policy that cannot be read, if there is one, in place of the version that was published while
    /// a later one waited: nothing says that this version refuses what the last one does.
    pub(super) fn end_wait_of_stand_in(&mut self, name: &ObjectRef) {
        let stored = self.snapshot.object(name);
        if stored.is_some_and(|it| it.unreadable().is_some()) {
            self.deferred.remove(name);
            self.referenced.forget_earlier(name);
        }
    }
}
