//! Asks which objects of a scope there are at a moment, and which version is the newest one. Must not know what its watch has seen.

use std::sync::Arc;

use kube::Client;
use tokio::sync::{Notify, mpsc, watch as watched};
use tokio::time::{Instant, sleep};

use super::lister::{Existing, Lister, REDISCOVERY, Served};
use super::message::Message;
use super::moments::{Moment, Requester};
use super::retry::{Failure, Retry};
use super::scope::Scope;
use super::timing::Timing;

/// What is known of the kind of a scope.
#[derive(Default)]
struct Known {
    served: Option<Served>,
    /// Whether it was served when it was asked for the last time.
    was_served: bool,
}

/// The store has ended.
struct Closed;

/// The newest versions of a scope. Ends when either channel is closed.
pub(super) struct Newest {
    pub(super) client: Client,
    pub(super) scope: Scope,
    /// Index of the scope.
    pub(super) number: usize,
    pub(super) timing: Timing,
    /// Notified when the cluster serves the kind.
    pub(super) served: Arc<Notify>,
    pub(super) moments: watched::Receiver<Moment>,
    pub(super) versions: mpsc::Sender<Message>,
}

impl Newest {
    /// Answers for the last moment each time. Under load, one answer is for many moments: requests take at most half of the
    /// time.
    pub(super) async fn run(mut self) {
        let mut retry = Retry::new(self.scope.to_string(), "listed");
        let mut known = Known::default();
        while self.moments.changed().await.is_ok() {
            let began = Instant::now();
            let moment = *self.moments.borrow_and_update();
            match self.find(&mut known).await {
                Ok(Existing { at, newest, keys }) => {
                    retry.on_success();
                    if self.report(&mut retry, None).await.is_err() {
                        return;
                    }
                    let keys = keys.into_iter().collect();
                    let existed = at.map(|at| Message::Existed(self.number, at, keys));
                    let answer = Message::Newest(self.number, moment, newest);
                    for message in existed.into_iter().chain([answer]) {
                        if self.versions.send(message).await.is_err() {
                            return;
                        }
                    }
                    sleep(began.elapsed()).await;
                }
                Err(failure) => {
                    known.served = None;
                    let refusal = failure.refusal("list");
                    if self.report(&mut retry, refusal).await.is_err() {
                        return;
                    }
                    retry.wait_after(&failure).await;
                    self.moments.mark_changed();
                }
            }
        }
    }

    /// Reports why the API server refuses requests, or that it no longer does, if that is new.
    async fn report(&self, retry: &mut Retry, refusal: Option<String>) -> Result<(), Closed> {
        if !retry.is_new_refusal(refusal.as_deref()) {
            return Ok(());
        }
        let message = Message::Refused(self.number, Requester::Newest, refusal);
        self.versions.send(message).await.map_err(|_| Closed)
    }

    /// Returns which objects there are.
    async fn find(&self, known: &mut Known) -> Result<Existing, Failure> {
        let lister = Lister {
            client: &self.client,
            scope: &self.scope,
            response_timeout: self.timing.fetch_wait,
        };
        if known.served.is_none() {
            known.served = lister.discover().await?;
        }
        if known.served.is_none() && known.was_served {
            sleep(REDISCOVERY).await;
            known.served = lister.discover().await?;
        }
        known.was_served = known.served.is_some();
        let Some(served) = &known.served else {
            return Ok(Existing::default());
        };
        self.served.notify_one();
        lister.existing(served).await
    }
}
