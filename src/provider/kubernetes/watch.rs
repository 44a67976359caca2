//! The watch of one scope: from discovering that the cluster has the kind, through lists, timeouts and failures. Sends
//! [`Change`]s, and none that is older than those that it has sent.

use std::pin::pin;
use std::time::Duration;

use futures_util::TryStreamExt;
use kube::api::{ApiResource, DynamicObject, ListParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::Timing;
use super::pause::{Failure, Pause};
use super::reading::{self, Reading};
use super::scope::Scope;
use super::store::{Change, Message};
use crate::api::Kind;

/// How often a kind that the cluster does not have is looked for again.
const DISCOVERY: Duration = Duration::from_secs(5);
/// How soon it is looked for again when it was there before: an API server that starts may not know all kinds yet.
const REDISCOVERY: Duration = Duration::from_secs(1);
/// How much longer than agreed a watch may last. One that is still there then has died without a word.
const GRACE: Duration = Duration::from_secs(5);
/// A watch that the API server ends sooner is a failure: it must not be begun again at once.
const BRIEF: Duration = Duration::from_millis(500);
/// Objects in one page of a list, and of kinds whose objects can be large.
const PAGE: u32 = 500;
const LARGE_PAGE: u32 = 100;
/// Objects that a list may lose, and more while these are not most of them, before another list has to confirm it.
const LOSS: usize = 10;

/// The watch of one scope. Ends when no one listens.
pub(super) struct Watch {
    pub(super) client: Client,
    pub(super) scope: Scope,
    /// The scope's number.
    pub(super) number: usize,
    /// Whether an observer wants to know more than what is served.
    pub(super) is_observed: bool,
    pub(super) timing: Timing,
    pub(super) changes: mpsc::Sender<Message>,
}

/// Where a watch is.
#[derive(Default)]
struct Progress {
    /// The kind as the cluster serves it, once that is known.
    api: Option<Api<DynamicObject>>,
    /// The version to go on from; `None` when it has to be listed.
    since: Option<String>,
    /// The newest version that was told of.
    newest: Option<u64>,
    /// Objects that are there.
    count: usize,
    /// Since when lists have been older than that.
    older_since: Option<Instant>,
    /// Whether the last list lost so much that another one has to confirm it.
    is_in_doubt: bool,
    /// Whether the kind was looked for in vain.
    is_missed: bool,
    /// Whether the pages of a list came so slowly that the later ones had expired.
    is_slow: bool,
}

/// Why a watch does not simply go on.
enum End {
    /// No one listens.
    Closed,
    /// The cluster does not know the kind.
    Absent(Failure),
    /// Where it was is too long ago.
    Expired(Failure),
    Failed(Failure),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        match &failure {
            Failure::Api(kube::Error::Api(status)) if status.code == 404 => Self::Absent(failure),
            Failure::Api(kube::Error::Api(status)) if status.code == 410 => Self::Expired(failure),
            _ => Self::Failed(failure),
        }
    }
}

impl From<kube::Error> for End {
    fn from(error: kube::Error) -> Self {
        Failure::from(error).into()
    }
}

impl Watch {
    /// Watches until no one listens.
    pub(super) async fn run(self) {
        let mut pause = Pause::new(self.scope.to_string(), "watched");
        let mut progress = Progress::default();
        loop {
            let end = match self.advance(&mut progress, &mut pause).await {
                Ok(()) => continue,
                Err(end) => end,
            };
            match end {
                End::Closed => return,
                End::Absent(failure) => {
                    progress.api = None;
                    pause.after(&failure).await;
                }
                End::Expired(failure) => {
                    progress.since = None;
                    pause.after(&failure).await;
                }
                End::Failed(failure) => pause.after(&failure).await,
            }
        }
    }

    /// Does what comes next: discovers the kind, or lists it, or watches it for a while.
    async fn advance(&self, progress: &mut Progress, pause: &mut Pause) -> Result<(), End> {
        let Some(api) = progress.api.clone() else {
            progress.api = self.discover().await?;
            return match progress.api {
                Some(_) => Ok(()),
                None => self.miss(progress).await,
            };
        };
        let Some(since) = progress.since.clone() else {
            self.list(&api, progress).await?;
            pause.over();
            return Ok(());
        };
        self.watch(&api, &since, progress, pause).await
    }

