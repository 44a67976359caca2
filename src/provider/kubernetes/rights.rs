//! Which rights on the objects of a cluster a process needs to follow them, and which of these the credentials lack. Asks the API
//! server, and writes nothing.

use std::sync::Arc;

use anyhow::{Context, anyhow};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, PostParams};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::KubernetesProvider;
use super::lister::{Lister, Served};
use super::once::{Listing, MAX_CONCURRENT, RESPONSE_TIMEOUT};
use super::pods;
use super::references::is_held_by_reference;
use super::retry::Failure;
use super::scope::Scope;
use crate::api::Kind;
use crate::cluster::api_server::describe;

/// Returns the verbs that a process needs on the objects of a kind to follow a cluster.
pub fn verbs_to_follow(kind: &Kind) -> &'static [&'static str] {
    match is_held_by_reference(kind) {
        // Those that something refers to later are requested by name.
        true => &["get", "list", "watch"],
        false => &["list", "watch"],
    }
}

impl KubernetesProvider {
    /// Returns what the credentials may not do although a process that follows the cluster needs it, and how to permit it: a line
    /// for each kind and namespace. `listing` says which kinds the cluster serves, and in which namespaces Pods are needed.
    ///
    /// # Errors
    /// When the API server does not say.
    pub async fn missing_rights(&self, listing: &Listing) -> anyhow::Result<Vec<String>> {
        let namespaces = self.all_namespaces();
        let mut scopes = Scope::all(&self.kinds, self.gateway.as_ref(), &namespaces);
        scopes.extend(pods::scopes(&self.kinds, &listing.load.snapshot));
        scopes.retain(|scope| !listing.not_served.contains(scope.kind.kind));
        let permits = Arc::new(Semaphore::new(MAX_CONCURRENT));
        let start = |scope: Scope| {
            let served = listing.served.get(scope.kind.kind).cloned();
            let task = missing(self.client(), scope.clone(), served, permits.clone());
            (scope, tokio::spawn(task))
        };
        let tasks: Vec<_> = scopes.into_iter().map(start).collect();
        let mut lines = Vec::new();
        for (scope, task) in tasks {
            let missing = task.await.context("a request has ended")?;
            let missing = missing.map_err(|failure| anyhow!("{scope}: {}", describe(&failure)))?;
            lines.extend(missing);
        }
        Ok(lines)
    }
}

/// Returns what is not permitted in a scope; `None` if all is, or if the cluster does not serve the kind. `served` is how it serves
/// the kind; `None` if that is not known yet, as of kinds whose objects were requested by name.
async fn missing(
    client: Client,
    scope: Scope,
    served: Option<Served>,
    permits: Arc<Semaphore>,
) -> Result<Option<String>, Failure> {
    let _permit = permits.acquire().await;
    let lister = Lister {
        client: &client,
        scope: &scope,
        response_timeout: RESPONSE_TIMEOUT,
    };
    let served = match served {
        Some(served) => Some(served),
        None => lister.discover().await?,
    };
    let Some(served) = served else {
        return Ok(None);
    };
    let object = attributes(&scope, &served);
    let mut lacking = Vec::new();
    for verb in verbs_to_follow(scope.kind) {
        let asked = ResourceAttributes {
            verb: Some((*verb).to_owned()),
            ..object.clone()
        };
        if !is_permitted(&client, asked).await? {
            lacking.push(*verb);
        }
    }
    Ok((!lacking.is_empty()).then(|| line(&scope, &object, &lacking)))
}

/// Returns the objects of a scope, as rules of roles name them.
fn attributes(scope: &Scope, served: &Served) -> ResourceAttributes {
    let kind = scope.kind;
    let former = kind.experimental.filter(|_| served.is_experimental);
    let plural = served.requests.url_path.rsplit('/').next();
    let fields = scope.fields.as_deref().unwrap_or_default();
    ResourceAttributes {
        group: Some(former.map_or(kind.group, |it| it.group).to_owned()),
        resource: plural.map(str::to_owned),
        namespace: scope.namespace.clone(),
        name: fields.strip_prefix("metadata.name=").map(str::to_owned),
        ..ResourceAttributes::default()
    }
}

async fn is_permitted(client: &Client, asked: ResourceAttributes) -> Result<bool, Failure> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(asked),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let params = PostParams::default();
    let Ok(reviewed) = timeout(RESPONSE_TIMEOUT, api.create(&params, &review)).await else {
        return Err(Failure::Timeout(RESPONSE_TIMEOUT));
    };
    Ok(reviewed?.status.is_some_and(|it| it.allowed))
}

/// Says what is not permitted, who needs it, and what to do.
fn line(scope: &Scope, object: &ResourceAttributes, lacking: &[&str]) -> String {
    let verbs = lacking.join(", ");
    let plural = object.resource.as_deref().unwrap_or_default();
    let resource = match object.group.as_deref() {
        None | Some("") => plural.to_owned(),
        Some(group) => format!("{plural}.{group}"),
    };
    let role = match &scope.namespace {
        Some(namespace) => format!("a Role in {namespace}"),
        None => "a ClusterRole".to_owned(),
    };
    format!(
        "{scope}: no right to {verbs}, which the controller and `portcullis run --kubernetes` need: if they have these credentials, \
         add {verbs} on {resource} to {role}"
    )
}
