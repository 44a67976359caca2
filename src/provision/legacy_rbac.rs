//! Deletes RBAC objects of previous versions: a ClusterRole that let the pods of all Gateways read
//! the cluster, and its ClusterRoleBinding.

use std::time::Duration;

use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ObjectMeta, Preconditions};

use super::ownership::is_applied_by_us;
use crate::cluster::api_server::{describe, request};
use crate::runtime::backoff::Backoff;
use tokio::time::Instant;

/// Name of both objects.
const READERS: &str = "portcullis-data-plane";
/// Label of all installed Portcullis objects.
const NAME_LABEL: (&str, &str) = ("app.kubernetes.io/name", "portcullis");

const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(5),
    longest: Duration::from_secs(600),
};

/// Progress of the deletion.
pub(super) enum LegacyRbac {
    /// The objects may exist. Counts the failed attempts to delete them.
    Unknown { failures: u32, not_before: Instant },
    /// Deletion is in progress.
    Removing { failures: u32 },
    /// The objects do not exist.
    Removed,
}

impl LegacyRbac {
    pub(super) fn new() -> Self {
        Self::Unknown {
            failures: 0,
            not_before: Instant::now(),
        }
    }

    /// Starts the deletion if it is due.
    pub(super) fn begin(&mut self) -> bool {
        match *self {
            Self::Unknown {
                failures,
                not_before,
            } if not_before <= Instant::now() => {
                *self = Self::Removing { failures };
                true
            }
            _ => false,
        }
    }

    /// Records the result of the deletion.
    pub(super) fn finish(&mut self, removed: Result<(), String>) {
        let Self::Removing { failures } = *self else {
            return;
        };
        *self = match removed {
            Ok(()) => Self::Removed,
            Err(error) => {
                tracing::warn!("{error}; retrying");
                Self::Unknown {
                    failures: failures.saturating_add(1),
                    not_before: Instant::now() + BACKOFF.after(failures),
                }
            }
        };
    }

    /// Returns when to retry.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match self {
            Self::Unknown { not_before, .. } => Some(*not_before).filter(|at| *at > Instant::now()),
            _ => None,
        }
    }
}

/// Deletes both objects if they belong to Portcullis. Deletes the binding first: without it, the
/// role grants nothing.
pub(super) async fn delete_legacy_rbac(client: &Client) -> Result<(), String> {
    for (kind, plural) in [
        ("ClusterRoleBinding", "clusterrolebindings"),
        ("ClusterRole", "clusterroles"),
    ] {
        let removed = remove(client, kind, plural).await;
        removed.map_err(|error| format!("cannot delete {kind} {READERS}: {error}"))?;
    }
    Ok(())
}

async fn remove(client: &Client, kind: &str, plural: &str) -> Result<(), String> {
    let resource = ApiResource {
        group: "rbac.authorization.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "rbac.authorization.k8s.io/v1".to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    };
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let found = request(api.get_metadata_opt(READERS)).await?;
    let Some(found) = found.map_err(|error| describe(&error))? else {
        return Ok(());
    };
    if !is_ours(&found.metadata) {
        tracing::debug!("keeping {kind} {READERS}: it does not belong to Portcullis");
        return Ok(());
    }
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: found.metadata.uid,
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match request(api.delete(READERS, &params)).await? {
        Ok(_) => tracing::info!("deleted {kind} {READERS} of a previous version"),
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(describe(&error)),
    }
    Ok(())
}

fn is_ours(metadata: &ObjectMeta) -> bool {
    let (label, value) = NAME_LABEL;
    let labels = metadata.labels.as_ref();
    let found = labels.and_then(|labels| labels.get(label));
    found.is_some_and(|found| found == value) || is_applied_by_us(metadata)
}
