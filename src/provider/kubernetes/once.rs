//! The objects of a cluster, listed once, for commands that end. Owns what counts as absent, and what fails instead.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use kube::Client;
use kube::api::ListParams;
use kube::core::params::GetParams;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::KubernetesProvider;
use super::fetch::is_unused_secret;
use super::lister::{Lister, Served, page_size};
use super::parsed::ParsedObject;
use super::pods;
use super::references::{References, is_held_by_reference};
use super::requests::requests_by_name;
use super::retry::Failure;
use super::scope::Scope;
use crate::api::{Kind, ObjectRef, UnknownFields};
use crate::cluster::api_server::describe;
use crate::provider::{Load, Problem};
use crate::runtime::backoff::Backoff;
use crate::snapshot::Snapshot;

/// Maximum number of concurrent requests.
pub(super) const MAX_CONCURRENT: usize = 8;
/// Timeout of a response.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of retries of a request that the API server refuses for now.
const RETRIES: u32 = 4;
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    longest: Duration::from_secs(2),
};

/// What a cluster has.
#[derive(Debug, Default)]
pub struct Listing {
    /// The objects.
    pub load: Load,
    /// What the load lacks, though objects may refer to it, and why: one line each.
    pub absent: Vec<String>,
    /// How the cluster serves the kinds that were listed.
    pub(super) served: BTreeMap<&'static str, Served>,
    /// The kinds that it does not serve.
    pub(super) not_served: BTreeSet<&'static str>,
}

impl KubernetesProvider {
    /// Lists every kind once, and gets the Secrets and ConfigMaps that other objects refer to. Waits for nothing: a kind
    /// that the cluster does not serve, and what the user may not read, is absent.
    ///
    /// # Errors
    /// When the API server does not respond, or does not accept the credentials.
    pub async fn list_once(&self) -> anyhow::Result<Listing> {
        let url = self.url.clone();
        let mut collected = Collected::new(self.client());
        let listed = collected.collect(self).await;
        listed.with_context(|| format!("cannot list the objects of {url}"))?;
        Ok(collected.listing())
    }
}

/// What is listed so far.
struct Collected {
    client: Client,
    permits: Arc<Semaphore>,
    snapshot: Snapshot,
    problems: Vec<Problem>,
    served: BTreeMap<&'static str, Served>,
    not_served: BTreeSet<&'static str>,
    absent: Vec<String>,
}

/// The objects of a scope; `None` if the cluster does not serve their kind.
type Listed = Result<Option<Vec<Value>>, Failure>;

impl Collected {
    fn new(client: Client) -> Self {
        Self {
            client,
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT)),
            snapshot: Snapshot::default(),
            problems: Vec::new(),
            served: BTreeMap::new(),
            not_served: BTreeSet::new(),
            absent: Vec::new(),
        }
    }

    async fn collect(&mut self, provider: &KubernetesProvider) -> anyhow::Result<()> {
        let namespaces = provider.all_namespaces();
        let scopes = Scope::all(&provider.kinds, provider.gateway.as_ref(), &namespaces);
        let listed = |scope: &Scope| !is_held_by_reference(scope.kind);
        self.list(scopes.into_iter().filter(listed)).await?;
        let scopes = pods::scopes(&provider.kinds, &self.snapshot);
        self.list(scopes.into_iter()).await?;
        self.get_referenced(&namespaces).await
    }

    fn listing(self) -> Listing {
        let mut absent = self.absent;
        if !self.not_served.is_empty() {
            let kinds: Vec<_> = self.not_served.iter().copied().collect();
            let kinds = kinds.join(", ");
            absent.push(format!(
                "the cluster does not serve {kinds}: treated as absent"
            ));
        }
        Listing {
            load: Load {
                position: None,
                snapshot: Arc::new(self.snapshot),
                problems: self.problems,
                waiting: Vec::new(),
            },
            absent,
            served: self.served,
            not_served: self.not_served,
        }
    }

    /// Lists scopes at the same time.
    async fn list(&mut self, scopes: impl Iterator<Item = Scope>) -> anyhow::Result<()> {
        let start = |scope: Scope| {
            let (client, permits) = (self.client.clone(), self.permits.clone());
            let task = tokio::spawn(list(client, scope.clone(), permits));
            (scope, task)
        };
        for (scope, task) in scopes.map(start).collect::<Vec<_>>() {
            let kind = scope.kind;
            let (served, listed) = task.await.context("a list has ended")?;
            self.served.extend(served.map(|served| (kind.kind, served)));
            match listed {
                Ok(Some(objects)) => objects
                    .into_iter()
                    .try_for_each(|object| self.store(kind, object))?,
                Ok(None) => drop(self.not_served.insert(kind.kind)),
                Err(failure) if failure.status() == Some(403) => self.absent.push(format!(
                    "{scope} cannot be listed: {}: treated as absent",
                    describe(&failure)
                )),
                Err(failure) => {
                    return Err(anyhow!("{scope} cannot be listed: {}", describe(&failure)));
                }
            }
        }
        Ok(())
    }

    fn store(&mut self, kind: &'static Kind, object: Value) -> anyhow::Result<()> {
        let parsed = ParsedObject::of(kind, object, false)
            .with_context(|| format!("an object of kind {} has no metadata", kind.kind))?;
        if is_unused_secret(&parsed) {
            return Ok(());
        }
        let name = kind.object_ref(&parsed.key.namespace, &parsed.key.name);
        match parsed.content.parse() {
            Ok(object) => {
                let problem = Problem::of_unknown_fields(&name, &object, &UnknownFields::default());
                self.problems.extend(problem);
                self.snapshot.insert(object);
            }
            Err(unparsed) => {
                let (_, problem) = unparsed.serve(&name, parsed.generation, &mut self.snapshot);
                self.problems.push(problem);
            }
        }
        Ok(())
    }

    /// Gets the Secrets and ConfigMaps that objects refer to. Empty `namespaces` means all.
    async fn get_referenced(&mut self, namespaces: &BTreeSet<String>) -> anyhow::Result<()> {
        let is_listed = |name: &ObjectRef| {
            namespaces.is_empty() || namespaces.contains(name.namespace.as_ref())
        };
        let start = |name: ObjectRef| {
            let (client, permits) = (self.client.clone(), self.permits.clone());
            let task = tokio::spawn(get(client, name.clone(), permits));
            (name, task)
        };
        let names = self.referenced().into_iter().filter(is_listed);
        for (name, task) in names.map(start).collect::<Vec<_>>() {
            match task.await.context("a request has ended")? {
                Ok(Some((kind, object))) => self.store(kind, object)?,
                Ok(None) => {}
                Err(failure) if failure.status() == Some(403) => self.absent.push(format!(
                    "{name} cannot be read: {}: treated as absent",
                    describe(&failure)
                )),
                Err(failure) => {
                    return Err(anyhow!("{name} cannot be read: {}", describe(&failure)));
                }
            }
        }
        Ok(())
    }

    fn referenced(&self) -> BTreeSet<ObjectRef> {
        let references = self.snapshot.objects().map(|it| References::of(&it));
        let counts = |parent: &ObjectRef| self.snapshot.object(parent).is_some();
        references
            .filter(|it| it.parent.as_ref().is_none_or(counts))
            .flat_map(|it| it.names.to_vec())
            .collect()
    }
}

