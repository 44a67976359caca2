//! Requests to the API server: reads a ReleaseBackend, applies weights to it, and reads the metrics of pods of
//! Gateways.

use std::fmt;

use anyhow::{Context, anyhow, bail};
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, Status};
use serde::Deserialize;
use serde_json::json;

use crate::api::parameters::GROUP;
use crate::api::release_backend::ReleaseBackendSpec;
use crate::cli::pods::{self, GatewayPod, Phase};
use crate::cluster::api_server::{describe, request};
use crate::cluster::client::ApiServer;
use crate::settings::NamespacedName;

use super::object_name::ObjectName;

/// Prefix of field managers. Each release has its own field manager, so that clients can shift different releases
/// without conflicts.
pub(super) const MANAGER_PREFIX: &str = "portcullis-shift-";

/// A ReleaseBackend in a cluster.
pub(super) struct Cluster {
    client: Client,
    name: ObjectName,
}

/// A ReleaseBackend as read from the API server.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub(super) uid: String,
    pub(super) spec: ReleaseBackendSpec,
    pub(super) status: ObservedStatus,
}

/// The fields of the status that are shown.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ObservedStatus {
    pub(super) releases: Vec<ObservedRelease>,
}

/// The current state of a release.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ObservedRelease {
    pub(super) value: String,
    pub(super) ready: u32,
    pub(super) effective_percent: f64,
}

impl Observed {
    /// The status of a release.
    pub(super) fn release(&self, name: &str) -> Option<&ObservedRelease> {
        self.status
            .releases
            .iter()
            .find(|release| release.value == name)
    }
}

/// Options for applying weights.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mode {
    /// Take over fields from other field managers.
    pub(super) force: bool,
    /// Validate only.
    pub(super) dry_run: bool,
}

/// Why a weight could not be applied.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApplyError {
    /// Other field managers own the field.
    #[error("{}", conflicts(.0))]
    Conflict(Vec<Conflict>),
    /// Any other error.
    #[error("{0}")]
    Failed(String),
}

/// A field that another field manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conflict {
    pub(super) field: String,
    pub(super) manager: String,
    /// Whether the manager applies with server-side apply.
    pub(super) is_server_side: bool,
}

fn conflicts(all: &[Conflict]) -> String {
    let all: Vec<_> = all.iter().map(ToString::to_string).collect();
    all.join("; ")
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, manager, .. } = self;
        write!(
            f,
            "field {field} belongs to {manager}. Change it there, or take it over with --force: "
        )?;
        match self.is_server_side {
            true => write!(
                f,
                "{manager} then gets a conflict when it applies another weight"
            ),
            false => write!(
                f,
                "{manager} may then reset it without a conflict when it writes again"
            ),
        }
    }
}

impl Cluster {
    /// Creates a client for the cluster of the environment. Sends no request.
    pub(super) async fn connect(name: &ObjectName) -> anyhow::Result<Self> {
        Ok(Self {
            client: ApiServer::from_environment().await?.client()?,
            name: name.clone(),
        })
    }

    fn api(&self) -> Api<DynamicObject> {
        let resource = ApiResource {
            group: GROUP.to_owned(),
            version: "v1alpha1".to_owned(),
            api_version: format!("{GROUP}/v1alpha1"),
            kind: "ReleaseBackend".to_owned(),
            plural: "releasebackends".to_owned(),
        };
        Api::namespaced_with(self.client.clone(), &self.name.namespace, &resource)
    }

    /// Reads the object.
    pub(super) async fn read(&self) -> anyhow::Result<Observed> {
        let found = request(self.api().get_opt(&self.name.name)).await;
        let cannot = || format!("{} cannot be read", self.name);
        match found {
            Ok(Ok(Some(object))) => observed(object).with_context(cannot),
            Ok(Ok(None)) => bail!("{} does not exist", self.name),
            Ok(Err(error)) => Err(anyhow!(describe(&error))).with_context(cannot),
            Err(timeout) => Err(anyhow!(timeout)).with_context(cannot),
        }
    }

