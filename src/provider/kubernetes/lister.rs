//! Requests for the objects of one scope: discovery of the kind, and pages of lists. Does not retry.

use std::time::Duration;

use kube::Client;
use kube::api::ListParams;
use kube::core::{GroupVersionKind, ListMeta, Request};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;

use super::parsed;
use super::requests::requests;
use super::retry::Failure;
use super::scope::Scope;
use crate::api::{Key, Kind};

/// Interval of discovery for a kind that disappeared. An API server may not serve all kinds while it starts.
pub(super) const REDISCOVERY: Duration = Duration::from_secs(1);
/// Page size of lists, and of lists of kinds with large objects.
const PAGE: u32 = 500;
const LARGE_PAGE: u32 = 100;

/// Lists the objects of a scope.
#[derive(Clone, Copy)]
pub(super) struct Lister<'a> {
    pub(super) client: &'a Client,
    pub(super) scope: &'a Scope,
    pub(super) response_timeout: Duration,
}

/// How a cluster serves a kind.
#[derive(Clone, Debug)]
pub(super) struct Served {
    pub(super) requests: Request,
    /// Whether as the experimental kind that it was before its release.
    pub(super) is_experimental: bool,
}

/// A page of a list.
#[derive(Deserialize)]
pub(super) struct ListPage {
    #[serde(default)]
    pub(super) metadata: ListMeta,
    pub(super) items: Option<Vec<Value>>,
}

/// A page of the versions of listed objects.
#[derive(Deserialize)]
struct Versions {
    #[serde(default)]
    metadata: ListMeta,
    /// The API server says null of no objects.
    items: Option<Vec<VersionedItem>>,
}

#[derive(Deserialize)]
struct VersionedItem {
    metadata: VersionOfItem,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VersionOfItem {
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    resource_version: String,
}

/// The objects of a scope at a moment.
#[derive(Debug, Default)]
pub(super) struct Existing {
    /// The version of the cluster; `None` if versions cannot be compared.
    pub(super) at: Option<u64>,
    /// The newest version of the objects; `None` if there are none, or if versions cannot be compared. The version of the cluster
    /// would not do: objects of other kinds count in it, and a watch does not show these.
    pub(super) newest: Option<u64>,
    pub(super) keys: Vec<Key>,
}

impl Lister<'_> {
    /// Discovers the newest supported version of the kind; `None` if the cluster does not serve it.
    pub(super) async fn discover(&self) -> Result<Option<Served>, Failure> {
        let kind = self.scope.kind;
        for version in kind.versions {
            if let Some(requests) = self.find(kind.group, version, kind.kind).await? {
                return Ok(Some(Served {
                    requests,
                    is_experimental: false,
                }));
            }
        }
        let Some(former) = kind.experimental else {
            return Ok(None);
        };
        let found = self.find(former.group, former.version, former.kind);
        let found = found.await?;
        Ok(found.map(|requests| Served {
            requests,
            is_experimental: true,
        }))
    }

    /// Returns the requests for group, version and kind, if the cluster serves them.
    async fn find(
        &self,
        group: &str,
        version: &str,
        kind: &str,
    ) -> Result<Option<Request>, Failure> {
        let wanted = GroupVersionKind::gvk(group, version, kind);
        let listed = if group.is_empty() {
            let listed = self.client.list_core_api_resources(version);
            self.with_timeout(listed).await
        } else {
            let api_version = wanted.api_version();
            let listed = self.client.list_api_group_resources(&api_version);
            self.with_timeout(listed).await
        };
        let resources = match listed {
            Ok(list) => list.resources,
            Err(failure) if failure.status() == Some(404) => return Ok(None),
            Err(failure) => return Err(failure),
        };
        let found = resources
            .iter()
            .find(|resource| resource.kind == kind && !resource.name.contains('/'));
        let namespace = self.scope.namespace.as_deref();
        Ok(found.map(|resource| requests(&wanted, &resource.name, namespace)))
    }

    /// Returns a page of the list.
    pub(super) async fn page(
        &self,
        served: &Served,
        params: &ListParams,
    ) -> Result<ListPage, Failure> {
        let request = served.requests.list(params);
        let request = request.map_err(kube::Error::BuildRequest)?;
        let text = self.with_timeout(self.client.request_text(request)).await?;
        Ok(serde_json::from_str(&text).map_err(kube::Error::SerdeError)?)
    }

    /// Returns which objects there are now.
    pub(super) async fn existing(&self, served: &Served) -> Result<Existing, Failure> {
        match self.existing_in_pages(served, Some(PAGE)).await {
            // A list without a limit has one page, whose continue token cannot expire.
            Err(failure) if failure.status() == Some(410) => {
                self.existing_in_pages(served, None).await
            }
            existing => existing,
        }
    }

    /// The same from pages of this size. All pages are as old as the first one.
    async fn existing_in_pages(
        &self,
        served: &Served,
        limit: Option<u32>,
    ) -> Result<Existing, Failure> {
        let mut params = ListParams {
            field_selector: self.scope.fields.clone(),
            limit,
            ..ListParams::default()
        };
        let mut existing = Existing::default();
        loop {
            let request = served.requests.list_metadata(&params);
            let request = request.map_err(kube::Error::BuildRequest)?;
            let page: Versions = self.with_timeout(self.client.request(request)).await?;
            let at = page.metadata.resource_version.as_deref();
            existing.at = at.and_then(parsed::version);
            for VersionedItem { metadata } in page.items.unwrap_or_default() {
                let version = parsed::version(&metadata.resource_version);
                existing.newest = existing.newest.max(version);
                let key = Key::new(&metadata.namespace, &metadata.name);
                existing.keys.push(key);
            }
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(existing);
            }
        }
    }

    async fn with_timeout<T>(
        &self,
        response: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Failure> {
        let Ok(response) = timeout(self.response_timeout, response).await else {
            return Err(Failure::Timeout(self.response_timeout));
        };
        Ok(response?)
    }
}

/// Page size of a list.
pub(super) fn page_size(kind: &Kind) -> u32 {
    match kind.kind {
        "Secret" | "ConfigMap" => LARGE_PAGE,
        _ => PAGE,
    }
}
