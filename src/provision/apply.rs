//! Writes the objects of one Gateway: creates missing ones, applies changed ones, deletes unneeded
//! ones. Never changes objects of another owner.

use std::sync::Arc;

use kube::Client;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams,
    Preconditions,
};
use serde_json::{Value, json};

use super::child::{Child, ChildKind};
use super::desired::{Failure, FailureReason};
use super::inventory::{ChildKey, Existing, PartialObject, resource};
use super::managed_fields::{release_replicas, take_over, take_over_fields};
use super::ownership::{is_applied_by_us, is_owned_by, owner};
use super::plan::{Applied, AppliedObjects, Delete, Step, Write};
use super::response::{Response, failure, is_taken, refusal, unreachable};
use crate::cluster::api_server::{field_manager, request};
use crate::ir::ObjectRef;
use crate::ir::object_ref::GATEWAY_GROUP;

/// The steps of one reconciliation.
pub(super) struct Job {
    pub(super) client: Client,
    pub(super) gateway: ObjectRef,
    pub(super) children: Arc<[Child]>,
    pub(super) steps: Vec<Step>,
    /// Last applied state of the children.
    pub(super) applied: AppliedObjects,
}

/// Result of a job.
pub(super) struct JobResult {
    pub(super) gateway: ObjectRef,
    /// Objects that were written.
    pub(super) written: Vec<(ChildKey, Applied, Option<Existing>)>,
    /// Objects that no longer exist.
    pub(super) deleted: Vec<ChildKey>,
    /// The first failure.
    pub(super) failure: Option<Failure>,
    /// Whether the job must run again because an object is being deleted or has just changed.
    pub(super) is_blocked: bool,
    /// Whether the Gateway is deleted or being deleted. The desired state will follow.
    pub(super) is_gateway_gone: bool,
}

/// Why a step failed.
enum StepError {
    Failed(Failure),
    /// The Gateway is deleted or being deleted.
    GatewayGone,
    /// An object of this name is being deleted.
    Terminating,
}

/// The Gateway as stored in the API server.
struct FoundGateway {
    /// `None` if it does not exist.
    uid: Option<String>,
    is_deleting: bool,
}

/// The owner of a taken name.
enum Found {
    /// An object of this Gateway, with its UID.
    Ours(String),
    /// The object was deleted meanwhile.
    Gone,
}

impl From<Failure> for StepError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Job {
    /// Runs the steps in order and stops at the first failure that makes later steps pointless.
    pub(super) async fn run(self) -> JobResult {
        let mut done = JobResult {
            gateway: self.gateway.clone(),
            written: Vec::new(),
            deleted: Vec::new(),
            failure: None,
            is_blocked: false,
            is_gateway_gone: false,
        };
        let mut found = None;
        for step in &self.steps {
            let taken = match step {
                Step::Create(write) => self.create(write, &mut found, &mut done).await,
                Step::Apply {
                    write,
                    uid,
                    has_updated_fields,
                } => self.apply(write, uid, *has_updated_fields, &mut done).await,
                // Keeps the old object, since its replacement could not be written.
                Step::Delete(_) if done.failure.is_some() || done.is_blocked => return done,
                Step::Delete(delete) => self.delete(delete, &mut found, &mut done).await,
            };
            match taken {
                Ok(()) => {}
                Err(StepError::GatewayGone) => {
                    done.is_gateway_gone = true;
                    return done;
                }
                Err(StepError::Terminating) => done.is_blocked = true,
                Err(StepError::Failed(failure)) => {
                    let may_continue = failure.reason == FailureReason::Refused;
                    if done.failure.is_none() {
                        done.failure = Some(failure);
                    }
                    if !may_continue || self.is_prerequisite(step) {
                        return done;
                    }
                }
            }
        }
        done
    }