    /// Applies the weight of one release, as the field manager of that release. The apply contains the UID, so that it
    /// fails if the object was deleted and created again.
    pub(super) async fn apply(
        &self,
        uid: &str,
        release: &str,
        weight: u32,
        mode: Mode,
    ) -> Result<Observed, ApplyError> {
        let object = json!({
            "apiVersion": format!("{GROUP}/v1alpha1"),
            "kind": "ReleaseBackend",
            "metadata": {"name": self.name.name, "namespace": self.name.namespace, "uid": uid},
            "spec": {"releases": [{"value": release, "weight": weight}]},
        });
        let params = PatchParams {
            dry_run: mode.dry_run,
            force: mode.force,
            ..PatchParams::apply(&format!("{MANAGER_PREFIX}{release}"))
        };
        let api = self.api();
        let applied = request(api.patch(&self.name.name, &params, &Patch::Apply(&object))).await;
        match applied {
            Ok(Ok(object)) => {
                observed(object).map_err(|error| ApplyError::Failed(error.to_string()))
            }
            Ok(Err(kube::Error::Api(status))) if !conflicts_of(&status).is_empty() => {
                Err(ApplyError::Conflict(conflicts_of(&status)))
            }
            Ok(Err(error)) => Err(ApplyError::Failed(describe(&error))),
            Err(timeout) => Err(ApplyError::Failed(timeout)),
        }
    }

    /// Lists the running pods of Gateways, or of some of them.
    pub(super) async fn pods(
        &self,
        gateways: &[NamespacedName],
    ) -> anyhow::Result<Vec<GatewayPod>> {
        let mut pods = Vec::new();
        if gateways.is_empty() {
            pods = pods::of_all(&self.client).await.map_err(|error| {
                anyhow!("{error:#}; name Gateways with --gateway, or addresses with --admin")
            })?;
        }
        for gateway in gateways {
            pods.extend(pods::of_gateway(&self.client, gateway, Phase::Running).await?);
        }
        pods.sort();
        pods.dedup();
        Ok(pods)
    }

    /// Reads the metrics of a pod through the API server.
    pub(super) async fn metrics(&self, pod: &GatewayPod) -> Result<String, String> {
        pods::metrics(&self.client, pod).await
    }
}

fn observed(object: DynamicObject) -> anyhow::Result<Observed> {
    #[derive(Deserialize)]
    struct Body {
        spec: ReleaseBackendSpec,
        #[serde(default)]
        status: ObservedStatus,
    }
    let uid = object.metadata.uid.unwrap_or_default();
    let Body { spec, status } = serde_json::from_value(object.data)?;
    Ok(Observed { uid, spec, status })
}

/// Parses the conflicts of server-side apply from the causes of a 409.
fn conflicts_of(status: &Status) -> Vec<Conflict> {
    let details = status.details.iter().filter(|_| status.code == 409);
    let causes = details.flat_map(|details| &details.causes);
    let conflicts = causes.filter(|cause| cause.reason == "FieldManagerConflict");
    let conflict = |message: &str, field: &str| {
        // The API server writes `conflict with "MANAGER"`, followed by ` using VERSION at TIME` for managers whose
        // operation is Update instead of Apply.
        let mut parts = message.split('"').skip(1);
        let manager = parts.next().unwrap_or("another manager").to_owned();
        Conflict {
            field: field.trim_start_matches('.').to_owned(),
            manager,
            is_server_side: !parts.any(|part| part.contains(" using ")),
        }
    };
    conflicts
        .map(|cause| conflict(&cause.message, &cause.field))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(message: &str) -> Status {
        let status = json!({
            "status": "Failure", "code": 409, "reason": "Conflict",
            "message": format!("Apply failed with 1 conflict: {message}"),
            "details": {"name": "shop", "causes": [{
                "reason": "FieldManagerConflict",
                "message": message,
                "field": ".spec.releases[value=\"v2\"].weight",
            }]},
        });
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn conflicts_name_manager_and_field() {
        let update = "conflict with \"helm\" using portcullis.dev/v1alpha1 at 2026-01-02T03:04:05Z";
        let apply = "conflict with \"argocd-controller\"";
        for (message, manager, is_server_side) in
            [(update, "helm", false), (apply, "argocd-controller", true)]
        {
            let expected = Conflict {
                field: "spec.releases[value=\"v2\"].weight".to_owned(),
                manager: manager.to_owned(),
                is_server_side,
            };
            assert_eq!(conflicts_of(&status(message)), [expected]);
        }
    }

    #[test]
    fn ignores_conflicts_that_do_not_concern_fields() {
        let mut other = status("conflict with \"helm\"");
        other.details = None;
        assert_eq!(conflicts_of(&other), []);
        let mut other = status("conflict with \"helm\"");
        other.code = 422;
        assert_eq!(conflicts_of(&other), []);
    }
}