/// Lists a scope. Returns also how the cluster serves the kind; `None` if it does not, or if that is unknown.
async fn list(client: Client, scope: Scope, permits: Arc<Semaphore>) -> (Option<Served>, Listed) {
    let _permit = permits.acquire().await;
    let lister = Lister {
        client: &client,
        scope: &scope,
        response_timeout: RESPONSE_TIMEOUT,
    };
    let mut served = None;
    let listed = list_with(lister, &mut served).await;
    (served, listed)
}

/// Lists a scope, page by page. Stores how the cluster serves the kind.
async fn list_with(lister: Lister<'_>, served: &mut Option<Served>) -> Listed {
    let mut limit = Some(page_size(lister.scope.kind));
    let mut failures = 0;
    loop {
        let failure = match pages(lister, limit, served).await {
            Ok(objects) => return Ok(objects),
            // A list without a limit has one page, whose continue token cannot expire.
            Err(failure) if failure.status() == Some(410) => {
                limit = None;
                failure
            }
            Err(failure) => failure,
        };
        wait_after(failure, &mut failures).await?;
    }
}

async fn pages(lister: Lister<'_>, limit: Option<u32>, served: &mut Option<Served>) -> Listed {
    *served = lister.discover().await?;
    let Some(served) = served else {
        return Ok(None);
    };
    let mut params = ListParams {
        field_selector: lister.scope.fields.clone(),
        limit,
        ..ListParams::default()
    };
    let mut objects = Vec::new();
    loop {
        let page = match lister.page(served, &params).await {
            // Its CRD was removed meanwhile.
            Err(failure) if failure.status() == Some(404) => return Ok(None),
            page => page?,
        };
        objects.extend(page.items.unwrap_or_default());
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(Some(objects));
        }
    }
}

/// Gets an object with its kind; `None` if it does not exist.
async fn get(
    client: Client,
    name: ObjectRef,
    permits: Arc<Semaphore>,
) -> Result<Option<(&'static Kind, Value)>, Failure> {
    let Some((kind, requests)) = requests_by_name(&name) else {
        return Ok(None);
    };
    let _permit = permits.acquire().await;
    let mut failures = 0;
    loop {
        let request = requests.get(&name.name, &GetParams::default());
        let request = request.map_err(kube::Error::BuildRequest)?;
        let failure = match timeout(RESPONSE_TIMEOUT, client.request::<Value>(request)).await {
            Ok(Ok(object)) => return Ok(Some((kind, object))),
            Ok(Err(error)) => Failure::from(error),
            Err(_) => Failure::Timeout(RESPONSE_TIMEOUT),
        };
        if failure.status() == Some(404) {
            return Ok(None);
        }
        wait_after(failure, &mut failures).await?;
    }
}

/// Waits before the next attempt, or returns a failure that attempts do not repair.
async fn wait_after(failure: Failure, failures: &mut u32) -> Result<(), Failure> {
    if *failures >= RETRIES || !failure.is_transient() {
        return Err(failure);
    }
    sleep(failure.minimum().max(BACKOFF.after(*failures))).await;
    *failures += 1;
    Ok(())
}
