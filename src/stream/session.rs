//! The session of one connected pod: sends the objects of its Gateway, their changes and the
//! leader's address at the pod's pace. Has no queue: a slow pod gets the latest state later.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use super::encode;
use super::hub::{Hub, Next, Session};
use super::message::Update;
use crate::status::lease::Leadership;

/// Inputs of a session besides the feed.
pub(super) struct SessionInputs {
    /// Revisions of the Gateway's objects; closed when the Gateway is deleted.
    pub(super) revisions: watch::Receiver<u64>,
    /// Current leader.
    pub(super) leadership: watch::Receiver<Leadership>,
    /// Secret of the Gateway's session tokens.
    pub(super) session_secret: Option<String>,
}

/// The session has ended: the receiver is dropped, or the Gateway is deleted.
struct Ended;

/// Sends until the receiver of `lines` is dropped or the Gateway is deleted. `have` is the pod's
/// revision.
pub(super) async fn run(
    hub: &Arc<Hub>,
    session: &Session,
    mut inputs: SessionInputs,
    have: Option<u64>,
    lines: mpsc::Sender<Bytes>,
) {
    let sender = Sender {
        hub,
        session,
        session_secret: inputs.session_secret.take(),
        lines,
    };
    let _: Result<(), Ended> = sender.run(&mut inputs, have).await;
}

struct Sender<'a> {
    hub: &'a Arc<Hub>,
    session: &'a Session,
    session_secret: Option<String>,
    lines: mpsc::Sender<Bytes>,
}

impl Sender<'_> {
    async fn run(&self, inputs: &mut SessionInputs, mut have: Option<u64>) -> Result<(), Ended> {
        let mut has_begun = false;
        loop {
            inputs.revisions.borrow_and_update();
            let next = self.hub.next(&self.session.gateway, have);
            if !has_begun && !matches!(next, Next::FullState(..)) {
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
                Next::FullState(objects, revision) => {
                    self.begin(None).await?;
                    for chunk in encode::full_state(&objects) {
                        self.send(chunk).await?;
                    }
                    self.send_update(&Update::Commit { revision }).await?;
                    Some(revision)
                }
                Next::Gone => return Ok(()),
            };
            have = revision;
            if !has_begun {
                has_begun = true;
                inputs.leadership.mark_changed();
            }
            self.wait(inputs).await?;
        }
    }

    /// Waits until there may be an update to send. Sends leader changes meanwhile.
    async fn wait(&self, inputs: &mut SessionInputs) -> Result<(), Ended> {
        loop {
            tokio::select! {
                () = self.lines.closed() => return Err(Ended),
                changed = inputs.revisions.changed() => return changed.map_err(|_| Ended),
                Ok(()) = inputs.leadership.changed() => {
                    let address = inputs.leadership.borrow_and_update().leader_address.clone();
                    self.send_update(&Update::Leader { address }).await?;
                }
            }
        }
    }

    async fn begin(&self, base: Option<u64>) -> Result<(), Ended> {
        let instance = self.hub.instance().to_owned();
        self.send_update(&Update::Begin { instance, base }).await?;
        match self.session_secret.clone() {
            Some(secret) => self.send_update(&Update::SessionSecret { secret }).await,
            None => Ok(()),
        }
    }

    async fn send_update(&self, update: &Update) -> Result<(), Ended> {
        self.send(encode::update(update)).await
    }

    async fn send(&self, lines: Bytes) -> Result<(), Ended> {
        self.lines.send(lines).await.map_err(|_| Ended)
    }
}