    /// Reports whether pods need the object of a step to start.
    fn is_prerequisite(&self, step: &Step) -> bool {
        let (Step::Create(write) | Step::Apply { write, .. }) = step else {
            return false;
        };
        let kind = self.children.get(write.index).map(|child| child.kind);
        matches!(kind, Some(ChildKind::ServiceAccount | ChildKind::ConfigMap))
    }

    fn child(&self, write: &Write) -> Result<(&Child, Value), Failure> {
        let child = self.children.get(write.index).ok_or_else(|| Failure {
            reason: FailureReason::Refused,
            message: "internal error: a step refers to a child that does not exist".to_owned(),
        })?;
        let mut object = child.object.clone();
        if let Some(record) = &write.record {
            record.annotate(&mut object);
        }
        Ok((child, object))
    }

    /// Returns the minimum of the autoscaler, with which a new Deployment begins.
    fn min_replicas(&self) -> Value {
        let mut children = self.children.iter();
        let autoscaler = children.find(|it| it.kind == ChildKind::HorizontalPodAutoscaler);
        autoscaler.map_or(Value::Null, |it| it.object["spec"]["minReplicas"].clone())
    }

    /// Creates an object. If the name is taken, applies the object if this controller owns it, and
    /// fails otherwise.
    async fn create(
        &self,
        write: &Write,
        found: &mut Option<FoundGateway>,
        done: &mut JobResult,
    ) -> Result<(), StepError> {
        let (child, mut object) = self.child(write)?;
        let gateway = self.find_gateway(found).await?;
        // The desired state may be older than the Gateway. The garbage collector may already be
        // deleting its objects.
        if gateway.uid.as_deref() != Some(&child.gateway_uid) || gateway.is_deleting {
            return Err(StepError::GatewayGone);
        }
        let key = ChildKey::of(child);
        let api = api(&self.client, &key);
        if is_autoscaled(child) {
            object["spec"]["replicas"] = self.min_replicas();
        }
        let body = serde_json::from_value(object).map_err(|error| Failure {
            reason: FailureReason::Refused,
            message: format!("cannot write {key}: {error}"),
        })?;
        let params = PostParams {
            field_manager: Some(field_manager().to_owned()),
            ..PostParams::default()
        };
        let mut created = request(api.create(&params, &body)).await;
        if is_taken(&created) {
            match self.resolve(child, &api).await? {
                Found::Ours(uid) => return self.apply(write, &uid, true, done).await,
                Found::Gone => created = request(api.create(&params, &body)).await,
            }
        }
        match created {
            Ok(Ok(created)) => {
                tracing::debug!("created {key} for {}", self.gateway);
                let created = take_over_fields(&api, &key, created).await?;
                done.record(child, write, &created);
                Ok(())
            }
            created if is_taken(&created) => Err(StepError::Terminating),
            created => Err(refusal(&key, "created", created).into()),
        }
    }

    /// Finds the owner of a taken name. Deletes an object of a previous Gateway.
    async fn resolve(&self, child: &Child, api: &Api<DynamicObject>) -> Result<Found, StepError> {
        let key = ChildKey::of(child);
        let found = match request(api.get_metadata_opt(&key.name)).await {
            Ok(Ok(Some(found))) => found.metadata,
            Ok(Ok(None)) => return Ok(Found::Gone),
            found => return Err(refusal(&key, "read", found).into()),
        };
        let uid = found.uid.clone().unwrap_or_default();
        let last = self.applied.get(&key);
        let is_known =
            last.is_some_and(|last| last.uid == uid && last.owner_uid == child.gateway_uid);
        let is_ours = is_known || is_owned_by(&found, &child.gateway_uid);
        if !is_ours && !self.is_of_previous_gateway(&found, &child.gateway_uid) {
            return Err(name_taken(&key, &found, &self.gateway).into());
        }
        if found.deletion_timestamp.is_some() {
            return Err(StepError::Terminating);
        }
        if is_ours {
            return Ok(Found::Ours(uid));
        }
        let previous = Delete {
            key,
            uid,
            resource_version: found.resource_version.unwrap_or_default(),
            owner_uid: String::new(),
        };
        delete(&self.client, &previous).await?;
        Ok(Found::Gone)
    }

