//! The reconciliation loop: compares desired with existing objects, reconciles Gateways
//! concurrently, and reports failures. Owns the loop only. Planning, queueing and writing are
//! separate modules.

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

use super::Revision;
use super::apply::{Job, JobResult};
use super::child::{Child, ChildKind};
use super::desired::{
    DesiredChange, DesiredState, Failure, FailureReason, Failures, Inputs, RolloutOptions,
};
use super::failure_reporter::FailureReporter;
use super::inventory::{ChildKey, Existing, Inventory, PartialObject, watch_children};
use super::plan::{AppliedObjects, Plan, plan};
use super::queue::{Queue, Reconciled};
use super::rollout::{Permission, RolloutEnd, Rollouts, WorkloadState};
use crate::cluster::events::Events;
use crate::ir::ObjectRef;

const ROLLOUT_GIVEN_UP: &str = "the new pods do not serve, and neither did the previous ones: the rollout continues with other Gateways";
const ROLLOUT_OVERDUE: &str = "the new pods do not serve, but the previous ones did: the rollout to other Gateways of the namespace waits for them";

type Work = FuturesUnordered<BoxFuture<'static, JobResult>>;

/// State of the loop.
struct State {
    client: Client,
    desired: Option<Arc<DesiredState>>,
    inventory: Inventory,
    applied: AppliedObjects,
    queue: Queue,
    rollouts: Rollouts,
    failure_reporter: FailureReporter,
    /// Gateways for which a rollout that another process had begun was taken over.
    resumed: BTreeSet<ObjectRef>,
}

/// Applies the desired state while polled. Writes nothing before the desired and the existing
/// objects are known.
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
    let mut changes = watch_children(client);
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
        publish(failures, state.failures());
        tokio::select! {
            changed = desired.changed() => {
                let new = desired.borrow_and_update().clone();
                match (changed, new) {
                    (Err(_), _) => return,
                    (Ok(()), Some(new)) => state.set_desired(&new),
                    (Ok(()), None) => {}
                }
            }
            changed = serving.changed(), if is_serving_known => {
                is_serving_known = changed.is_ok();
                serving.mark_changed();
            }
            Some((kind, event)) = changes.next() => state.apply_event(kind, event),
            Some(finished) = work.next() => state.finish(finished),
            () = until(state.next_deadline()) => {}
        }
    }
}

