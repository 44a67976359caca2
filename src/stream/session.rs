//! One connected pod: sends what its Gateway's objects are and become, at the pace at which the pod reads, and where the
//! leader is. Keeps no queue: a pod that is slow gets the latest state later.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use super::encode;
use super::hub::{Hub, Next, Session};
use super::message::Update;
use crate::status::lease::Leadership;

/// What a session needs to know beside the feed.
pub(super) struct Outlook {
    /// Revisions of the Gateway's objects; ends with the Gateway.
    pub(super) revisions: watch::Receiver<u64>,
    /// Who leads.
    pub(super) leadership: watch::Receiver<Leadership>,
}

/// Nobody reads any more, or there is nothing to send any more.
struct Ended;

/// Sends until nobody reads `lines`, or the Gateway is gone. The pod has `have` at first.
pub(super) async fn run(
    hub: &Arc<Hub>,
    session: &Session,
    mut outlook: Outlook,
    have: Option<u64>,
    lines: mpsc::Sender<Bytes>,
) {
    let sender = Sender {
        hub,
        session,
        lines,
    };
    let _: Result<(), Ended> = sender.run(&mut outlook, have).await;
}

struct Sender<'a> {
    hub: &'a Arc<Hub>,
    session: &'a Session,
    lines: mpsc::Sender<Bytes>,
}

impl Sender<'_> {
    async fn run(&self, outlook: &mut Outlook, mut have: Option<u64>) -> Result<(), Ended> {
        let mut has_begun = false;
        loop {
            outlook.revisions.borrow_and_update();
            let next = self.hub.next(&self.session.gateway, have);
            if !has_begun && !matches!(next, Next::Everything(..)) {
                self.begin(have).await?;
            }
            let revision = match next {
                Next::Current => have,
                Next::Lines(changes, revision) => {
                    for change in changes {
                        self.send(change).await?;
                    }
                    Some(revision)
                }
                Next::Everything(objects, revision) => {
                    self.begin(None).await?;
                    for chunk in encode::everything(&objects) {
                        self.send(chunk).await?;
                    }
                    self.say(&Update::Commit { revision }).await?;
                    Some(revision)
                }
                Next::Gone => return Ok(()),
            };
            have = revision;
            if !has_begun {
                has_begun = true;
                outlook.leadership.mark_changed();
            }
            self.wait(outlook).await?;
        }
    }

    /// Returns when there may be something to send. Says meanwhile where the leader is.
    async fn wait(&self, outlook: &mut Outlook) -> Result<(), Ended> {
        loop {
            tokio::select! {
                () = self.lines.closed() => return Err(Ended),
                changed = outlook.revisions.changed() => return changed.map_err(|_| Ended),
                Ok(()) = outlook.leadership.changed() => {
                    let address = outlook.leadership.borrow_and_update().leader_address.clone();
                    self.say(&Update::Leader { address }).await?;
                }
            }
        }
    }

    async fn begin(&self, base: Option<u64>) -> Result<(), Ended> {
        let instance = self.hub.instance().to_owned();
        self.say(&Update::Begin { instance, base }).await
    }

    async fn say(&self, update: &Update) -> Result<(), Ended> {
        self.send(encode::update(update)).await
    }

    async fn send(&self, lines: Bytes) -> Result<(), Ended> {
        self.lines.send(lines).await.map_err(|_| Ended)
    }
}
