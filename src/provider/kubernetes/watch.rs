//! The watch of one scope: when its kind is discovered, lists, watch requests, timeouts and
//! retries. Sends [`Change`]s in version order.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::{ListParams, WatchParams};
use kube::core::Request;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::deferral::is_policy;
use super::events::{Event, EventType, Events};
use super::lister::{Lister, REDISCOVERY, Served, page_size};
use super::message::{Change, Message};
use super::moments::Requester;
use super::parsed::{self, ParsedObject};
use super::retry::{Failure, Retry};
use super::scope::Scope;
use super::timing::Timing;

/// Interval of discovery for a kind that the cluster does not have, unless another request finds it.
const DISCOVERY: Duration = Duration::from_secs(5);
/// Grace period after the requested watch timeout. A watch that is still open afterwards has died
/// silently.
const GRACE: Duration = Duration::from_secs(5);
/// A watch that ends sooner counts as a failure, so that it is restarted with back-off.
const MIN_DURATION: Duration = Duration::from_millis(500);
/// A second list must confirm a list that lacks more than this many objects and most of the known
/// ones.
const MAX_LOST_OBJECTS: usize = 10;

/// The watch of one scope. Ends when the receiver is dropped.
pub(super) struct Watch {
    pub(super) client: Client,
    pub(super) scope: Scope,
    /// Index of the scope.
    pub(super) number: usize,
    /// Whether an observer needs data beyond the served fields.
    pub(super) is_observed: bool,
    pub(super) timing: Timing,
    /// Notified when another request finds that the cluster serves the kind.
    pub(super) served: Arc<Notify>,
    pub(super) changes: mpsc::Sender<Message>,
}

/// State of a watch.
#[derive(Default)]
struct Progress {
    /// How the cluster serves the kind, once discovered.
    served: Option<Served>,
    /// resourceVersion to continue from; `None` if a list is needed.
    since: Option<String>,
    /// Newest version that was sent.
    newest: Option<u64>,
    /// Number of known objects.
    count: usize,
    /// Since when lists have been older than `newest`.
    older_since: Option<Instant>,
    /// Whether the last list lacked so many objects that a second one has to confirm it.
    needs_confirmation: bool,
    /// Whether discovery did not find the kind.
    is_missing: bool,
    /// Whether pages of a list arrived so slowly that its continue token expired.
    is_slow: bool,
}

/// Why the watch was interrupted.
enum WatchEnd {
    /// The receiver is dropped.
    Closed,
    /// The cluster does not have the kind.
    Absent(Failure),
    /// The resourceVersion is too old (410 Gone).
    Expired(Failure),
    Failed(Failure),
}

impl From<Failure> for WatchEnd {
    fn from(failure: Failure) -> Self {
        match failure.status() {
            Some(404) => Self::Absent(failure),
            Some(410) => Self::Expired(failure),
            _ => Self::Failed(failure),
        }
    }
}

impl From<kube::Error> for WatchEnd {
    fn from(error: kube::Error) -> Self {
        Failure::from(error).into()
    }
}

impl Watch {
    /// Watches until the receiver is dropped.
    pub(super) async fn run(self) {
        let mut retry = Retry::new(self.scope.to_string(), "watched");
        let mut progress = Progress::default();
        loop {
            let end = match self.advance(&mut progress, &mut retry).await {
                Ok(()) => continue,
                Err(end) => end,
            };
            let verb = match progress.since.is_some() {
                true => "watch",
                false => "list",
            };
            let failure = match end {
                WatchEnd::Closed => return,
                WatchEnd::Absent(failure) => {
                    progress.served = None;
                    failure
                }
                WatchEnd::Expired(failure) => {
                    progress.since = None;
                    failure
                }
                WatchEnd::Failed(failure) => failure,
            };
            let refusal = failure.refusal(verb);
            if self.report_refusal(&mut retry, refusal).await.is_err() {
                return;
            }
            retry.wait_after(&failure).await;
        }
    }

