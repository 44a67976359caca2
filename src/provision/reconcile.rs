//! The loop of provisioning: follows what is desired and what exists, reconciles one Gateway after the other and many at a
//! time, and tells what fails. Owns none of the rules: what to do, when, and how are decided beside it.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use jiff::Timestamp;
use kube::Client;
use kube::runtime::watcher::Event;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::apply::{Done, Job};
use super::desired::{DesiredState, Failure, Failures, Inputs, RolloutOptions};
use super::former::{self, FormerRights};
use super::inventory::{ChildKey, Existing, Inventory, Slim, follow};
use super::plan::{AppliedObjects, Plan, plan};
use super::queue::{Outcome, Queue};
use super::rollout::{End, Permission, Rollouts, WorkloadState};
use super::trouble::Troubles;
use super::{Child, ChildKind, Revision};
use crate::events::Events;
use crate::ir::ObjectRef;

const GIVEN_UP: &str =
    "its new pods do not serve, as those before did not: the rollout goes on with other Gateways";
const OVERDUE: &str = "its new pods do not serve, unlike those before: the rollout to other Gateways waits until they do";

/// Something that has ended.
enum Finished {
    Gateway(Done),
    Former(Result<(), String>),
}

type Work = FuturesUnordered<BoxFuture<'static, Finished>>;

/// What is known, and what follows from it.
struct State {
    client: Client,
    desired: Option<Arc<DesiredState>>,
    inventory: Inventory,
    applied: AppliedObjects,
    queue: Queue,
    rollouts: Rollouts,
    troubles: Troubles,
    /// Gateways of which it is known whether another process has begun a rollout.
    resumed: BTreeSet<ObjectRef>,
    former: FormerRights,
}

/// Keeps our objects those that are desired for as long as it is polled. Nothing is touched before both are known.
pub async fn reconcile(
    client: &Client,
    inputs: Inputs,
    failures: &watch::Sender<Failures>,
    options: RolloutOptions,
    events: &Events,
) {
    let Inputs {
        mut desired,
        mut serving,
    } = inputs;
    let mut state = State::new(client.clone(), events.clone(), options);
    let mut changes = follow(client);
    let mut work = Work::new();
    let mut is_serving_known = true;
    desired.mark_changed();
    serving.mark_changed();
    loop {
        if serving.has_changed().unwrap_or(false) {
            let serving = serving.borrow_and_update().clone();
            state.rollouts.set_serving(serving);
        }
        state.start(&mut work);
        publish(failures, state.troubles.failures());
        tokio::select! {
            changed = desired.changed() => {
                let new = desired.borrow_and_update().clone();
                match (changed, new) {
                    (Err(_), _) => return,
                    (Ok(()), Some(new)) => state.desire(&new),
                    (Ok(()), None) => {}
                }
            }
            changed = serving.changed(), if is_serving_known => {
                is_serving_known = changed.is_ok();
                serving.mark_changed();
            }
            Some((kind, event)) = changes.next() => state.take(kind, event),
            Some(finished) = work.next() => state.finish(finished),
            () = until(state.next_deadline()) => {}
        }
    }
}