fn publish(sender: &watch::Sender<Failures>, failures: Failures) {
    sender.send_if_modified(|known| {
        let is_changed = *known != failures;
        *known = failures;
        is_changed
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
            failure_reporter: FailureReporter::new(events),
            resumed: BTreeSet::new(),
        }
    }

    /// Replaces the desired state and queues the Gateways that it changes.
    fn set_desired(&mut self, new: &Arc<DesiredState>) {
        let old = self.desired.replace(new.clone()).unwrap_or_default();
        for change in new.changes_since(&old) {
            let DesiredChange {
                gateway,
                previous,
                now,
            } = change;
            if now.is_none() {
                self.forget(gateway);
            }
            self.queue.push(gateway);
            let now: BTreeSet<_> = keys(now).collect();
            for gone in keys(previous).filter(|key| !now.contains(key)) {
                self.applied.remove(&gone);
            }
        }
        let released = old.retained.iter();
        let released = released.filter(|it| !new.retained.contains(*it));
        for gateway in released.filter(|it| !new.children.contains_key(*it)) {
            self.forget(gateway);
            self.queue.push(gateway);
        }
    }

    /// Forgets a Gateway that is no longer desired.
    fn forget(&mut self, gateway: &ObjectRef) {
        self.failure_reporter.forget(gateway);
        self.failure_reporter.end_stall(gateway);
        self.resumed.remove(gateway);
        self.rollouts.dequeue(gateway);
        self.rollouts.release(gateway);
    }

    /// Applies a watch event.
    fn apply_event(&mut self, kind: ChildKind, event: Event<PartialObject>) {
        let was_complete = self.inventory.is_complete();
        let changes = self.inventory.apply_event(kind, event);
        if !was_complete && self.inventory.is_complete() {
            // Gateways may have been deleted while no controller was running.
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

    /// Retries failed Gateways that need one of these names.
    fn retry_names(&mut self, freed: &BTreeSet<ChildKey>) {
        let Some(desired) = &self.desired else {
            return;
        };
        for gateway in self.failure_reporter.failures().keys() {
            let children = desired.children.get(gateway);
            let mut children = children.into_iter().flat_map(|children| children.iter());
            if children.any(|child| freed.contains(&ChildKey::of(child))) {
                self.queue.push(gateway);
            }
        }
    }

    /// Returns the failures to apply objects, and of workloads that cannot create their pods.
    fn failures(&self) -> Failures {
        let mut failures = self.failure_reporter.failures().clone();
        for (gateway, workload, why) in self.inventory.failing() {
            failures.entry(gateway.clone()).or_insert_with(|| Failure {
                reason: FailureReason::Refused,
                message: format!("{workload}: {why}"),
            });
        }
        failures
    }

    /// Starts all reconciliations that may run.
    fn start(&mut self, work: &mut Work) {
        let Some(desired) = self.desired.clone() else {
            return;
        };
        if !self.inventory.is_complete() {
            return;
        }
        if work.is_empty() {
            self.inventory.clear_deletions();
        }
        self.resume(&desired);
        self.end_rollouts(&desired);
        loop {
            while let Some(gateway) = self.queue.next() {
                match self.prepare(&desired, &gateway) {
                    Some(job) => {
                        work.push(Box::pin(job.run()));
                    }
                    None => {
                        self.queue.finish(&gateway, &Reconciled::Unchanged);
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
                tracing::info!("{gateway}: replacing pods; {waiting} Gateways wait");
                self.queue.push(&gateway);
            }
        }
    }

    /// Plans the job for a Gateway; `None` if all objects are as desired.
    fn prepare(&mut self, desired: &DesiredState, gateway: &ObjectRef) -> Option<Job> {
        if desired.retained.contains(gateway) {
            return None;
        }
        let none: Arc<[Child]> = Arc::default();
        let children = desired.children.get(gateway).unwrap_or(&none);
        let rollouts = &self.rollouts;
        let permit = |child: &Child, existing: &Existing| match &child.revision {
            Some(revision) => rollouts.permit(gateway, existing.record.as_ref(), revision),
            None => Permission::Immediate,
        };
        let Plan { steps, waits } = plan(gateway, children, &self.inventory, &self.applied, permit);
        match workload(children).filter(|_| waits) {
            Some((_, revision)) => self.rollouts.enqueue(gateway, revision),
            None => self.rollouts.dequeue(gateway),
        }
        if steps.is_empty() {
            self.failure_reporter.clear(gateway);
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

    /// Takes over rollouts that another process has begun.
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

    /// Ends rollouts of Gateways that serve again or that are given up.
    fn end_rollouts(&mut self, desired: &DesiredState) {
        let (inventory, applied) = (&self.inventory, &self.applied);
        let state = |gateway: &ObjectRef| workload_state(gateway, desired, inventory, applied);
        for (gateway, end) in self.rollouts.evaluate(Timestamp::now(), state) {
            let waiting = self.rollouts.waiting();
            let uid = gateway_uid(desired, &gateway);
            match end {
                RolloutEnd::Serves => {
                    tracing::info!("{gateway}: the new pods serve; {waiting} Gateways wait");
                    self.failure_reporter.end_stall(&gateway);
                }
                RolloutEnd::Void => self.failure_reporter.end_stall(&gateway),
                RolloutEnd::GivenUp => self.failure_reporter.stall(&gateway, uid, ROLLOUT_GIVEN_UP),
                RolloutEnd::Overdue => self.failure_reporter.stall(&gateway, uid, ROLLOUT_OVERDUE),
            }
            if end != RolloutEnd::Overdue {
                // Removes the rollout from its record.
                self.queue.push(&gateway);
            }
        }
    }

    fn finish(&mut self, done: JobResult) {
        let gateway = &done.gateway;
        let result = self.result(&done);
        for (key, applied, existing) in done.written {
            if let Some(existing) = existing {
                self.inventory.record(&key, &existing);
            }
            self.applied.insert(key, applied);
        }
        for key in &done.deleted {
            self.inventory.forget(key);
        }
        let is_contended = self.queue.finish(gateway, &result);
        if is_contended {
            tracing::warn!(
                "{gateway}: another client keeps changing its objects; repairing them less often"
            );
        }
        match done.failure {
            Some(failure) => self.fail(gateway, failure),
            // The back-off of the queue retries the blocked steps.
            None if done.is_blocked => {}
            None if done.is_gateway_gone => self.failure_reporter.forget(gateway),
            None => {
                if matches!(result, Reconciled::Written(_)) {
                    self.queue.touch(gateway);
                }
                self.failure_reporter.clear(gateway);
            }
        }
    }

    fn result(&self, done: &JobResult) -> Reconciled {
        if done.failure.is_some() || done.is_blocked {
            return Reconciled::Failed;
        }
        let version = |existing: &Existing| existing.resource_version.clone();
        let changed = done.written.iter().filter(|(key, _, existing)| {
            // Applying an unchanged object does not count as a write.
            existing.is_none()
                || self.inventory.get(key).map(version) != existing.as_ref().map(version)
        });
        let changed = changed.map(|(key, ..)| key).chain(&done.deleted);
        let changed: Vec<_> = changed.cloned().collect();
        match changed.is_empty() {
            true => Reconciled::Unchanged,
            false => Reconciled::Written(changed),
        }
    }

    fn fail(&mut self, gateway: &ObjectRef, failure: Failure) {
        if !self.is_begun(gateway) {
            // The Gateway does not occupy a rollout slot, so another one may start.
            self.rollouts.release(gateway);
        }
        let desired = self.desired.as_deref();
        let uid = desired.and_then(|desired| gateway_uid(desired, gateway));
        self.failure_reporter.fail(gateway, uid, failure);
    }

    /// Reports whether the workload of a Gateway has the desired pod template.
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

    /// Returns when to run again without an event.
    fn next_deadline(&self) -> Option<Instant> {
        let rollouts = self.rollouts.next_deadline(Timestamp::now());
        let deadlines = [
            self.queue.next_deadline(),
            rollouts.map(|left| Instant::now() + left),
        ];
        deadlines.into_iter().flatten().min()
    }
}

/// Returns the keys of desired objects.
fn keys(children: Option<&Arc<[Child]>>) -> impl Iterator<Item = ChildKey> {
    let children = children.into_iter().flat_map(|children| children.iter());
    children.map(ChildKey::of)
}

/// Returns the UID of a Gateway with desired objects.
fn gateway_uid<'a>(desired: &'a DesiredState, gateway: &ObjectRef) -> Option<&'a str> {
    let child = desired.children.get(gateway)?.first()?;
    Some(&child.gateway_uid)
}

/// Returns the workload among the children of a Gateway.
fn workload(children: &[Child]) -> Option<(&Child, &Revision)> {
    let mut children = children.iter();
    children.find_map(|child| Some((child, child.revision.as_ref()?)))
}

/// Compares a Gateway's workload with the desired one.
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
    // A complete workload may still be the one that existed before this process applied it.
    if !applied.contains_key(&key) {
        return WorkloadState::InProgress;
    }
    match (existing.has_pods, existing.is_complete) {
        (false, _) => WorkloadState::Empty,
        (true, true) => WorkloadState::Complete,
        (true, false) => WorkloadState::InProgress,
    }
}
