//! What stays published of deleted objects, and until when. Owns that the deletion of an object leaves nothing less protected.

use tokio::time::Instant;

use super::super::additions::ends_listeners;
use super::super::deferrals::{Released, Wait};
use super::super::loosening::permits_plain_text;
use super::super::observer::is_observed;
use super::super::references::is_held_by_reference;
use super::Store;
use crate::api::core::Service;
use crate::api::{Kind, Object, ObjectRef, Protection, Resource, protection, protects};

impl Store {
    /// Publishes deferred changes whose references are known, or that have waited too long for them, and ends what has stayed
    /// long enough. Returns whether that, or a problem of others, is new.
    pub(in super::super) fn release(&mut self, now: Instant) -> bool {
        if self.deferred.is_empty() && self.retained.is_empty() {
            return false;
        }
        self.drop_unreferenced();
        // At once: a deleted policy ends with the route that was deleted before.
        let mut changed = self.release_deferred(now);
        let namespaces = &self.snapshot.namespaces;
        let (moments, deferred) = (&mut self.moments, &self.deferred);
        let ended = self.retained.release(now, moments, deferred, |name| {
            let namespace = namespaces.get("", name);
            namespace.is_some_and(|it| it.metadata.deletion_timestamp.is_some())
        });
        if ended.is_changed {
            // What has waited for the end of a policy is published with it.
            changed.extend(self.release_deferred(now));
        }
        for name in &changed.advanced {
            self.referenced.publish_next(name);
        }
        for name in &changed.names {
            // What only the previous versions referred to is no longer needed.
            match self.snapshot.object(name) {
                Some(_) => self.referenced.forget_earlier(name),
                None => self.referenced.forget(name),
            }
        }
        let is_deleted = |name: &&ObjectRef| self.snapshot.object(name).is_none();
        for name in ended.names.iter().filter(is_deleted) {
            self.referenced.forget(name);
        }
        self.drop_unreferenced();
        !changed.names.is_empty() || changed.is_changed || ended.is_changed
    }

    fn release_deferred(&mut self, now: Instant) -> Released {
        let Self {
            deferred,
            retained,
            referenced,
            moments,
            ..
        } = self;
        let in_force = |objects: &[ObjectRef], last| retained.in_force(objects, last);
        deferred.release(now, referenced, moments, in_force)
    }

    /// Returns how many objects have a new version, or a deletion, that waits for policies.
    pub(in super::super) fn waiting(&self) -> usize {
        self.deferred.waiting(&self.moments)
    }

    /// Returns when the next deferred change has waited too long, or the next policy has stayed long enough.
    pub(in super::super) fn next_release(&self) -> Option<Instant> {
        let next = [self.deferred.next(&self.moments), self.retained.next()];
        next.into_iter().flatten().min()
    }

    /// Removes an object. Returns whether the served state has changed.
    pub(super) fn forget(&mut self, kind: &Kind, name: &ObjectRef) -> bool {
        if let Some(observer) = self.observer.as_ref().filter(|_| is_observed(kind)) {
            observer.deleted(name);
        }
        let was_unreadable = self.problems.set(name, None);
        let stays = match protection(kind) {
            Protection::Protects => self.retain(name),
            Protection::Takes => self.hold_removed(name),
            Protection::Waits
                if self.may_leave_one(kind, name) || self.may_end_listeners(kind, name) =>
            {
                self.hold_removed(name)
            }
            Protection::Waits | Protection::Neither => false,
        };
        if stays {
            return was_unreadable;
        }
        self.deferred.remove(name);
        if kind.uses_contents {
            self.referenced.forget(name);
        }
        self.snapshot.remove(name) | was_unreadable
    }

    /// Leaves the published version of a policy in force for the targets that the new one lacks. Returns whether it lacks some.
    pub(super) fn retain_targets(&mut self, name: ObjectRef, published: Option<Object>) -> bool {
        let new = self.snapshot.object(&name);
        let loses_targets = |it: &Object| new.is_some_and(|new| it.has_targets_without(&new));
        let Some(published) = published.filter(loses_targets) else {
            return false;
        };
        self.retained.add(name, published);
        true
    }

    /// Removes a policy that protects requests, and leaves its published version in force. Returns whether there is one.
    fn retain(&mut self, name: &ObjectRef) -> bool {
        let Some(published) = self.protecting(self.versions(name).published()) else {
            return false;
        };
        self.retained.add(name.clone(), published);
        self.deferred.remove(name);
        self.snapshot.remove(name);
        true
    }

    /// Returns a published object if it is a policy whose deletion may leave something less protected.
    pub(super) fn protecting(&self, published: Option<&Object>) -> Option<Object> {
        let published = published.filter(|it| self.first.is_some() && protects(it.kind()));
        // One that permits plain text ends at once.
        let protecting = published.filter(|it| !it.is_without_targets() && !permits_plain_text(it));
        protecting.cloned()
    }

    /// Reports whether the deletion of an object may leave one of several: a ReleaseBackend that finds its Service by a label
    /// uses the only one that has it.
    fn may_leave_one(&self, kind: &Kind, name: &ObjectRef) -> bool {
        let mut backends = self.release_backends(&name.namespace);
        (kind.group, kind.kind) == (Service::GROUP, Service::KIND)
            && backends.any(|it| it.spec.load_balancer.is_empty())
    }

    /// Reports whether the deletion of an object may end listeners. Nothing that is served needs what is held by reference and no
    /// longer referenced.
    fn may_end_listeners(&self, kind: &Kind, name: &ObjectRef) -> bool {
        let is_needed = !is_held_by_reference(kind) || self.referenced.has(name);
        is_needed && self.versions(name).published().is_some_and(ends_listeners)
    }

    /// Removes an object that takes requests, or whose deletion may open others. Leaves the published version in service until
    /// the policies are known that were written before: others may take these requests. Returns whether there is such a version.
    fn hold_removed(&mut self, name: &ObjectRef) -> bool {
        let known = self.versions(name);
        let has_published = self.first.is_some() && known.published().is_some();
        let after = has_published.then(|| self.moments.next());
        let Some(after) = after.filter(|after| !self.moments.is_past(*after)) else {
            return false;
        };
        self.snapshot.remove(name);
        let wait = Wait::new(Vec::new(), after);
        if let Some(earlier) = self.deferred.hold(name.clone(), known.last, wait) {
            self.referenced.keep(name, earlier);
        }
        true
    }
}
