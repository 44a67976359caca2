//! Writes the objects of one Gateway: makes what is missing, applies what is ours and differs, deletes what is no longer
//! needed. Whatever belongs to somebody else is left alone.

use std::sync::Arc;

use kube::Client;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ObjectMeta, Patch, PatchParams, PostParams,
    Preconditions,
};
use serde_json::{Value, json};

use super::desired::{Failure, FailureReason};
use super::fields::{take_over, take_over_fields};
use super::inventory::{ChildKey, Existing, Slim, resource};
use super::ownership::{is_applied_by_us, is_owned_by, owner};
use super::plan::{Applied, AppliedObjects, Delete, Step, Write};
use super::response::{Response, failure, is_taken, refusal, unreachable};
use super::{Child, ChildKind};
use crate::api_server::{FIELD_MANAGER, request};
use crate::ir::ObjectRef;
use crate::ir::object_ref::GATEWAY_GROUP;

/// The steps of one Gateway.
pub(super) struct Job {
    pub(super) client: Client,
    pub(super) gateway: ObjectRef,
    pub(super) children: Arc<[Child]>,
    pub(super) steps: Vec<Step>,
    /// What was applied last of what is to be made.
    pub(super) applied: AppliedObjects,
}

/// What became of a job.
pub(super) struct Done {
    pub(super) gateway: ObjectRef,
    /// Objects that were written.
    pub(super) written: Vec<(ChildKey, Applied, Option<Existing>)>,
    /// Objects that are gone.
    pub(super) deleted: Vec<ChildKey>,
    /// The first failure.
    pub(super) failure: Option<Failure>,
    /// Whether something is left to do: an object is being deleted or has just changed.
    pub(super) is_blocked: bool,
    /// Whether the Gateway is gone or being deleted, of which what is desired will tell.
    pub(super) is_gateway_gone: bool,
}

/// Why a step did not succeed.
enum Fault {
    Failed(Failure),
    /// The Gateway is gone or being deleted.
    GatewayGone,
    /// An object of this name is being deleted.
    Terminating,
}

/// The Gateway as the API server has it.
struct FoundGateway {
    /// `None` if there is none.
    uid: Option<String>,
    is_deleting: bool,
}

/// What an object turns out to be whose name is needed.
enum Found {
    /// One of ours, of this UID.
    Ours(String),
    /// Nothing any more.
    Gone,
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Job {
    /// Takes the steps, and stops where further ones have no sense.
    pub(super) async fn run(self) -> Done {
        let mut done = Done {
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
                // What replaces it could not be written.
                Step::Delete(_) if done.failure.is_some() || done.is_blocked => return done,
                Step::Delete(delete) => self.delete(delete, &mut found, &mut done).await,
            };
            match taken {
                Ok(()) => {}
                Err(Fault::GatewayGone) => {
                    done.is_gateway_gone = true;
                    return done;
                }
                Err(Fault::Terminating) => done.is_blocked = true,
                Err(Fault::Failed(failure)) => {
                    let may_go_on = failure.reason == FailureReason::Refused;
                    if done.failure.is_none() {
                        done.failure = Some(failure);
                    }
                    if !may_go_on || self.is_prerequisite(step) {
                        return done;
                    }
                }
            }
        }
        done
    }