    /// Reports why the API server refuses requests, or that it no longer does, if that is new.
    async fn report_refusal(
        &self,
        retry: &mut Retry,
        refusal: Option<String>,
    ) -> Result<(), WatchEnd> {
        if !retry.is_new_refusal(refusal.as_deref()) {
            return Ok(());
        }
        let message = Message::Refused(self.number, Requester::Watch, refusal);
        let sent = self.changes.send(message).await;
        sent.map_err(|_| WatchEnd::Closed)
    }

    /// Performs the next step: discovery, list or watch.
    async fn advance(&self, progress: &mut Progress, retry: &mut Retry) -> Result<(), WatchEnd> {
        let Some(served) = progress.served.clone() else {
            progress.served = self.lister().discover().await?;
            return match progress.served {
                Some(_) => Ok(()),
                None => self.report_absent(progress).await,
            };
        };
        let Some(since) = progress.since.clone() else {
            self.list(&served, progress).await?;
            retry.on_success();
            return Ok(());
        };
        self.watch(&served.requests, &since, progress, retry)
            .await?;
        if served.is_experimental {
            self.look_for_release(progress).await?;
        }
        Ok(())
    }

    /// Lists again if the cluster serves the released kind by now.
    async fn look_for_release(&self, progress: &mut Progress) -> Result<(), WatchEnd> {
        let found = self.lister().discover().await?;
        if found.as_ref().is_some_and(|it| !it.is_experimental) {
            *progress = Progress {
                served: found,
                count: progress.count,
                ..Progress::default()
            };
        }
        Ok(())
    }