    async fn send(&self, change: Change) -> Result<(), End> {
        let message = Message::Watched(self.number, change);
        self.changes.send(message).await.map_err(|_| End::Closed)
    }

    /// Waits for a response, up to a limit.
    async fn answered<T>(&self, answer: impl Future<Output = kube::Result<T>>) -> Result<T, End> {
        let Ok(answer) = timeout(self.timing.answer, answer).await else {
            return Err(Failure::Silence(self.timing.answer).into());
        };
        Ok(answer?)
    }

    /// The kind as the cluster serves it, in the newest version that we read; `None` when it does not serve it.
    async fn discover(&self) -> Result<Option<Api<DynamicObject>>, End> {
        let kind = self.scope.kind;
        for version in kind.versions {
            let api_version = kind.group_version(version);
            let listed = if kind.group.is_empty() {
                let listed = self.client.list_core_api_resources(version);
                self.answered(listed).await
            } else {
                let listed = self.client.list_api_group_resources(&api_version);
                self.answered(listed).await
            };
            let resources = match listed {
                Ok(list) => list.resources,
                Err(End::Absent(_)) => continue,
                Err(end) => return Err(end),
            };
            let served = resources
                .iter()
                .find(|resource| resource.kind == kind.kind && !resource.name.contains('/'));
            if let Some(resource) = served {
                return Ok(Some(self.api(version, &resource.name)));
            }
        }
        Ok(None)
    }

    fn api(&self, version: &str, plural: &str) -> Api<DynamicObject> {
        let Kind { group, kind, .. } = self.scope.kind;
        let resource = ApiResource {
            group: (*group).to_owned(),
            version: version.to_owned(),
            api_version: self.scope.kind.group_version(version),
            kind: (*kind).to_owned(),
            plural: plural.to_owned(),
        };
        match &self.scope.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// Tells that the kind is not there; when it was before, only once that is certain.
    async fn miss(&self, progress: &mut Progress) -> Result<(), End> {
        if progress.count > 0 && !progress.is_missed {
            progress.is_missed = true;
            progress.since = None;
            sleep(REDISCOVERY).await;
            return Ok(());
        }
        if progress.is_missed {
            tracing::warn!("{} is no longer known to the cluster", self.scope);
        }
        *progress = Progress::default();
        self.send(Change::Absent).await?;
        sleep(DISCOVERY).await;
        Ok(())
    }

    /// Lists the kind, page by page. What it told of is to be forgotten unless the end is told too.
    async fn list(&self, api: &Api<DynamicObject>, progress: &mut Progress) -> Result<(), End> {
        let mut params = ListParams {
            field_selector: self.scope.fields.clone(),
            limit: (!progress.is_slow).then(|| page(self.scope.kind)),
            ..ListParams::default()
        };
        self.send(Change::Listing).await?;
        let mut count = 0;
        let version = loop {
            let page = match self.answered(api.list(&params)).await {
                Err(End::Expired(failure)) => {
                    progress.is_slow = true;
                    return Err(End::Expired(failure));
                }
                answer => answer?,
            };
            let version = page.metadata.resource_version.unwrap_or_default();
            self.check_age(&version, progress)?;
            count += page.items.len();
            for object in page.items {
                self.send(Change::Listed(self.read(object))).await?;
            }
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                break version;
            }
        };
        check_loss(count, progress)?;
        self.send(Change::Complete).await?;
        *progress = Progress {
            api: progress.api.take(),
            newest: reading::version(&version),
            since: Some(version),
            count,
            ..Progress::default()
        };
        Ok(())
    }