    /// Whether pods cannot start without what a step writes.
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
            message: "one of its objects is unknown".to_owned(),
        })?;
        let mut object = child.object.clone();
        if let Some(record) = &write.record {
            record.annotate(&mut object);
        }
        Ok((child, object))
    }

    /// Makes an object. One of its name that is ours is applied; one of somebody else is left alone.
    async fn create(
        &self,
        write: &Write,
        found: &mut Option<FoundGateway>,
        done: &mut Done,
    ) -> Result<(), Fault> {
        let (child, object) = self.child(write)?;
        let gateway = self.find_gateway(found).await?;
        // What is desired may be older than the Gateway, whose objects the garbage collector may be deleting.
        if gateway.uid.as_deref() != Some(&child.gateway_uid) || gateway.is_deleting {
            return Err(Fault::GatewayGone);
        }
        let key = ChildKey::of(child);
        let api = api(&self.client, &key);
        let body = serde_json::from_value(object).map_err(|error| Failure {
            reason: FailureReason::Refused,
            message: format!("{key} cannot be written: {error}"),
        })?;
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let mut made = request(api.create(&params, &body)).await;
        if is_taken(&made) {
            match self.resolve(child, &api).await? {
                Found::Ours(uid) => return self.apply(write, &uid, true, done).await,
                Found::Gone => made = request(api.create(&params, &body)).await,
            }
        }
        match made {
            Ok(Ok(made)) => {
                tracing::debug!("{key} is made for {}", self.gateway);
                let made = take_over_fields(&api, &key, made).await?;
                done.record(child, write, &made);
                Ok(())
            }
            made if is_taken(&made) => Err(Fault::Terminating),
            made => Err(refusal(&key, "made", made).into()),
        }
    }

    /// What an object is that turns out to exist. One of a former Gateway is deleted.
    async fn resolve(&self, child: &Child, api: &Api<DynamicObject>) -> Result<Found, Fault> {
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
        if !is_ours && !self.is_of_former_gateway(&found, &child.gateway_uid) {
            return Err(name_taken(&key, &found, &self.gateway).into());
        }
        if found.deletion_timestamp.is_some() {
            return Err(Fault::Terminating);
        }
        if is_ours {
            return Ok(Found::Ours(uid));
        }
        let former = Delete {
            key,
            uid,
            resource_version: found.resource_version.unwrap_or_default(),
            owner_uid: String::new(),
        };
        delete(&self.client, &former).await?;
        Ok(Found::Gone)
    }

    /// Whether an object was made for a Gateway of the same name that is gone: nobody else deletes it as soon.
    fn is_of_former_gateway(&self, found: &ObjectMeta, uid: &str) -> bool {
        let owner = owner(found);
        let is_former = |name: &str, of: &str| *name == *self.gateway.name && of != uid;
        is_applied_by_us(found) && owner.is_some_and(|owner| is_former(&owner.name, &owner.uid))
    }

    /// Applies an object that is ours. The API server refuses when it is no longer the one of that UID.
    async fn apply(
        &self,
        write: &Write,
        uid: &str,
        has_updated_fields: bool,
        done: &mut Done,
    ) -> Result<(), Fault> {
        let (child, mut object) = self.child(write)?;
        let key = ChildKey::of(child);
        let api = api(&self.client, &key);
        object["metadata"]["uid"] = json!(uid);
        if has_updated_fields {
            let metadata = match request(api.get_metadata(&key.name)).await {
                Ok(Ok(found)) => found.metadata,
                found => return Err(refusal(&key, "read", found).into()),
            };
            take_over(&api, &key, metadata).await?;
        }
        let sent = send(&api, child, &object).await?;
        done.record(child, write, &sent);
        Ok(())
    }

    /// Deletes an object, unless its Gateway is being deleted: who did that says what becomes of its objects. Those of a
    /// Gateway that is gone would go anyway.
    async fn delete(
        &self,
        step: &Delete,
        found: &mut Option<FoundGateway>,
        done: &mut Done,
    ) -> Result<(), Fault> {
        let gateway = self.find_gateway(found).await?;
        if gateway.uid.as_ref() == Some(&step.owner_uid) && gateway.is_deleting {
            return Err(Fault::GatewayGone);
        }
        delete(&self.client, step).await?;
        done.deleted.push(step.key.clone());
        Ok(())
    }

    /// The Gateway as it is now, asked for once.
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
        let what = || format!("{gateway} cannot be read");
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

impl Done {
    fn record(&mut self, child: &Child, write: &Write, object: &DynamicObject) {
        let slim: Option<Slim> = object.clone().try_parse().ok();
        let existing = slim.as_ref().and_then(Existing::of);
        let applied = Applied {
            wanted: write.wanted,
            hash: existing.as_ref().map_or(0, |existing| existing.hash),
            uid: object.metadata.uid.clone().unwrap_or_default(),
            owner_uid: child.gateway_uid.clone(),
        };
        self.written.push((ChildKey::of(child), applied, existing));
    }
}

/// Deletes an object as it was last seen.
async fn delete(client: &Client, step: &Delete) -> Result<(), Fault> {
    let Delete { key, .. } = step;
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(step.uid.clone()),
            resource_version: Some(step.resource_version.clone()),
        }),
        ..DeleteParams::background()
    };
    match request(api(client, key).delete(&key.name, &params)).await {
        Ok(Ok(_)) => tracing::info!("{key} is no longer needed and is deleted"),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => {}
        // Somebody has just changed it, and a watch will tell.
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => return Err(Fault::Terminating),
        deleted => return Err(refusal(key, "deleted", deleted).into()),
    }
    Ok(())
}

/// Applies an object, and returns what the API server made of it.
async fn send(
    api: &Api<DynamicObject>,
    child: &Child,
    object: &Value,
) -> Result<DynamicObject, Failure> {
    let key = ChildKey::of(child);
    let forced = PatchParams::apply(FIELD_MANAGER).force();
    let patch = Patch::Apply(object);
    let sent = request(api.patch(&child.name, &forced, &patch)).await;
    if !has_foreign_ports(child, &sent) {
        return sent_object(&key, sent);
    }
    let ports = json!({
        "metadata": {"uid": object["metadata"]["uid"]},
        "spec": {"ports": child.object["spec"]["ports"]},
    });
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
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

/// Whether a Service has ports of another field manager: applying leaves them there, and is refused where they have the
/// names of ours.
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
            "{key} exists already and {whose}: rename Gateway {}, or delete that object",
            gateway.name
        ),
    }
}

fn api(client: &Client, key: &ChildKey) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), &key.namespace, &resource(key.kind))
}