    fn lister(&self) -> Lister<'_> {
        Lister {
            client: &self.client,
            scope: &self.scope,
            response_timeout: self.timing.response_timeout,
        }
    }

    async fn send(&self, change: Change) -> Result<(), WatchEnd> {
        let message = Message::Watched(self.number, change);
        self.changes
            .send(message)
            .await
            .map_err(|_| WatchEnd::Closed)
    }

    /// Reports that the kind does not exist. If it existed before, asks a second time first.
    async fn report_absent(&self, progress: &mut Progress) -> Result<(), WatchEnd> {
        if progress.count > 0 && !progress.is_missing {
            progress.is_missing = true;
            progress.since = None;
            sleep(REDISCOVERY).await;
            return Ok(());
        }
        if progress.is_missing {
            let outcome = match is_policy(self.scope.kind) {
                true => "the known objects stay in force until it does, or until a restart",
                false => "its objects are removed",
            };
            tracing::warn!("the cluster no longer serves {}: {outcome}", self.scope);
        }
        *progress = Progress::default();
        self.send(Change::Absent).await?;
        drop(timeout(DISCOVERY, self.served.notified()).await);
        Ok(())
    }

    /// Lists the scope page by page. The store discards an incomplete list.
    async fn list(&self, served: &Served, progress: &mut Progress) -> Result<(), WatchEnd> {
        let mut params = ListParams {
            field_selector: self.scope.fields.clone(),
            // Without a limit, the list has one page and cannot expire between pages.
            limit: (!progress.is_slow).then(|| page_size(self.scope.kind)),
            ..ListParams::default()
        };
        if self.scope.kind.experimental.is_some() {
            self.send(Change::Served {
                is_experimental: served.is_experimental,
            })
            .await?;
        }
        self.send(Change::Listing).await?;
        let mut count = 0;
        let version = loop {
            let page = self.lister().page(served, &params).await;
            let page = match page.map_err(WatchEnd::from) {
                Err(WatchEnd::Expired(failure)) => {
                    progress.is_slow = true;
                    return Err(WatchEnd::Expired(failure));
                }
                response => response?,
            };
            let version = page.metadata.resource_version.unwrap_or_default();
            self.check_age(&version, progress)?;
            for object in page.items.unwrap_or_default() {
                count += 1;
                let parsed = ParsedObject::of(self.scope.kind, object, self.is_observed);
                let parsed = parsed.map_err(kube::Error::SerdeError)?;
                self.send(Change::Listed(parsed)).await?;
            }
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                break version;
            }
        };
        check_loss(count, progress)?;
        self.send(Change::Complete).await?;
        *progress = Progress {
            served: progress.served.take(),
            newest: parsed::version(&version),
            since: Some(version),
            count,
            ..Progress::default()
        };
        Ok(())
    }

    /// Rejects a list that is older than the served state, for example from a lagging replica of
    /// the API server. Accepts it after a while, since the cluster was then restored from a backup.
    fn check_age(&self, version: &str, progress: &mut Progress) -> Result<(), Failure> {
        let (Some(served), Some(listed)) = (progress.newest, parsed::version(version)) else {
            return Ok(());
        };
        if listed >= served {
            progress.older_since = None;
            return Ok(());
        }
        let since = progress.older_since.get_or_insert_with(Instant::now);
        if since.elapsed() < self.timing.stale_list_timeout {
            return Err(Failure::StaleList { listed, served });
        }
        tracing::warn!(
            "{} goes back from version {served} to {listed}: no newer list was received for {} s",
            self.scope,
            self.timing.stale_list_timeout.as_secs()
        );
        Ok(())
    }

    /// Watches from a version until the watch ends.
    async fn watch(
        &self,
        requests: &Request,
        since: &str,
        progress: &mut Progress,
        retry: &mut Retry,
    ) -> Result<(), WatchEnd> {
        let begin = Instant::now();
        let end = begin + Duration::from_secs(self.timing.watch.into()) + GRACE;
        let params = WatchParams {
            field_selector: self.scope.fields.clone(),
            timeout: Some(self.timing.watch),
            bookmarks: true,
            ..WatchParams::default()
        };
        let request = requests.watch(&params, since);
        let request = request.map_err(kube::Error::BuildRequest)?;
        let Ok(response) = timeout_at(end, self.client.request_stream(request)).await else {
            return Err(Failure::Timeout(begin.elapsed()).into());
        };
        let response = pin!(response?);
        let mut events = Events::new(response);
        retry.on_success();
        self.report_refusal(retry, None).await?;
        loop {
            let Ok(event) = timeout_at(end, events.next()).await else {
                return Err(Failure::Timeout(begin.elapsed()).into());
            };
            match event? {
                Some(event) => self.on_event(event, progress).await?,
                None if begin.elapsed() < MIN_DURATION => return Err(Failure::ShortWatch.into()),
                None => return Ok(()),
            }
        }
    }

    async fn on_event(&self, event: Event, progress: &mut Progress) -> Result<(), WatchEnd> {
        let Event { change, head, text } = event;
        if !progress.advances_to(head.metadata.resource_version.as_deref()) {
            // Older than the last change that was sent.
            return Ok(());
        }
        let read = |head| ParsedObject::of_event(self.scope.kind, head, text, self.is_observed);
        let change = match change {
            EventType::Added => {
                progress.count += 1;
                Change::Applied(read(head))
            }
            EventType::Modified => Change::Applied(read(head)),
            EventType::Deleted => {
                progress.count = progress.count.saturating_sub(1);
                Change::Deleted(head.key(), progress.newest)
            }
            EventType::Bookmark | EventType::Error => return Ok(()),
        };
        self.send(change).await
    }
}

impl Progress {
    /// Advances to a version. Returns false if it is not newer.
    fn advances_to(&mut self, version: Option<&str>) -> bool {
        let number = version.and_then(parsed::version);
        if number.is_some() && number <= self.newest {
            return false;
        }
        self.since = version.map(str::to_owned).or(self.since.take());
        self.newest = number.or(self.newest);
        true
    }
}

/// Rejects the first list that lacks most of the known objects.
fn check_loss(listed: usize, progress: &mut Progress) -> Result<(), Failure> {
    let known = progress.count;
    let lost = known.saturating_sub(listed);
    let is_much = lost >= MAX_LOST_OBJECTS && lost > known / 2;
    if is_much && !progress.needs_confirmation {
        progress.needs_confirmation = true;
        return Err(Failure::LostObjects { listed, known });
    }
    Ok(())
}