    /// Reports whether an object belongs to a deleted Gateway of the same name. The garbage
    /// collector would delete it later.
    fn is_of_previous_gateway(&self, found: &ObjectMeta, uid: &str) -> bool {
        let owner = owner(found);
        let is_previous = |name: &str, of: &str| *name == *self.gateway.name && of != uid;
        is_applied_by_us(found) && owner.is_some_and(|owner| is_previous(&owner.name, &owner.uid))
    }

    /// Applies an object of this controller. With the UID in the request, the API server rejects it
    /// if the object was replaced.
    async fn apply(
        &self,
        write: &Write,
        uid: &str,
        has_updated_fields: bool,
        done: &mut JobResult,
    ) -> Result<(), StepError> {
        let (child, mut object) = self.child(write)?;
        let key = ChildKey::of(child);
        let api = api(&self.client, &key);
        object["metadata"]["uid"] = json!(uid);
        let is_autoscaled = is_autoscaled(child);
        if has_updated_fields || is_autoscaled {
            let metadata = match request(api.get_metadata(&key.name)).await {
                Ok(Ok(found)) => found.metadata,
                found => return Err(refusal(&key, "read", found).into()),
            };
            let changed = take_over(&api, &key, metadata.clone()).await?;
            if is_autoscaled {
                release_replicas(&api, &key, changed.unwrap_or(metadata)).await?;
            }
        }
        let sent = send(&api, child, &object).await?;
        done.record(child, write, &sent);
        Ok(())
    }

    /// Deletes an object, unless its Gateway is being deleted. In that case the propagation policy
    /// of the Gateway's deletion decides, and the garbage collector deletes the objects.
    async fn delete(
        &self,
        step: &Delete,
        found: &mut Option<FoundGateway>,
        done: &mut JobResult,
    ) -> Result<(), StepError> {
        let gateway = self.find_gateway(found).await?;
        if gateway.uid.as_ref() == Some(&step.owner_uid) && gateway.is_deleting {
            return Err(StepError::GatewayGone);
        }
        delete(&self.client, step).await?;
        done.deleted.push(step.key.clone());
        Ok(())
    }

    /// Reads the Gateway once per job.
    async fn find_gateway<'a>(
        &self,
        found: &'a mut Option<FoundGateway>,
    ) -> Result<&'a FoundGateway, Failure> {
        let gateway = match found.take() {
            Some(gateway) => gateway,
            None => self.read_gateway().await?,
        };
        Ok(found.insert(gateway))
    }

    async fn read_gateway(&self) -> Result<FoundGateway, Failure> {
        let resource = ApiResource {
            group: GATEWAY_GROUP.to_owned(),
            version: "v1".to_owned(),
            api_version: format!("{GATEWAY_GROUP}/v1"),
            kind: "Gateway".to_owned(),
            plural: "gateways".to_owned(),
        };
        let Self {
            gateway, client, ..
        } = self;
        let api: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), &gateway.namespace, &resource);
        let what = || format!("cannot read {gateway}");
        let found = match request(api.get_metadata_opt(&gateway.name)).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return Err(failure(&error, &what())),
            Err(timeout) => return Err(unreachable(format!("{}: {timeout}", what()))),
        };
        let metadata = found.map(|found| found.metadata).unwrap_or_default();
        Ok(FoundGateway {
            is_deleting: metadata.deletion_timestamp.is_some(),
            uid: metadata.uid,
        })
    }
}

impl JobResult {
    fn record(&mut self, child: &Child, write: &Write, object: &DynamicObject) {
        let slim: Option<PartialObject> = object.clone().try_parse().ok();
        let existing = slim.as_ref().and_then(Existing::of);
        let applied = Applied {
            desired_hash: write.desired_hash,
            hash: existing.as_ref().map_or(0, |existing| existing.hash),
            uid: object.metadata.uid.clone().unwrap_or_default(),
            owner_uid: child.gateway_uid.clone(),
        };
        self.written.push((ChildKey::of(child), applied, existing));
    }
}