fn publish(sender: &watch::Sender<Failures>, failures: &Failures) {
    sender.send_if_modified(|known| {
        let is_news = known != failures;
        if is_news {
            known.clone_from(failures);
        }
        is_news
    });
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

impl State {
    fn new(client: Client, events: Events, options: RolloutOptions) -> Self {
        Self {
            client,
            desired: None,
            inventory: Inventory::default(),
            applied: AppliedObjects::new(),
            queue: Queue::default(),
            rollouts: Rollouts::new(options),
            troubles: Troubles::new(events),
            resumed: BTreeSet::new(),
            former: FormerRights::new(),
        }
    }

    /// Takes note of what is desired.
    fn desire(&mut self, new: &Arc<DesiredState>) {
        let old = self.desired.replace(new.clone()).unwrap_or_default();
        for (gateway, children) in &new.children {
            let is_same = |old: &Arc<[Child]>| Arc::ptr_eq(old, children) || old == children;
            if !old.children.get(gateway).is_some_and(is_same) {
                self.queue.push(gateway);
            }
        }
        let gone = old.children.keys().chain(&old.retained);
        for gateway in gone.filter(|gateway| !new.children.contains_key(gateway)) {
            self.forget(gateway);
            self.queue.push(gateway);
        }
        let needed = new.children.values().flat_map(|children| children.iter());
        let needed: BTreeSet<_> = needed.map(ChildKey::of).collect();
        self.applied.retain(|key, _| needed.contains(key));
    }

    /// Nothing is desired of a Gateway any more.
    fn forget(&mut self, gateway: &ObjectRef) {
        self.troubles.forget(gateway);
        self.troubles.end_stall(gateway);
        self.resumed.remove(gateway);
        self.rollouts.dequeue(gateway);
        self.rollouts.release(gateway);
    }

    /// Takes note of what exists.
    fn take(&mut self, kind: ChildKind, event: Event<Slim>) {
        let was_complete = self.inventory.is_complete();
        let changes = self.inventory.take(kind, event);
        if !was_complete && self.inventory.is_complete() {
            // Whose Gateway went while nobody looked.
            let owners: Vec<_> = self.inventory.owners().cloned().collect();
            owners.iter().for_each(|owner| self.queue.touch(owner));
        }
        changes
            .gateways
            .iter()
            .for_each(|gateway| self.queue.touch(gateway));
        let freed: BTreeSet<_> = changes.freed.into_iter().collect();
        if !freed.is_empty() {
            self.retry_names(&freed);
        }
    }

    /// Gateways that failed and need one of these names are tried again at once.
    fn retry_names(&mut self, freed: &BTreeSet<ChildKey>) {
        let Some(desired) = &self.desired else {
            return;
        };
        for gateway in self.troubles.failures().keys() {
            let children = desired.children.get(gateway);
            let mut children = children.into_iter().flat_map(|children| children.iter());
            if children.any(|child| freed.contains(&ChildKey::of(child))) {
                self.queue.push(gateway);
            }
        }
    }

    /// Starts what can be started.
    fn start(&mut self, work: &mut Work) {
        let Some(desired) = self.desired.clone() else {
            return;
        };
        if !self.inventory.is_complete() {
            return;
        }
        if work.is_empty() {
            self.inventory.forget_gone();
        }
        self.resume(&desired);
        self.end_rollouts(&desired);
        loop {
            while let Some(gateway) = self.queue.next() {
                match self.prepare(&desired, &gateway) {
                    Some(job) => {
                        work.push(Box::pin(async { Finished::Gateway(job.run().await) }));
                    }
                    None => {
                        self.queue.finish(&gateway, Outcome::Unchanged);
                        if !desired.children.contains_key(&gateway) {
                            self.queue.forget(&gateway);
                        }
                    }
                }
            }
            let started = self.rollouts.start(Timestamp::now());
            if started.is_empty() {
                break;
            }
            for gateway in started {
                let waiting = self.rollouts.waiting();
                tracing::info!(
                    "{gateway}: its pods are replaced; {waiting} Gateways wait for that"
                );
                self.queue.push(&gateway);
            }
        }
        self.remove_former_rights(work);
    }

    /// What is to be done for a Gateway; nothing where all is as desired.
    fn prepare(&mut self, desired: &DesiredState, gateway: &ObjectRef) -> Option<Job> {
        if desired.retained.contains(gateway) {
            return None;
        }
        let none: Arc<[Child]> = Arc::default();
        let children = desired.children.get(gateway).unwrap_or(&none);
        let rollouts = &self.rollouts;
        let permit = |child: &Child, existing: &Existing| match &child.revision {
            Some(revision) => rollouts.permit(gateway, existing.record.as_ref(), revision),
            None => Permission::Free,
        };
        let Plan { steps, waits } = plan(gateway, children, &self.inventory, &self.applied, permit);
        match workload(children).filter(|_| waits) {
            Some((_, revision)) => self.rollouts.enqueue(gateway, revision),
            None => self.rollouts.dequeue(gateway),
        }
        if steps.is_empty() {
            self.troubles.succeed(gateway);
            return None;
        }
        let keys = children.iter().map(ChildKey::of);
        let applied =
            keys.filter_map(|key| self.applied.get(&key).cloned().map(|last| (key, last)));
        Some(Job {
            client: self.client.clone(),
            gateway: gateway.clone(),
            applied: applied.collect(),
            children: children.clone(),
            steps,
        })
    }

    /// Goes on with rollouts that another process has begun.
    fn resume(&mut self, desired: &DesiredState) {
        if self.resumed.len() == desired.children.len() {
            return;
        }
        for (gateway, children) in &desired.children {
            if !self.resumed.insert(gateway.clone()) {
                continue;
            }
            if let Some((child, revision)) = workload(children) {
                let existing = self.inventory.get(&ChildKey::of(child));
                let record = existing.and_then(|existing| existing.record.as_ref());
                let record = record.filter(|record| record.template == revision.template);
                if let Some(started) = record.and_then(|record| record.rollout) {
                    self.rollouts.resume(gateway, started);
                }
            }
        }
    }

    /// Ends the rollouts of Gateways that serve again, and of those that are not waited for.
    fn end_rollouts(&mut self, desired: &DesiredState) {
        let (inventory, applied) = (&self.inventory, &self.applied);
        let state = |gateway: &ObjectRef| workload_state(gateway, desired, inventory, applied);
        for (gateway, end) in self.rollouts.judge(Timestamp::now(), state) {
            let waiting = self.rollouts.waiting();
            let uid = gateway_uid(desired, &gateway);
            match end {
                End::Serves => {
                    tracing::info!(
                        "{gateway}: its pods are replaced and serve; {waiting} Gateways wait"
                    );
                    self.troubles.end_stall(&gateway);
                }
                End::Void => self.troubles.end_stall(&gateway),
                End::GivenUp => self.troubles.stall(&gateway, uid, GIVEN_UP),
                End::Overdue => self.troubles.stall(&gateway, uid, OVERDUE),
            }
            if end != End::Overdue {
                // Its record says that the rollout goes on.
                self.queue.push(&gateway);
            }
        }
    }

    fn finish(&mut self, finished: Finished) {
        let done = match finished {
            Finished::Gateway(done) => done,
            Finished::Former(removed) => return self.former.finish(removed),
        };
        let gateway = &done.gateway;
        let outcome = self.outcome(&done);
        for (key, applied, existing) in done.written {
            if let Some(existing) = existing {
                self.inventory.learn(&key, &existing);
            }
            self.applied.insert(key, applied);
        }
        for key in &done.deleted {
            self.inventory.forget(key);
        }
        let is_fought = self.queue.finish(gateway, outcome);
        if is_fought {
            tracing::warn!(
                "{gateway}: somebody keeps changing its objects; they are repaired less often"
            );
        }
        match done.failure {
            Some(failure) => self.fail(gateway, failure),
            // What was left out is tried again.
            None if done.is_blocked => {}
            None if done.is_gateway_gone => self.troubles.forget(gateway),
            None => {
                if outcome == Outcome::Written {
                    self.queue.touch(gateway);
                }
                self.troubles.succeed(gateway);
            }
        }
    }

    fn outcome(&self, done: &Done) -> Outcome {
        if done.failure.is_some() || done.is_blocked {
            return Outcome::Failed;
        }
        let version = |existing: &Existing| existing.resource_version.clone();
        let is_changed = done.written.iter().any(|(key, _, existing)| {
            // Applying what is there already changes nothing.
            existing.is_none()
                || self.inventory.get(key).map(version) != existing.as_ref().map(version)
        });
        match is_changed || !done.deleted.is_empty() {
            true => Outcome::Written,
            false => Outcome::Unchanged,
        }
    }

    fn fail(&mut self, gateway: &ObjectRef, failure: Failure) {
        if !self.is_begun(gateway) {
            // It is not waited for: another Gateway may be next.
            self.rollouts.release(gateway);
        }
        let desired = self.desired.as_deref();
        let uid = desired.and_then(|desired| gateway_uid(desired, gateway));
        self.troubles.fail(gateway, uid, failure);
    }

    /// Whether the workload of a Gateway has been told to replace its pods.
    fn is_begun(&self, gateway: &ObjectRef) -> bool {
        let desired = self.desired.as_ref();
        let children = desired.and_then(|desired| desired.children.get(gateway));
        let Some((child, revision)) = children.and_then(|children| workload(children)) else {
            return false;
        };
        let existing = self.inventory.get(&ChildKey::of(child));
        let record = existing.and_then(|existing| existing.record.as_ref());
        record.is_some_and(|record| record.template == revision.template)
    }

    /// Takes away the rights of pods of former versions, as soon as there are none that are to be replaced.
    fn remove_former_rights(&mut self, work: &mut Work) {
        let is_unsure = self.rollouts.is_pending()
            || self.troubles.is_any_unreachable()
            || self.queue.is_busy();
        if is_unsure || !self.former.begin() {
            return;
        }
        let client = self.client.clone();
        work.push(Box::pin(async move {
            Finished::Former(former::remove_read_rights(&client).await)
        }));
    }

    /// When something is to be done even if nothing happens.
    fn next_deadline(&self) -> Option<Instant> {
        let rollouts = self.rollouts.next_deadline(Timestamp::now());
        let deadlines = [
            self.queue.next_deadline(),
            rollouts.map(|left| Instant::now() + left),
            self.former.next_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }
}

/// The UID of a Gateway of which objects are desired.
fn gateway_uid<'a>(desired: &'a DesiredState, gateway: &ObjectRef) -> Option<&'a str> {
    let child = desired.children.get(gateway)?.first()?;
    Some(&child.gateway_uid)
}

/// The workload among the objects of a Gateway.
fn workload(children: &[Child]) -> Option<(&Child, &Revision)> {
    let mut children = children.iter();
    children.find_map(|child| Some((child, child.revision.as_ref()?)))
}

/// How the workload of a Gateway is, next to what is desired.
fn workload_state(
    gateway: &ObjectRef,
    desired: &DesiredState,
    inventory: &Inventory,
    applied: &AppliedObjects,
) -> WorkloadState {
    let children = desired.children.get(gateway);
    let Some((child, revision)) = children.and_then(|children| workload(children)) else {
        return WorkloadState::Void;
    };
    let key = ChildKey::of(child);
    let Some(existing) = inventory.get(&key) else {
        return WorkloadState::InProgress;
    };
    let record = existing.record.as_ref();
    if record.is_none_or(|record| record.template != revision.template) {
        return WorkloadState::InProgress;
    }
    // What is complete may be what was there before this process applied it.
    if !applied.contains_key(&key) {
        return WorkloadState::InProgress;
    }
    match (existing.has_pods, existing.is_complete) {
        (false, _) => WorkloadState::Empty,
        (true, true) => WorkloadState::Complete,
        (true, false) => WorkloadState::InProgress,
    }
}