    /// Refuses a list that is older than what was told, as one from a replica that is behind would be. After a while it
    /// is taken: then the cluster itself has gone back, as to a backup.
    fn check_age(&self, version: &str, progress: &mut Progress) -> Result<(), Failure> {
        let (Some(served), Some(listed)) = (progress.newest, reading::version(version)) else {
            return Ok(());
        };
        if listed >= served {
            progress.older_since = None;
            return Ok(());
        }
        let since = progress.older_since.get_or_insert_with(Instant::now);
        if since.elapsed() < self.timing.doubt {
            return Err(Failure::Older { listed, served });
        }
        tracing::warn!(
            "{} is taken from version {served} back to {listed}, since no newer list has come for {} s",
            self.scope,
            self.timing.doubt.as_secs()
        );
        Ok(())
    }

    /// Watches from a version on until the watch ends.
    async fn watch(
        &self,
        api: &Api<DynamicObject>,
        since: &str,
        progress: &mut Progress,
        pause: &mut Pause,
    ) -> Result<(), End> {
        let begin = Instant::now();
        let end = begin + Duration::from_secs(self.timing.watch.into()) + GRACE;
        let params = WatchParams {
            field_selector: self.scope.fields.clone(),
            timeout: Some(self.timing.watch),
            bookmarks: true,
            ..WatchParams::default()
        };
        let Ok(events) = timeout_at(end, api.watch(&params, since)).await else {
            return Err(Failure::Silence(begin.elapsed()).into());
        };
        let mut events = pin!(events?);
        pause.over();
        loop {
            let Ok(event) = timeout_at(end, events.try_next()).await else {
                return Err(Failure::Silence(begin.elapsed()).into());
            };
            match event? {
                Some(event) => self.note(event, progress).await?,
                None if begin.elapsed() < BRIEF => return Err(Failure::Brief.into()),
                None => return Ok(()),
            }
        }
    }

    async fn note(
        &self,
        event: WatchEvent<DynamicObject>,
        progress: &mut Progress,
    ) -> Result<(), End> {
        match event {
            WatchEvent::Added(object) if progress.goes_on_to(&object) => {
                progress.count += 1;
                self.send(Change::Applied(self.read(object))).await
            }
            WatchEvent::Modified(object) if progress.goes_on_to(&object) => {
                self.send(Change::Applied(self.read(object))).await
            }
            WatchEvent::Deleted(object) if progress.goes_on_to(&object) => {
                progress.count = progress.count.saturating_sub(1);
                let version = progress.newest;
                self.send(Change::Deleted(reading::key(&object), version))
                    .await
            }
            WatchEvent::Bookmark(bookmark) => {
                progress.go_on_to(Some(&bookmark.metadata.resource_version));
                Ok(())
            }
            WatchEvent::Error(status) => Err(kube::Error::Api(status).into()),
            // What is older than what was told.
            WatchEvent::Added(_) | WatchEvent::Modified(_) | WatchEvent::Deleted(_) => Ok(()),
        }
    }

    fn read(&self, object: DynamicObject) -> Reading {
        Reading::of(self.scope.kind, object, self.is_observed)
    }
}

impl Progress {
    /// Goes on to the version of an object, unless that is behind.
    fn goes_on_to(&mut self, object: &DynamicObject) -> bool {
        self.go_on_to(object.metadata.resource_version.as_deref())
    }

    fn go_on_to(&mut self, version: Option<&str>) -> bool {
        let number = version.and_then(reading::version);
        if number.is_some() && number <= self.newest {
            return false;
        }
        self.since = version.map(str::to_owned).or(self.since.take());
        self.newest = number.or(self.newest);
        true
    }
}

/// Objects in one page of a list.
fn page(kind: &Kind) -> u32 {
    match kind.kind {
        "Secret" | "ConfigMap" => LARGE_PAGE,
        _ => PAGE,
    }
}

/// Refuses a list that lost most of what there was, once.
fn check_loss(listed: usize, progress: &mut Progress) -> Result<(), Failure> {
    let known = progress.count;
    let lost = known.saturating_sub(listed);
    let is_much = lost >= LOSS && lost > known / 2;
    if is_much && !progress.is_in_doubt {
        progress.is_in_doubt = true;
        return Err(Failure::Loss { listed, known });
    }
    Ok(())
}