/// Deletes an object with UID and resourceVersion as preconditions.
async fn delete(client: &Client, step: &Delete) -> Result<(), StepError> {
    let Delete { key, .. } = step;
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(step.uid.clone()),
            resource_version: Some(step.resource_version.clone()),
        }),
        ..DeleteParams::background()
    };
    match request(api(client, key).delete(&key.name, &params)).await {
        Ok(Ok(_)) => tracing::info!("deleted {key}, which is no longer needed"),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => {}
        // A concurrent change: the watch reports it, and the deletion is retried.
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => {
            return Err(StepError::Terminating);
        }
        deleted => return Err(refusal(key, "deleted", deleted).into()),
    }
    Ok(())
}

/// Applies an object (server-side apply) and returns the stored result.
async fn send(
    api: &Api<DynamicObject>,
    child: &Child,
    object: &Value,
) -> Result<DynamicObject, Failure> {
    let key = ChildKey::of(child);
    // Forced: this controller owns its fields, and takes them back from other managers.
    let forced = PatchParams::apply(field_manager()).force();
    let patch = Patch::Apply(object);
    let sent = request(api.patch(&child.name, &forced, &patch)).await;
    if !has_foreign_ports(child, &sent) {
        return sent_object(&key, sent);
    }
    // A merge patch replaces the whole list, including ports of other managers.
    let ports = json!({
        "metadata": {"uid": object["metadata"]["uid"]},
        "spec": {"ports": child.object["spec"]["ports"]},
    });
    let params = PatchParams {
        field_manager: Some(field_manager().to_owned()),
        ..PatchParams::default()
    };
    let merged = request(api.patch(&child.name, &params, &Patch::Merge(&ports))).await;
    let merged = sent_object(&key, merged)?;
    take_over_fields(api, &key, merged).await?;
    let sent = request(api.patch(&child.name, &forced, &patch)).await;
    sent_object(&key, sent)
}

fn sent_object(key: &ChildKey, sent: Response<DynamicObject>) -> Result<DynamicObject, Failure> {
    match sent {
        Ok(Ok(object)) => Ok(object),
        sent => Err(refusal(key, "applied", sent)),
    }
}

/// Reports whether an autoscaler sets the number of pods of a Deployment.
fn is_autoscaled(child: &Child) -> bool {
    child.kind == ChildKind::Deployment && child.object["spec"]["replicas"].is_null()
}

/// Reports whether a Service has ports of another field manager. Apply keeps such ports, and fails
/// if their names equal those of the desired ports.
fn has_foreign_ports(child: &Child, sent: &Response<DynamicObject>) -> bool {
    let count = |object: &Value| object["spec"]["ports"].as_array().map(Vec::len);
    child.kind == ChildKind::Service
        && match sent {
            Ok(Ok(object)) => count(&object.data) != count(&child.object),
            Ok(Err(kube::Error::Api(status))) => {
                let causes = status.details.iter().flat_map(|details| &details.causes);
                let mut fields = causes.map(|cause| cause.field.as_str());
                status.code == 422 && fields.any(|field| field.starts_with("spec.ports"))
            }
            _ => false,
        }
}

fn name_taken(key: &ChildKey, found: &ObjectMeta, gateway: &ObjectRef) -> Failure {
    let whose = match owner(found) {
        Some(owner) => format!("belongs to Gateway {}", owner.name),
        None => "belongs to another owner".to_owned(),
    };
    Failure {
        reason: FailureReason::NameTaken,
        message: format!(
            "{key} already exists and {whose}: rename Gateway {} or delete that object",
            gateway.name
        ),
    }
}

fn api(client: &Client, key: &ChildKey) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), &key.namespace, &resource(key.kind))
}
